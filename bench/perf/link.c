/*
 * What the link between GPUs does on its own, in the same run: as many bytes as one dispatch sends to other
 * ranks, by plain stores of a kernel, by the copy engine, and by NCCL's own all-to-all. Every rank sends at
 * the same time. SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "bench/perf/own.h"
#include "src/fabric/nccl/api.h"
#include "src/fabric/nccl/library.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"

enum { RUNS = 9 };

typedef struct link_bench {
    epx_perf_player_t *player;
    epx_perf_own_t own;
    int64_t bytes, rows; /* that this rank sends, whole rows of the case */
    epx_perf_twin_t from, runs;
    void *next; /* the next rank's segment, as this GPU sees it */
    const nccl_api_t *api;
    nccl_comm_t comm; /* of its own; NULL: there is none */
} link_bench_t;

/* ---- the three ways --------------------------------------------------------------------------------------------- */

static epx_status_t by_stores(link_bench_t *b)
{
    const epx_perf_case_t *shared = b->player->shared;
    epx_k_push_t args = {.units = shared->sm_budget,
                         .dst = b->own.segment.peer_ptr,
                         .runs = b->runs.device,
                         .run_count = 1,
                         .part = {{.kind = EPX_PART_COPY,
                                   .src = b->from.device,
                                   .src_stride = shared->row_bytes,
                                   .divide = 1,
                                   .dst_stride = shared->row_bytes,
                                   .bytes = shared->row_bytes}},
                         .parts = 1,
                         .rank = b->player->self->rank,
                         .columns = 1};
    return b->player->side.device->kernels->push(&args, b->player->side.stream);
}

static epx_status_t by_engine(link_bench_t *b)
{
    return b->player->side.device->copy(b->next, b->from.device, (size_t)b->bytes, b->player->side.stream);
}

/* Every rank sends an equal share to every other one. */
static epx_status_t by_all_to_all(link_bench_t *b)
{
    int32_t ranks = b->player->self->ranks, me = b->player->self->rank;
    size_t each = (size_t)(b->bytes / (ranks - 1)), at = 0;
    int failed = b->api->group_start();
    for (int32_t r = 0; r < ranks && !failed; r++) {
        if (r == me)
            continue;
        failed =
            b->api->send((char *)b->from.device + at, each, NCCL_INT8, r, b->comm, b->player->side.stream) ||
            b->api->receive((char *)b->own.segment.base + at, each, NCCL_INT8, r, b->comm,
                            b->player->side.stream);
        at += each;
    }
    failed |= b->api->group_end();
    return failed ? EPX_ERR_FABRIC : EPX_OK;
}

/* The median of the slowest rank's times. */
static int measure(link_bench_t *b, epx_status_t (*way)(link_bench_t *), double *seconds_p)
{
    epx_perf_player_t *player = b->player;
    epx_perf_side_t *side = &player->side;
    double seconds[RUNS] = {0};
    int rc = EPX_EXIT_OK;
    for (int i = -2; i < RUNS && rc == EPX_EXIT_OK; i++) {
        double taken = 0;
        rc = epx_perf_meet(player);
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self, side->device->event_record(side->begin, side->stream),
                                "an event");
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self, way(b), "the link");
        if (rc == EPX_EXIT_OK)
            rc =
                epx_rank_check(player->self, side->device->event_record(side->end, side->stream), "an event");
        if (rc == EPX_EXIT_OK)
            rc = epx_perf_drain(player->self, side);
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self, side->device->event_elapsed(side->begin, side->end, &taken),
                                "an event");
        if (rc == EPX_EXIT_OK)
            rc = epx_rank_check(player->self,
                                epx_comm_allreduce(player->self->comm, &taken, 1, EPX_NUMBER_DOUBLE, EPX_MAX),
                                "all-reduce");
        if (i >= 0)
            seconds[i] = taken;
    }
    epx_sort_reals(seconds, RUNS);
    *seconds_p = seconds[RUNS / 2];
    return rc;
}

/* ---- set-up ----------------------------------------------------------------------------------------------------- */

/* A communicator for the all-to-all; without one that way is left out, on all ranks alike. */
static int open_nccl(link_bench_t *b)
{
    epx_perf_player_t *player = b->player;
    const char *why = NULL;
    nccl_id_t id[64];
    double good = player->self->ranks <= 64 && player->self->ranks > 1 &&
                  strcmp(player->info.fabric, "nccl") == 0 && epx_nccl_api(&b->api, &why) == EPX_OK &&
                  b->api->get_unique_id(&id[player->self->rank]) == 0;
    int rc = epx_rank_check(player->self,
                            epx_comm_allreduce(player->self->comm, &good, 1, EPX_NUMBER_DOUBLE, EPX_MIN),
                            "all-reduce");
    if (rc != EPX_EXIT_OK || good < 1)
        return rc;
    nccl_id_t mine = id[player->self->rank];
    rc = epx_rank_check(player->self, epx_comm_allgather(player->self->comm, &mine, id, sizeof mine),
                        "all-gather");
    if (rc == EPX_EXIT_OK &&
        b->api->comm_init_rank(&b->comm, player->self->ranks, id[0], player->self->rank) != 0)
        rc = epx_rank_fail(player->self, EPX_EXIT_FAILED, "ncclCommInitRank: %s",
                           b->api->get_last_error(NULL));
    return rc;
}

static int open_memory(link_bench_t *b)
{
    epx_perf_player_t *player = b->player;
    const epx_perf_side_t *side = &player->side;
    int32_t next = (player->self->rank + 1) % player->self->ranks;
    epx_run_t run = {.first = 0, .row = 0, .peer = next, .rows = (int32_t)b->rows};
    int rc = epx_perf_twin_new_device(player->self, side, &b->from, 1, (size_t)b->bytes);
    if (rc == EPX_EXIT_OK)
        rc = epx_perf_twin_new(player->self, side, &b->runs, 1, sizeof run);
    if (rc != EPX_EXIT_OK)
        return rc;
    memcpy(b->runs.host, &run, sizeof run);
    rc = epx_perf_up(player->self, side, &b->runs);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self,
                            side->device->fill(b->from.device, 0x3c, b->from.bytes, side->stream), "a fill");
    return rc == EPX_EXIT_OK
               ? epx_perf_fetch(player->self, side, &b->next, b->own.segment.peer_ptr + next, sizeof b->next)
               : rc;
}

/* Once, to see whether it works: where it does not, it is left out on all ranks. */
static int try_all_to_all(link_bench_t *b)
{
    epx_perf_player_t *player = b->player;
    double good = b->comm != NULL && by_all_to_all(b) == EPX_OK;
    int rc = epx_perf_drain(player->self, &player->side);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(player->self,
                            epx_comm_allreduce(player->self->comm, &good, 1, EPX_NUMBER_DOUBLE, EPX_MIN),
                            "all-reduce");
    if (good < 1 && b->comm != NULL) {
        b->api->comm_destroy(b->comm);
        b->comm = NULL;
    }
    return rc;
}

static int run(link_bench_t *b)
{
    epx_perf_link_t link = {.bytes = b->bytes};
    int rc = epx_perf_own_open(b->player, "epx-perf: the link", 1, (size_t)b->bytes, &b->own);
    if (rc == EPX_EXIT_OK)
        rc = open_memory(b);
    if (rc == EPX_EXIT_OK)
        rc = open_nccl(b);
    if (rc == EPX_EXIT_OK)
        rc = try_all_to_all(b);
    if (rc == EPX_EXIT_OK)
        rc = measure(b, by_stores, &link.stores_s);
    if (rc == EPX_EXIT_OK)
        rc = measure(b, by_engine, &link.engine_s);
    if (rc == EPX_EXIT_OK && b->comm != NULL)
        rc = measure(b, by_all_to_all, &link.all_to_all_s);
    if (rc == EPX_EXIT_OK && b->player->self->rank == 0)
        b->player->shared->link = link;
    return rc;
}

int epx_perf_measure_link(epx_perf_player_t *player)
{
    epx_perf_case_t *shared = player->shared;
    link_bench_t b = {.player = player};
    double sent = (double)player->mine->remote_bytes[EPX_PERF_DISPATCH];
    if (player->side.device == NULL || !shared->apart || player->self->ranks < 2)
        return EPX_EXIT_OK;
    /* Equal on all ranks: what the busiest sends. */
    int rc = epx_rank_check(player->self,
                            epx_comm_allreduce(player->self->comm, &sent, 1, EPX_NUMBER_DOUBLE, EPX_MAX),
                            "all-reduce");
    b.rows = (int64_t)sent / shared->row_bytes;
    b.bytes = b.rows * shared->row_bytes;
    if (rc == EPX_EXIT_OK && b.rows > 0)
        rc = run(&b);
    if (b.comm != NULL)
        b.api->comm_destroy(b.comm);
    epx_perf_own_close(&b.own);
    epx_perf_twin_free(player->side.device, &b.from);
    epx_perf_twin_free(player->side.device, &b.runs);
    return rc;
}
