/* What a reproduction lacks, compared with a recorded run: both are read from records.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "tools/common/program.h"
#include "tools/repro/records.h"

enum { NAMES = 24 };

/* What can be compared. */
typedef struct profile {
    int32_t ranks, domains, hosts, devices, groups, comms, largest_group, lanes, waves, segments,
        device_words;
    int64_t segment_bytes;
    char program[64], compiled[32], loaded[32], nccl[128], ucx[128], driver[64];
    char group[NAMES][128]; /* "name: transport over fabric, n ranks" */
    char kind[NAMES][56];
    int32_t kinds;
} profile_t;

static int32_t add_name(char *names, size_t bytes, int32_t count, const char *name)
{
    for (int32_t i = 0; i < count; i++)
        if (strcmp(names + (size_t)i * bytes, name) == 0)
            return count;
    if (count < NAMES)
        snprintf(names + (size_t)count * bytes, bytes, "%s", name);
    return count < NAMES ? count + 1 : count;
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static void read_groups(const void *record, profile_t *p)
{
    const epx_record_head_t *head = record;
    for (uint32_t i = 0; i < head->groups_max; i++) {
        const epx_record_group_row_t *row = epx_record_group_row(record, i);
        char text[128];
        if (row == NULL)
            continue;
        if (row->is_comm) {
            snprintf(text, sizeof(text), "communicator of %d ranks", row->ranks);
            p->comms = larger(p->comms, 1);
        } else {
            snprintf(text, sizeof(text), "group of %d ranks: %.23s over %.15s", row->ranks, row->transport,
                     row->fabric);
            p->largest_group = larger(p->largest_group, row->ranks);
        }
        p->groups = add_name(p->group[0], sizeof(p->group[0]), p->groups, text);
    }
}

static void read_operations(const void *record, profile_t *p)
{
    const epx_record_head_t *head = record;
    uint64_t newest = head->operations;
    for (uint64_t n = records_oldest(head); n <= newest; n++) {
        epx_record_operation_t op;
        const epx_record_peer_t *peers;
        if (!epx_record_operation(record, n, &op))
            continue;
        p->kinds = add_name(p->kind[0], sizeof(p->kind[0]), p->kinds, epx_record_kind_of(record, &op));
        p->lanes = larger(p->lanes, op.lane + 1);
        p->waves = larger(p->waves, op.wave + 1);
        const epx_record_progress_t *progress = epx_record_progress(record, &op, &peers);
        p->device_words |= progress != NULL && progress->blocks != 0;
    }
}

static void read_segments(const void *record, profile_t *p)
{
    const epx_record_head_t *head = record;
    const epx_record_segment_row_t *rows = (const void *)((const char *)record + head->segments_at);
    int32_t segments = 0;
    int64_t bytes = 0;
    for (uint32_t i = 0; i < head->segments_max; i++) {
        segments += rows[i].bytes != 0;
        bytes += (int64_t)rows[i].bytes;
    }
    p->segments = larger(p->segments, segments);
    p->segment_bytes = bytes > p->segment_bytes ? bytes : p->segment_bytes;
}

static profile_t profile_of(const records_t *records)
{
    profile_t p = {.ranks = records->ranks};
    char host[NAMES][64];
    for (int32_t r = 0; r < records->ranks; r++) {
        const epx_record_head_t *head = records_head(records, r);
        if (head == NULL)
            continue;
        p.domains = larger(p.domains, larger(head->domains, head->domain + 1));
        p.hosts = add_name(host[0], sizeof(host[0]), p.hosts, head->host);
        p.devices = larger(p.devices, head->device + 1);
        snprintf(p.program, sizeof(p.program), "%.63s", head->program);
        snprintf(p.compiled, sizeof(p.compiled), "%.31s", head->compiled);
        snprintf(p.loaded, sizeof(p.loaded), "%.31s", head->loaded);
        snprintf(p.nccl, sizeof(p.nccl), "%.127s", head->nccl);
        snprintf(p.ucx, sizeof(p.ucx), "%.127s", head->ucx);
        snprintf(p.driver, sizeof(p.driver), "%.63s", head->driver);
        read_groups(head, &p);
        read_operations(head, &p);
        read_segments(head, &p);
    }
    return p;
}

static int32_t lack_number(const char *what, int64_t there, int64_t here)
{
    if (here >= there)
        return 0;
    printf("lacks    %-16s %lld there, %lld here\n", what, (long long)there, (long long)here);
    return 1;
}

static int32_t lack_text(const char *what, const char *there, const char *here)
{
    if (strcmp(there, here) == 0)
        return 0;
    if (there[0] == '\0') { /* an earlier version of epx has recorded it */
        printf("untold   %-16s not recorded there, \"%s\" here\n", what, here);
        return 0;
    }
    printf("differs  %-16s \"%s\" there, \"%s\" here\n", what, there, here);
    return 1;
}

static int32_t lack_names(const char *what, const char *there, int32_t there_count, const char *here,
                          int32_t here_count, size_t bytes)
{
    int32_t lacking = 0;
    for (int32_t i = 0; i < there_count; i++) {
        int found = 0;
        for (int32_t k = 0; k < here_count; k++)
            found |= strcmp(there + (size_t)i * bytes, here + (size_t)k * bytes) == 0;
        if (!found)
            printf("lacks    %-16s %s\n", what, there + (size_t)i * bytes);
        lacking += !found;
    }
    return lacking;
}

static int32_t compare(const profile_t *there, const profile_t *here)
{
    int32_t n = 0;
    n += lack_number("ranks", there->ranks, here->ranks);
    n += lack_number("domains", there->domains, here->domains);
    n += lack_number("hosts", there->hosts, here->hosts);
    n += lack_number("ranks of a group", there->largest_group, here->largest_group);
    n += lack_number("windows", there->segments, here->segments);
    n += lack_number("window bytes", there->segment_bytes, here->segment_bytes);
    n += lack_number("lanes in use", there->lanes, here->lanes);
    n += lack_number("waves", there->waves, here->waves);
    n += lack_number("device words", there->device_words, here->device_words);
    n += lack_names("communicator", there->group[0], there->groups, here->group[0], here->groups,
                    sizeof(there->group[0]));
    n +=
        lack_names("calls", there->kind[0], there->kinds, here->kind[0], here->kinds, sizeof(there->kind[0]));
    n += lack_text("program", there->program, here->program);
    n += lack_text("epx compiled", there->compiled, here->compiled);
    n += lack_text("epx loaded", there->loaded, here->loaded);
    n += lack_text("NCCL", there->nccl, here->nccl);
    n += lack_text("UCX", there->ucx, here->ucx);
    n += lack_text("driver", there->driver, here->driver);
    return n;
}

int repro_against(const char *folder, const settings_t *settings)
{
    static const scenario_t plain = {.name = "against", .fault = "none", .expected = "none"};
    records_t there, here;
    play_t play;
    outcome_t outcome;
    int32_t lines;
    int code = records_open(folder, &there);
    if (code == EPX_EXIT_OK)
        code = play_apart(&plain, settings, 0, &outcome, &lines, &play);
    if (code == EPX_EXIT_OK && (outcome.wrong || outcome.completed < play.ranks))
        code = epx_tool_fail(EPX_EXIT_FAILED, "this reproduction did not come to its end: %s", outcome.text);
    if (code == EPX_EXIT_OK)
        code = records_open(play.folder, &here);
    if (code != EPX_EXIT_OK)
        return code;
    profile_t recorded = profile_of(&there), mine = profile_of(&here);
    printf("%s: %d of %d ranks recorded, program %s\n", folder, there.found, there.ranks, recorded.program);
    int32_t lacking = compare(&recorded, &mine);
    printf("%d thing%s that the recorded run had and this reproduction has not or has otherwise\n", lacking,
           lacking == 1 ? "" : "s");
    return EPX_EXIT_OK;
}
