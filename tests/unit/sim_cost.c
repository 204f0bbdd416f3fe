/* The cost model, with numbers that were worked out by hand. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "bench/sim/cost.h"

#define NEAR(a, b) cr_assert_float_eq(a, b, 1e-9 * (1 + (b)), "%.12g, not %.12g", (double)(a), (double)(b))

static double span(int32_t waves, int32_t depth, const double *out, const double *work, const double *home)
{
    return epx_sim_span(waves, depth, out, work, home);
}

Test(sim_cost, span_of_a_schedule)
{
    static const double one[] = {1, 1, 1, 1}, three[] = {3, 3, 3}, two[] = {2, 5, 1};
    /* One wave: everything after everything else. */
    NEAR(span(1, 1, one, three, one), 5);
    /* Depth 1: no wave begins before the last one is home. */
    NEAR(span(3, 1, one, three, one), 15);
    /* Depth 2, work is longest: out, three times work, home; the rest is beside it. */
    NEAR(span(3, 2, one, three, one), 11);
    /* Depth 2, the link is longest: out 1, 1, then work 0..: link is busy from 0 on but for the first work.
     */
    static const double tiny[] = {0, 0, 0}, link[] = {4, 4, 4};
    NEAR(span(3, 2, link, tiny, link), 24);
    /* out 0-1, 1-2; work 1-3; home 3-4; out 4-5; work 3-8; home 8-9; work 8-9; home 9-10 */
    NEAR(span(3, 2, one, two, one), 10);
    /* More depth than waves is depth for all of them: out 0-3, work 1-3, 3-8, 8-9; home 3-4, 8-9, 9-10 */
    NEAR(span(3, 9, one, two, one), 10);
}

/* Two ranks, one layer, rows of 4 fp32: 16 bytes; expert width 2, so 3 * 2 * 4 * 2 = 48 operations a row. */
static epx_sim_shape_t two_ranks(void)
{
    epx_sim_shape_t shape;
    cr_assert_eq(epx_sim_shape_preset("tiny", &shape), 0);
    shape.model = (epx_model_config_t){.layers = 1,
                                       .width = 4,
                                       .vocabulary = 5,
                                       .sequence = 10,
                                       .heads = 1,
                                       .head_width = 2,
                                       .kv_heads = 1,
                                       .full_kv_heads = 1,
                                       .experts = 2,
                                       .top_k = 1,
                                       .expert_width = 2};
    shape.ranks = 2;
    shape.tokens = 10;
    shape.row_type = 0;
    return shape;
}

static epx_machine_t machine(void)
{
    epx_machine_t machine = {.name = "by hand"};
    static const double value[EPX_CONSTANTS] = {
        [EPX_PEAK_FLOPS] = 1000,   [EPX_GEMM_FLOPS] = 480, [EPX_ATTENTION_FLOPS] = 100,
        [EPX_MEMORY_BYTES] = 1600, [EPX_LINK_BYTES] = 320, [EPX_LINK_SHARE] = 0.5,
        [EPX_OPERATION_S] = 0.25,  [EPX_PEER_S] = 0.125,   [EPX_BARRIER_S] = 2,
        [EPX_OVERLAP] = 0};
    memcpy(machine.value, value, sizeof value);
    return machine;
}

/* Rank 0 keeps 2 rows and sends 8, rank 1 keeps 7 and sends 3. */
static int64_t tokens[] = {10, 10}, asked[] = {5, 15}, rows[] = {5, 15}, refused[] = {0, 0}, sent[] = {8, 3},
               received[] = {3, 8}, own[] = {2, 7};
static epx_drops_t one_wave(void)
{
    return (epx_drops_t){.routed = 20,
                         .kept = 20,
                         .ranks = 2,
                         .waves = 1,
                         .tokens = tokens,
                         .asked = asked,
                         .rows = rows,
                         .refused = refused,
                         .sent = sent,
                         .received = received,
                         .own = own};
}

Test(sim_cost, ragged_by_hand)
{
    epx_sim_shape_t shape = two_ranks();
    epx_machine_t m = machine();
    epx_drops_t drops = one_wave();
    epx_drops_case_t rules = {
        .transport = EPX_DROPS_RAGGED, .capacity_factor = 1, .waves = 1, .accept = EPX_ACCEPT_PREFIX};
    epx_sim_how_t how = {.depth = 2};
    epx_sim_cost_t cost = epx_sim_cost(&shape, &rules, &drops, &m, &how);
    /* Both ranks have 8 rows on the busier direction: 128 bytes at 160 a second, four transfers. */
    NEAR(cost.term[EPX_SIM_WIRE], 4 * 0.8);
    /* Out: own rows read and written, 64 and 224 bytes. Home: the same, 10 rows read, 10 tokens written: 320
     * more. */
    NEAR(cost.term[EPX_SIM_MEMORY], 2 * ((64 + 224) / 2.0 / 1600 + (64 + 320 + 224 + 320) / 2.0 / 1600));
    NEAR(cost.term[EPX_SIM_SKEW], 2 * (80.0 / 1600 + 80.0 / 1600));
    NEAR(cost.term[EPX_SIM_LATENCY], 4 * 0.375);
    /* A call, four ids of 4 bytes for each choice, a meeting, and for the other rank a word and 2 counts. */
    NEAR(cost.term[EPX_SIM_ROUTE], 0.25 + 10 * 16 / 1600.0 + 2 + 0.125 + 8 / 160.0);
    double exchange = 0;
    for (int t = EPX_SIM_WIRE; t <= EPX_SIM_SKEW; t++)
        exchange += cost.term[t];
    NEAR(cost.exchange_s, exchange);
    NEAR(cost.exposed_s, exchange);
    /* One wave has nothing to hide behind. */
    NEAR(cost.exposed_least_s, exchange);
    NEAR(cost.transfer_bytes, 10 * 16);
    NEAR(cost.remote_bytes, (8 + 3) / 2.0 * 16);
    NEAR(cost.term[EPX_SIM_EXPERTS], 3 * 10 * 48 / 480.0);
    NEAR(cost.term[EPX_SIM_IMBALANCE], 3 * 5 * 48 / 480.0);
    NEAR(cost.step_s, cost.exposed_s + cost.term[EPX_SIM_EXPERTS] + cost.term[EPX_SIM_IMBALANCE] +
                          cost.term[EPX_SIM_ATTENTION] + cost.term[EPX_SIM_DENSE]);
    /* Scores of one head of 2 over 10 tokens: 4 * 2 * 10 + 3 * 10, half of it and a token under the mask. */
    NEAR(cost.term[EPX_SIM_ATTENTION], 3 * 10 * 11 * 5.5 / 100);
    /* Projections 4 x (2 + 4) and 2 x 4, router 4 x 2, head 4 x 5: 60 products, two operations each. */
    NEAR(cost.term[EPX_SIM_DENSE], 3 * 10 * 2 * 60 / 480.0);
    NEAR(cost.mfu, 3 * (48 + 110 + 120) * 10 / cost.step_s / 1000);
    NEAR(cost.mfu_executed, cost.mfu);
}

Test(sim_cost, recomputation_and_overlap)
{
    epx_sim_shape_t shape = two_ranks();
    epx_machine_t m = machine();
    int64_t two_rows[] = {5, 5, 5, 5}, two_sent[] = {4, 4, 4, 4}, two_own[] = {1, 1, 1, 1}, none[4] = {0};
    epx_drops_t drops = {.routed = 20,
                         .kept = 20,
                         .ranks = 2,
                         .waves = 2,
                         .tokens = tokens,
                         .asked = asked,
                         .rows = two_rows,
                         .refused = none,
                         .sent = two_sent,
                         .received = two_sent,
                         .own = two_own};
    epx_drops_case_t rules = {
        .transport = EPX_DROPS_RAGGED, .capacity_factor = 1, .waves = 2, .accept = EPX_ACCEPT_PREFIX};
    m.value[EPX_MEMORY_BYTES] = 1e15;
    m.value[EPX_OPERATION_S] = m.value[EPX_PEER_S] = m.value[EPX_BARRIER_S] = 0;
    epx_sim_how_t how = {.depth = 2, .recompute = 1};
    epx_sim_cost_t cost = epx_sim_cost(&shape, &rules, &drops, &m, &how);
    /* Per wave: 64 bytes at 160 a second are 0.4; work 0.5 forward, 1.5 backward with the forward once more.
     */
    double route = cost.term[EPX_SIM_ROUTE];
    cr_assert_float_eq(cost.exchange_s, 8 * 0.4 + route, 1e-9);
    cr_assert_float_eq(cost.term[EPX_SIM_EXPERTS], 3.0, 1e-9);
    NEAR(cost.term[EPX_SIM_RECOMPUTE], (10 * 48 + 10 * 120) / 480.0 + 10 * 11 * 5.5 / 100);
    /* Forward: out 0.4, 0.8; work to 0.9, 1.4; home 0.9-1.3, 1.4-1.8: 0.8 of 1.6 is beside the work. The
     * backward pass the same with longer work: out, work 3, home. */
    cr_assert_float_eq(cost.exposed_least_s, 0.8 + 0.8 + route, 1e-9);
    cr_assert_float_eq(cost.exposed_s, cost.exchange_s, 1e-12);
    m.value[EPX_OVERLAP] = 0.25;
    cost = epx_sim_cost(&shape, &rules, &drops, &m, &how);
    cr_assert_float_eq(cost.term[EPX_SIM_HIDDEN], 0.25 * 1.6, 1e-9);
    cr_assert_float_eq(cost.exposed_s, 3.2 - 0.4 + route, 1e-9);
}

Test(sim_cost, pooled_wave_and_ring_bytes)
{
    epx_sim_shape_t shape = two_ranks();
    epx_machine_t m = machine();
    epx_drops_t drops = one_wave();
    epx_sim_how_t how = {.depth = 2};
    epx_drops_case_t rules = {.transport = EPX_DROPS_POOLED_WAVE,
                              .capacity_factor = 1,
                              .sender_factor = 1,
                              .waves = 1,
                              .overflow = EPX_OVERFLOW_DROP};
    epx_sim_cost_t pooled = epx_sim_cost(&shape, &rules, &drops, &m, &how);
    NEAR(pooled.transfer_bytes, 160);             /* slabs: what the arrays say moves and stays */
    NEAR(pooled.term[EPX_SIM_ROUTE], 0.25 + 0.1); /* nobody is asked */

    /* Two hops: each rank passes on its own block of 10 tokens, and sums after both hops. */
    int64_t ring_rows[] = {2, 7, 3, 8}, ring_sent[] = {10, 10, 0, 0}, ring_received[] = {0, 0, 10, 10},
            ring_own[] = {10, 10, 0, 0}, none[4] = {0};
    epx_drops_t hops = {.routed = 20,
                        .kept = 20,
                        .ranks = 2,
                        .waves = 2,
                        .tokens = tokens,
                        .asked = asked,
                        .rows = ring_rows,
                        .refused = none,
                        .sent = ring_sent,
                        .received = ring_received,
                        .own = ring_own};
    rules =
        (epx_drops_case_t){.transport = EPX_DROPS_RING, .capacity_factor = 1, .accept = EPX_ACCEPT_PREFIX};
    epx_sim_cost_t ring = epx_sim_cost(&shape, &rules, &hops, &m, &how);
    NEAR(ring.remote_bytes, (10 * 16 + 20 * 16) / 2.0);
    /* Out: a block in the first hop and none in the second, but the busier direction of the second receives
     * one. */
    NEAR(ring.term[EPX_SIM_WIRE], 2 * ((160 + 160) / 160.0 + 2 * 160 / 160.0));
    NEAR(ring.term[EPX_SIM_LATENCY], 8 * 0.375);
}

Test(sim_cost, hero_shape_as_published)
{
    epx_sim_shape_t shape;
    cr_assert_eq(epx_sim_shape_preset("hero", &shape), 0);
    cr_assert_eq(shape.ranks, 64);
    cr_assert_eq(shape.tokens, 65536);
    cr_assert_eq(epx_sim_row_bytes(&shape), 6144);
    cr_assert_eq(shape.tokens * shape.model.top_k * epx_sim_row_bytes(&shape), 3221225472);
    shape.context_parallel = 4;
    shape.model.sequence = 262144;
    cr_assert_eq(epx_sim_piece(&shape), 65536);
}
