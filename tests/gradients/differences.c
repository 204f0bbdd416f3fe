/* Hand-written gradients against central differences, in double precision, every tensor and every expert on
 * its own and by relative error: an absolute tolerance has hidden a wrong gradient before (CASES.md 23),
 * because small tensors have small gradients. Widths are no multiples of anything (CASES.md 20).
 * SPDX-License-Identifier: Apache-2.0 */
#define EPX_TRAIN_DOUBLE

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>

#include "train/fail.h"
#include "train/model.h"
#include "train/random.h"

#define STEP 1e-5
#define TOLERANCE 1e-6

typedef struct variant {
    char name[24];
    int64_t latent, shared, gate, window, top_k, recompute, forced;
    double drop, aux_loss;
} variant_t;

static const epx_model_config_t shape = {
    .layers = 2,
    .width = 10,
    .vocabulary = 13,
    .sequence = 7,
    .heads = 4,
    .head_width = 6,
    .kv_heads = 2,
    .full_kv_heads = 1,
    .full_every = 0,
    .experts = 5,
    .expert_width = 9,
    .shared_width = 3,
};

enum { SEQUENCES = 3 };

typedef struct bench {
    epx_model_t *model;
    epx_exchange_t *exchange;
    epx_pass_t pass;
    int32_t inputs[SEQUENCES * 7], targets[SEQUENCES * 7], forced[2 * SEQUENCES * 7 * 5];
} bench_t;

static void set_up(const variant_t *variant, bench_t *bench)
{
    epx_model_config_t config = shape;
    config.latent = variant->latent;
    config.shared = variant->shared;
    config.gate = variant->gate;
    config.window = variant->window;
    config.top_k = variant->top_k;
    int64_t tokens = SEQUENCES * config.sequence;
    epx_exchange_shape_t exchange = {.layers = config.layers,
                                     .experts = config.experts,
                                     .top_k = config.top_k,
                                     .width = epx_config_row_width(&config),
                                     .tokens_max = tokens};
    cr_assert_eq(epx_model_create(&config, SEQUENCES, 0, config.experts, &bench->model), 0, "%s",
                 epx_train_error());
    cr_assert_eq(epx_exchange_dense(&exchange, &bench->exchange), 0, "%s", epx_train_error());
    cr_assert_eq(epx_model_attach(bench->model, bench->exchange, (int)variant->recompute), 0);
    bench->model->aux_loss = variant->aux_loss;
    bench->model->z_loss = 0.05;
    epx_params_init(&bench->model->params, 5, bench->model->parameter);
    for (int64_t i = 0; i < bench->model->params.count;
         i++) /* away from special values, norms of one among them */
        bench->model->parameter[i] += 0.2 * epx_random_normal(6, EPX_STREAM_TEST, (uint64_t)i);
    for (int64_t i = 0; i < config.layers * config.experts; i++)
        bench->model->bias[i] = 0.1 * epx_random_normal(7, EPX_STREAM_TEST, (uint64_t)i);
    for (int64_t i = 0; i < tokens; i++) {
        bench->inputs[i] = (int32_t)(epx_random_bits(8, EPX_STREAM_TEST, (uint64_t)i) % 13);
        bench->targets[i] = (int32_t)(epx_random_bits(9, EPX_STREAM_TEST, (uint64_t)i) % 13);
    }
    /* Forced ids: -1 and the same expert twice in a token are among them. */
    for (int64_t i = 0; i < config.layers * tokens * config.top_k; i++)
        bench->forced[i] = (int32_t)(epx_random_bits(10, EPX_STREAM_TEST, (uint64_t)i) % 6) - 1;
    bench->pass = (epx_pass_t){.sequences = SEQUENCES,
                               .scale = 1.0 / (double)tokens,
                               .drop = variant->drop,
                               .drop_seed = 3,
                               .forced = variant->forced ? bench->forced : NULL};
}

static void tear_down(bench_t *bench)
{
    epx_model_destroy(&bench->model);
    bench->exchange->ops->destroy(bench->exchange);
}

/* What the gradient is the gradient of. The auxiliary loss takes the loads of the last pass with a scale. */
static double total_loss(bench_t *bench)
{
    epx_model_t *model = bench->model;
    epx_pass_t pass = bench->pass;
    double loss = 0;
    pass.scale = 0;
    cr_assert_eq(epx_model_forward(model, &pass, bench->inputs, bench->targets, &loss), 0, "%s",
                 epx_train_error());
    for (int64_t i = 0; i < model->config.layers; i++)
        loss +=
            epx_math_router_losses(model->tokens, model->config.experts, model->layer[i].logits,
                                   model->z_loss, model->aux_loss > 0 ? model->layer[i].aux : NULL, 1, NULL);
    return loss * bench->pass.scale;
}

/* Relative distance of one matrix's gradient from its differences; both may be nothing for an expert without
 * rows. */
static double distance(bench_t *bench, int64_t from, int64_t count, int without_rows)
{
    double *parameter = bench->model->parameter, *gradient = bench->model->gradient;
    double apart = 0, size = 0;
    for (int64_t i = from; i < from + count; i++) {
        double kept = parameter[i];
        parameter[i] = kept + STEP;
        double above = total_loss(bench);
        parameter[i] = kept - STEP;
        double below = total_loss(bench);
        parameter[i] = kept;
        double slope = (above - below) / (2 * STEP);
        apart += (slope - gradient[i]) * (slope - gradient[i]);
        size += slope * slope;
    }
    cr_expect((size == 0) == without_rows, "no gradient at all, so that nothing is shown");
    return sqrt(apart / (size > 0 ? size : 1));
}

static int64_t rows_of(const epx_model_t *model, int64_t layer, int64_t expert)
{
    return model->layer[layer].wave[0].in.count[expert];
}

ParameterizedTestParameters(gradients, agree_with_differences)
{
    static variant_t variants[] = {
        {"plain", 0, 0, 0, 0, 2, 0, 0, 0, 0},          {"latent", 4, 1, 1, 3, 2, 0, 0, 0, 0},
        {"auxiliary loss", 4, 2, 1, 3, 3, 0, 0, 0, 2}, {"recompute", 4, 1, 1, 3, 3, 1, 0, 0, 0},
        {"drop", 0, 1, 1, 0, 3, 0, 0, 0.3, 0},         {"forced", 4, 1, 1, 3, 3, 0, 1, 0, 0.5},
        {"all experts", 4, 0, 1, 1, 5, 0, 0, 0, 0},    {"one expert", 4, 1, 1, 0, 1, 0, 0, 0, 1},
    };
    return cr_make_param_array(variant_t, variants, sizeof variants / sizeof *variants);
}

ParameterizedTest(variant_t *variant, gradients, agree_with_differences)
{
    bench_t bench = {0};
    set_up(variant, &bench);
    epx_model_t *model = bench.model;
    double loss;
    cr_assert_eq(epx_model_forward(model, &bench.pass, bench.inputs, bench.targets, &loss), 0, "%s",
                 epx_train_error());
    cr_assert_eq(epx_model_backward(model), 0, "%s", epx_train_error());
    for (int64_t i = 0; i < model->params.tensors; i++) {
        const epx_tensor_t *tensor = &model->params.tensor[i];
        int64_t each = tensor->rows * tensor->cols;
        for (int64_t m = 0; m < tensor->matrices; m++) {
            int without_rows =
                tensor->tensor_class == EPX_CLASS_EXPERT && rows_of(model, tensor->layer, m) == 0;
            double apart = distance(&bench, tensor->offset + m * each, each, without_rows);
            cr_expect(apart < TOLERANCE, "%s: %s, matrix %lld: relative error %g", variant->name,
                      tensor->name, (long long)m, apart);
        }
    }
    tear_down(&bench);
}
