/* Life of a recorder: its file, the waits that the watchdog may end, the verdict. SPDX-License-Identifier:
 * Apache-2.0 */
#include "record/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"
#include "record/recorder_state.h"
#include "record/system.h"
#include "record/versions.h"
#include "record/watch.h"

/* ---- layout ----------------------------------------------------------------------------------------------------- */

enum {
    GROUPS = 64,
    LISTS = 16,
    PEERS_MAX = 4096,
    TEXTS = 512,
    SEGMENTS = 64,
    OPS = 512,
    EVENTS = 1024,
    LANES = 255,
    PAGE = 4096,
    SLOTS_MAX = 32,
    SLOTS_MIN = 12,
    SLOTS_BYTES = 128 * 1024 /* of words per peer, where that leaves enough slots */
};

static uint64_t take(uint64_t *end, uint64_t bytes)
{
    uint64_t offset = *end;
    *end = (offset + bytes + 63) & ~(uint64_t)63;
    return offset;
}

/* Limits and offsets of a job of `ranks` ranks: under 4 MiB for any number. */
static void lay_out(epx_record_head_t *head, int32_t ranks)
{
    uint64_t end = EPX_RECORD_HEAD_BYTES;
    uint32_t peers = ranks < PEERS_MAX ? (uint32_t)ranks : PEERS_MAX;
    uint32_t slots = SLOTS_BYTES / (peers * (uint32_t)sizeof(epx_record_peer_t));
    head->groups_max = GROUPS;
    head->lists_max = LISTS;
    head->peers_max = peers;
    head->truncated_peers = ranks > PEERS_MAX;
    head->texts_max = TEXTS;
    head->segments_max = SEGMENTS;
    head->ops_max = OPS;
    head->events_max = EVENTS;
    head->slots_max = slots > SLOTS_MAX ? SLOTS_MAX : slots < SLOTS_MIN ? SLOTS_MIN : slots;
    head->progress_bytes = (uint32_t)(sizeof(epx_record_progress_t) + peers * sizeof(epx_record_peer_t));
    head->groups_at = take(&end, GROUPS * sizeof(epx_record_group_row_t));
    head->members_at = take(&end, (uint64_t)LISTS * peers * sizeof(int32_t));
    head->texts_at = take(&end, TEXTS * sizeof(epx_record_text_row_t));
    head->segments_at = take(&end, SEGMENTS * sizeof(epx_record_segment_row_t));
    head->ops_at = take(&end, OPS * sizeof(epx_record_operation_t));
    head->progress_at = take(&end, (uint64_t)head->slots_max * head->progress_bytes);
    head->events_at = take(&end, EVENTS * sizeof(epx_record_event_t));
    head->links_max = EPX_RECORD_LINKS;
    head->links_at = take(&end, EPX_RECORD_LINKS * sizeof(epx_record_link_row_t));
    end = (end + PAGE - 1) & ~(uint64_t)(PAGE - 1); /* a device maps whole pages */
    head->lanes_max = LANES;
    head->device_at = take(&end, sizeof(epx_record_device_t) + LANES * sizeof(epx_record_lane_row_t));
    head->file_bytes = (end + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static void fill_head(epx_record_head_t *head, const epx_recorder_set_up_t *s)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    head->magic = EPX_RECORD_MAGIC;
    head->format = EPX_RECORD_FORMAT;
    head->head_bytes = EPX_RECORD_HEAD_BYTES;
    epx_put_text(head->job, sizeof(head->job), s->job);
    head->rank = s->rank;
    head->ranks = s->ranks;
    head->domain = s->domain;
    head->domains = s->domains > 0 ? s->domains : 1;
    head->device = s->device;
    head->pid = (int32_t)getpid();
    head->thread = epx_system_thread();
    head->pid_space = epx_system_pid_space();
    head->boot = epx_system_boot();
    if (s->host != NULL)
        epx_put_text(head->host, sizeof(head->host), s->host);
    else if (gethostname(head->host, sizeof(head->host) - 1) != 0)
        epx_put_text(head->host, sizeof(head->host), "?");
    epx_put_text(head->program, sizeof(head->program), s->program);
    snprintf(head->compiled, sizeof(head->compiled), "%d.%d.%d", EPX_VERSION_MAJOR, EPX_VERSION_MINOR,
             EPX_VERSION_PATCH);
    epx_put_text(head->loaded, sizeof(head->loaded), epx_version());
    epx_versions_find(head);
    head->opened_ns = epx_clock_ns();
    head->opened_realtime_ns = (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
    head->hang_ms = s->hang_ms;
    head->timeout_ms = s->timeout_ms;
    epx_put_text(head->phase_name, sizeof(head->phase_name), "init");
    head->phase_ns = head->moved_ns = head->mark_ns = head->heartbeat_ns = head->opened_ns;
    head->texts = 1;
    epx_put32(&head->life, EPX_RECORD_OPENED);
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static epx_status_t no_file(const char *path, int64_t bytes, const char *what, int error)
{
    return epx_fail(error == ENOSPC || error == ENOMEM ? EPX_ERR_NO_MEMORY : EPX_ERR_ARG,
                    "the flight recorder's file %s (%" PRId64
                    " bytes) cannot be %s: %s; name another folder with EPX_RECORD, or set it to off",
                    path, bytes, what, strerror(error));
}

/* The pages are taken at once: a full file system is an error here, not a signal later. The name appears when
 * the file can be read; what another run has left under it stays beside as .old. */
static epx_status_t make_file(epx_recorder_h r, const epx_recorder_set_up_t *s, const epx_record_head_t *head)
{
    char before[sizeof(r->path) + 32], old[sizeof(r->path) + 8];
    int error = epx_system_make_folder(s->folder);
    if (error != 0)
        return no_file(s->folder, r->bytes, "made", error);
    snprintf(r->path, sizeof(r->path), "%s/rank%05d" EPX_RECORD_SUFFIX, s->folder, s->rank);
    snprintf(before, sizeof(before), "%s/.rank%05d.%d.%d", s->folder, s->rank, (int)getpid(),
             epx_system_thread());
    snprintf(old, sizeof(old), "%s.old", r->path);
    int file = open(before, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return no_file(before, r->bytes, "made", errno);
    error = posix_fallocate(file, 0, (off_t)r->bytes);
    if (error == 0) {
        r->base = mmap(NULL, (size_t)r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        error = r->base == MAP_FAILED ? errno : 0;
        r->seen = mmap(NULL, (size_t)r->bytes, PROT_READ, MAP_SHARED, file, 0);
        if (r->seen == MAP_FAILED) {
            error = error != 0 ? error : errno;
            r->seen = NULL;
        }
    }
    close(file);
    if (error != 0) {
        if (r->base == MAP_FAILED)
            r->base = NULL;
        unlink(before);
        return no_file(r->path, r->bytes, "filled", error);
    }
    memcpy(r->base, head, sizeof(*head));
    if (rename(r->path, old) != 0 && errno != ENOENT)
        error = errno;
    if (rename(before, r->path) == 0)
        return EPX_OK;
    error = errno;
    unlink(before);
    return no_file(r->path, r->bytes, "named", error);
}

static epx_status_t make_memory(epx_recorder_h r, const epx_recorder_set_up_t *s,
                                const epx_record_head_t *head)
{
    if (s->folder[0] != '\0')
        return make_file(r, s, head);
    r->base = mmap(NULL, (size_t)r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r->base == MAP_FAILED) {
        r->base = NULL;
        return epx_fail(EPX_ERR_NO_MEMORY, "no memory for a recorder's %" PRId64 " bytes", r->bytes);
    }
    memcpy(r->base, head, sizeof(*head));
    return EPX_OK;
}

static void free_recorder(epx_recorder_h r)
{
    /* A device that is stuck may still write, and letting go of the pages would wait for it. */
    int stuck = r->device.mapped != NULL && r->verdict.kind != EPX_VERDICT_NONE;
    if (r->device.mapped != NULL && !stuck)
        r->device.release(r->device.context, r->device_pages);
    if (r->base != NULL && !stuck)
        munmap(r->base, (size_t)r->bytes);
    if (r->seen != NULL)
        munmap((void *)(uintptr_t)r->seen, (size_t)r->bytes);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->link_lock);
    free(r->last);
    free(r->counted);
    free(r->own);
    free(r->summary);
    free(r);
}

epx_status_t epx_recorder_open(const epx_recorder_set_up_t *s, epx_recorder_h *recorder_p)
{
    epx_record_head_t head = {0};
    if (s->ranks < 1 || s->rank < 0 || s->rank >= s->ranks)
        return epx_fail(EPX_ERR_ARG, "epx_record_open: rank %d of %d ranks cannot be", s->rank, s->ranks);
    if (strlen(s->folder) >= EPX_RECORDER_PATH_BYTES - 32)
        return epx_fail(EPX_ERR_ARG, "epx_record_open: the folder's name is longer than %d bytes",
                        EPX_RECORDER_PATH_BYTES - 32);
    epx_recorder_h r = calloc(1, sizeof(*r));
    if (r == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "no memory for a recorder");
    pthread_mutex_init(&r->lock, NULL);
    pthread_mutex_init(&r->link_lock, NULL);
    r->last = calloc((size_t)GROUPS * EPX_RECORDER_CHANNELS, sizeof(*r->last));
    r->counted = calloc(GROUPS, sizeof(*r->counted));
    lay_out(&head, s->ranks);
    fill_head(&head, s);
    r->bytes = (int64_t)head.file_bytes;
    epx_status_t status = r->last != NULL && r->counted != NULL
                              ? make_memory(r, s, &head)
                              : epx_fail(EPX_ERR_NO_MEMORY, "no memory for a recorder");
    if (status != EPX_OK) {
        free_recorder(r);
        return status;
    }
    r->head = (epx_record_head_t *)(void *)r->base;
    r->groups = (epx_record_group_row_t *)(void *)(r->base + head.groups_at);
    r->ops = (epx_record_operation_t *)(void *)(r->base + head.ops_at);
    r->events = (epx_record_event_t *)(void *)(r->base + head.events_at);
    r->progress = r->base + head.progress_at;
    r->device_pages = r->base + head.device_at;
    r->find_device = s->find_device;
    r->use = s->use;
    r->keeps = s->keeps;
    r->watched = s->watched;
    r->knows_domain = s->domains > 0;
    r->on_hang = s->on_hang;
    r->verdict = (epx_verdict_t)EPX_VERDICT_INIT;
    epx_put_text(r->folder, sizeof(r->folder), s->folder);
    epx_put_text(r->failover, sizeof(r->failover), s->failover);
    epx_put_text(r->command, sizeof(r->command), s->on_hang_cmd);
    epx_put_text(r->dump_pipe, sizeof(r->dump_pipe), s->dump_pipe);
    epx_put_text(r->dump_file, sizeof(r->dump_file), s->dump_file);
    if (s->watched)
        epx_watch_add(r);
    *recorder_p = r;
    return EPX_OK;
}

void epx_recorder_close(epx_recorder_h *recorder_p)
{
    if (recorder_p == NULL || *recorder_p == NULL)
        return;
    epx_recorder_h r = *recorder_p;
    *recorder_p = NULL;
    if (r->watched)
        epx_watch_remove(r);
    epx_put32(&r->head->life, EPX_RECORD_CLOSED);
    if (r->folder[0] != '\0' && !r->keeps && r->verdict.kind == EPX_VERDICT_NONE) {
        unlink(r->path);
        rmdir(r->folder); /* the last rank's succeeds */
    }
    free_recorder(r);
}

const void *epx_recorder_bytes(epx_recorder_h recorder, size_t *bytes_p)
{
    *bytes_p = recorder != NULL ? (size_t)recorder->bytes : 0;
    return recorder != NULL ? recorder->base : NULL;
}

void epx_recorder_domain(epx_recorder_h r, int32_t domain)
{
    if (r != NULL && domain >= 0 && !r->knows_domain)
        r->head->domain = domain;
    if (r != NULL)
        r->knows_domain = 1;
}

void epx_recorder_budgets(epx_recorder_h r, int64_t hang_ms, int64_t timeout_ms)
{
    if (r == NULL)
        return;
    epx_put_time(&r->head->hang_ms, hang_ms);
    epx_put_time(&r->head->timeout_ms, timeout_ms);
}

int32_t epx_recorder_rank(epx_recorder_h r) { return r != NULL ? r->head->rank : 0; }

const char *epx_record_folder(epx_recorder_h recorder) { return recorder != NULL ? recorder->folder : ""; }

/* ---- waits that the watchdog may end ---------------------------------------------------------------------------- */

int32_t epx_recorder_on_end(epx_recorder_h r, epx_recorder_end_fn fn, void *context, int32_t is_comm)
{
    int32_t handle = 0;
    if (r == NULL)
        return 0;
    pthread_mutex_lock(&r->lock);
    while (handle < EPX_RECORDER_ENDS && r->end[handle].fn != NULL)
        handle++;
    if (handle < EPX_RECORDER_ENDS)
        r->end[handle] = (epx_recorder_ending_t){.fn = fn, .context = context, .is_comm = is_comm};
    pthread_mutex_unlock(&r->lock);
    return handle < EPX_RECORDER_ENDS ? handle + 1 : 0;
}

void epx_recorder_forget(epx_recorder_h r, int32_t handle)
{
    if (r == NULL || handle < 1 || handle > EPX_RECORDER_ENDS)
        return;
    pthread_mutex_lock(&r->lock);
    r->end[handle - 1] = (epx_recorder_ending_t){0};
    pthread_mutex_unlock(&r->lock);
}

/* ---- verdicts --------------------------------------------------------------------------------------------------- */

epx_status_t epx_record_verdict(epx_recorder_h r, epx_verdict_t *verdict_p)
{
    if (verdict_p == NULL || verdict_p->size < sizeof(*verdict_p))
        return epx_fail(EPX_ERR_ARG, "epx_record_verdict: begin the answer with EPX_VERDICT_INIT");
    epx_verdict_t none = EPX_VERDICT_INIT;
    if (r != NULL) {
        pthread_mutex_lock(&r->lock);
        none = r->verdict;
        pthread_mutex_unlock(&r->lock);
    }
    none.size = verdict_p->size;
    *verdict_p = none;
    return EPX_OK;
}

void epx_record_verdict_clear(epx_recorder_h r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&r->lock);
    epx_put_time(&r->cleared_ns, epx_clock_ns());
    r->verdict = (epx_verdict_t)EPX_VERDICT_INIT;
    pthread_mutex_unlock(&r->lock);
}
