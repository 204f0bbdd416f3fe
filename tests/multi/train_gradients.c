/* The gradients of the training loop over 1 to 4 ranks, by every transport, against a dense model on one
 * rank: every tensor and every expert on its own, by relative error. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include <string.h>

#include "train/train.h"
#include "train_runs.h"

/* Sums of some hundred products in float, in another order. */
#define TOLERANCE 2e-5

typedef struct variant {
    char transport[16];
    int64_t ep, replicas, recompute, latent, top_k;
    double drop;
    epx_wire_t wire;
    epx_overflow_t overflow;
    epx_balance_t balance;
} variant_t;

static epx_train_config_t config_of(const variant_t *variant)
{
    epx_train_config_t config;
    cr_assert_eq(epx_config_preset("tiny", &config), 0);
    config.model = small_model(variant->top_k, variant->latent);
    config.batch = 2;
    config.steps = 10;
    config.warmup = 1;
    config.ep = variant->ep;
    config.replicas = variant->replicas;
    config.recompute = variant->recompute;
    config.drop = variant->drop;
    config.balance = variant->balance;
    config.peak_flops = 1e9;
    config.group.transport = variant->transport;
    config.group.capacity_factor = EPX_DROPLESS;
    config.group.wire = variant->wire;
    if (variant->overflow == EPX_OVERFLOW_EXTRA_WAVE) {
        config.group.capacity_factor = 0.5;
        config.group.overflow = variant->overflow;
    }
    return config;
}

static int run_rank(epx_comm_h comm, int64_t rank, void *context)
{
    const epx_train_config_t *config = context;
    epx_trainer_t *trainer = NULL;
    epx_gradient_check_t check = {0};
    int code = epx_trainer_create(config, comm, &trainer);
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_open_group(trainer, &config->group);
    for (int step = 0; code == EPX_TRAIN_OK && step < 4; step++) {
        epx_metrics_t metrics;
        code = epx_trainer_step(trainer, &metrics);
    }
    if (code == EPX_TRAIN_OK)
        code = epx_trainer_check_gradients(trainer, &check);
    if (code == EPX_TRAIN_OK && rank == 0) {
        cr_expect_eq(check.dropped, 0);
        cr_expect(check.worst < TOLERANCE, "%s", check.tensor);
        cr_expect_float_eq(check.loss, check.oracle_loss, 1e-5);
        if (check.worst >= TOLERANCE)
            code = epx_train_fail(EPX_TRAIN_FAILED, "%s is off by %g", check.tensor, check.worst);
    }
    epx_trainer_destroy(&trainer);
    return code;
}

ParameterizedTestParameters(train_gradients, gradients_agree_with_dense_oracle)
{
    static variant_t variants[128];
    static const char *const transports[] = {"ragged", "pooled_wave", "ring"};
    size_t count = 0;
    for (size_t t = 0; t < 3; t++)
        for (int64_t ranks = 1; ranks <= 4; ranks++)
            for (int64_t recompute = 0; recompute <= 1; recompute++) {
                variant_t *variant = &variants[count++];
                *variant =
                    (variant_t){.ep = ranks, .replicas = 1, .recompute = recompute, .latent = 9, .top_k = 3};
                strcpy(variant->transport, transports[t]);
            }
    variant_t others[] = {
        {"ragged", 2, 2, 0, 0, 2, 0, 0, 0, 0},
        {"pooled_wave", 2, 2, 0, 0, 7, 0.2, 0, 0, EPX_BALANCE_AUX},
        {"ring", 2, 2, 0, 9, 3, 0.2, 0, 0, EPX_BALANCE_AUX},
        {"ragged", 3, 1, 0, 9, 3, 0, EPX_WIRE_RANK, 0, EPX_BALANCE_BIAS},
        {"ragged", 3, 1, 0, 9, 3, 0, EPX_WIRE_ASSIGNMENT, 0, EPX_BALANCE_NONE},
        {"pooled_wave", 3, 1, 1, 9, 3, 0, 0, EPX_OVERFLOW_EXTRA_WAVE, 0},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        variants[count++] = others[i];
    return cr_make_param_array(variant_t, variants, count);
}

ParameterizedTest(variant_t *variant, train_gradients, gradients_agree_with_dense_oracle)
{
    epx_train_config_t config = config_of(variant);
    int code = epx_ranks_run(config.ep * config.replicas, run_rank, &config);
    cr_expect_eq(code, EPX_TRAIN_OK, "%s, %d groups of %d ranks%s: %s", variant->transport,
                 (int)variant->replicas, (int)variant->ep, variant->recompute ? ", recompute" : "",
                 epx_train_error());
}
