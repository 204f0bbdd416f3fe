/* EPX_STATS: sums per step, one JSON line each. SPDX-License-Identifier: Apache-2.0 */
#include "core/stats.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/decimal.h"
#include "base/fail.h"
#include "transport/common.h"

/* The counters are int64 throughout, so that sums and differences are loops. */
enum { TALLY_COUNTERS = sizeof(epx_tally_t) / sizeof(int64_t) };

/* The counts of a plan's route. They are in its bytes; where the host cannot look there, they are what the
 * device has told by now. */
static void add_counts(const struct epx_plan *plan, epx_tally_t *tally)
{
    const epx_route_report_t *report = plan->base.report;
    if (!epx_group_is_remote(plan->group)) {
        const epx_plan_head_t *head = epx_plan_head(&plan->base);
        tally->routed = head->routed;
        tally->skipped = head->skipped;
        tally->kept = head->kept;
        tally->spilled = head->spilled;
        tally->dropped_sender = head->dropped_sender;
        tally->dropped_receiver = head->dropped_receiver;
    } else if (epx_route_is_told(&plan->base)) {
        tally->routed = report->routed;
        tally->skipped = report->skipped;
        tally->kept = report->kept;
        tally->spilled = report->spilled;
        tally->dropped_sender = report->dropped_sender;
        tally->dropped_receiver = report->dropped_receiver;
    }
}

static epx_tally_t tally_of(struct epx_plan *plan)
{
    epx_transport_t *transport = plan->group->transport;
    transport->ops->account(transport, &plan->base);
    epx_tally_t tally = {.sent_bytes = plan->base.sent_bytes,
                         .received_bytes = plan->base.received_bytes,
                         .sent_meta_bytes = plan->base.sent_meta_bytes,
                         .received_meta_bytes = plan->base.received_meta_bytes,
                         .wait_ns = plan->base.wait_ns};
    if (plan->base.head.valid == 1 && !plan->base.attached)
        add_counts(plan, &tally);
    return tally;
}

void epx_tally_fold(struct epx_plan *plan)
{
    epx_group_t *group = plan->group;
    if (group == NULL || plan->base.bytes == NULL)
        return;
    epx_tally_t now = tally_of(plan);
    int64_t *sum = (int64_t *)&group->tally, *old = (int64_t *)&plan->folded;
    const int64_t *new = (const int64_t *)&now;
    for (int32_t i = 0; i < TALLY_COUNTERS; i++)
        sum[i] += new[i] - old[i];
    plan->folded = now;
    if (plan->base.wait_longest_ns > group->wait_longest_ns) {
        group->wait_longest_ns = plan->base.wait_longest_ns;
        group->wait_peer = plan->base.wait_peer;
    }
}

static const char *path_of(const epx_fabric_t *fabric)
{
    static const struct {
        const char *fabric, *path;
    } paths[] = {{"local", "stores in one process"},
                 {"nccl", "stores through NCCL windows"},
                 {"ucx", "stores into memory that the host's processes share"}};
    if ((fabric->caps & EPX_FABRIC_LOADSTORE) == 0)
        return "messages";
    for (size_t i = 0; i < sizeof(paths) / sizeof(*paths); i++)
        if (strcmp(paths[i].fabric, fabric->ops->name) == 0)
            return paths[i].path;
    return "stores";
}

epx_paths_t epx_group_paths(const epx_group_t *group, int64_t sent_bytes)
{
    epx_paths_t paths = {.stored_bytes = group->stored_bytes,
                         .message_bytes = group->message_bytes + group->fabric->message_bytes,
                         .path = path_of(group->fabric)};
    if ((group->fabric->caps & EPX_FABRIC_LOADSTORE) != 0)
        paths.stored_bytes += sent_bytes - group->sent_bytes_before;
    return paths;
}

enum { STATS_PATH_BYTES = EPX_CONFIG_TEXT_BYTES + 128 };

static void stats_path(const epx_group_t *group, char *path)
{
    char name[sizeof(group->name)];
    snprintf(name, sizeof(name), "%s", group->name);
    for (char *at = name; *at != '\0'; at++)
        if (*at == '/' || (unsigned char)*at < ' ')
            *at = '_';
    snprintf(path, STATS_PATH_BYTES, "%s/%s-rank%d.jsonl", group->selection.settings.stats, name,
             group->rank);
}

static epx_status_t no_stats(const epx_group_t *group, const char *path, int error)
{
    return epx_fail(EPX_ERR_ARG, "EPX_STATS=%s: %s cannot be written: %s; name another folder, or unset it",
                    group->selection.settings.stats, path, strerror(error));
}

epx_status_t epx_stats_check(const epx_group_t *group)
{
    const char *folder = group->selection.settings.stats;
    char path[STATS_PATH_BYTES];
    if (folder[0] == '\0' || group->stats_file != NULL)
        return EPX_OK;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return epx_fail(EPX_ERR_ARG, "EPX_STATS=%s: the folder cannot be made: %s; name another, or unset it",
                        folder, strerror(errno));
    stats_path(group, path);
    /* What is there already may be no file; what is not there must be made some day. */
    int file = open(path, O_WRONLY | O_APPEND | O_NONBLOCK | O_CLOEXEC), error = errno;
    if (file < 0 && error == ENOENT && access(folder, W_OK | X_OK) == 0)
        return EPX_OK;
    if (file < 0)
        return no_stats(group, path, error == ENOENT ? errno : error);
    close(file);
    return EPX_OK;
}

static epx_status_t open_stats(epx_group_t *group)
{
    char path[STATS_PATH_BYTES];
    stats_path(group, path);
    group->stats_file = fopen(path, "ae");
    return group->stats_file != NULL ? EPX_OK : no_stats(group, path, errno);
}

/* The longest wait of a plan begins anew, for the step that begins; what epx_plan_stats tells goes on. */
static void end_waits(struct epx_plan *plan)
{
    if (plan->base.wait_longest_ns > plan->wait_before_ns) {
        plan->wait_before_ns = plan->base.wait_longest_ns;
        plan->wait_before_peer = plan->base.wait_peer;
    }
    plan->base.wait_longest_ns = 0;
    plan->base.wait_peer = -1;
}

/* What has passed since the last cut, and a new cut. */
static epx_tally_t cut(epx_group_t *group, int64_t *wait_ns_max_p, int32_t *wait_peer_p)
{
    for (struct epx_plan *plan = group->plans; plan != NULL; plan = plan->next) {
        epx_tally_fold(plan);
        end_waits(plan);
    }
    epx_tally_t step, *now = &group->tally, *old = &group->last_step;
    if (group->fabric != NULL)
        now->message_bytes = epx_group_paths(group, 0).message_bytes;
    for (int32_t i = 0; i < TALLY_COUNTERS; i++)
        ((int64_t *)&step)[i] = ((int64_t *)now)[i] - ((int64_t *)old)[i];
    *old = *now;
    *wait_ns_max_p = group->wait_longest_ns;
    *wait_peer_p = group->wait_longest_ns > 0 ? group->wait_peer : -1;
    group->wait_longest_ns = 0;
    return step;
}

epx_status_t epx_step_discard(epx_group_h group)
{
    int64_t wait_ns_max;
    int32_t wait_peer;
    if (group == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_step_discard: group is NULL");
    cut(group, &wait_ns_max, &wait_peer);
    return EPX_OK;
}

/* Bytes of the UTF-8 character that begins there; 0: none does. */
static size_t character_bytes(const unsigned char *at)
{
    size_t bytes = at[0] < 0x80 ? 1 : at[0] >= 0xC2 && at[0] < 0xE0 ? 2 : (at[0] & 0xF0) == 0xE0 ? 3 : 0;
    if (bytes == 0 && at[0] >= 0xF0 && at[0] < 0xF5)
        bytes = 4;
    for (size_t i = 1; i < bytes; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    return bytes;
}

/* The group's name as a JSON string has it, to [JSON_NAME_BYTES]. What is no UTF-8 becomes a question mark.
 */
enum { JSON_NAME_BYTES = 6 * 64 };

static void json_name(const epx_group_t *group, char *to)
{
    for (const unsigned char *at = (const unsigned char *)group->name; *at != '\0';) {
        size_t bytes = character_bytes(at);
        if (bytes == 1 && *at < ' ')
            to += snprintf(to, 7, "\\u%04x", *at);
        else if (bytes == 1 && (*at == '"' || *at == '\\'))
            to += snprintf(to, 3, "\\%c", *at);
        else if (bytes == 0)
            *to++ = '?';
        for (size_t i = 0; i < bytes && *at >= ' ' && *at != '"' && *at != '\\'; i++)
            *to++ = (char)at[i];
        at += bytes > 0 ? bytes : 1;
    }
    *to = '\0';
}

static void write_line(epx_group_t *group, int64_t number, const epx_tally_t *step, int64_t wait_ns_max,
                       int32_t wait_peer)
{
    char name[JSON_NAME_BYTES];
    json_name(group, name);
    locale_t before = epx_decimal_begin();
    int written = fprintf(
        group->stats_file,
        "{\"step\": %" PRId64
        ", \"group\": \"%s\", \"rank\": %d, \"ranks\": %d, \"transport\": \"%s\", \"fabric\": \"%s\", "
        "\"routed\": %" PRId64 ", \"skipped\": %" PRId64 ", \"kept\": %" PRId64 ", \"spilled\": %" PRId64
        ", \"dropped_sender\": %" PRId64 ", \"dropped_receiver\": %" PRId64 ", \"sent_bytes\": %" PRId64
        ", \"received_bytes\": %" PRId64 ", \"sent_meta_bytes\": %" PRId64
        ", \"received_meta_bytes\": %" PRId64 ", \"path\": \"%s\", \"message_bytes\": %" PRId64
        ", \"wait_ms\": %.3f, \"wait_ms_max\": %.3f, \"wait_peer\": %d}\n",
        number, name, group->rank, group->ranks, group->selection.transport->name,
        group->selection.fabric->name, step->routed, step->skipped, step->kept, step->spilled,
        step->dropped_sender, step->dropped_receiver, step->sent_bytes, step->received_bytes,
        step->sent_meta_bytes, step->received_meta_bytes,
        group->fabric != NULL ? epx_group_paths(group, 0).path : "", step->message_bytes,
        (double)step->wait_ns * 1e-6, (double)wait_ns_max * 1e-6, wait_peer);
    epx_decimal_end(before);
    if ((written >= 0 && fflush(group->stats_file) == 0) || group->stats_lost)
        return;
    group->stats_lost = 1;
    epx_log(EPX_LOG_WARN, "stats",
            "%s: EPX_STATS=%s: the line of step %" PRId64
            " cannot be written (%s): lines are missing from here "
            "on; check the space",
            group->name, group->selection.settings.stats, number, strerror(errno));
}

epx_status_t epx_step(epx_group_h group)
{
    if (group == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_step: group is NULL");
    int64_t number = group->steps++, wait_ns_max;
    int32_t wait_peer;
    epx_recorder_step(group->recorder);
    epx_tally_t step = cut(group, &wait_ns_max, &wait_peer);
    if (group->selection.settings.stats[0] == '\0')
        return EPX_OK;
    if (group->stats_file == NULL) {
        epx_status_t status = open_stats(group);
        if (status != EPX_OK)
            return status;
    }
    write_line(group, number, &step, wait_ns_max, wait_peer);
    return EPX_OK;
}

void epx_stats_close(epx_group_t *group)
{
    if (group->stats_file != NULL)
        fclose(group->stats_file);
    group->stats_file = NULL;
}
