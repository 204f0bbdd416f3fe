/*
 * The ranks of one measurement, what they share, and what each can do. SPDX-License-Identifier: Apache-2.0
 *
 * Ranks are threads of one process, so they share this: each writes its own part, and reads the parts of
 * others only after all have met (epx_perf_meet). The one exception is `kept`, which the receivers of a
 * rank's rows count in. Where a launcher started a process for each rank, processes.h says what each knows.
 */
#ifndef EPX_BENCH_PERF_PLAYER_H
#define EPX_BENCH_PERF_PLAYER_H

#include <stdatomic.h>

#include <epx/epx.h>

#include "bench/perf/settings.h"
#include "bench/perf/side.h"
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
    int32_t *ids;       /* [T, K], of ids_twin */
    float *weights;     /* [T, K], of weights_twin */
    atomic_uchar *kept; /* [T, K] how often it arrived somewhere */
    epx_perf_twin_t ids_twin, weights_twin;
    epx_perf_twin_t x, out, dout, dx;
    epx_perf_twin_t dweight;    /* [T, K] */
    epx_perf_twin_t y, dx_rows; /* [rows_max, H] */
    epx_perf_twin_t copies;     /* [slots, rows_max, H] where the machine's own copies go */
    epx_perf_twin_t eviction;
    void *got;                /* [rows_max, H] host: what arrived, where the host cannot look at it */
    int32_t *got_index;       /* [rows_max] likewise */
    epx_origin_t *got_origin; /* [rows_max] likewise */
    /* For the device's row-wise copy, by wave: where rows come from in all_x, and the batch's counts. */
    epx_perf_twin_t from;         /* [waves, rows_max] int32 */
    epx_perf_twin_t start, count; /* [waves, El] int64 */
    epx_perf_place_t *place;      /* all waves */
    int64_t *place_first;         /* [waves + 1] */
    epx_perf_copy_t *copy;
    int64_t *copy_first; /* [waves + 1] */
    epx_plan_stats_t stats;
    int64_t seen, seen_remote; /* rows that arrived in a checked pass; of them, from other ranks */
    int64_t *begun, *ended;    /* [iterations, EPX_PERF_OPS, waves] ns */
    /* Likewise, what the call took of the host: with a device the time until it returned, else processor time
     * of the rank's thread, or of its process where it has one. */
    int64_t *host_ns;
    int64_t remote_bytes[EPX_PERF_OPS]; /* sent in one pass */
} epx_perf_part_t;

/* A large matrix product beside dispatch and combine. */
typedef struct epx_perf_beside {
    char what[96];                 /* "" where none ran */
    double alone_s, with_s, flops; /* of one product */
    double told_s;                 /* told to leave the budget's multiprocessors alone; 0: no budget */
    double exchange_alone_s, exchange_with_s; /* of one pass */
    char why_not[160];
} epx_perf_beside_t;

/* What the link does on its own of as many bytes as the busiest rank sends to others in one dispatch pass. */
typedef struct epx_perf_link {
    int64_t bytes;                           /* 0: not measured */
    double stores_s, engine_s, all_to_all_s; /* 0: left out */
} epx_perf_link_t;

typedef struct epx_perf_case {
    const epx_perf_settings_t *settings;
    int32_t sm_budget;     /* 0: all */
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
    /* Where there is a device that the host cannot reach: */
    const epx_device_ops_t *device;
    int32_t apart;     /* 1: memory of other ranks is out of reach: a GPU, or a process, for each */
    int32_t one_clock; /* 1: times of all ranks are of one clock */
    epx_perf_twin_t
        all_x; /* device: x of all ranks, [ranks, T_max, H]; where they are apart each has its own */
    epx_event_t start[2]; /* of rank 0, in turn: times are counted from one while it sets the other */
    int32_t units;        /* multiprocessors */
    epx_perf_beside_t beside;
    epx_perf_link_t link;
    _Alignas(64) atomic_llong arrived;
} epx_perf_case_t;

typedef struct epx_perf_fabric epx_perf_fabric_t;

/* The group and the plan of the calling rank. */
typedef struct epx_perf_player {
    epx_rank_t *self;
    epx_perf_case_t *shared;
    epx_perf_part_t *mine;
    epx_group_h group;
    epx_plan_h plan;
    epx_group_info_t info;
    epx_perf_side_t side;
    int64_t meetings, timings;
    int32_t local_rank;       /* among those of this host */
    void **graph;             /* [EPX_PERF_OPS, waves] with --graph: each call, recorded */
    epx_perf_fabric_t *alone; /* for --op fabric; NULL: not asked for, or not yet open */
    int32_t whole_recorded;   /* with --graph: waves whose combine has been recorded behind whole_dispatch */
} epx_perf_player_t;

/* meet.c: all ranks arrive before one leaves, and then leave close together. 0 or an exit code. */
int epx_perf_meet(epx_perf_player_t *player);
/* meet.c: routes the plan with this rank's ids. */
int epx_perf_route(epx_perf_player_t *player);

/* check.c: one forward (and backward) pass. Learns the places of all rows; with `compare` every bit is looked
 * at. */
int epx_perf_checked_pass(epx_perf_player_t *player, int compare);

/* timing.c: lists the rows to copy (after a checked pass), then the timed passes. */
int epx_perf_list_copies(epx_perf_player_t *player);
int epx_perf_timed_passes(epx_perf_player_t *player);

/* beside.c: passes beside a large matrix product; fills shared->beside. */
int epx_perf_run_beside(epx_perf_player_t *player);

/* link.c: where ranks have a GPU each; fills shared->link. */
int epx_perf_measure_link(epx_perf_player_t *player);

/* fabric.c: a fabric of its own, where --op asks for the fabric alone. open: once a dispatch has told the
 * bytes; collective, as the others but close. round: one of the operations fabric and fabric_one_way. check:
 * compares what arrives. */
int epx_perf_fabric_open(epx_perf_player_t *player);
int epx_perf_fabric_round(epx_perf_player_t *player, epx_perf_op_t op);
int epx_perf_fabric_check(epx_perf_player_t *player);
void epx_perf_fabric_close(epx_perf_player_t *player);

/* timing.c: what --graph has recorded. */
void epx_perf_forget_graphs(epx_perf_player_t *player);

/* timing.c: one call of the library for a wave, in the order of the stream. */
int epx_perf_call(epx_perf_player_t *player, epx_perf_op_t op, int32_t wave);

#endif
