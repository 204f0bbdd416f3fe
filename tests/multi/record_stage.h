/*
 * Ranks on a simulated device that route, dispatch and combine, and a judge beside them who sees the verdict:
 * the stage of record_device.c and record_open.c. Ranks share the device (fabric local) or have one each
 * (fabric nccl, over the library that stands in for it). SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TESTS_MULTI_RECORD_STAGE_H
#define EPX_TESTS_MULTI_RECORD_STAGE_H

#include <epx/record.h>
#include <stdatomic.h>

#include "support/world.h"

enum {
    RANKS = 3,
    TOKENS = 8,
    WIDTH = 8,
    TOP_K = 2,
    EXPERTS = 6,
    WAVES = 2,
    STEPS = 12,
    FAULT_STEP = 6,
    HANG_MS = 400
};

/* A step's operations: a route, and dispatch and combine of every wave. */
enum { STEP_OPS = 1 + 2 * WAVES };

typedef struct stage_player {
    rank_t *self;
    epx_stream_t stream;
    epx_group_h group, second;
    epx_plan_h plan, second_plan;
    void *ids, *weights, *x, *y, *out;
    int32_t attention;
    size_t y_bytes;
} stage_player_t;

/* What the library that stands in for NVML says of every GPU: whether another process has it too, and how
 * much of the use is this one's (-1: it has no sample, since it used nothing). HIDDEN: PIDs are another
 * namespace's. */
enum { HIDDEN = 2, MANY = 3 };
extern int stage_others, stage_own; /* MANY: two others */

extern _Thread_local int32_t stage_number; /* the device of the calling rank */
extern char stage_folder[128];             /* of the records */
extern volatile int stage_absent;          /* the rank that makes no step from FAULT_STEP on; -1 */
extern volatile int stage_busy;   /* 1: rank 1's host computes for two budgets before it makes that step */
extern volatile int stage_turned; /* 1: two groups, which rank 1 takes the other way round in that step */

extern _Atomic(epx_recorder_h) stage_recorders[RANKS];
extern _Atomic int stage_through; /* ranks that have made all their steps */
extern const char *const stage_transports[2];
extern char *stage_reported;     /* what the ranks of stage_run have printed */
extern epx_verdict_t stage_seen; /* what the judge has seen */

/* `on`: the fabric; percent: how busy every GPU is. */
void stage_begin(const char *on, int percent);
void stage_end(void);
/* The library that stands in for NCCL takes a setting. */
void stage_fake_takes(const char *name, const void *value, size_t bytes);

/* A rank's group, plan and buffers; 0: said by expect. */
int stage_open(stage_player_t *p, const char *transport);
/* A step; 0: a call ended badly. Statuses are looked at by who expects them. */
int stage_step(stage_player_t *p, int step);
void stage_close(stage_player_t *p);

/* All ranks with a fault; the watchdog ends them. */
void stage_run(const char *transport, const char *fault);
void stage_expect(epx_verdict_kind_t kind, int32_t rank, int32_t peer, const char *op);

#endif
