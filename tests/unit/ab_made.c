/* Results made by hand. SPDX-License-Identifier: Apache-2.0 */
#include "ab_made.h"

#include <stdio.h>
#include <stdlib.h>

static epx_ab_counts_t made_counts(int32_t arm, epx_ab_part_t part)
{
    epx_ab_counts_t counts = {.valid = 1000, .kept = 1000};
    if (arm == 0 && part != EPX_AB_TWIN)
        counts = (epx_ab_counts_t){.valid = 1000, .kept = 950, .dropped_sender = 30, .dropped_receiver = 20};
    return counts;
}

static void add(epx_ab_result_t *result, int32_t arm, epx_ab_part_t part, int32_t round)
{
    epx_ab_run_t *run = epx_ab_add_run(result, arm, part, round, MADE_STEPS);
    run->steps = run->steps_expected = MADE_STEPS;
    run->layers = MADE_LAYERS;
    run->layer = calloc(MADE_LAYERS, sizeof *run->layer);
    for (int32_t s = 0; s < MADE_STEPS; s++) {
        double drops = arm == 0 && part != EPX_AB_TWIN;
        run->step[s] = (epx_ab_step_t){.step = 100 + s,
                                       .discarded = s < MADE_DISCARD,
                                       .loss = 2 + 0.1 * drops,
                                       .tokens = 1024,
                                       .step_ms = 100,
                                       .mfu = 0.20 + 0.01 * arm + 0.0001 * round,
                                       .mfu_executed = 0.19 + 0.01 * arm + 0.0001 * round,
                                       .exposed_ms = 30 - arm,
                                       .experts_ms = 20,
                                       .attention_ms = 10,
                                       .gradients_ms = 5,
                                       .wait_ms_max = 1,
                                       .peak_bytes = 1000000 + 200000 * arm,
                                       .sent_bytes = 4096,
                                       .received_bytes = 4096,
                                       .load_max_over_mean = 2,
                                       .count = made_counts(arm, part)};
        for (int32_t i = 0; i < MADE_LAYERS && s >= MADE_DISCARD; i++) {
            epx_ab_counts_t half = run->step[s].count;
            half.valid /= 2, half.kept /= 2, half.dropped_sender /= 2, half.dropped_receiver /= 2;
            epx_ab_add_counts(&run->layer[i], &half);
        }
    }
    run->weights = 0x1111;
    run->first_choices = 0x2222 + (uint64_t)round; /* each round reads other text */
    run->places = 4;
    run->loads = calloc(4, sizeof *run->loads);
    for (int32_t i = 0; i < 4; i++)
        run->loads[i] = 2500;
    snprintf(run->transport, sizeof run->transport, "%s", arm < 0 ? "ragged" : result->arm[arm].transport);
    snprintf(run->fabric, sizeof run->fabric, "local");
    run->group_bytes = run->plan_bytes = 3 * 4096;
    run->allocations = 0;
    run->clock_mhz = 3000;
    run->throttles = 0;
    run->others_cpu = 0.01;
    run->payload[0] = run->accounting[0] = '\0';
}

epx_ab_result_t made_result(int32_t arms, int32_t rounds)
{
    static const char *const names[] = {"pooled_wave", "ragged", "ring"};
    epx_ab_result_t result = {.arms = arms};
    result.scope = (epx_ab_scope_t){.preset = "tiny",
                                    .ranks = 4,
                                    .ep = 4,
                                    .replicas = 1,
                                    .virtual_ep = 64,
                                    .target_ranks = 64,
                                    .layers = MADE_LAYERS,
                                    .experts = 64,
                                    .top_k = 4,
                                    .sequence = 128,
                                    .tokens_per_rank = 256,
                                    .regime = "settled",
                                    .regime_why = "made by hand",
                                    .checkpoint = "made by hand",
                                    .checkpoint_hash = 0xabcdef,
                                    .checkpoint_step = 300,
                                    .pairs = rounds,
                                    .steps = MADE_STEPS - MADE_DISCARD,
                                    .discard = MADE_DISCARD,
                                    .margin = 0.25};
    for (int32_t a = 0; a < arms; a++) {
        epx_ab_arm_t *arm = &result.arm[a];
        epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
        arm->config = config;
        snprintf(arm->name, sizeof arm->name, "%s", names[a % 3]);
        snprintf(arm->transport, sizeof arm->transport, "%s", names[a % 3]);
        arm->gradients =
            (epx_ab_gradients_t){.checked = 1, .worst = 1e-6, .tensor = "head", .oracle_loss = 2.0};
        arm->ruled[0].ranks = 64;
        arm->ruled[0].count = made_counts(a, EPX_AB_PLAIN);
        arm->ruled[0].by_wave[0] = a == 0 ? 20 : 0;
    }
    for (int32_t r = 0; r < rounds; r++) {
        add(&result, -1, EPX_AB_REFERENCE, r);
        for (int32_t a = 0; a < arms && r == 0; a++)
            add(&result, a, EPX_AB_TWIN, 0);
        for (int32_t a = 0; a < arms; a++) {
            add(&result, a, EPX_AB_PLAIN, r);
            if (r % arms == a)
                add(&result, a, EPX_AB_AGAIN, r);
        }
    }
    return result;
}

epx_ab_run_t *made_run(epx_ab_result_t *result, int32_t arm, epx_ab_part_t part, int32_t round)
{
    return (epx_ab_run_t *)(uintptr_t)epx_ab_find_run(result, arm, part, round, 1);
}
