/* Published figures of the hero shape. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>

#include "train/flops.h"

static epx_flops_t hero(void)
{
    epx_train_config_t config;
    cr_assert_eq(epx_config_preset("hero", &config), 0);
    return epx_flops_per_token(&config.model);
}

/* Equal to as many digits as were published. */
#define CHECK_DIGITS(value, published, digits)                                       \
    cr_expect_eq(round((value)*pow(10, digits)), round((published)*pow(10, digits)), \
                 "%.6g, published as %g", value, (double)(published))

Test(train_flops, hero_shape_costs_what_was_published)
{
    epx_flops_t flops = hero();
    double forward = flops.routed + flops.rest + flops.scores;
    CHECK_DIGITS(forward * 1e-9, 49.9, 1);
    CHECK_DIGITS(3 * forward * 1e-9, 149.7, 1);
}

Test(train_flops, hero_shape_has_the_published_mfu)
{
    epx_flops_t flops = hero();
    CHECK_DIGITS(100 * epx_flops_mfu(&flops, 244738, 64 * 2.5e15), 22.90, 2);
}

Test(train_flops, drops_take_from_the_routed_part_only)
{
    epx_flops_t flops = hero();
    double rate = 244738 * 22.71 / 22.90, peak = 64 * 2.5e15;
    double mfu = epx_flops_mfu(&flops, rate, peak);
    double executed = epx_flops_mfu_executed(&flops, rate, peak, 9733, 10000);
    CHECK_DIGITS(100 * mfu, 22.71, 2);
    CHECK_DIGITS(100 * executed, 22.45, 2);
    cr_expect_float_eq(mfu - executed,
                       mfu * 0.0267 * flops.routed / (flops.routed + flops.rest + flops.scores), 1e-9);
    cr_expect_eq(epx_flops_mfu_executed(&flops, rate, peak, 0, 0), mfu);
}

Test(train_flops, mask_hides_half_of_the_scores_and_more_outside_a_window)
{
    epx_model_config_t model = {.layers = 1,
                                .width = 8,
                                .vocabulary = 16,
                                .sequence = 100,
                                .heads = 2,
                                .head_width = 4,
                                .kv_heads = 1,
                                .full_kv_heads = 1,
                                .experts = 2,
                                .top_k = 1,
                                .expert_width = 4};
    epx_flops_t full = epx_flops_per_token(&model);
    cr_expect_float_eq(full.scores, (4 * 8 + 3 * 2) * 100.0, 1e-9);
    cr_expect_float_eq(full.causal_scores, (4 * 8 + 3 * 2) * 50.5, 1e-9);
    model.window = 10;
    model.layers = 2; /* the last layer sees everything, the first one has the window */
    epx_flops_t both = epx_flops_per_token(&model);
    double seen = (10 * 11 / 2.0 + 90 * 10) / 100.0;
    cr_expect_float_eq(both.scores - full.scores, (4 * 8 + 3 * 2) * 10.0, 1e-9);
    cr_expect_float_eq(both.causal_scores - full.causal_scores, (4 * 8 + 3 * 2) * seen, 1e-9);
}
