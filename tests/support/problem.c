/* SPDX-License-Identifier: Apache-2.0 */
#include "support/problem.h"

#include "support/world.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/device.h"

#define LOCAL_HOST .fabric = "local", .device = "host"
#define POOLED_ARM .transport = "pooled_wave", .kind = POOLED_WAVE, LOCAL_HOST
#define RAGGED_ARM .transport = "ragged", .kind = RAGGED, LOCAL_HOST
#define RING_ARM .transport = "ring", .kind = RING, .waves = 0, LOCAL_HOST

const arm_t arms[] = {
    {.name = "pooled_wave", POOLED_ARM, .waves = 3, .overflow = EPX_OVERFLOW_DROP},
    {.name = "ragged", RAGGED_ARM, .waves = 2, .accept = EPX_ACCEPT_PREFIX, .wire = EPX_WIRE_ASSIGNMENT},
    {.name = "ring", RING_ARM, .accept = EPX_ACCEPT_PREFIX},
    {.name = "pooled_wave_1", POOLED_ARM, .waves = 1, .overflow = EPX_OVERFLOW_DROP},
    {.name = "pooled_wave_spill", POOLED_ARM, .waves = 5, .overflow = EPX_OVERFLOW_SPILL, .spill = 2},
    {.name = "pooled_wave_indexed",
     POOLED_ARM,
     .waves = 3,
     .overflow = EPX_OVERFLOW_DROP,
     .batch = EPX_BATCH_INDEXED},
    {.name = "pooled_wave_extra", POOLED_ARM, .waves = 2, .overflow = EPX_OVERFLOW_EXTRA_WAVE},
    {.name = "pooled_wave_dropless", POOLED_ARM, .waves = 2, .overflow = EPX_OVERFLOW_DROP, .dropless = 1},
    {.name = "ragged_1", RAGGED_ARM, .waves = 1, .accept = EPX_ACCEPT_PREFIX, .wire = EPX_WIRE_ASSIGNMENT},
    {.name = "ragged_waterfill",
     RAGGED_ARM,
     .waves = 2,
     .accept = EPX_ACCEPT_WATERFILL,
     .wire = EPX_WIRE_ASSIGNMENT},
    {.name = "ragged_fair", RAGGED_ARM, .waves = 3, .accept = EPX_ACCEPT_FAIR, .wire = EPX_WIRE_ASSIGNMENT},
    {.name = "ragged_auto", RAGGED_ARM, .waves = 2, .accept = EPX_ACCEPT_PREFIX, .wire = EPX_WIRE_AUTO},
    {.name = "ragged_rank", RAGGED_ARM, .waves = 2, .accept = EPX_ACCEPT_PREFIX, .wire = EPX_WIRE_RANK},
    {.name = "ragged_rank_fair", RAGGED_ARM, .waves = 1, .accept = EPX_ACCEPT_FAIR, .wire = EPX_WIRE_RANK},
    {.name = "ragged_indexed",
     RAGGED_ARM,
     .waves = 2,
     .accept = EPX_ACCEPT_WATERFILL,
     .wire = EPX_WIRE_RANK,
     .batch = EPX_BATCH_INDEXED},
    {.name = "ragged_dropless",
     RAGGED_ARM,
     .waves = 2,
     .accept = EPX_ACCEPT_PREFIX,
     .wire = EPX_WIRE_ASSIGNMENT,
     .dropless = 1},
    {.name = "ragged_rank_dropless",
     RAGGED_ARM,
     .waves = 2,
     .accept = EPX_ACCEPT_PREFIX,
     .wire = EPX_WIRE_RANK,
     .dropless = 1},
    {.name = "ring_waterfill", RING_ARM, .accept = EPX_ACCEPT_WATERFILL},
    {.name = "ring_fair", RING_ARM, .accept = EPX_ACCEPT_FAIR},
    {.name = "ring_dropless", RING_ARM, .accept = EPX_ACCEPT_PREFIX, .dropless = 1},
};
const int arms_count = (int)(sizeof(arms) / sizeof(arms[0]));
const int arms_basic = 3;

const arm_t *arm_named(const char *name)
{
    for (int i = 0; i < arms_count; i++) {
        if (strcmp(arms[i].name, name) == 0)
            return &arms[i];
    }
    cr_assert_fail("no arm is called %s", name);
    return NULL;
}

static struct criterion_test_params some_arms(int count)
{
    const char *wanted = getenv("TEST_ARM");
    int *index = cr_malloc((size_t)arms_count * sizeof(*index));
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        if (!wanted || strncmp(arms[i].name, wanted, strlen(wanted)) == 0)
            index[n++] = i;
    }
    return cr_make_param_array(int, index, n, NULL);
}

struct criterion_test_params every_arm(void) { return some_arms(arms_count); }

struct criterion_test_params basic_arms(void) { return some_arms(arms_basic); }

const char *pattern_name(pattern_t pattern)
{
    static const char *const names[] = {"uniform",       "distinct", "skewed",   "holes",
                                        "one_expert",    "one_rank", "own_rank", "next_rank",
                                        "same_in_token", "nothing",  "?"};
    return names[pattern];
}

size_t problem_row_bytes(const problem_t *p) { return (size_t)p->width * type_size(p->row_type); }

size_t problem_alignment(const problem_t *p, epx_type_t type)
{
    return p->aligned > 0 ? p->aligned : type_size(type);
}

const char *problem_text(const problem_t *p, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s S=%d E=%d K=%d X=%d H=%d T_max=%d m=%d %s cf=%g cs=%g align=%d seed=%llu",
             p->arm.name, p->ranks, p->experts, p->top_k, p->arm.spill, p->width, p->tokens_max, p->splits,
             type_name(p->row_type), p->cf, p->cs, p->row_align, (unsigned long long)p->seed);
    return text;
}

problem_t *problem_new(const arm_t *arm, int ranks, int experts, int top_k, int width, int tokens_max)
{
    problem_t *p = calloc(1, sizeof(*p));
    cr_assert_not_null(p);
    *p = (problem_t){.arm = *arm,
                     .ranks = ranks,
                     .experts = experts,
                     .top_k = top_k < experts ? top_k : experts,
                     .width = width,
                     .tokens_max = tokens_max,
                     .splits = 1,
                     .row_type = EPX_FP32,
                     .out_type = EPX_TYPE_DEFAULT,
                     .id_type = EPX_INT32,
                     .row_align = 1,
                     .lanes = 2,
                     .depth = 2,
                     .origin = 1,
                     .cf = 1.15,
                     .cs = 1.15,
                     .timeout_ms = 30000,
                     .values = REAL};
    if (p->arm.spill > p->experts - p->top_k)
        p->arm.spill = p->experts - p->top_k;
    size_t n = (size_t)ranks;
    p->owner = calloc((size_t)experts, sizeof(*p->owner));
    p->tokens = calloc(n, sizeof(*p->tokens));
    p->ids = calloc(n, sizeof(*p->ids));
    p->weights = calloc(n, sizeof(*p->weights));
    p->x = calloc(n, sizeof(*p->x));
    p->dout = calloc(n, sizeof(*p->dout));
    p->aux = calloc(n, sizeof(*p->aux));
    cr_assert(p->owner && p->tokens && p->ids && p->weights && p->x && p->dout && p->aux);
    /* Contiguous blocks, the first E mod S ranks one more: dealt out one by one. */
    int e = 0;
    for (int r = 0; r < ranks; r++) {
        int own = experts / ranks + (r < experts % ranks);
        for (int i = 0; i < own; i++)
            p->owner[e++] = r;
    }
    return p;
}

static void free_inputs(problem_t *p)
{
    for (int r = 0; r < p->ranks; r++) {
        free(p->ids[r]);
        both_free(p->weights[r]);
        both_free(p->x[r]);
        both_free(p->dout[r]);
        both_free(p->aux[r]);
    }
}

problem_t *problem_again(const problem_t *p)
{
    problem_t *q = problem_new(&p->arm, p->ranks, p->experts, p->top_k, p->width, p->tokens_max), fresh = *q;
    *q = *p;
    q->owner = fresh.owner;
    memcpy(q->owner, p->owner, (size_t)p->experts * sizeof(*p->owner));
    q->tokens = fresh.tokens;
    q->ids = fresh.ids;
    q->weights = fresh.weights;
    q->x = fresh.x;
    q->dout = fresh.dout;
    q->aux = fresh.aux;
    return q;
}

void problem_free(problem_t *p)
{
    free_inputs(p);
    free(p->owner);
    free(p->tokens);
    free(p->ids);
    free(p->weights);
    free(p->x);
    free(p->dout);
    free(p->aux);
    free(p);
}

void problem_scatter_owners(problem_t *p, uint64_t seed)
{
    dice_t dice = {seed};
    p->own_table = 1;
    for (int e = 0; e < p->experts; e++)
        p->owner[e] = (int32_t)dice_range(&dice, 0, p->ranks - 1);
}

/* A random expert of `rank`, or of the next rank that owns any. */
static int64_t expert_of(const problem_t *p, int rank, dice_t *dice)
{
    for (int tried = 0; tried < p->ranks; tried++, rank = (rank + 1) % p->ranks) {
        int own = 0;
        for (int e = 0; e < p->experts; e++)
            own += p->owner[e] == rank;
        if (own == 0)
            continue;
        int64_t pick = dice_range(dice, 0, own - 1);
        for (int e = 0; e < p->experts; e++) {
            if (p->owner[e] == rank && pick-- == 0)
                return e;
        }
    }
    return 0;
}

static int64_t choose(const problem_t *p, pattern_t pattern, int rank, const int64_t *token, int k,
                      dice_t *dice)
{
    int64_t e;
    switch (pattern) {
    case DISTINCT:
        for (;;) { /* among the first E columns all differ; a spill column beyond E may repeat */
            int again = 0;
            e = dice_range(dice, 0, p->experts - 1);
            for (int i = 0; i < k && k < p->experts; i++)
                again |= token[i] == e;
            if (!again)
                return e;
        }
    case SKEWED: return (int64_t)(pow(dice_unit(dice), 4) * p->experts);
    case HOLES: return dice_range(dice, 0, 2) ? -1 : dice_range(dice, 0, p->experts - 1);
    case ONE_EXPERT: return p->experts - 1;
    case ONE_RANK: return expert_of(p, 0, dice);
    case OWN_RANK: return expert_of(p, rank, dice);
    case NEXT_RANK: return expert_of(p, (rank + 1) % p->ranks, dice);
    case SAME_IN_TOKEN: return k ? token[0] : dice_range(dice, 0, p->experts - 1);
    case NOTHING: return -1;
    default: return dice_range(dice, 0, p->experts - 1);
    }
}

static void fill_rows(const problem_t *p, unsigned char *rows, dice_t *dice)
{
    size_t n = (size_t)p->tokens_max * (size_t)p->width;
    for (size_t i = 0; i < n; i++) {
        float value = p->values == WHOLE
                          ? (float)dice_range(dice, -4, 4)
                          : (float)((dice_unit(dice) - 0.5) * ldexp(1, (int)dice_range(dice, -3, 3)));
        row_set(rows, p->row_type, i, value);
    }
}

void problem_inputs(problem_t *p, pattern_t pattern, const int *tokens, uint64_t seed)
{
    dice_t dice = {seed};
    p->seed = seed;
    p->columns = p->top_k + p->arm.spill;
    free_inputs(p);
    size_t cells = (size_t)p->tokens_max * (size_t)p->columns, rows = (size_t)p->tokens_max;
    for (int r = 0; r < p->ranks; r++) {
        p->tokens[r] = tokens ? tokens[r] : dice_range(&dice, 0, p->tokens_max);
        p->ids[r] = malloc(cells * sizeof(int64_t));
        p->weights[r] = both_new(cells * sizeof(float));
        p->x[r] = both_new(rows * problem_row_bytes(p));
        p->dout[r] = both_new(rows * problem_row_bytes(p));
        p->aux[r] = both_new(rows * (size_t)p->aux_bytes + 1);
        for (size_t t = 0; t < rows; t++) {
            for (int k = 0; k < p->columns; k++) {
                size_t a = t * (size_t)p->columns + (size_t)k;
                p->ids[r][a] = choose(p, pattern, r, p->ids[r] + t * (size_t)p->columns, k, &dice);
                p->weights[r][a] =
                    p->values == WHOLE ? (float)dice_range(&dice, -1, 2) : (float)dice_unit(&dice);
            }
        }
        fill_rows(p, p->x[r], &dice);
        fill_rows(p, p->dout[r], &dice);
        for (size_t i = 0; i < rows * (size_t)p->aux_bytes; i++)
            p->aux[r][i] = (unsigned char)dice_bits(&dice);
    }
}

epx_group_config_t problem_config(const problem_t *p)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    config.name = "test";
    config.ranks = p->ranks;
    config.experts = p->experts;
    config.top_k = p->top_k;
    config.width = p->width;
    config.tokens_max = p->tokens_max;
    config.row_type = p->row_type;
    config.out_type = p->out_type;
    config.owner = p->own_table ? p->owner : NULL;
    config.aux_bytes = p->aux_bytes;
    config.row_align = p->row_align;
    config.lanes = p->lanes;
    config.depth = p->depth;
    config.backward = p->backward;
    config.origin = p->origin;
    config.batch_in_caller = p->in_caller;
    config.virtual_ranks = p->splits == 1 ? 0 : p->splits * p->ranks;
    config.spill_choices = p->arm.spill;
    config.transport = p->arm.transport;
    config.fabric = ranks_are_processes() ? NULL : p->arm.fabric; /* what reaches from process to process */
    config.device = strcmp(p->arm.device, "host") == 0 ? test_device_name() : p->arm.device;
    config.capacity_factor = p->arm.dropless ? EPX_DROPLESS : p->cf;
    config.sender_factor = p->arm.kind == POOLED_WAVE ? p->cs : 0;
    config.waves = p->arm.waves;
    config.accept = p->arm.accept;
    config.overflow = p->arm.overflow;
    config.wire = p->arm.wire;
    config.batch = p->arm.batch;
    config.check = p->check;
    config.sm_budget = p->sm_budget;
    config.timeout_ms = p->timeout_ms;
    return config;
}

/* Two experts differ in sign or size; by powers of two, so that whole numbers stay whole and no value is
 * lost. */
static float factor(int expert)
{
    static const float factors[] = {1, 2, -1, -2};
    return factors[expert % 4];
}

void problem_expert(const problem_t *p, int expert, const void *row, void *y)
{
    for (size_t i = 0; i < (size_t)p->width; i++) {
        float value = row_get(row, p->row_type, i) * factor(expert) + (float)(expert % 3);
        row_set(y, p->row_type, i, value);
    }
}

void problem_expert_backward(const problem_t *p, int expert, const void *dy, void *dx)
{
    for (size_t i = 0; i < (size_t)p->width; i++)
        row_set(dx, p->row_type, i, row_get(dy, p->row_type, i) * factor(expert));
}
