/*
 * The fabric alone: bytes that lie ready in a segment go to the peers' segments, and the word behind them is
 * waited for. Nothing is packed, summed or routed. As many bytes as the busiest rank sends to others in one
 * dispatch of all waves. SPDX-License-Identifier: Apache-2.0
 *
 * fabric: every rank sends an equal share of them to each other rank, all at once. fabric_one_way: a rank of
 * the lower half sends all of them to one of the upper half, which answers with a word, as ranks do that go
 * on from there.
 */
#include <stdlib.h>
#include <string.h>

#include "bench/perf/own.h"
#include "src/core/services.h"
#include "tools/common/program.h"

enum { ROWS = 0, ANSWERS = 1, CHANNELS = 2, TIMEOUT_MS = 30000 };

struct epx_perf_fabric {
    epx_perf_own_t own;
    int64_t each, all; /* bytes for one peer; for all others */
    int64_t room;      /* of a share for every rank, this one too */
    int64_t arrivals;  /* where they begin in the segment */
    uint64_t epoch;
    int64_t timeout_ms;
    epx_piece_t *send, *receive; /* [S] */
};

typedef struct epx_perf_fabric alone_t;

/* ---- one round -------------------------------------------------------------------------------------------------- */

/* What goes to the peer from `local` on in my segment to `remote` in the peer's. */
static void add_send(alone_t *a, epx_post_t *post, int32_t peer, int64_t local, int64_t remote, int64_t bytes)
{
    if (bytes == 0)
        return;
    if ((a->own.fabric->caps & EPX_FABRIC_LOADSTORE) != 0)
        memcpy((char *)a->own.segment.peer_ptr[peer] + remote, (const char *)a->own.segment.base + local,
               (size_t)bytes);
    else
        a->send[post->send_count++] =
            (epx_piece_t){.peer = peer, .local = local, .remote = remote, .bytes = bytes};
}

static void add_receive(alone_t *a, epx_post_t *post, int32_t peer, int64_t local, int64_t bytes)
{
    if (bytes > 0 && (a->own.fabric->caps & EPX_FABRIC_LOADSTORE) == 0)
        a->receive[post->receive_count++] = (epx_piece_t){.peer = peer, .local = local, .bytes = bytes};
}

static epx_post_t new_post(const alone_t *a, int32_t channel, int32_t peer)
{
    return (epx_post_t){.channel = channel,
                        .epoch = {.add = a->epoch},
                        .peer = peer,
                        .segment = &a->own.segment,
                        .sends = a->send,
                        .receives = a->receive};
}

static epx_status_t wait_for(const alone_t *a, int32_t channel, int32_t peer)
{
    epx_wait_t wait = {.channel = channel,
                       .epoch = {.add = a->epoch},
                       .peer = peer,
                       .mode = EPX_WAIT_AT_LEAST,
                       .timeout_ms = a->timeout_ms};
    epx_wait_result_t result;
    epx_status_t status = a->own.fabric->ops->wait(a->own.fabric, &wait, &result, NULL);
    if (status == EPX_OK)
        return status;
    return epx_services()->fail(status,
                                "the fabric alone: waiting for rank %d, word %llu seen of %llu, for %lld ms",
                                (int)result.peer, (unsigned long long)result.seen,
                                (unsigned long long)result.expected, (long long)a->timeout_ms);
}

static epx_status_t all_ways(alone_t *a)
{
    int32_t ranks = a->own.fabric->ranks, me = a->own.fabric->rank;
    epx_post_t post = new_post(a, ROWS, EPX_ALL_PEERS);
    for (int32_t i = 1; i < ranks; i++) {
        int32_t to = (me + i) % ranks, from = (me + ranks - i) % ranks;
        add_send(a, &post, to, to * a->each, a->arrivals + me * a->each, a->each);
        add_receive(a, &post, from, a->arrivals + from * a->each, a->each);
    }
    epx_status_t status = a->own.fabric->ops->post(a->own.fabric, &post, NULL);
    return status == EPX_OK ? wait_for(a, ROWS, EPX_ALL_PEERS) : status;
}

/* Whom a rank sends to or gets from; -1: the odd one, which rests. */
static int32_t partner_of(int32_t rank, int32_t ranks)
{
    int32_t half = ranks / 2;
    return rank < half ? rank + half : rank < 2 * half ? rank - half : -1;
}

static epx_status_t one_way(alone_t *a)
{
    int32_t me = a->own.fabric->rank, partner = partner_of(me, a->own.fabric->ranks);
    epx_post_t post = new_post(a, ROWS, partner), answer = new_post(a, ANSWERS, partner);
    if (partner < 0)
        return EPX_OK;
    if (me < partner)
        add_send(a, &post, partner, 0, a->arrivals, a->all);
    else
        add_receive(a, &post, partner, a->arrivals, a->all);
    epx_status_t status = a->own.fabric->ops->post(a->own.fabric, &post, NULL);
    if (status == EPX_OK)
        status = wait_for(a, me < partner ? ANSWERS : ROWS, partner);
    return status == EPX_OK && me > partner ? a->own.fabric->ops->post(a->own.fabric, &answer, NULL) : status;
}

/* Both ends of a pair count: who gets tells that it has. */
static int64_t sent_by(const alone_t *a, epx_perf_op_t op)
{
    int32_t partner = partner_of(a->own.fabric->rank, a->own.fabric->ranks);
    if (op == EPX_PERF_FABRIC)
        return a->all;
    return partner > a->own.fabric->rank ? a->all : 0;
}

int epx_perf_fabric_round(epx_perf_player_t *player, epx_perf_op_t op)
{
    alone_t *a = player->alone;
    a->epoch++;
    epx_status_t status = op == EPX_PERF_FABRIC ? all_ways(a) : one_way(a);
    if (status != EPX_OK)
        a->own.fabric->ops->abort(a->own.fabric, -1);
    player->mine->remote_bytes[op] = sent_by(a, op);
    return epx_rank_check(player->self, status, epx_perf_op_name(op));
}

/* ---- the check ---------------------------------------------------------------------------------------------------- */

/* Word `at` of what rank r has ready. */
static uint64_t word_of(int32_t r, int64_t at)
{
    return (uint64_t)(r + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)at;
}

/* Whether `bytes` bytes at `at` of my segment are those that rank r has from `from` on. */
static int arrived(const alone_t *a, int64_t at, int32_t r, int64_t from, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += (int64_t)sizeof(uint64_t)) {
        uint64_t word;
        memcpy(&word, (const char *)a->own.segment.base + at + i, sizeof word);
        if (word != word_of(r, (from + i) / (int64_t)sizeof word))
            return 0;
    }
    return 1;
}

static int is_right(const alone_t *a, epx_perf_op_t op, int32_t *culprit_p)
{
    int32_t ranks = a->own.fabric->ranks, me = a->own.fabric->rank, partner = partner_of(me, ranks);
    int right = 1;
    if (op == EPX_PERF_FABRIC_ONE_WAY) {
        *culprit_p = partner;
        return partner < 0 || partner > me || arrived(a, a->arrivals, partner, 0, a->all);
    }
    for (int32_t r = 0; r < ranks && right; r++) {
        *culprit_p = r;
        right = r == me || arrived(a, a->arrivals + r * a->each, r, me * a->each, a->each);
    }
    return right;
}

int epx_perf_fabric_check(epx_perf_player_t *player)
{
    alone_t *a = player->alone;
    int rc = EPX_EXIT_OK;
    for (int op = EPX_PERF_FABRIC; op <= EPX_PERF_FABRIC_ONE_WAY && a != NULL && rc == EPX_EXIT_OK; op++) {
        int32_t culprit = -1;
        memset((char *)a->own.segment.base + a->arrivals, 0, (size_t)a->room);
        rc = epx_perf_meet(player); /* nobody sends before all have cleared */
        if (rc == EPX_EXIT_OK)
            rc = epx_perf_fabric_round(player, (epx_perf_op_t)op);
        if (rc == EPX_EXIT_OK && !is_right(a, (epx_perf_op_t)op, &culprit))
            rc = epx_rank_fail(player->self, EPX_EXIT_FAILED,
                               "%s: what came from rank %d differs from what was sent",
                               epx_perf_op_name((epx_perf_op_t)op), culprit);
        if (rc == EPX_EXIT_OK)
            rc = epx_perf_meet(player); /* nor clears before all have looked */
    }
    return rc;
}

/* ---- set-up ------------------------------------------------------------------------------------------------------- */

static void lay_out(alone_t *a, int64_t bytes, int32_t ranks)
{
    a->each = (bytes / (ranks - 1) + 63) & ~(int64_t)63;
    a->all = a->each * (ranks - 1);
    a->room = a->each * ranks;
    a->arrivals = (a->room + 4095) & ~(int64_t)4095;
}

int epx_perf_fabric_open(epx_perf_player_t *player)
{
    const epx_perf_settings_t *s = player->shared->settings;
    double bytes = (double)player->mine->remote_bytes[EPX_PERF_DISPATCH];
    int32_t ranks = player->self->ranks;
    if (!s->shown[EPX_PERF_FABRIC] && !s->shown[EPX_PERF_FABRIC_ONE_WAY])
        return EPX_EXIT_OK;
    if (ranks < 2)
        return epx_rank_fail(player->self, EPX_EXIT_USAGE,
                             "--op fabric: a rank alone has nobody to send to: give --ranks 2 or more");
    int rc = epx_rank_check(player->self,
                            epx_comm_allreduce(player->self->comm, &bytes, 1, EPX_NUMBER_DOUBLE, EPX_MAX),
                            "all-reduce");
    if (rc != EPX_EXIT_OK)
        return rc;
    alone_t *a = player->alone = epx_tool_alloc(1, sizeof *a);
    a->timeout_ms = s->timeout_ms > 0 ? s->timeout_ms : TIMEOUT_MS;
    a->send = epx_tool_alloc((size_t)ranks, sizeof *a->send);
    a->receive = epx_tool_alloc((size_t)ranks, sizeof *a->receive);
    lay_out(a, (int64_t)bytes, ranks);
    rc = epx_perf_own_open(player, "epx-perf: the fabric alone", CHANNELS, (size_t)(a->arrivals + a->room),
                           &a->own);
    for (int64_t i = 0; i < a->room && rc == EPX_EXIT_OK; i += (int64_t)sizeof(uint64_t)) {
        uint64_t word = word_of(player->self->rank, i / (int64_t)sizeof word);
        memcpy((char *)a->own.segment.base + i, &word, sizeof word);
    }
    return rc == EPX_EXIT_OK && s->check ? epx_perf_fabric_check(player) : rc;
}

void epx_perf_fabric_close(epx_perf_player_t *player)
{
    alone_t *a = player->alone;
    if (a == NULL)
        return;
    epx_perf_own_close(&a->own);
    free(a->send);
    free(a->receive);
    free(a);
    player->alone = NULL;
}
