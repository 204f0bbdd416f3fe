/* From a caller's configuration to the static shape of a group. SPDX-License-Identifier: Apache-2.0 */
#include "core/shape.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/fail.h"
#include "transport/accept.h"
#include "transport/common.h"

enum { LANES_MAX = 4096, DEPTH_MAX = 1024, VIRTUAL_MAX = 1 << 20, RANKS_MAX = INT32_MAX / 2 };

/* Copies a struct that may be shorter or, with a zero tail, longer than ours. */
static epx_status_t take_config(const epx_group_config_t *config, epx_group_config_t *config_p)
{
    if (config == NULL)
        return epx_fail(EPX_ERR_ARG, "the group's configuration is NULL");
    if (config->size < offsetof(epx_group_config_t, row_type))
        return epx_fail(EPX_ERR_ARG,
                        "epx_group_config_t.size is %zu; begin the struct with EPX_GROUP_CONFIG_INIT",
                        config->size);
    size_t known = config->size < sizeof(*config_p) ? config->size : sizeof(*config_p);
    for (size_t i = sizeof(*config_p); i < config->size; i++)
        if (((const uint8_t *)config)[i] != 0)
            return epx_fail(EPX_ERR_ARG,
                            "epx_group_config_t sets byte %zu, which this library (%s) does not know; use "
                            "a newer library",
                            i, epx_version());
    memset(config_p, 0, sizeof(*config_p));
    memcpy(config_p, config, known);
    config_p->size = sizeof(*config_p);
    return EPX_OK;
}

typedef struct range_row {
    const char *name;
    int32_t value, least, most;
} range_row_t;

static epx_status_t check_ranges(const epx_group_config_t *c, int32_t ranks)
{
    const range_row_t rows[] = {
        {"experts", c->experts, 1, INT32_MAX / 2},
        {"top_k", c->top_k, 1, c->experts},
        {"width", c->width, 1, INT32_MAX / 4},
        {"tokens_max", c->tokens_max, 1, INT32_MAX},
        {"aux_bytes", c->aux_bytes, 0, 64},
        {"row_align", c->row_align, 0, 1 << 16},
        {"lanes", c->lanes, 0, LANES_MAX},
        {"depth", c->depth, 0, DEPTH_MAX},
        {"backward", (int32_t)c->backward, 0, EPX_BACKWARD_RECOMPUTE},
        {"origin", c->origin, 0, 1},
        {"batch_in_caller", c->batch_in_caller, 0, 1},
        {"spill_choices", c->spill_choices, 0, c->experts - c->top_k},
        {"virtual_ranks", c->virtual_ranks, 0, VIRTUAL_MAX},
        {"ranks", c->ranks, 0, RANKS_MAX},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].value < rows[i].least || rows[i].value > rows[i].most)
            return epx_fail(EPX_ERR_ARG, "%s is %d; it must be %d to %d", rows[i].name, rows[i].value,
                            rows[i].least, rows[i].most);
    if (c->virtual_ranks % ranks != 0)
        return epx_fail(EPX_ERR_ARG, "virtual_ranks is %d; it must be a multiple of the %d ranks",
                        c->virtual_ranks, ranks);
    if ((int64_t)c->tokens_max * (c->top_k + c->spill_choices) > INT32_MAX)
        return epx_fail(EPX_ERR_ARG,
                        "tokens_max %d times %d choices is beyond 2^31 - 1 assignments; use fewer tokens",
                        c->tokens_max, c->top_k + c->spill_choices);
    return EPX_OK;
}

static epx_status_t check_types(const epx_group_config_t *c, int32_t ranks)
{
    if (c->row_type != EPX_TYPE_DEFAULT && c->row_type != EPX_FP32 && c->row_type != EPX_BF16 &&
        c->row_type != EPX_FP16)
        return epx_fail(EPX_ERR_ARG, "row_type is %d; use EPX_FP32, EPX_BF16 or EPX_FP16", (int)c->row_type);
    epx_type_t row_type = c->row_type == EPX_TYPE_DEFAULT ? EPX_FP32 : c->row_type;
    if (c->out_type != EPX_TYPE_DEFAULT && c->out_type != EPX_FP32 && c->out_type != row_type)
        return epx_fail(EPX_ERR_ARG, "out_type is %d; use the row type or EPX_FP32", (int)c->out_type);
    for (int32_t e = 0; c->owner != NULL && e < c->experts; e++)
        if (c->owner[e] < 0 || c->owner[e] >= ranks)
            return epx_fail(EPX_ERR_ARG, "owner[%d] is %d; it must be 0 to %d", e, c->owner[e], ranks - 1);
    if (c->allocator != NULL && (c->allocator->allocate == NULL || c->allocator->release == NULL))
        return epx_fail(EPX_ERR_ARG, "the allocator lacks allocate or release");
    return EPX_OK;
}

epx_status_t epx_shape_check(const epx_group_config_t *config, int32_t ranks, epx_group_config_t *config_p)
{
    epx_status_t status = take_config(config, config_p);
    if (status != EPX_OK)
        return status;
    if (ranks < 1)
        return epx_fail(EPX_ERR_ARG, "ranks is %d; it must be 1 or more", ranks);
    status = check_ranges(config_p, ranks);
    if (status == EPX_OK)
        status = check_types(config_p, ranks);
    if (status != EPX_OK)
        return status;
    if (config_p->row_type == EPX_TYPE_DEFAULT)
        config_p->row_type = EPX_FP32;
    if (config_p->out_type == EPX_TYPE_DEFAULT)
        config_p->out_type = config_p->row_type;
    if (config_p->backward == EPX_BACKWARD_DEFAULT)
        config_p->backward = EPX_BACKWARD_KEPT;
    if (config_p->row_align == 0)
        config_p->row_align = 1;
    if (config_p->lanes == 0)
        config_p->lanes = 2;
    if (config_p->depth == 0)
        config_p->depth = 2;
    if (config_p->virtual_ranks == 0)
        config_p->virtual_ranks = ranks;
    return EPX_OK;
}

/* ---- ownership -------------------------------------------------------------------------------------------------- */

static int64_t owner_ints(int64_t experts, int64_t ranks) { return 3 * experts + ranks + 1; }

int64_t epx_shape_table_bytes(const epx_group_config_t *config, int32_t ranks)
{
    int64_t virtual_ranks = config->virtual_ranks;
    return 4 * (owner_ints(config->experts, ranks) + owner_ints(config->experts, virtual_ranks));
}

/* Fills first, expert and local of an owner table that is there. */
static void index_owners(int32_t *owner, int32_t *local, int32_t *first, int32_t *expert, int32_t ranks,
                         int32_t experts)
{
    memset(first, 0, (size_t)(ranks + 1) * sizeof(*first));
    for (int32_t e = 0; e < experts; e++) {
        local[e] = first[owner[e] + 1]++;
    }
    for (int32_t r = 0; r < ranks; r++)
        first[r + 1] += first[r];
    for (int32_t e = 0; e < experts; e++)
        expert[first[owner[e]] + local[e]] = e;
}

static int32_t *place_owners(int32_t *memory, int32_t ranks, int32_t experts, epx_owners_t *owners_p)
{
    *owners_p = (epx_owners_t){.ranks = ranks,
                               .experts = experts,
                               .owner = memory,
                               .local = memory + experts,
                               .expert = memory + 2 * (int64_t)experts,
                               .first = memory + 3 * (int64_t)experts};
    return memory + owner_ints(experts, ranks);
}

static void make_owners(const epx_group_config_t *config, int32_t ranks, int32_t splits, void *tables,
                        epx_shape_t *shape)
{
    int32_t experts = config->experts;
    int32_t *real = tables, *virt = place_owners(real, ranks, experts, &shape->real);
    place_owners(virt, ranks * splits, experts, &shape->virt);
    for (int32_t e = 0; e < experts; e++)
        real[e] = config->owner != NULL ? config->owner[e] : epx_block_of(e, experts, ranks);
    index_owners(real, real + experts, real + 3 * (int64_t)experts, real + 2 * (int64_t)experts, ranks,
                 experts);
    for (int32_t e = 0; e < experts; e++) {
        int32_t r = real[e], count = shape->real.first[r + 1] - shape->real.first[r];
        virt[e] = r * splits + epx_block_of(shape->real.local[e], count, splits);
    }
    index_owners(virt, virt + experts, virt + 3 * (int64_t)experts, virt + 2 * (int64_t)experts,
                 ranks * splits, experts);
}

epx_status_t epx_shape_make(const epx_group_config_t *config, const epx_settings_t *settings, int32_t rank,
                            int32_t ranks, void *tables, epx_shape_t *shape_p)
{
    int32_t splits = config->virtual_ranks / ranks;
    if (config->spill_choices > 0 && settings->overflow != EPX_OVERFLOW_SPILL)
        return epx_fail(EPX_ERR_ARG, "spill_choices is %d, but EPX_OVERFLOW is not spill",
                        config->spill_choices);
    *shape_p = (epx_shape_t){
        .rank = rank,
        .ranks = ranks,
        .virtual_ranks = config->virtual_ranks,
        .splits = splits,
        .experts = config->experts,
        .top_k = config->top_k,
        .columns = config->top_k + config->spill_choices,
        .width = config->width,
        .tokens_max = config->tokens_max,
        .virtual_tokens_max = (config->tokens_max + splits - 1) / splits,
        .row_type = config->row_type,
        .out_type = config->out_type,
        .row_bytes = (int64_t)config->width * epx_type_bytes(config->row_type),
        .aux_bytes = config->aux_bytes,
        .row_align = config->row_align,
        .lanes = config->lanes,
        .depth = config->depth,
        .backward = config->backward,
        .origin = config->origin,
        .batch_in_caller = config->batch_in_caller,
        .capacity_factor = settings->capacity_factor,
        .sender_factor = settings->sender_factor,
        .dropless = settings->capacity_factor < 0,
        .waves = settings->waves,
        .sm_budget = settings->sm_budget,
        .accept = settings->accept,
        .overflow = settings->overflow,
        .wire = settings->wire,
        .batch = settings->batch,
        .check = settings->check,
        .timeout_ms = settings->timeout_ms,
    };
    make_owners(config, ranks, splits, tables, shape_p);
    return EPX_OK;
}

/* FNV-1a over a few words. */
static uint64_t mix(uint64_t hash, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

uint64_t epx_shape_signature(const epx_shape_t *s, const char *transport)
{
    const int64_t words[] = {s->rank,      s->ranks,  s->virtual_ranks, s->experts,  s->top_k,
                             s->columns,   s->width,  s->tokens_max,    s->row_type, s->aux_bytes,
                             s->row_align, s->origin, s->dropless,      s->waves,    s->accept,
                             s->overflow,  s->wire,   s->batch};
    uint64_t hash = mix(0xcbf29ce484222325u, words, sizeof(words));
    hash = mix(hash, &s->capacity_factor, sizeof(double));
    hash = mix(hash, &s->sender_factor, sizeof(double));
    hash = mix(hash, s->real.owner, (size_t)s->experts * sizeof(int32_t));
    return mix(hash, transport, strlen(transport));
}
