/* What a run needs and whether it is there. SPDX-License-Identifier: Apache-2.0 */
#include "need.h"

#include <stdint.h>
#include <stdio.h>

#include "exchange.h"
#include "fail.h"
#include "model.h"
#include "tools/common/room.h"

/* Of a rank with so many experts. Settings that cannot be are told by the group that opens. */
static int rank_bytes(const epx_train_config_t *config, int64_t local_experts, double *bytes_p)
{
    const epx_model_config_t *m = &config->model;
    epx_exchange_shape_t shape = {.layers = m->layers,
                                  .experts = m->experts,
                                  .top_k = m->top_k,
                                  .width = epx_config_row_width(m),
                                  .tokens_max = config->batch * m->sequence};
    epx_group_config_t settings = config->group;
    int64_t rows_max = 0, waves = 0, bytes = 0;
    if (settings.virtual_ranks == 0)
        settings.virtual_ranks = (int32_t)config->virtual_ep;
    epx_exchange_expect(&shape, &settings, (int)config->recompute, (int32_t)config->ep, &rows_max, &waves);
    int code =
        epx_model_bytes(m, config->batch, local_experts, rows_max, waves, (int)config->recompute, &bytes);
    *bytes_p = (double)bytes;
    return code;
}

/* "24.5 GB", to text [24]. */
static const char *in_words(double bytes, char *text)
{
    int large = bytes >= 1e13;
    snprintf(text, 24, "%.1f %s", bytes * (large ? 1e-12 : 1e-9), large ? "TB" : "GB");
    return text;
}

int epx_need_check(const epx_train_config_t *config, int64_t launched)
{
    int64_t ranks, first, experts = config->model.experts;
    const char *whose;
    double few, more;
    if (__builtin_mul_overflow(config->ep, config->replicas, &ranks) || ranks > INT32_MAX)
        return epx_train_fail(EPX_TRAIN_USAGE,
                              "--ep %lld times --replicas %lld is beyond %d ranks: run fewer",
                              (long long)config->ep, (long long)config->replicas, INT32_MAX);
    /* The last rank of a group has the fewest experts, and the first experts mod ep ones have one more. */
    int64_t local = epx_config_local_experts(experts, config->ep, config->ep - 1, &first);
    int code = rank_bytes(config, local, &few);
    if (code == EPX_TRAIN_OK)
        code = rank_bytes(config, local + 1, &more);
    if (code != EPX_TRAIN_OK)
        return code;
    double need = launched > 1 ? few
                               : (double)ranks * few +
                                     (double)(config->replicas * (experts % config->ep)) * (more - few);
    int64_t room = epx_room_bytes(&whose);
    if (need <= (double)room)
        return EPX_TRAIN_OK;
    char needed[24], left[24];
    int one = launched > 1 || ranks == 1;
    return epx_train_fail(
        EPX_TRAIN_FAILED,
        "%lld rank%s in this process take%s at least %s for the model and what a step keeps, "
        "and %s has %s left: run fewer ranks, start them on several hosts, or take a "
        "smaller --batch, --sequence or model",
        one ? 1 : (long long)ranks, one ? "" : "s", one ? "s" : "", in_words(need, needed), whose,
        in_words((double)room, left));
}
