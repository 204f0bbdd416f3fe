/*
 * One measurement: a transport, a number of tokens, all ranks of it. SPDX-License-Identifier: Apache-2.0
 *
 * Ranks are threads of one process, so they share this: each writes its own part, and reads the parts of
 * others only after all have met (epx_perf_meet). The one exception is `kept`, which the receivers of a
 * rank's rows count in.
 */
#ifndef EPX_BENCH_PERF_CASE_H
#define EPX_BENCH_PERF_CASE_H

#include <stdatomic.h>

#include <epx/epx.h>

#include "bench/perf/settings.h"
#include "tools/common/ranks.h"

/* A row that arrived in a wave: whose it is, and where it stands. */
typedef struct epx_perf_place {
    int32_t rank, token, k;
    int32_t row; /* place in the grouped order */
    int32_t wave;
} epx_perf_place_t;

/* A row that a rank sends, for the memcpy that dispatch is compared with. */
typedef struct epx_perf_copy {
    int32_t token, receiver, row;
} epx_perf_copy_t;

typedef struct epx_perf_part {
    int64_t tokens;
    int32_t *ids;       /* [T, K] */
    float *weights;     /* [T, K] */
    atomic_uchar *kept; /* [T, K] how often it arrived somewhere */
    void *x, *out, *dout, *dx;
    float *dweight;          /* [T, K] */
    void *y, *dx_rows;       /* [rows_max, H] */
    void *copies;            /* [slots, rows_max, H] where memcpy puts rows */
    epx_perf_place_t *place; /* all waves */
    int64_t *place_first;    /* [waves + 1] */
    epx_perf_copy_t *copy;
    int64_t *copy_first; /* [waves + 1] */
    epx_plan_stats_t stats;
    int64_t *begun, *ended;             /* [iterations, EPX_PERF_OPS, waves] ns */
    int64_t remote_bytes[EPX_PERF_OPS]; /* sent in one pass */
    void *eviction;
} epx_perf_part_t;

typedef struct epx_perf_case {
    const epx_perf_settings_t *settings;
    const char *transport; /* as asked for; NULL: left to the library */
    int64_t tokens;
    int32_t element_bytes, origin;
    int64_t row_bytes;
    epx_group_config_t config;
    epx_memory_t memory;
    /* what came, of rank 0 */
    char transport_name[128], fabric_name[32], device_name[32];
    int32_t waves, slots;
    int64_t rows_max;
    epx_wire_t wire;
    int64_t checked_rows;  /* in all passes that were checked */
    epx_perf_part_t *part; /* [ranks] */
    size_t eviction_bytes; /* of each rank */
    _Alignas(64) atomic_llong arrived;
} epx_perf_case_t;

/* The group and the plan of the calling rank. */
typedef struct epx_perf_player {
    epx_rank_t *self;
    epx_perf_case_t *shared;
    epx_perf_part_t *mine;
    epx_group_h group;
    epx_plan_h plan;
    epx_group_info_t info;
    int64_t meetings;
} epx_perf_player_t;

/* Runs the case; EPX_EXIT_OK, or the code after a message. */
int epx_perf_case_run(epx_perf_case_t *shared, const epx_perf_settings_t *settings, const char *transport,
                      int64_t tokens);
void epx_perf_case_free(epx_perf_case_t *shared);

/* All ranks arrive before one leaves, and then leave close together. 0 or an exit code. */
int epx_perf_meet(epx_perf_player_t *player);

/* check.c: one forward (and backward) pass. Learns the places of all rows; with `compare` every bit is looked
 * at. */
int epx_perf_checked_pass(epx_perf_player_t *player, int compare);

/* timing.c: lists the rows to copy (after a checked pass), then the timed passes. */
void epx_perf_list_copies(epx_perf_player_t *player);
int epx_perf_timed_passes(epx_perf_player_t *player);

/* Routes the plan with this rank's ids. */
int epx_perf_route(epx_perf_player_t *player);

#endif
