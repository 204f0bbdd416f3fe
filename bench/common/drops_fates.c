/* What became of each assignment. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "bench/common/drops_job.h"
#include "tools/common/program.h"

/* One rank while it is told. */
typedef struct teller {
    epx_drops_job_t *job;
    int32_t *ids;         /* [T, columns] */
    int32_t *wave, *slot; /* [T, columns] of gate 1 */
    int64_t *gate;        /* [N] */
    int32_t *seen;        /* [E] assignments of the rank to each expert so far */
    int64_t *cursor;      /* [E] extra_wave: the move that the next assignment to e is in */
    epx_fate_t *fates;    /* [T, K] */
} teller_t;

static teller_t open_teller(epx_drops_job_t *job)
{
    const epx_drops_routing_t *routing = job->run->routing;
    size_t places = (size_t)(routing->tokens_max * routing->columns), experts = (size_t)routing->experts;
    return (teller_t){.job = job,
                      .ids = epx_tool_alloc(places, sizeof(int32_t)),
                      .wave = epx_tool_alloc(places, sizeof(int32_t)),
                      .slot = epx_tool_alloc(places, sizeof(int32_t)),
                      .gate = epx_tool_alloc((size_t)routing->ranks, sizeof(int64_t)),
                      .seen = epx_tool_alloc(experts, sizeof(int32_t)),
                      .cursor = epx_tool_alloc(experts, sizeof(int64_t)),
                      .fates =
                          epx_tool_alloc((size_t)(routing->tokens_max * routing->top_k), sizeof(epx_fate_t))};
}

static void close_teller(teller_t *teller)
{
    free(teller->ids);
    free(teller->wave);
    free(teller->slot);
    free(teller->gate);
    free(teller->seen);
    free(teller->cursor);
    free(teller->fates);
}

/* ---- pooled_wave with gates ---------------------------------------------------------------------------------------- */

static epx_fate_t gate2_fate(const teller_t *teller, int32_t s, int64_t a)
{
    int32_t e = teller->ids[a], d = teller->job->run->owners.owner[e];
    int kept = epx_drops_tag(teller->job, d, teller->wave[a], s, teller->slot[a]) != 0;
    return (epx_fate_t){
        .kind = kept ? EPX_FATE_KEPT : EPX_FATE_RECEIVER, .expert = e, .wave = teller->wave[a]};
}

/* A choice x that travels stands for the token's lowest refused assignment of its round. */
static void tell_gates(teller_t *teller, int32_t s, int64_t tokens)
{
    const epx_drops_routing_t *routing = teller->job->run->routing;
    int32_t columns = routing->columns, top_k = routing->top_k;
    epx_pooled_gate1(&teller->job->rule, teller->ids, tokens, columns, teller->wave, teller->slot,
                     teller->gate, NULL);
    for (int64_t t = 0; t < tokens; t++) {
        int32_t other = top_k;
        for (int32_t k = 0; k < top_k; k++) {
            int64_t a = t * columns + k;
            epx_fate_t *fate = &teller->fates[t * top_k + k];
            *fate = (epx_fate_t){.kind = EPX_FATE_SKIPPED, .expert = -1, .wave = -1};
            if (teller->ids[a] < 0)
                continue;
            while (teller->slot[a] < 0 && other < columns && teller->slot[t * columns + other] < 0)
                other++;
            if (teller->slot[a] >= 0)
                *fate = gate2_fate(teller, s, a);
            else if (other < columns)
                *fate = gate2_fate(teller, s, t * columns + other++);
            else
                *fate = (epx_fate_t){.kind = EPX_FATE_SENDER, .expert = teller->ids[a], .wave = -1};
        }
    }
}

/* ---- by counts ---------------------------------------------------------------------------------------------------- */

/* Kept are the first ones of each (sender, expert). */
static epx_fate_t counted_fate(teller_t *teller, int32_t s, int32_t e)
{
    const epx_drops_job_t *job = teller->job;
    int kept = teller->seen[e]++ < job->accepted[(int64_t)s * job->rule.experts + e];
    int32_t hop = (job->run->owners.owner[e] - s + job->rule.ranks) % job->rule.ranks;
    int32_t wave = job->how->transport == EPX_DROPS_RING ? hop : epx_drops_chunk(job, e);
    return (epx_fate_t){
        .kind = kept ? EPX_FATE_KEPT : EPX_FATE_SENDER, .expert = e, .wave = kept ? wave : -1};
}

static int by_sender(const void *a, const void *b)
{
    const epx_drops_move_t *x = a, *y = b;
    if (x->sender != y->sender)
        return x->sender < y->sender ? -1 : 1;
    if (x->expert != y->expert)
        return x->expert < y->expert ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

/* The cursors of a rank's experts, on its first move each. `*at` is its first move of all, then the next
 * rank's. */
static void find_moves(teller_t *teller, int32_t s, int64_t *at)
{
    const epx_drops_job_t *job = teller->job;
    int32_t last = -1;
    for (; *at < job->move_count && job->moves[*at].sender == s; ++*at) {
        if (job->moves[*at].expert != last)
            teller->cursor[job->moves[*at].expert] = *at;
        last = job->moves[*at].expert;
    }
}

static epx_fate_t moved_fate(teller_t *teller, int32_t e)
{
    const epx_drops_move_t *moves = teller->job->moves;
    int32_t ordinal = teller->seen[e]++;
    while (ordinal >= moves[teller->cursor[e]].first + moves[teller->cursor[e]].rows)
        teller->cursor[e]++;
    return (epx_fate_t){.kind = EPX_FATE_KEPT, .expert = e, .wave = moves[teller->cursor[e]].wave};
}

static void tell_counted(teller_t *teller, int32_t s, int64_t tokens)
{
    const epx_drops_routing_t *routing = teller->job->run->routing;
    int moved = teller->job->how->transport == EPX_DROPS_POOLED_WAVE;
    memset(teller->seen, 0, (size_t)routing->experts * sizeof *teller->seen);
    for (int64_t t = 0; t < tokens; t++) {
        for (int32_t k = 0; k < routing->top_k; k++) {
            int32_t e = teller->ids[t * routing->columns + k];
            teller->fates[t * routing->top_k + k] =
                e < 0   ? (epx_fate_t){.kind = EPX_FATE_SKIPPED, .expert = -1, .wave = -1}
                : moved ? moved_fate(teller, e)
                        : counted_fate(teller, s, e);
        }
    }
}

int epx_drops_tell(epx_drops_job_t *job, epx_fate_fn fn, void *context)
{
    const epx_drops_routing_t *routing = job->run->routing;
    teller_t teller = open_teller(job);
    int64_t move = 0;
    int rc = 0;
    if (job->move_count > 0)
        qsort(job->moves, (size_t)job->move_count, sizeof *job->moves, by_sender);
    for (int32_t s = 0; s < routing->ranks && rc == 0; s++) {
        int64_t tokens = routing->ids(routing->context, s, teller.ids);
        if (epx_drops_gated(job)) {
            tell_gates(&teller, s, tokens);
        } else {
            find_moves(&teller, s, &move);
            tell_counted(&teller, s, tokens);
        }
        rc = fn(context, s, tokens, teller.fates);
    }
    close_teller(&teller);
    return rc;
}
