/* Routings that epx-sim makes: specifications, what a token's choices depend on, and the hero shape as a
 * whole. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/sim/point.h"
#include "tools/common/program.h"

static char problem[1024];

static epx_sim_routing_t spec(const char *text)
{
    epx_sim_routing_t routing;
    cr_assert_eq(epx_sim_routing_read(&routing, text, problem, sizeof problem), 0, "%s: %s", text, problem);
    return routing;
}

static epx_sim_shape_t small_shape(int64_t ranks, int64_t tokens, int64_t sequence)
{
    epx_sim_shape_t shape;
    cr_assert_eq(epx_sim_shape_preset("tiny", &shape), 0);
    shape.ranks = ranks;
    shape.tokens = tokens;
    shape.model.sequence = sequence;
    return shape;
}

static int32_t *ids_of(const epx_sim_routing_t *routing, const epx_sim_shape_t *shape, uint64_t seed,
                       int keep, int32_t rank)
{
    epx_sim_input_t input;
    epx_sim_source_t source;
    int32_t columns = (int32_t)shape->model.top_k;
    cr_assert_eq(epx_sim_input_open(routing, shape, NULL, columns, seed, 1, &input, problem, sizeof problem),
                 0, "%s", problem);
    epx_sim_source_open(&source, &input, 0, keep);
    int32_t *ids = calloc((size_t)(shape->tokens * columns), sizeof *ids);
    for (int again = 0; again < 2; again++) /* what is kept is what was made */
        cr_assert_eq(source.routing.ids(source.routing.context, rank, ids), shape->tokens);
    epx_sim_source_close(&source);
    return ids;
}

static void expect_ids(int32_t *a, int32_t *b, int64_t count, int equal)
{
    cr_assert_eq(memcmp(a, b, (size_t)count * sizeof *a) == 0, equal);
    free(a);
    free(b);
}

Test(sim_routing, specifications)
{
    epx_sim_routing_t routing = spec("dirichlet");
    cr_assert(routing.kind == EPX_SIM_BY_SEQUENCE && routing.alpha == 104 && routing.sigma == 0.09 &&
              routing.seed == -1);
    routing = spec("dirichlet:alpha=20,sigma=0,seed=7");
    cr_assert(routing.alpha == 20 && routing.sigma == 0 && routing.seed == 7);
    char text[64];
    epx_sim_routing_text(&routing, text, sizeof text);
    cr_assert_str_eq(text, "dirichlet:alpha=20,sigma=0");
    cr_assert(isinf(spec("dirichlet:alpha=inf").alpha));
    cr_assert_str_eq(spec("file:a/b").path, "a/b");
    cr_assert_eq(spec("zipf:s=1.5").kind, EPX_SIM_BY_PATTERN);
    static const char *const bad[] = {"",
                                      "dirichle",
                                      "dirichlet:alpha=0",
                                      "dirichlet:alpha=x",
                                      "dirichlet:sigma=-1",
                                      "dirichlet:seed=-1",
                                      "dirichlet:beta=1",
                                      "dirichlet:alpha",
                                      "dirichletx",
                                      "file:",
                                      "zipf:s=-1",
                                      "gauss"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        problem[0] = '\0';
        cr_expect_eq(epx_sim_routing_read(&routing, bad[i], problem, sizeof problem), -1, "%s", bad[i]);
        cr_expect_geq(strlen(problem), 10, "%s gives no reason", bad[i]);
    }
    cr_assert(strstr(problem, "dirichlet:alpha=104,sigma=0.09,seed=1") != NULL, "%s", problem);
}

Test(sim_routing, choices_are_different_experts)
{
    epx_sim_shape_t shape = small_shape(3, 200, 64);
    static const char *const specs[] = {"dirichlet:alpha=3,sigma=0.5", "dirichlet:alpha=0.01", "uniform",
                                        "zipf:s=2"};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        epx_sim_routing_t routing = spec(specs[i]);
        int32_t *ids = ids_of(&routing, &shape, 5, 0, 1), k = (int32_t)shape.model.top_k;
        for (int64_t t = 0; t < shape.tokens; t++)
            for (int32_t a = 0; a < k; a++) {
                cr_assert(ids[t * k + a] >= 0 && ids[t * k + a] < shape.model.experts);
                for (int32_t b = 0; b < a; b++)
                    cr_assert_neq(ids[t * k + a], ids[t * k + b], "%s", specs[i]);
            }
        free(ids);
    }
}

/* A token's choices follow from (seed, rank, sequence, token), and from nothing else. */
Test(sim_routing, what_a_token_depends_on)
{
    epx_sim_routing_t routing = spec("dirichlet");
    epx_sim_shape_t shape = small_shape(4, 256, 64), longer = small_shape(4, 250, 64);
    int64_t count = 256 * shape.model.top_k, shorter = 250 * shape.model.top_k;
    expect_ids(ids_of(&routing, &shape, 5, 0, 2), ids_of(&routing, &shape, 5, 1, 2), count, 1);
    expect_ids(ids_of(&routing, &shape, 5, 0, 2), ids_of(&routing, &longer, 5, 0, 2), shorter, 1);
    expect_ids(ids_of(&routing, &shape, 5, 0, 2), ids_of(&routing, &shape, 6, 0, 2), count, 0);
    expect_ids(ids_of(&routing, &shape, 5, 0, 2), ids_of(&routing, &shape, 5, 0, 3), count, 0);
    routing.seed = 5; /* a seed of the specification wins */
    expect_ids(ids_of(&routing, &shape, 5, 0, 2), ids_of(&routing, &shape, 6, 0, 2), count, 1);
}

/* Ranks that share a sequence have its pieces: together they are what one rank would have. */
Test(sim_routing, context_parallel_pieces)
{
    epx_sim_routing_t routing = spec("dirichlet:alpha=5");
    epx_sim_shape_t whole = small_shape(1, 128, 128), pieces = small_shape(4, 32, 128);
    pieces.context_parallel = 4;
    int64_t each = 32 * whole.model.top_k;
    int32_t *all = ids_of(&routing, &whole, 9, 0, 0);
    for (int32_t r = 0; r < 4; r++) {
        int32_t *piece = ids_of(&routing, &pieces, 9, 0, r);
        cr_assert_arr_eq(piece, all + r * each, (size_t)each * sizeof *piece, "rank %d", r);
        free(piece);
    }
    free(all);
}

/*
 * Of Dirichlet(a) with sum A: the mean of p_e is a_e / A, and that of the sum of squares is
 * sum a_e (a_e + 1) / (A (A + 1)).
 */
Test(sim_routing, moments_of_the_popularity)
{
    enum { E = 24, SEQUENCES = 40000 };
    epx_sim_routing_t routing = spec("dirichlet:alpha=8,sigma=0.6");
    epx_sim_input_t input = {.routing = &routing};
    double popularity[E], weight[E], mean[E] = {0}, squares = 0, expected = 0, sum = 0;
    epx_sim_popularity(&routing, 3, E, popularity);
    epx_sim_source_t source = {
        .input = &input, .seed = 3, .popularity = popularity, .routing = {.experts = E}};
    for (int64_t q = 0; q < SEQUENCES; q++) {
        double all = 0;
        epx_sim_sequence(&source, q, weight);
        for (int e = 0; e < E; e++)
            all += weight[e];
        for (int e = 0; e < E; e++) {
            mean[e] += weight[e] / all / SEQUENCES;
            squares += weight[e] / all * (weight[e] / all) / SEQUENCES;
        }
    }
    for (int e = 0; e < E; e++) {
        double a = popularity[e];
        sum += a;
        expected += a * (a + 1) / (8.0 * 9);
        cr_expect_float_eq(mean[e], a / 8, 5 * sqrt(a / 8 / 9 / SEQUENCES), "expert %d: %g, not %g", e,
                           mean[e], a / 8);
    }
    cr_assert_float_eq(sum, 8, 1e-12);
    cr_assert_float_eq(squares, expected, 0.01 * expected);
}

/* Logarithms of the popularity have the spread that was asked for. */
Test(sim_routing, spread_of_the_popularity)
{
    enum { E = 20000 };
    static double popularity[E];
    double mean = 0, square = 0;
    epx_sim_routing_t routing = spec("dirichlet:alpha=inf,sigma=0.25");
    epx_sim_popularity(&routing, 1, E, popularity);
    for (int e = 0; e < E; e++)
        mean += log(popularity[e]) / E;
    for (int e = 0; e < E; e++)
        square += (log(popularity[e]) - mean) * (log(popularity[e]) - mean) / E;
    cr_assert_float_eq(sqrt(square), 0.25, 0.006);
}

Test(sim_routing, spread_of_values)
{
    double values[200];
    for (int i = 0; i < 200; i++)
        values[i] = (i * 37 + 11) % 200; /* 0 .. 199, shuffled */
    epx_sim_spread_t spread = epx_sim_spread(values, 200);
    cr_assert_float_eq(spread.mean, 99.5, 1e-9);
    cr_assert_float_eq(spread.deviation, sqrt(200.0 * 201 / 12), 1e-9);
    cr_assert(spread.least == 0 && spread.most == 199);
    cr_assert_eq(spread.p99, 197); /* 198 of 200 values are not above it */
    cr_assert_eq(epx_sim_spread(values, 1).deviation, 0);
    cr_assert_eq(epx_sim_spread(values, 16).p99, epx_sim_spread(values, 16).most);
}

/* ---- the hero shape ------------------------------------------------------------------------------------------------ */

static epx_sim_point_t *hero(int32_t threads, const char *routing)
{
    char text[64], threads_text[16];
    snprintf(text, sizeof text, "%s", routing);
    snprintf(threads_text, sizeof threads_text, "%d", threads);
    char *argv[] = {(char *)"epx-sim", (char *)"--routing", text, (char *)"--threads", threads_text, NULL};
    epx_sim_point_t *point = epx_tool_alloc(1, sizeof *point);
    cr_assert_eq(epx_sim_settings_read(&point->settings, 5, argv), EPX_GO_ON);
    cr_assert_eq(epx_sim_points_run(point, 1), EPX_EXIT_OK);
    return point;
}

static void drop_point(epx_sim_point_t *point)
{
    epx_sim_points_free(point, 1);
    free(point);
}

Test(sim_hero, invariants)
{
    epx_sim_point_t *one = hero(1, "dirichlet:alpha=104,sigma=0.09,seed=1");
    epx_sim_point_t *two = hero(2, "dirichlet:alpha=104,sigma=0.09,seed=1");
    for (int32_t i = 0; i < 3; i++) {
        const epx_sim_result_t *a = &one->result[i], *b = &two->result[i];
        cr_assert_eq(a->routed, 64ll * 65536 * 8);
        cr_assert_eq(a->skipped, 0);
        cr_assert_eq(a->routed, a->kept + a->dropped_sender + a->dropped_receiver);
        cr_assert(a->kept == b->kept && a->dropped_sender == b->dropped_sender &&
                  a->dropped_receiver == b->dropped_receiver);
        cr_assert_eq(memcmp(&a->cost, &b->cost, sizeof a->cost), 0);
        cr_assert(a->load > 1.02 && a->load < 1.3);
        cr_assert(a->cost.exposed_least_s <= a->cost.exposed_s && a->cost.exposed_s <= a->cost.exchange_s);
    }
    const epx_sim_result_t *pooled = &one->result[0], *ragged = &one->result[1], *ring = &one->result[2];
    cr_assert_float_eq(pooled->drop_spread.mean, 0.0267, 0.004);
    cr_assert_gt(pooled->dropped_sender, 4 * pooled->dropped_receiver);
    cr_assert_lt(ragged->drop_spread.mean, 0.002);
    cr_assert_leq(ring->dropped_sender, ragged->dropped_sender); /* larger pools */
    cr_assert(ragged->dropped_receiver == 0 && ring->dropped_receiver == 0);
    /* P = ceil(524288 * 6 * 1.15 / (384 * 3)) = 3141 slots, 64 x 3 slabs of them, 6144 bytes each. */
    cr_assert_float_eq(pooled->cost.transfer_bytes, 64.0 * 3 * 3141 * 6144, 1);
    cr_assert_float_eq(ragged->cost.transfer_bytes, (double)ragged->kept / 64 * 6144, 1);
    cr_assert_float_eq(ring->cost.transfer_bytes, (64.0 * 65536 * 6144 + 64.0 * 65536 * 12288) / 2, 1);
    drop_point(one);
    drop_point(two);
}

Test(sim_hero, a_fresh_router_drops_nothing)
{
    static const char *const specs[] = {"uniform", "dirichlet:alpha=inf,sigma=0"};
    for (int i = 0; i < 2; i++) {
        epx_sim_point_t *point = hero(2, specs[i]);
        for (int32_t t = 0; t < 3; t++)
            cr_expect_eq(point->result[t].kept, point->result[t].routed, "%s, transport %d", specs[i], t);
        drop_point(point);
    }
}
