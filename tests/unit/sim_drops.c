/* What bench/common/drops.h counts, against the walk of drops_walk.h. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "unit/drops_walk.h"

static int64_t give_ids(void *context, int32_t rank, int32_t *ids)
{
    const small_t *small = context;
    int count = small->tokens[rank] * small->columns;
    for (int i = 0; i < count; i++)
        ids[i] = small->ids[rank][i];
    return small->tokens[rank];
}

/* ---- comparing ---------------------------------------------------------------------------------------------------- */

typedef struct comparison {
    const world_t *world;
    int at; /* the next assignment of the world */
} comparison_t;

static int compare_rank(void *context, int32_t rank, int64_t tokens, const epx_fate_t *fates)
{
    comparison_t *comparison = context;
    const small_t *small = comparison->world->small;
    cr_assert_eq(tokens, small->tokens[rank]);
    for (int64_t a = 0; a < tokens * small->top_k; a++) {
        const one_t *one = &comparison->world->one[comparison->at++];
        cr_assert_eq(one->rank, rank);
        cr_assert_eq(fates[a].kind, one->kind, "rank %d, token %d, k %d: %d, not %d", rank, one->token,
                     one->k, fates[a].kind, one->kind);
        cr_assert_eq(fates[a].expert, one->kind == EPX_FATE_SKIPPED ? -1 : one->expert);
        cr_assert_eq(fates[a].wave, one->wave, "rank %d, token %d, k %d: wave %d, not %d", rank, one->token,
                     one->k, fates[a].wave, one->wave);
    }
    return 0;
}

/* Rows by wave and rank, once per (token, rank, wave) where the wire is such. */
static void compare_rows(const world_t *w, const epx_drops_t *drops)
{
    int64_t rows[PLACES][RANKS] = {{0}}, sent[PLACES][RANKS] = {{0}}, own[PLACES][RANKS] = {{0}};
    for (int i = 0; i < w->count; i++) {
        const one_t *one = &w->one[i];
        if (one->kind != EPX_FATE_KEPT)
            continue;
        rows[one->wave][one->owner]++;
        int again = 0;
        for (int j = 0; w->how->rank_wire && j < i; j++) {
            const one_t *other = &w->one[j];
            again |= other->kind == EPX_FATE_KEPT && other->rank == one->rank && other->token == one->token &&
                     other->owner == one->owner && other->wave == one->wave;
        }
        (one->owner == one->rank ? own : sent)[one->wave][one->rank] += !again;
    }
    for (int v = 0; v < drops->waves; v++) {
        for (int r = 0; r < w->small->ranks; r++) {
            int at = v * w->small->ranks + r;
            cr_assert_eq(drops->rows[at], rows[v][r], "wave %d, rank %d", v, r);
            if (w->how->transport != EPX_DROPS_RAGGED)
                continue;
            cr_assert_eq(drops->sent[at], sent[v][r], "wave %d, rank %d", v, r);
            cr_assert_eq(drops->own[at], own[v][r], "wave %d, rank %d", v, r);
        }
    }
}

static void compare_sums(const world_t *w, const epx_drops_t *drops)
{
    int64_t sum[4] = {0}, spilled = 0;
    for (int i = 0; i < w->count; i++) {
        sum[w->one[i].kind]++;
        spilled += w->one[i].wave >= 0 && w->one[i].expert != w->small->ids[w->one[i].rank][w->one[i].place];
    }
    cr_assert_eq(drops->routed, w->valid_all);
    cr_assert_eq(drops->kept, sum[EPX_FATE_KEPT]);
    cr_assert_eq(drops->dropped_sender, sum[EPX_FATE_SENDER]);
    cr_assert_eq(drops->dropped_receiver, sum[EPX_FATE_RECEIVER]);
    cr_assert_eq(drops->skipped, sum[EPX_FATE_SKIPPED]);
    cr_assert_geq(drops->spilled, spilled); /* a choice may be the same expert again */
}

static void compare(const small_t *small, const epx_drops_case_t *how)
{
    static world_t world;
    char problem[256];
    epx_drops_t drops, again;
    epx_drops_routing_t routing = {.ranks = small->ranks,
                                   .experts = small->experts,
                                   .top_k = small->top_k,
                                   .columns = small->columns,
                                   .tokens_max = small->tokens_max,
                                   .ids = give_ids,
                                   .context = (void *)(uintptr_t)small};
    world = (world_t){.small = small, .how = how};
    walk(&world);
    comparison_t comparison = {.world = &world};
    cr_assert_eq(
        epx_drops_fates(&routing, how, 1, &drops, compare_rank, &comparison, problem, sizeof problem), 0,
        "%s", problem);
    cr_assert_eq(comparison.at, world.count);
    compare_sums(&world, &drops);
    compare_rows(&world, &drops);
    cr_assert_eq(epx_drops_count(&routing, how, 1, 2, &again, problem, sizeof problem), 0, "%s", problem);
    cr_assert_eq(again.kept, drops.kept);
    cr_assert_eq(again.dropped_sender, drops.dropped_sender);
    cr_assert_arr_eq(again.rows, drops.rows, (size_t)(drops.waves * drops.ranks) * sizeof(int64_t));
    epx_drops_free(&drops);
    epx_drops_free(&again);
}

/* ---- cases -------------------------------------------------------------------------------------------------------- */

static int pick(epx_random_t *random, int from, int to)
{
    return from + (int)epx_random_below(random, (uint32_t)(to - from + 1));
}

/* Skewed, with experts that come twice in a token, with -1, ranks without tokens, fewer experts than ranks.
 */
static small_t draw_small(epx_random_t *random, int further)
{
    small_t small = {.ranks = pick(random, 1, RANKS), .experts = pick(random, 1, EXPERTS)};
    small.top_k = pick(random, 1, 4);
    small.columns = small.top_k + further;
    small.tokens_max = pick(random, 1, TOKENS);
    for (int r = 0; r < small.ranks; r++) {
        small.tokens[r] = pick(random, 0, 3) == 0 ? pick(random, 0, small.tokens_max) : small.tokens_max;
        for (int i = 0; i < small.tokens[r] * small.columns; i++) {
            int id = pick(random, 0, small.experts - 1);
            small.ids[r][i] = pick(random, 0, 9) == 0   ? -1
                              : pick(random, 0, 2) == 0 ? id * id / small.experts
                                                        : id;
        }
    }
    return small;
}

static double draw_factor(epx_random_t *random)
{
    return pick(random, 0, 9) == 0 ? EPX_DROPLESS : pick(random, 10, 40) / 20.0;
}

Test(sim_drops, pooled_wave_by_brute_force)
{
    for (uint64_t i = 0; i < 150; i++) {
        epx_random_t random = epx_random_at(1, i);
        small_t small = draw_small(&random, 0);
        epx_drops_case_t how = {.transport = EPX_DROPS_POOLED_WAVE,
                                .capacity_factor = draw_factor(&random),
                                .sender_factor = pick(&random, 10, 40) / 20.0,
                                .waves = pick(&random, 1, 5),
                                .overflow = i % 2 ? EPX_OVERFLOW_EXTRA_WAVE : EPX_OVERFLOW_DROP};
        compare(&small, &how);
    }
}

Test(sim_drops, spill_by_brute_force)
{
    for (uint64_t i = 0; i < 150; i++) {
        epx_random_t random = epx_random_at(2, i);
        small_t small = draw_small(&random, pick(&random, 1, 3));
        epx_drops_case_t how = {.transport = EPX_DROPS_POOLED_WAVE,
                                .capacity_factor = draw_factor(&random),
                                .sender_factor = pick(&random, 10, 25) / 20.0,
                                .waves = pick(&random, 1, 3),
                                .overflow = EPX_OVERFLOW_SPILL};
        compare(&small, &how);
    }
}

Test(sim_drops, ragged_and_ring_by_brute_force)
{
    for (uint64_t i = 0; i < 300; i++) {
        epx_random_t random = epx_random_at(3, i);
        small_t small = draw_small(&random, 0);
        epx_drops_case_t how = {.transport = i % 3 ? EPX_DROPS_RAGGED : EPX_DROPS_RING,
                                .capacity_factor = draw_factor(&random),
                                .waves = pick(&random, 1, 4),
                                .accept = (epx_accept_t)pick(&random, EPX_ACCEPT_PREFIX, EPX_ACCEPT_FAIR),
                                .rank_wire = i % 2};
        compare(&small, &how);
    }
}

/* Two ranks of three experts each, as four virtual ranks: the first of each pair owns two experts. */
Test(sim_drops, ownership_of_virtual_ranks)
{
    small_t small = {
        .ranks = 4, .experts = 6, .top_k = 1, .columns = 1, .tokens_max = 6, .tokens = {6, 6, 6, 6}};
    for (int r = 0; r < 4; r++)
        for (int t = 0; t < 6; t++)
            small.ids[r][t] = t;
    epx_drops_case_t how = {.transport = EPX_DROPS_RAGGED,
                            .capacity_factor = EPX_DROPLESS,
                            .waves = 1,
                            .accept = EPX_ACCEPT_PREFIX};
    epx_drops_routing_t routing = {.ranks = 4,
                                   .real_ranks = 2,
                                   .experts = 6,
                                   .top_k = 1,
                                   .columns = 1,
                                   .tokens_max = 6,
                                   .ids = give_ids,
                                   .context = &small};
    epx_drops_t drops;
    char problem[256];
    cr_assert_eq(epx_drops_count(&routing, &how, 1, 1, &drops, problem, sizeof problem), 0, "%s", problem);
    static const int64_t wanted[] = {8, 4, 8, 4};
    cr_assert_arr_eq(drops.rows, wanted, sizeof wanted);
    cr_assert_arr_eq(drops.asked, wanted, sizeof wanted);
    cr_assert_float_eq(epx_drops_load(&drops), 8.0 / 6, 1e-12);
    epx_drops_free(&drops);
}

/* Rank r has the block of rank r - h in hop h, and passes it on after every hop but the last. */
Test(sim_drops, blocks_of_a_ring)
{
    small_t small = {
        .ranks = 3, .experts = 3, .top_k = 1, .columns = 1, .tokens_max = 4, .tokens = {1, 4, 2}};
    epx_drops_case_t how = {.transport = EPX_DROPS_RING,
                            .capacity_factor = EPX_DROPLESS,
                            .waves = 9,
                            .accept = EPX_ACCEPT_PREFIX};
    epx_drops_routing_t routing = {.ranks = 3,
                                   .experts = 3,
                                   .top_k = 1,
                                   .columns = 1,
                                   .tokens_max = 4,
                                   .ids = give_ids,
                                   .context = &small};
    epx_drops_t drops;
    char problem[256];
    cr_assert_eq(epx_drops_count(&routing, &how, 1, 1, &drops, problem, sizeof problem), 0, "%s", problem);
    static const int64_t sent[] = {1, 4, 2, 2, 1, 4, 0, 0, 0};
    static const int64_t received[] = {0, 0, 0, 2, 1, 4, 4, 2, 1};
    cr_assert_eq(drops.waves, 3);
    cr_assert_arr_eq(drops.sent, sent, sizeof sent);
    cr_assert_arr_eq(drops.received, received, sizeof received);
    cr_assert_eq(drops.rows[0], 1); /* every token asked for expert 0, of rank 0 */
    cr_assert_eq(drops.rows[3], 2);
    cr_assert_eq(drops.rows[6], 4);
    epx_drops_free(&drops);
}

Test(sim_drops, what_cannot_be)
{
    small_t small = {.ranks = 2, .experts = 4, .top_k = 1, .columns = 1, .tokens_max = 1};
    epx_drops_routing_t routing = {.ranks = 2,
                                   .experts = 4,
                                   .top_k = 1,
                                   .columns = 1,
                                   .tokens_max = 1,
                                   .ids = give_ids,
                                   .context = &small};
    epx_drops_case_t good = {
        .transport = EPX_DROPS_POOLED_WAVE, .capacity_factor = 1, .sender_factor = 1, .waves = 1};
    epx_drops_t drops;
    char problem[256];
    epx_drops_case_t bad = good;
    bad.waves = 0;
    cr_assert_eq(epx_drops_count(&routing, &bad, 1, 1, &drops, problem, sizeof problem), -1);
    bad = good;
    bad.sender_factor = 0;
    cr_assert_eq(epx_drops_count(&routing, &bad, 1, 1, &drops, problem, sizeof problem), -1);
    bad = good;
    bad.overflow = EPX_OVERFLOW_SPILL;
    cr_assert_eq(epx_drops_count(&routing, &bad, 1, 1, &drops, problem, sizeof problem), -1);
    cr_assert(strstr(problem, "spill") != NULL, "%s", problem);
    epx_drops_routing_t wrong = routing;
    wrong.real_ranks = 3;
    cr_assert_eq(epx_drops_count(&wrong, &good, 1, 1, &drops, problem, sizeof problem), -1);
    wrong = routing;
    wrong.tokens_max = (int64_t)INT32_MAX + 1;
    cr_assert_eq(epx_drops_count(&wrong, &good, 1, 1, &drops, problem, sizeof problem), -1);
    cr_assert_eq(epx_drops_count(&routing, &good, 1, 1, &drops, problem, sizeof problem), 0, "%s", problem);
    cr_assert_eq(drops.routed, 0);
    epx_drops_free(&drops);
}
