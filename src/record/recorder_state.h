/* The inside of a recorder. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_RECORDER_STATE_H
#define EPX_RECORD_RECORDER_STATE_H

#include <pthread.h>
#include <stdio.h>

#include "record/recorder_types.h"

enum { EPX_RECORDER_ENDS = 64 };

/* A wait that the watchdog may end. */
typedef struct epx_recorder_ending {
    epx_recorder_end_fn fn; /* NULL: free */
    void *context;
    int32_t is_comm;
} epx_recorder_ending_t;

struct epx_recorder {
    uint8_t *base;
    const uint8_t *seen; /* the same pages once more, read-only: what the watchdog's thread looks at */
    epx_record_head_t *head;
    epx_record_group_row_t *groups;
    epx_record_operation_t *ops;
    epx_record_event_t *events;
    uint8_t *progress;
    uint8_t *device_pages;
    epx_recorder_device_t device; /* mapped NULL: none writes */
    void (*find_device)(epx_recorder_h recorder);
    int (*use)(int32_t device, epx_recorder_use_t *use_p);
    epx_recorder_notes_t notes;
    int64_t told_ns; /* last put a summary */
    void *own;       /* epx_looked_at_t: this rank's thread, while it is asked */
    void *summary;   /* room for one */

    /* The rank's thread alone. */
    uint64_t current; /* number of the operation that calls from below belong to; 0: none */
    epx_record_operation_t *op;
    epx_record_progress_t *now;
    uint32_t next_slot;
    uint64_t taken;    /* bit i: slot i belongs to an operation that has not ended */
    uint64_t *last;    /* [groups_max][EPX_RECORDER_CHANNELS] epoch of the last good wait */
    uint64_t *counted; /* [groups_max] operations of foreign groups */

    /* Set-up. */
    int64_t bytes;
    char folder[EPX_RECORDER_PATH_BYTES], path[EPX_RECORDER_PATH_BYTES + 64];
    int32_t keeps, watched, knows_domain;
    epx_on_hang_t on_hang;
    char failover[64], command[512];
    char dump_pipe[EPX_RECORDER_PATH_BYTES], dump_file[EPX_RECORDER_PATH_BYTES]; /* pipe "": none */
    pthread_mutex_t lock; /* of the two below; never held across a wait, but while a wait is being ended */
    epx_recorder_ending_t end[EPX_RECORDER_ENDS];
    pthread_mutex_t link_lock; /* of the link events: a monitor's thread beside the rank's */
    epx_verdict_t verdict;
    int64_t cleared_ns;        /* when the last verdict was done with; under the lock */
    uint32_t errors_seen;      /* the watchdog's */
    struct epx_recorder *next; /* the watchdog's list, under its lock */
};

static inline void epx_put64(uint64_t *to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
static inline void epx_put32(uint32_t *to, uint32_t value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
static inline void epx_put_time(int64_t *to, int64_t value) { __atomic_store_n(to, value, __ATOMIC_RELEASE); }
static inline uint64_t epx_get64(const uint64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
static inline uint32_t epx_get32(const uint32_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }
static inline int64_t epx_get_time(const int64_t *from) { return __atomic_load_n(from, __ATOMIC_ACQUIRE); }

/* What a rank's own thread writes, through the watchdog's mapping. */
static inline const epx_record_head_t *epx_recorder_seen(const struct epx_recorder *r)
{
    return (const epx_record_head_t *)(const void *)r->seen;
}

/* Cut to its room; NULL: an empty one. */
static inline void epx_put_text(char *to, size_t bytes, const char *from)
{
    snprintf(to, bytes, "%s", from != NULL ? from : "");
}

#endif
