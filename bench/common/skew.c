/* Routing for measurements. SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/skew.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"

static const char *const names[] = {"uniform", "zipf", "hot",        "one-expert",
                                    "self",    "peer", "empty-rank", NULL};

static int read_pair(void *context, const char *key, const char *value, char *problem, size_t problem_bytes)
{
    epx_skew_t *skew = context;
    int zipf = skew->kind == EPX_SKEW_ZIPF, hot = skew->kind == EPX_SKEW_HOT;
    if (zipf && strcmp(key, "s") == 0) {
        if (epx_read_real(value, &skew->s) == 0 && skew->s >= 0 && skew->s <= 16)
            return 0;
        snprintf(problem, problem_bytes, "s=%s is no exponent: give a number from 0 to 16", value);
    } else if (hot && strcmp(key, "fraction") == 0) {
        if (epx_read_real(value, &skew->fraction) == 0 && skew->fraction >= 0 && skew->fraction <= 1)
            return 0;
        snprintf(problem, problem_bytes, "fraction=%s is no share: give a number from 0 to 1", value);
    } else if (hot && strcmp(key, "experts") == 0) {
        if (epx_read_int(value, &skew->hot_experts) == 0 && skew->hot_experts >= 1)
            return 0;
        snprintf(problem, problem_bytes, "experts=%s is no number of experts: give 1 or more", value);
    } else {
        snprintf(problem, problem_bytes, "%s has no '%s': zipf takes s, hot takes fraction and experts",
                 names[skew->kind], key);
    }
    return -1;
}

static int find_kind(const char *text)
{
    size_t length = strcspn(text, ":");
    for (int i = 0; names[i] != NULL; i++)
        if (strlen(names[i]) == length && memcmp(names[i], text, length) == 0)
            return i;
    return -1;
}

int epx_skew_read(void *target, const char *text, char *problem, size_t problem_bytes)
{
    epx_skew_t skew = {.s = 1, .fraction = 0.5, .hot_experts = 4};
    char name[16];
    int kind = find_kind(text);
    if (kind < 0) {
        snprintf(
            problem, problem_bytes,
            "'%s' is unknown: choose from uniform, zipf:s=1, hot:fraction=0.5,experts=4, one-expert, self, "
            "peer, empty-rank",
            text);
        return -1;
    }
    skew.kind = (epx_skew_kind_t)kind;
    if (epx_read_pairs(text, name, sizeof name, read_pair, &skew, problem, problem_bytes) != 0)
        return -1;
    *(epx_skew_t *)target = skew;
    return 0;
}

void epx_skew_text(const epx_skew_t *skew, char *text, size_t bytes)
{
    if (skew->kind == EPX_SKEW_ZIPF)
        snprintf(text, bytes, "zipf:s=%g", skew->s);
    else if (skew->kind == EPX_SKEW_HOT)
        snprintf(text, bytes, "hot:fraction=%g,experts=%d", skew->fraction, (int)skew->hot_experts);
    else
        snprintf(text, bytes, "%s", names[skew->kind]);
}

int32_t epx_first_expert(int32_t rank, int32_t ranks, int32_t experts)
{
    int32_t each = experts / ranks, more = experts % ranks;
    return rank * each + (rank < more ? rank : more);
}

int32_t epx_owner_of(int32_t expert, int32_t ranks, int32_t experts)
{
    int32_t each = experts / ranks, more = experts % ranks, longer = more * (each + 1);
    return expert < longer ? expert / (each + 1) : more + (expert - longer) / each;
}

int64_t epx_skew_tokens(const epx_skew_t *skew, int32_t rank, int32_t ranks, int64_t tokens)
{
    return skew->kind == EPX_SKEW_EMPTY_RANK && rank == ranks - 1 ? 0 : tokens;
}

static void zipf_weights(epx_skew_source_t *source, double s)
{
    int32_t *order = epx_tool_alloc((size_t)source->experts, sizeof *order);
    epx_random_t random = epx_random_at(source->seed, UINT64_MAX); /* the same order on every rank */
    for (int32_t i = 0; i < source->experts; i++)
        order[i] = i;
    for (int32_t i = source->experts - 1; i > 0; i--) {
        int32_t j = (int32_t)epx_random_below(&random, (uint32_t)i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
    for (int32_t i = 0; i < source->experts; i++)
        source->sampler.weight[order[i]] = pow(i + 1, -s);
    free(order);
}

static void hot_weights(epx_skew_source_t *source, const epx_skew_t *skew)
{
    int32_t hot = skew->hot_experts < source->experts ? (int32_t)skew->hot_experts : source->experts;
    int32_t cool = source->experts - hot;
    for (int32_t e = 0; e < source->experts; e++)
        source->sampler.weight[e] = e < hot ? skew->fraction / hot : (1 - skew->fraction) / cool;
}

/* Weight 1 for the experts of the ranks first .. last - 1, else 0. */
static void rank_weights(epx_skew_source_t *source, int32_t first, int32_t last)
{
    int32_t lo = epx_first_expert(first, source->ranks, source->experts);
    int32_t hi = epx_first_expert(last, source->ranks, source->experts);
    for (int32_t e = 0; e < source->experts; e++)
        source->sampler.weight[e] = e >= lo && e < hi;
}

static void set_weights(epx_skew_source_t *source, const epx_skew_t *skew)
{
    int32_t rank = source->rank, ranks = source->ranks, peer = (rank + 1) % ranks;
    switch (skew->kind) {
    case EPX_SKEW_ZIPF: zipf_weights(source, skew->s); break;
    case EPX_SKEW_HOT: hot_weights(source, skew); break;
    case EPX_SKEW_ONE_EXPERT: source->sampler.weight[0] = 1; break;
    case EPX_SKEW_SELF: rank_weights(source, rank, rank + 1); break;
    case EPX_SKEW_PEER: rank_weights(source, peer, peer + 1); break;
    case EPX_SKEW_EMPTY_RANK: rank_weights(source, 0, ranks > 1 ? ranks - 1 : 1); break;
    default: rank_weights(source, 0, ranks); break;
    }
}

epx_skew_source_t epx_skew_open(const epx_skew_t *skew, int32_t rank, int32_t ranks, int32_t experts,
                                int32_t top_k, uint64_t seed)
{
    epx_skew_source_t source = {
        .rank = rank, .ranks = ranks, .experts = experts, .top_k = top_k, .seed = seed};
    source.sampler = epx_sampler_open(experts);
    set_weights(&source, skew);
    epx_sampler_prepare(&source.sampler);
    return source;
}

void epx_skew_close(epx_skew_source_t *source)
{
    epx_sampler_close(&source->sampler);
    *source = (epx_skew_source_t){0};
}

void epx_skew_token(epx_skew_source_t *source, int64_t token, int32_t columns, int32_t *ids)
{
    epx_random_t random =
        epx_random_at(source->seed + (uint64_t)source->rank * 0x2545f4914f6cdd1du, (uint64_t)token);
    epx_sampler_draw(&source->sampler, &random, columns, ids);
}
