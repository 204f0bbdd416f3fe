/* The presets, and what follows from a shape. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "config.h"
#include "fail.h"

typedef struct preset {
    const char *name;
    epx_model_config_t model; /* in the order of its declaration */
    int64_t batch, steps, warmup;
    double rate;
} preset_t;

/* clang-format off */
static const preset_t presets[] = {
    /*         layers width vocab  seq   heads of  kv  full window every gate  E  K  inner latent shared of  */
    {"tiny",  {     4,  128,   256,  128,  4,  32,  2,  1,   64,  4, 1,  64, 4,   64,   64, 1,  128}, 2, 600, 20, 3e-3},
    {"d512",  {     8,  512,   256, 1024,  8,  64,  2,  1,  512,  4, 1,  64, 8,  256,  256, 2,  256}, 8, 2000, 100, 1e-3},
    {"d768",  {    12,  768, 50304, 2048, 12,  64,  3,  2, 1024,  4, 1, 128, 8,  384,  384, 2,  384}, 8, 10000, 300, 6e-4},
    {"d1024", {    16, 1024, 50304, 4096,  8, 128,  2,  1, 2048,  4, 1, 128, 8,  512,  512, 2,  512}, 8, 20000, 500, 4e-4},
    {"hero",  {    48, 6144,128256, 4096, 48, 128, 12,  6, 2048,  4, 1, 384, 8, 3072, 3072, 2, 3072}, 16, 100000, 2000, 2e-4},
};
/* clang-format on */

const char *epx_preset_name(int i)
{
    return i >= 0 && i < (int)(sizeof presets / sizeof *presets) ? presets[i].name : NULL;
}

int epx_config_preset(const char *name, epx_train_config_t *config_p)
{
    const preset_t *preset = NULL;
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, name) == 0)
            preset = &presets[i];
    if (!preset)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "there is no preset '%s': take tiny, d512, d768, d1024 or hero", name);
    epx_group_config_t group = EPX_GROUP_CONFIG_INIT;
    *config_p = (epx_train_config_t){
        .preset = preset->name,
        .model = preset->model,
        .batch = preset->batch,
        .steps = preset->steps,
        .seed = 1,
        .rate = preset->rate,
        .rate_end = 0.1,
        .warmup = preset->warmup,
        .schedule = EPX_SCHEDULE_COSINE,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .epsilon = 1e-8,
        .decay = 0.1,
        .router_decay = 0.1,
        .clip = 1.0,
        .balance = EPX_BALANCE_QUANTILE,
        .balance_rate = 0,
        .aux_loss = 0.01,
        .z_loss = 1e-4,
        .ep = 1,
        .replicas = 1,
        .group = group,
        .validation = 0.1,
        .eval_sequences = 64,
        .bigram = 1,
    };
    return EPX_TRAIN_OK;
}

static int below_one(const char *what, int64_t value)
{
    return value >= 1
               ? EPX_TRAIN_OK
               : epx_train_fail(EPX_TRAIN_USAGE, "%s is %lld: it must be at least 1", what, (long long)value);
}

static int check_model(const epx_model_config_t *m)
{
    const struct {
        const char *what;
        int64_t value;
    } least_one[] = {
        {"--layers", m->layers},
        {"--width", m->width},
        {"--vocabulary", m->vocabulary},
        {"--sequence", m->sequence},
        {"--heads", m->heads},
        {"--head-width", m->head_width},
        {"--kv-heads", m->kv_heads},
        {"--full-kv-heads", m->full_kv_heads},
        {"--experts", m->experts},
        {"--top-k", m->top_k},
        {"--expert-width", m->expert_width},
    };
    for (size_t i = 0; i < sizeof least_one / sizeof *least_one; i++)
        if (below_one(least_one[i].what, least_one[i].value) != EPX_TRAIN_OK)
            return EPX_TRAIN_USAGE;
    if (m->top_k > m->experts)
        return epx_train_fail(EPX_TRAIN_USAGE, "--top-k %lld is more than --experts %lld: choose fewer",
                              (long long)m->top_k, (long long)m->experts);
    if (m->heads % m->kv_heads != 0 || m->heads % m->full_kv_heads != 0)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--heads %lld is no multiple of --kv-heads %lld or --full-kv-heads %lld: "
                              "make it one",
                              (long long)m->heads, (long long)m->kv_heads, (long long)m->full_kv_heads);
    if (m->head_width % 2 != 0)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--head-width %lld is odd: rotary attention pairs its halves, make it even",
                              (long long)m->head_width);
    if (m->latent < 0 || m->window < 0 || m->full_every < 0 || m->shared < 0 ||
        (m->shared > 0 && m->shared_width < 1))
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--latent, --window, --full-every, --shared and --shared-width cannot be "
                              "negative: 0 switches a part off");
    return EPX_TRAIN_OK;
}

int epx_config_check(const epx_train_config_t *c)
{
    if (check_model(&c->model) != EPX_TRAIN_OK || below_one("--batch", c->batch) != EPX_TRAIN_OK ||
        below_one("--ep", c->ep) != EPX_TRAIN_OK || below_one("--replicas", c->replicas) != EPX_TRAIN_OK ||
        below_one("--eval-sequences", c->eval_sequences) != EPX_TRAIN_OK)
        return EPX_TRAIN_USAGE;
    if (c->virtual_ep != 0 && (c->virtual_ep < c->ep || c->virtual_ep % c->ep != 0))
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--virtual-ep %lld is no multiple of --ep %lld: each real rank stands for "
                              "equally many virtual ones",
                              (long long)c->virtual_ep, (long long)c->ep);
    if (!(c->drop >= 0 && c->drop < 1))
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--drop %g is no share of the assignments: give 0 <= FRACTION < 1", c->drop);
    if (!(c->validation > 0 && c->validation < 1))
        return epx_train_fail(
            EPX_TRAIN_USAGE, "--validation %g is no share of the text: give 0 < FRACTION < 1", c->validation);
    if (c->steps < 0)
        return epx_train_fail(EPX_TRAIN_USAGE, "--steps %lld is negative", (long long)c->steps);
    if (c->routing && c->record_routing)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--routing and --record-routing together would copy a file: give one");
    return EPX_TRAIN_OK;
}

epx_attention_t epx_config_attention(const epx_model_config_t *model, int64_t layer, int64_t sequences)
{
    int full = model->window == 0 || layer == model->layers - 1 ||
               (model->full_every > 0 && (layer + 1) % model->full_every == 0);
    return (epx_attention_t){
        .sequences = sequences,
        .sequence = model->sequence,
        .heads = model->heads,
        .kv_heads = full ? model->full_kv_heads : model->kv_heads,
        .head_width = model->head_width,
        .window = full ? 0 : model->window,
    };
}

int64_t epx_config_row_width(const epx_model_config_t *model)
{
    return model->latent > 0 ? model->latent : model->width;
}

int64_t epx_config_local_experts(int64_t experts, int64_t ranks, int64_t rank, int64_t *first_p)
{
    int64_t each = experts / ranks, more = experts % ranks;
    *first_p = rank * each + (rank < more ? rank : more);
    return each + (rank < more ? 1 : 0);
}
