/* Samples over cases. SPDX-License-Identifier: Apache-2.0 */
#include "bench/sim/point.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/terminal.h"

epx_sim_spread_t epx_sim_spread(const double *values, int32_t count)
{
    epx_sim_spread_t spread = {.least = INFINITY, .most = -INFINITY};
    double *sorted = epx_tool_alloc((size_t)count, sizeof *sorted), squares = 0;
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    epx_sort_reals(sorted, (size_t)count);
    for (int32_t i = 0; i < count; i++)
        spread.mean += values[i] / count;
    for (int32_t i = 0; i < count; i++)
        squares += (values[i] - spread.mean) * (values[i] - spread.mean);
    spread.deviation = count > 1 ? sqrt(squares / (count - 1)) : 0;
    spread.least = sorted[0];
    spread.most = sorted[count - 1];
    spread.p99 = sorted[(int32_t)ceil(0.99 * count - 1e-9) - 1];
    free(sorted);
    return spread;
}

int epx_sim_open_input(const epx_sim_settings_t *s, epx_sim_input_t *input_p)
{
    char problem[512];
    int rc = epx_sim_shape_check(&s->shape, problem, sizeof problem);
    if (rc == 0)
        rc = epx_sim_input_open(&s->routing, &s->shape, &s->file, epx_sim_columns(s), (uint64_t)s->seed,
                                (int32_t)s->seeds, input_p, problem, sizeof problem);
    return rc == 0 ? EPX_EXIT_OK : epx_tool_fail(EPX_EXIT_USAGE, "%s", problem);
}

/* ---- one sample --------------------------------------------------------------------------------------------------- */

static void add_cost(epx_sim_cost_t *sum, const epx_sim_cost_t *one, double share)
{
    double *to = (double *)(void *)sum;
    const double *from = (const double *)(const void *)one;
    _Static_assert(sizeof *sum % sizeof *to == 0, "a cost is made of doubles");
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++)
        to[i] += share * from[i];
}

static void add_sample(const epx_sim_settings_t *s, const epx_sim_case_t *one, const epx_drops_t *drops,
                       int32_t sample, epx_sim_result_t *result)
{
    double routed = drops->routed > 0 ? (double)drops->routed : 1, share = 1.0 / result->samples;
    epx_sim_how_t how = {.depth = (int32_t)s->depth, .recompute = s->recompute};
    epx_sim_cost_t cost = epx_sim_cost(&s->shape, &one->rules, drops, &s->machine, &how);
    result->routed += drops->routed;
    result->skipped += drops->skipped;
    result->kept += drops->kept;
    result->spilled += drops->spilled;
    result->dropped_sender += drops->dropped_sender;
    result->dropped_receiver += drops->dropped_receiver;
    result->waves = drops->waves > result->waves ? drops->waves : result->waves;
    result->sender[sample] = (double)drops->dropped_sender / routed;
    result->receiver[sample] = (double)drops->dropped_receiver / routed;
    result->drops[sample] = (double)(drops->dropped_sender + drops->dropped_receiver) / routed;
    result->load += share * epx_drops_load(drops);
    add_cost(&result->cost, &cost, share);
}

/* Of counts, every assignment was given as a token of one choice: back to tokens of K. */
static void as_tokens(int64_t *values, int64_t count, int64_t top_k)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = (values[i] + top_k - 1) / top_k;
}

static void restore_tokens(epx_drops_t *drops, const epx_drops_case_t *rules, int64_t top_k)
{
    int64_t places = (int64_t)drops->waves * drops->ranks;
    as_tokens(drops->tokens, drops->ranks, top_k);
    if (rules->transport != EPX_DROPS_RING)
        return;
    as_tokens(drops->sent, places, top_k);
    as_tokens(drops->received, places, top_k);
    as_tokens(drops->own, places, top_k);
}

static int run_point(epx_sim_point_t *point, const epx_sim_source_t *source, int32_t sample)
{
    const epx_sim_settings_t *s = &point->settings;
    epx_drops_case_t rules[EPX_SIM_CASES];
    epx_drops_t drops[EPX_SIM_CASES];
    char problem[512];
    for (int32_t i = 0; i < s->case_count; i++) {
        rules[i] = s->cases[i].rules;
        rules[i].rank_wire &= !source->input->estimate; /* counts do not say which rows are of one token */
    }
    if (epx_drops_count(&source->routing, rules, s->case_count, (int32_t)s->threads, drops, problem,
                        sizeof problem) != 0)
        return epx_tool_fail(EPX_EXIT_USAGE, "%s", problem);
    for (int32_t i = 0; i < s->case_count; i++) {
        if (source->input->estimate)
            restore_tokens(&drops[i], &rules[i], s->shape.model.top_k);
        add_sample(s, &s->cases[i], &drops[i], sample, &point->result[i]);
        epx_drops_free(&drops[i]);
    }
    return EPX_EXIT_OK;
}

/* ---- all samples -------------------------------------------------------------------------------------------------- */

static void begin(epx_sim_point_t *point, const epx_sim_input_t *input)
{
    for (int32_t i = 0; i < point->settings.case_count; i++) {
        epx_sim_result_t *result = &point->result[i];
        const epx_sim_case_t *one = &point->settings.cases[i];
        size_t samples = (size_t)input->samples;
        *result = (epx_sim_result_t){.samples = input->samples, .memory = EPX_MEMORY_INIT};
        result->drops = epx_tool_alloc(3 * samples, sizeof *result->drops);
        result->sender = result->drops + samples;
        result->receiver = result->sender + samples;
        result->estimate = input->estimate && one->rules.transport == EPX_DROPS_POOLED_WAVE &&
                           one->rules.overflow == EPX_OVERFLOW_DROP;
        if (epx_group_memory(&one->config, &result->memory) != EPX_OK)
            snprintf(result->memory_problem, sizeof result->memory_problem, "%s", epx_last_error());
    }
}

static void end(epx_sim_point_t *point)
{
    for (int32_t i = 0; i < point->settings.case_count; i++) {
        epx_sim_result_t *result = &point->result[i];
        result->drop_spread = epx_sim_spread(result->drops, result->samples);
        result->sender_spread = epx_sim_spread(result->sender, result->samples);
        result->receiver_spread = epx_sim_spread(result->receiver, result->samples);
    }
}

/* Ids are asked for again by other points, and where rows are not assignments. */
static int asks_again(const epx_sim_point_t *points, int32_t count)
{
    int again = count > 1;
    for (int32_t i = 0; i < points->settings.case_count; i++)
        again |= points->settings.cases[i].rules.rank_wire;
    return again;
}

int epx_sim_points_run(epx_sim_point_t *points, int32_t count)
{
    epx_sim_input_t input;
    int rc = epx_sim_open_input(&points->settings, &input);
    if (rc != EPX_EXIT_OK)
        return rc;
    for (int32_t p = 0; p < count; p++)
        begin(&points[p], &input);
    for (int32_t sample = 0; sample < input.samples && rc == EPX_EXIT_OK; sample++) {
        epx_sim_source_t source;
        epx_sim_source_open(&source, &input, sample, asks_again(points, count));
        for (int32_t p = 0; p < count && rc == EPX_EXIT_OK; p++) {
            epx_progress("sample %d of %d, point %d of %d", sample + 1, input.samples, p + 1, count);
            rc = run_point(&points[p], &source, sample);
        }
        epx_sim_source_close(&source);
    }
    for (int32_t p = 0; p < count; p++)
        end(&points[p]);
    epx_progress_clear();
    return rc;
}

void epx_sim_points_free(epx_sim_point_t *points, int32_t count)
{
    for (int32_t p = 0; p < count; p++)
        for (int32_t i = 0; i < points[p].settings.case_count; i++) {
            free(points[p].result[i].drops);
            points[p].result[i].drops = NULL;
        }
}
