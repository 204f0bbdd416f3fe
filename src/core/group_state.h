/* The structs behind group and plan handles. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_GROUP_STATE_H
#define EPX_CORE_GROUP_STATE_H

#include <stdatomic.h>

#include "core/select.h"
#include "fabric/fault/fault.h"
#include "record/recorder.h"

typedef struct epx_group epx_group_t;

/* The pass that a lane carries. UNDECIDED: a dispatch with backward=recompute, whose next call tells. */
typedef enum epx_direction { PASS_NONE = 0, PASS_UNDECIDED, PASS_FORWARD, PASS_BACKWARD } epx_direction_t;

typedef struct epx_group_lane {
    epx_lane_t lane;
    struct epx_plan *plan; /* whose pass is in flight, NULL: idle */
    int32_t
        abandoned; /* 1: a plan was destroyed in the middle of its pass; ranks meet before the next route */
} epx_group_lane_t;

/* How far a pass has come: waves started and finished of each call, ascending. */
typedef struct epx_pass {
    epx_direction_t direction;
    int32_t dispatch_started, dispatch_finished;
    int32_t combine_started, combine_finished;
    int32_t combine_backward_started, combine_backward_finished;
    int32_t dispatch_backward_started, dispatch_backward_finished;
} epx_pass_t;

/* Counters that EPX_STATS sums, and what of a plan is in them already. */
typedef struct epx_tally {
    int64_t routed, skipped, kept, spilled, dropped_sender, dropped_receiver;
    int64_t sent_bytes, received_bytes, sent_meta_bytes, received_meta_bytes, wait_ns;
    int64_t message_bytes; /* of the group alone */
} epx_tally_t;

/* Operations of a plan that are open at a time, per kind of call; a power of two. */
enum { EPX_PLAN_OPS = 8 };

/* The number of an operation that EPX_FAULT has left out. */
#define EPX_OP_LEFT_OUT UINT64_MAX

struct epx_plan {
    epx_plan_base_t base; /* first: transports see this */
    epx_group_t *group;   /* NULL: the group is closed or recovered */
    epx_allocator_t allocator;
    epx_group_lane_t *lane;
    int32_t owns_bytes, owns_report;
    int64_t bytes, handle_bytes;
    int64_t passes; /* begun since the route */
    epx_pass_t pass;
    uint64_t op[EPX_RECORD_ROUTE][EPX_PLAN_OPS]; /* handles of the flight recorder, by kind and wave */
    uint64_t op_number[EPX_RECORD_ROUTE]
                      [EPX_PLAN_OPS]; /* likewise: the n-th of the group, or EPX_OP_LEFT_OUT */
    char dead_text[320];              /* why the route failed, for calls on the dead plan */
    uint64_t dead_told;               /* the last failed route that a call has returned, or the log has */
    _Atomic uint64_t checked;         /* the failed route that epx_group_check has told, from any thread */
    epx_tally_t folded;
    int64_t wait_before_ns; /* the longest wait since the route and before the group's last cut */
    int32_t wait_before_peer;
    struct epx_plan *next, **link;
};

/* Memory that a group holds, by item. */
typedef struct epx_block {
    void *memory;
    int64_t bytes;
    int32_t device_memory;
} epx_block_t;

/* Part of every group; zeroed: nothing is recorded. */
typedef struct epx_meet {
    int32_t row;  /* 0: none */
    int32_t wave; /* of the next meeting */
    epx_record_kind_t kind;
    uint64_t sequence, op; /* op 0: in no meeting */
    epx_fabric_meeting_t watch;
} epx_meet_t;

struct epx_group {
    epx_group_config_t config; /* checked, its strings and owner are the copies below */
    char name[64], transport_text[EPX_CONFIG_TEXT_BYTES], fabric_text[32], device_text[32];
    epx_allocator_t allocator;
    int32_t rank, ranks;
    epx_reach_t reach; /* of the ranks it was opened with */
    uint64_t generation;
    int32_t is_open;
    epx_selection_t selection;
    epx_block_t lane_words;                    /* device, where epochs are resident */
    epx_block_t tables, state, scratch, batch; /* tables: cards, ownership, owner copy, lanes */
    epx_segment_t segment;
    epx_fabric_t *fabric;
    epx_fault_t *fault;  /* NULL: nothing is disturbed */
    uint64_t operations; /* begun on this rank, over all generations */
    epx_transport_t *transport;
    epx_group_lane_t *lanes;
    epx_stream_t
        control; /* for copies that belong to no caller's stream; NULL where the host reaches the memory */
    uint64_t routes; /* so far, over all lanes; equal on all ranks */
    struct epx_report_chunk *reports;
    struct epx_plan *plans;
    atomic_int failed; /* 0 or the sticky status */
    char failed_text[512];
    epx_tally_t tally, last_step;
    int64_t steps, sent_bytes_closed_plans;
    /* Of fabrics before this one, see epx_group_recover: by path, and sent in all. */
    int64_t stored_bytes, message_bytes, sent_bytes_before;
    int32_t wait_peer;
    int64_t wait_longest_ns;
    void *stats_file;
    int32_t stats_lost;      /* 1: a line could not be written, and that was said */
    epx_recorder_h recorder; /* NULL: nothing is recorded */
    int32_t record_id, record_ending;
    uint64_t record_key, record_signature;
    const int32_t *record_members; /* [ranks] ranks of the job, in the tables */
    epx_meet_t meet;
    int32_t meet_ending;  /* the watchdog's way to end its waits */
    atomic_int meet_over; /* 1: it has */
};

/* Whether the device has memory of its own, where errors are found later than the call that made them. */
static inline int epx_group_is_remote(const epx_group_t *group)
{
    return !group->selection.device->host_access;
}

#endif
