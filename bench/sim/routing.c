/* Routings by specification. SPDX-License-Identifier: Apache-2.0 */
#include "bench/sim/routing.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/sampler.h"
#include "src/transport/accept.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"

#define KEEP_BYTES ((int64_t)1 << 30)

/* ---- specifications ----------------------------------------------------------------------------------------------- */

static int read_pair(void *context, const char *key, const char *value, char *problem, size_t problem_bytes)
{
    epx_sim_routing_t *routing = context;
    if (strcmp(key, "alpha") == 0) {
        if (strcmp(value, "inf") == 0) {
            routing->alpha = INFINITY;
            return 0;
        }
        if (epx_read_real(value, &routing->alpha) == 0 && routing->alpha > 0 && routing->alpha <= 1e12)
            return 0;
        snprintf(problem, problem_bytes, "alpha=%s is no concentration: give a number above 0, or inf",
                 value);
    } else if (strcmp(key, "sigma") == 0) {
        if (epx_read_real(value, &routing->sigma) == 0 && routing->sigma >= 0 && routing->sigma <= 10)
            return 0;
        snprintf(problem, problem_bytes, "sigma=%s is no spread: give a number from 0 to 10", value);
    } else if (strcmp(key, "seed") == 0) {
        if (epx_read_int(value, &routing->seed) == 0 && routing->seed >= 0)
            return 0;
        snprintf(problem, problem_bytes, "seed=%s is no seed: give an integer from 0 on", value);
    } else {
        snprintf(problem, problem_bytes, "dirichlet has no '%s': it takes alpha, sigma and seed", key);
    }
    return -1;
}

int epx_sim_routing_read(void *target, const char *text, char *problem, size_t problem_bytes)
{
    epx_sim_routing_t routing = {.alpha = 104, .sigma = 0.09, .seed = -1};
    char name[16];
    if (strncmp(text, "file:", 5) == 0) {
        routing.kind = EPX_SIM_BY_FILE;
        routing.path = text + 5;
        if (text[5] == '\0') {
            snprintf(problem, problem_bytes, "'%s' names no file: write file:PATH", text);
            return -1;
        }
    } else if (strncmp(text, "dirichlet", strcspn(text, ":")) == 0 && strcspn(text, ":") == 9) {
        routing.kind = EPX_SIM_BY_SEQUENCE;
        if (epx_read_pairs(text, name, sizeof name, read_pair, &routing, problem, problem_bytes) != 0)
            return -1;
    } else {
        routing.kind = EPX_SIM_BY_PATTERN;
        if (epx_skew_read(&routing.skew, text, problem, problem_bytes) != 0) {
            if (strstr(problem, "is unknown") != NULL)
                snprintf(
                    problem, problem_bytes,
                    "'%s' is unknown: choose from dirichlet:alpha=104,sigma=0.09,seed=1, uniform, zipf:s=1, "
                    "hot:fraction=0.5,experts=4, one-expert, self, peer, empty-rank, file:PATH",
                    text);
            return -1;
        }
    }
    *(epx_sim_routing_t *)target = routing;
    return 0;
}

void epx_sim_routing_text(const epx_sim_routing_t *routing, char *text, size_t bytes)
{
    if (routing->kind == EPX_SIM_BY_FILE)
        snprintf(text, bytes, "file:%s", routing->path);
    else if (routing->kind == EPX_SIM_BY_PATTERN)
        epx_skew_text(&routing->skew, text, bytes);
    else
        snprintf(text, bytes, "dirichlet:alpha=%g,sigma=%g", routing->alpha, routing->sigma);
}

/* ---- input -------------------------------------------------------------------------------------------------------- */

static int open_file(epx_sim_input_t *input, char *problem, size_t bytes)
{
    const epx_routing_shape_t *recorded = &input->file->shape;
    int64_t ranks = input->shape->ranks;
    input->estimate = recorded->kind == EPX_ROUTING_COUNTS;
    input->splits = (int32_t)(ranks / recorded->group);
    input->samples = input->file->steps * recorded->layers * (recorded->ranks / recorded->group);
    if (ranks % recorded->group != 0 || (input->estimate && input->splits != 1)) {
        snprintf(problem, bytes, "%s is of groups of %d ranks%s: --ranks %lld is %s", input->routing->path,
                 recorded->group, input->estimate ? ", in counts, which cannot be split" : "",
                 (long long)ranks, input->estimate ? "another number" : "no multiple of it");
        return -1;
    }
    if (input->columns > recorded->top_k) {
        snprintf(problem, bytes,
                 "spill needs more choices than were made, and %s has only those: choose drop or "
                 "extra_wave",
                 input->routing->path);
        return -1;
    }
    return 0;
}

int epx_sim_input_open(const epx_sim_routing_t *routing, const epx_sim_shape_t *shape,
                       const epx_routing_file_t *file, int32_t columns, uint64_t seed, int32_t seeds,
                       epx_sim_input_t *input_p, char *problem, size_t problem_bytes)
{
    *input_p = (epx_sim_input_t){.routing = routing,
                                 .shape = shape,
                                 .columns = columns,
                                 .splits = 1,
                                 .seed = routing->seed >= 0 ? (uint64_t)routing->seed : seed,
                                 .samples = seeds,
                                 .file = file};
    if (columns > shape->model.experts && columns > shape->model.top_k) {
        snprintf(problem, problem_bytes, "%d choices of %lld experts are not all different: use fewer",
                 columns, (long long)shape->model.experts);
        return -1;
    }
    return routing->kind == EPX_SIM_BY_FILE ? open_file(input_p, problem, problem_bytes) : 0;
}

/* ---- generators --------------------------------------------------------------------------------------------------- */

/*
 * Ranks of one context-parallel set have the same sequences, each another piece of them. Tokens of one
 * sequence share its weights, and each draws from a stream of its own.
 */
static int64_t draw_sequences(const epx_sim_source_t *source, int32_t rank, int32_t *ids)
{
    const epx_sim_shape_t *shape = source->input->shape;
    int64_t piece = epx_sim_piece(shape), set = rank / shape->context_parallel;
    int64_t begins = rank % shape->context_parallel * piece; /* place of this rank's piece in its sequences */
    int64_t each = (shape->tokens + piece - 1) / piece;      /* sequences of the set */
    int32_t columns = source->routing.columns;
    epx_sampler_t sampler = epx_sampler_open(source->routing.experts);
    for (int64_t i = 0; i < each; i++) {
        int64_t sequence = set * each + i, first = i * piece;
        int64_t tokens = first + piece < shape->tokens ? piece : shape->tokens - first;
        uint64_t stream = epx_sim_sequence(source, sequence, sampler.weight);
        epx_sampler_prepare(&sampler);
        for (int64_t t = 0; t < tokens; t++) {
            epx_random_t random = epx_random_at(stream, (uint64_t)(begins + t));
            epx_sampler_draw(&sampler, &random, columns, ids + (first + t) * columns);
        }
    }
    epx_sampler_close(&sampler);
    return shape->tokens;
}

static int64_t draw_pattern(const epx_sim_source_t *source, int32_t rank, int32_t *ids)
{
    const epx_skew_t *skew = &source->input->routing->skew;
    int32_t columns = source->routing.columns, ranks = source->routing.ranks;
    int64_t tokens = epx_skew_tokens(skew, rank, ranks, source->input->shape->tokens);
    epx_skew_source_t pattern =
        epx_skew_open(skew, rank, ranks, source->routing.experts, source->routing.top_k, source->seed);
    for (int64_t t = 0; t < tokens; t++)
        epx_skew_token(&pattern, t, columns, ids + t * columns);
    epx_skew_close(&pattern);
    return tokens;
}

/* ---- files -------------------------------------------------------------------------------------------------------- */

/* Row of a recorded rank of this sample in [steps, layers, ranks]. */
static int64_t recorded_row(const epx_sim_source_t *source, int32_t recorded)
{
    const epx_routing_shape_t *shape = &source->input->file->shape;
    int32_t groups = shape->ranks / shape->group, place = source->sample / groups; /* [steps, layers] */
    return (int64_t)place * shape->ranks + source->sample % groups * shape->group + recorded;
}

static int64_t copy_recorded(const epx_sim_source_t *source, int32_t rank, int32_t *ids)
{
    const epx_routing_file_t *file = source->input->file;
    int32_t splits = source->input->splits, recorded = rank / splits, part = rank % splits;
    int32_t in_run = source->sample % (file->shape.ranks / file->shape.group) * file->shape.group + recorded;
    int64_t all = file->rank_tokens[in_run], from = epx_virtual_first(part, all, splits);
    int64_t tokens = epx_virtual_first(part + 1, all, splits) - from, top_k = file->shape.top_k;
    const int32_t *row = file->ids + recorded_row(source, recorded) * file->shape.tokens * top_k;
    memcpy(ids, row + from * top_k, (size_t)(tokens * top_k) * sizeof *ids);
    return tokens;
}

/* Assignments of a rank in an order that is made up: each is a token of one choice. */
static int64_t shuffle_counts(const epx_sim_source_t *source, int32_t rank, int32_t *ids)
{
    const epx_routing_file_t *file = source->input->file;
    const int64_t *counts = file->counts + recorded_row(source, rank) * file->shape.experts;
    int64_t all = 0;
    for (int32_t e = 0; e < file->shape.experts; e++)
        for (int64_t i = 0; i < counts[e]; i++)
            ids[all++] = e;
    epx_random_t random = epx_random_at(source->seed, (uint64_t)rank);
    for (int64_t i = all - 1; i > 0; i--) {
        int64_t j = epx_random_below(&random, (uint32_t)i + 1);
        int32_t swap = ids[i];
        ids[i] = ids[j];
        ids[j] = swap;
    }
    return all;
}

static int64_t make_ids(const epx_sim_source_t *source, int32_t rank, int32_t *ids)
{
    if (source->input->routing->kind == EPX_SIM_BY_SEQUENCE)
        return draw_sequences(source, rank, ids);
    if (source->input->routing->kind == EPX_SIM_BY_PATTERN)
        return draw_pattern(source, rank, ids);
    return source->input->estimate ? shuffle_counts(source, rank, ids) : copy_recorded(source, rank, ids);
}

/* ---- source ------------------------------------------------------------------------------------------------------- */

static int is_small(const epx_sim_source_t *source) { return source->routing.experts < UINT16_MAX; }

/* One rank is asked for by one thread at a time: nobody else looks at its part. */
static int64_t give_ids(void *context, int32_t rank, int32_t *ids)
{
    epx_sim_source_t *source = context;
    int64_t each = source->routing.tokens_max * source->routing.columns;
    if (source->kept == NULL)
        return make_ids(source, rank, ids);
    uint16_t *small = (uint16_t *)source->kept + rank * each;
    int32_t *large = (int32_t *)source->kept + rank * each;
    int64_t tokens = source->kept_tokens[rank] - 1, count = tokens * source->routing.columns;
    if (tokens >= 0) {
        for (int64_t i = 0; i < count; i++)
            ids[i] = is_small(source) ? (small[i] == UINT16_MAX ? -1 : small[i]) : large[i];
        return tokens;
    }
    tokens = make_ids(source, rank, ids);
    count = tokens * source->routing.columns;
    for (int64_t i = 0; i < count; i++) {
        if (is_small(source))
            small[i] = (uint16_t)ids[i]; /* -1 becomes UINT16_MAX */
        else
            large[i] = ids[i];
    }
    source->kept_tokens[rank] = tokens + 1;
    return tokens;
}

void epx_sim_source_open(epx_sim_source_t *source, const epx_sim_input_t *input, int32_t sample, int keep)
{
    const epx_sim_shape_t *shape = input->shape;
    *source = (epx_sim_source_t){.input = input,
                                 .sample = sample,
                                 .seed = input->seed + (uint64_t)sample,
                                 .routing = {.ranks = (int32_t)shape->ranks,
                                             .experts = (int32_t)shape->model.experts,
                                             .top_k = (int32_t)shape->model.top_k,
                                             .columns = input->columns,
                                             .tokens_max = shape->tokens,
                                             .ids = give_ids,
                                             .context = source}};
    if (input->estimate) {
        source->routing.top_k = source->routing.columns = 1;
        source->routing.tokens_max = shape->tokens * shape->model.top_k;
    }
    if (input->routing->kind == EPX_SIM_BY_SEQUENCE) {
        source->popularity = epx_tool_alloc((size_t)source->routing.experts, sizeof *source->popularity);
        epx_sim_popularity(input->routing, source->seed, source->routing.experts, source->popularity);
    }
    int64_t count = shape->ranks * source->routing.tokens_max * source->routing.columns;
    size_t bytes = is_small(source) ? sizeof(uint16_t) : sizeof(int32_t);
    if (keep && input->routing->kind != EPX_SIM_BY_FILE && count * (int64_t)bytes <= KEEP_BYTES) {
        source->kept = epx_tool_alloc((size_t)count, bytes);
        source->kept_tokens = epx_tool_alloc((size_t)shape->ranks, sizeof *source->kept_tokens);
    }
}

void epx_sim_source_close(epx_sim_source_t *source)
{
    free(source->popularity);
    free(source->kept);
    free(source->kept_tokens);
    *source = (epx_sim_source_t){0};
}
