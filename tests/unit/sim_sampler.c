/* Draws without replacement. Chances are worked out by hand: the first choice in proportion to the weights,
 * each further one in proportion to those that are left. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#include "bench/common/sampler.h"

enum { DRAWS = 400000 };

static epx_sampler_t open_with(const double *weight, int32_t experts)
{
    epx_sampler_t sampler = epx_sampler_open(experts);
    memcpy(sampler.weight, weight, (size_t)experts * sizeof *weight);
    epx_sampler_prepare(&sampler);
    return sampler;
}

/* Five spreads of a binomial share. */
static void expect_share(int64_t count, double chance, const char *what)
{
    double spread = sqrt(chance * (1 - chance) / DRAWS);
    cr_expect_float_eq((double)count / DRAWS, chance, 5 * spread + 1e-9, "%s: %g, not %g", what,
                       (double)count / DRAWS, chance);
}

Test(sim_sampler, ordered_pairs)
{
    static const double weight[] = {1, 2, 0, 5, 0.5};
    epx_sampler_t sampler = open_with(weight, 5);
    int64_t seen[5][5] = {{0}};
    for (uint64_t i = 0; i < DRAWS; i++) {
        epx_random_t random = epx_random_at(11, i);
        int32_t ids[2];
        epx_sampler_draw(&sampler, &random, 2, ids);
        seen[ids[0]][ids[1]]++;
    }
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 5; b++)
            expect_share(seen[a][b], a == b ? 0 : weight[a] / 8.5 * weight[b] / (8.5 - weight[a]), "pair");
    epx_sampler_close(&sampler);
}

/* One weight far above the others: rejecting it again and again would never end. */
Test(sim_sampler, one_that_weighs_nearly_all)
{
    static const double weight[] = {1e-290, 1, 1e-290, 3e-290};
    epx_sampler_t sampler = open_with(weight, 4);
    int64_t second[4] = {0};
    for (uint64_t i = 0; i < DRAWS; i++) {
        epx_random_t random = epx_random_at(12, i);
        int32_t ids[4];
        epx_sampler_draw(&sampler, &random, 4, ids);
        cr_assert_eq(ids[0], 1);
        cr_assert_eq(1 << ids[0] | 1 << ids[1] | 1 << ids[2] | 1 << ids[3], 15);
        second[ids[1]]++;
    }
    expect_share(second[0], 0.2, "second 0");
    expect_share(second[2], 0.2, "second 2");
    expect_share(second[3], 0.6, "second 3");
    epx_sampler_close(&sampler);
}

Test(sim_sampler, fewer_candidates_than_choices)
{
    static const double two[] = {0, 4, 0, 4}, none[] = {0, 0, 0};
    int32_t ids[5];
    epx_random_t random = epx_random_at(13, 0);
    epx_sampler_t sampler = open_with(two, 4);
    cr_assert_eq(sampler.candidates, 2);
    for (int i = 0; i < 1000; i++) {
        epx_sampler_draw(&sampler, &random, 5, ids);
        cr_assert(ids[0] + ids[1] == 4 && ids[0] != ids[1]);
        cr_assert(ids[2] == ids[0] && ids[3] == ids[1] && ids[4] == ids[0]);
    }
    epx_sampler_close(&sampler);
    sampler = open_with(none, 3);
    epx_sampler_draw(&sampler, &random, 2, ids);
    cr_assert(ids[0] == -1 && ids[1] == -1);
    epx_sampler_close(&sampler);
}

/* What a sampler drew before has no influence, and neither has its table's history. */
Test(sim_sampler, a_draw_follows_from_its_stream)
{
    double weight[40], other[40];
    for (int e = 0; e < 40; e++) {
        weight[e] = 1 + e % 7;
        other[e] = e % 3;
    }
    epx_sampler_t fresh = open_with(weight, 40), used = open_with(other, 40);
    epx_random_t noise = epx_random_at(14, 1);
    int32_t ids[8], same[8];
    for (int i = 0; i < 100; i++)
        epx_sampler_draw(&used, &noise, 8, ids);
    memcpy(used.weight, weight, sizeof weight);
    epx_sampler_prepare(&used);
    for (uint64_t i = 0; i < 200; i++) {
        epx_random_t a = epx_random_at(15, i), b = a;
        epx_sampler_draw(&fresh, &a, 8, ids);
        epx_sampler_draw(&used, &b, 8, same);
        cr_assert_arr_eq(ids, same, sizeof ids);
        cr_assert_eq(a.state, b.state);
    }
    epx_sampler_close(&fresh);
    epx_sampler_close(&used);
}
