/* The cost model. SPDX-License-Identifier: Apache-2.0 */
#include "bench/sim/cost.h"

#include <math.h>
#include <stdlib.h>

#include "tools/common/program.h"
#include "train/flops.h"

static const struct {
    const char *name, *meaning;
} terms[EPX_SIM_TERMS] = {
    {"wire_ms", "rows over links, mean of the ranks"},
    {"memory_ms", "rows through memory at either end, mean of the ranks"},
    {"latency_ms", "calls, whatever they carry"},
    {"route_ms", "deciding who is kept, counts exchanged"},
    {"skew_ms", "waiting for the rank with most to move"},
    {"hidden_ms", "part of the exchange behind the experts' products"},
    {"experts_ms", "products of routed experts, mean of the ranks"},
    {"imbalance_ms", "waiting for the rank whose experts have most rows"},
    {"attention_ms", "attention scores under the mask"},
    {"dense_ms", "all other products"},
    {"recompute_ms", "the forward products once more"},
};

const char *epx_sim_term_name(epx_sim_term_t term) { return terms[term].name; }
const char *epx_sim_term_meaning(epx_sim_term_t term) { return terms[term].meaning; }

double epx_sim_span(int32_t waves, int32_t depth, const double *out, const double *work, const double *home)
{
    double link = 0, processor = 0, *arrived = epx_tool_alloc((size_t)waves, sizeof *arrived);
    int32_t sent = 0;
    for (int32_t w = 0; w < waves; w++) {
        for (; sent < waves && sent < w + depth; sent++)
            arrived[sent] = link += out[sent];
        processor = fmax(processor, arrived[w]) + work[w];
        link = fmax(link, processor) + home[w];
    }
    free(arrived);
    return link;
}

/* ---- one wave of one rank ----------------------------------------------------------------------------------------- */

typedef struct model {
    const epx_sim_shape_t *shape;
    const epx_drops_case_t *rules;
    const epx_drops_t *drops;
    const epx_machine_t *machine;
    double row, sum_row; /* bytes of a row, and of a row of fp32 sums */
    double link;         /* bytes per second */
    double latency;      /* of a call */
    int32_t ranks, waves;
} model_t;

/* What a rank does for one wave's way to the experts, or for its way home. */
typedef struct load {
    double link;   /* bytes over its link, the busier direction */
    double memory; /* bytes read and written besides */
} load_t;

static double larger(double a, double b) { return a > b ? a : b; }

/* Bytes of fp32 sums that a wave's rows are added to, read and written, and its part of the final rows. */
static double summing(const model_t *m, int64_t tokens, double home_rows)
{
    double touched = home_rows < (double)tokens ? home_rows : (double)tokens;
    return home_rows * m->row + (m->waves > 1 ? 2 * touched * m->sum_row : 0) +
           (double)tokens * m->row / m->waves;
}

/* Rows that a rank gets back in a wave. pooled_wave does not say whose the kept rows are: the mean. */
static double home_rows(const model_t *m, int32_t w, int32_t r)
{
    const epx_drops_t *d = m->drops;
    int64_t at = (int64_t)w * m->ranks + r;
    double sum = 0;
    if (m->rules->transport != EPX_DROPS_POOLED_WAVE)
        return (double)(d->sent[at] + d->own[at]);
    for (int32_t i = 0; i < m->ranks; i++)
        sum += (double)d->rows[(int64_t)w * m->ranks + i];
    return sum / m->ranks;
}

/* Rows that stand apart from where they arrived are read and written once more. */
static load_t way_out(const model_t *m, int32_t w, int32_t r)
{
    const epx_drops_t *d = m->drops;
    int64_t at = (int64_t)w * m->ranks + r;
    double busier = larger((double)d->sent[at], (double)d->received[at]);
    double own = (double)d->own[at], rows = (double)d->rows[at];
    load_t load = {.link = busier * m->row};
    if (m->rules->transport == EPX_DROPS_RING)
        load.memory = 2 * rows * m->row;
    else if (m->rules->transport == EPX_DROPS_POOLED_WAVE)
        load.memory = 2 * (own + rows) * m->row;
    else if (m->rules->rank_wire)
        load.memory = (2 * own + (double)d->received[at] + own + rows) * m->row;
    else
        load.memory = 2 * own * m->row;
    return load;
}

/* Behind hop h rank r passes on the sums of the block that it has; behind the last they are home. */
static load_t ring_home(const model_t *m, int32_t w, int32_t r)
{
    const epx_drops_t *d = m->drops;
    int64_t at = (int64_t)w * m->ranks + r;
    double tokens = (double)d->tokens[(r - w + m->ranks) % m->ranks];
    double coming = (double)d->tokens[(r - w - 1 + 2 * m->ranks) % m->ranks];
    load_t load = {.link = m->ranks > 1 ? larger(tokens, coming) * m->sum_row : 0,
                   .memory = tokens * m->sum_row + (double)d->rows[at] * m->row};
    if (w == m->waves - 1)
        load.memory += (double)d->tokens[r] * (m->sum_row + m->row);
    return load;
}

static load_t way_home(const model_t *m, int32_t w, int32_t r)
{
    const epx_drops_t *d = m->drops;
    int64_t at = (int64_t)w * m->ranks + r;
    if (m->rules->transport == EPX_DROPS_RING)
        return ring_home(m, w, r);
    double busier = larger((double)d->sent[at], (double)d->received[at]);
    load_t load = {.link = busier * m->row,
                   .memory = 2 * (double)d->own[at] * m->row + summing(m, d->tokens[r], home_rows(m, w, r))};
    if (m->rules->transport == EPX_DROPS_RAGGED && m->rules->rank_wire)
        load.memory += (double)d->rows[at] * m->row;
    return load;
}

/* ---- one wave of all ranks ---------------------------------------------------------------------------------------- */

/* Seconds of the slowest rank; the means go into the terms. */
static double wave_time(const model_t *m, load_t (*way)(const model_t *, int32_t, int32_t), int32_t w,
                        double *term)
{
    double wire = 0, memory = 0, slowest = 0;
    for (int32_t r = 0; r < m->ranks; r++) {
        load_t load = way(m, w, r);
        double over_link = load.link / m->link, through = load.memory / m->machine->value[EPX_MEMORY_BYTES];
        wire += over_link / m->ranks;
        memory += through / m->ranks;
        slowest = larger(slowest, over_link + through);
    }
    term[EPX_SIM_WIRE] += wire;
    term[EPX_SIM_MEMORY] += memory;
    term[EPX_SIM_SKEW] += slowest - wire - memory;
    term[EPX_SIM_LATENCY] += m->latency;
    return slowest + m->latency;
}

/* Forward products of a wave's rows on the rank that has most; the mean goes to *mean_p. */
static double work_time(const model_t *m, int32_t w, double row_flops, double *mean_p)
{
    double most = 0, all = 0, each = row_flops / m->machine->value[EPX_GEMM_FLOPS];
    for (int32_t r = 0; r < m->ranks; r++) {
        double rows = (double)m->drops->rows[(int64_t)w * m->ranks + r];
        most = larger(most, rows);
        all += rows;
    }
    *mean_p = all / m->ranks * each;
    return most * each;
}

/* ---- a layer ------------------------------------------------------------------------------------------------------ */

typedef struct waves {
    double *out, *home, *work; /* [waves] seconds */
} waves_t;

static double sum_of(const double *values, int32_t count)
{
    double sum = 0;
    for (int32_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/*
 * A pass with `factor` times the forward products: adds its exchange, and what of that could be hidden. The
 * serial order hides nothing; the span of the schedule hides what lies beside the products.
 */
static void add_pass(const model_t *m, const waves_t *waves, double factor, int32_t depth, double *exchange_p,
                     double *hideable_p)
{
    double *work = epx_tool_alloc((size_t)m->waves, sizeof *work);
    for (int32_t w = 0; w < m->waves; w++)
        work[w] = factor * waves->work[w];
    double exchange = sum_of(waves->out, m->waves) + sum_of(waves->home, m->waves);
    double span = epx_sim_span(m->waves, depth, waves->out, work, waves->home);
    *exchange_p += exchange;
    *hideable_p += exchange + sum_of(work, m->waves) - span;
    free(work);
}

static double route_time(const model_t *m)
{
    const double *value = m->machine->value;
    double choices = (double)m->shape->tokens * (double)m->shape->model.top_k;
    double time = value[EPX_OPERATION_S] + choices * 4 * sizeof(int32_t) / value[EPX_MEMORY_BYTES];
    int counted =
        m->rules->transport != EPX_DROPS_POOLED_WAVE || m->rules->overflow == EPX_OVERFLOW_EXTRA_WAVE;
    if (counted && m->ranks > 1)
        time += value[EPX_BARRIER_S] + (m->ranks - 1) * (value[EPX_PEER_S] + (double)m->shape->model.experts *
                                                                                 sizeof(int32_t) / m->link);
    return time;
}

static model_t model_of(const epx_sim_shape_t *shape, const epx_drops_case_t *rules, const epx_drops_t *drops,
                        const epx_machine_t *machine)
{
    const double *value = machine->value;
    int32_t peers = rules->transport == EPX_DROPS_RING && drops->ranks > 1 ? 1 : drops->ranks - 1;
    return (model_t){.shape = shape,
                     .rules = rules,
                     .drops = drops,
                     .machine = machine,
                     .row = (double)epx_sim_row_bytes(shape),
                     .sum_row = (double)epx_config_row_width(&shape->model) * sizeof(float),
                     .link = value[EPX_LINK_BYTES] * value[EPX_LINK_SHARE],
                     .latency = value[EPX_OPERATION_S] + peers * value[EPX_PEER_S],
                     .ranks = drops->ranks,
                     .waves = drops->waves};
}

/* Means over the ranks of what one transfer moves: rows of both ways, those that stay included. */
static void count_bytes(const model_t *m, epx_sim_cost_t *cost)
{
    const epx_drops_t *d = m->drops;
    double sent = 0, own = 0, tokens = 0;
    for (int64_t i = 0; i < (int64_t)m->waves * m->ranks; i++) {
        sent += (double)d->sent[i];
        own += (double)d->own[i];
    }
    for (int32_t r = 0; r < m->ranks; r++)
        tokens += (double)d->tokens[r];
    cost->remote_bytes = sent * m->row / m->ranks;
    cost->transfer_bytes = (sent + own) * m->row / m->ranks;
    if (m->rules->transport == EPX_DROPS_RING) { /* blocks one way, sums the other */
        double sums = m->ranks > 1 ? tokens * m->sum_row : 0;
        cost->remote_bytes = (cost->remote_bytes + sums) / 2;
        cost->transfer_bytes = (cost->transfer_bytes + sums) / 2;
    }
}

/* Seconds of one layer's exchange, forward and backward, and of its experts. */
static void cost_layer(const model_t *m, const epx_sim_how_t *how, double row_flops, epx_sim_cost_t *cost,
                       double *hideable_p)
{
    size_t count = (size_t)m->waves;
    waves_t waves = {.out = epx_tool_alloc(3 * count, sizeof(double))};
    waves.home = waves.out + count;
    waves.work = waves.home + count;
    double exchange = 0, mean, again = how->recompute ? 1 : 0;
    for (int32_t w = 0; w < m->waves; w++) {
        waves.out[w] = wave_time(m, way_out, w, cost->term);
        waves.home[w] = wave_time(m, way_home, w, cost->term);
        waves.work[w] = work_time(m, w, row_flops, &mean);
        cost->term[EPX_SIM_EXPERTS] += 3 * mean;
        cost->term[EPX_SIM_RECOMPUTE] += again * mean;
        cost->term[EPX_SIM_IMBALANCE] += (3 + again) * (waves.work[w] - mean);
    }
    add_pass(m, &waves, 1, how->depth, &exchange, hideable_p);
    add_pass(m, &waves, 2 + again, how->depth, &exchange, hideable_p); /* the same rows the same ways */
    cost->term[EPX_SIM_ROUTE] = route_time(m);
    cost->exchange_s = exchange + cost->term[EPX_SIM_ROUTE];
    for (int t = EPX_SIM_WIRE; t <= EPX_SIM_SKEW; t++) /* two passes, one route */
        cost->term[t] *= t == EPX_SIM_ROUTE ? 1 : 2;
    free(waves.out);
}

epx_sim_cost_t epx_sim_cost(const epx_sim_shape_t *shape, const epx_drops_case_t *rules,
                            const epx_drops_t *drops, const epx_machine_t *machine, const epx_sim_how_t *how)
{
    epx_sim_cost_t cost = {.exchange_s = 0};
    epx_flops_t flops = epx_flops_per_token(&shape->model);
    model_t model = model_of(shape, rules, drops, machine);
    double layers = (double)shape->model.layers, tokens = (double)shape->tokens, hideable = 0;
    const double *value = machine->value;
    cost_layer(&model, how, flops.routed / layers / (double)shape->model.top_k, &cost, &hideable);
    count_bytes(&model, &cost);

    for (int t = 0; t < EPX_SIM_TERMS; t++)
        cost.term[t] *= layers;
    cost.exchange_s *= layers;
    hideable *= layers;
    double attention = flops.causal_scores * tokens / value[EPX_ATTENTION_FLOPS];
    double dense = flops.rest * tokens / value[EPX_GEMM_FLOPS];
    cost.term[EPX_SIM_HIDDEN] = value[EPX_OVERLAP] * hideable;
    cost.term[EPX_SIM_ATTENTION] = 3 * attention;
    cost.term[EPX_SIM_DENSE] = 3 * dense;
    cost.term[EPX_SIM_RECOMPUTE] += how->recompute ? attention + dense : 0;

    cost.exposed_s = cost.exchange_s - cost.term[EPX_SIM_HIDDEN];
    cost.exposed_least_s = cost.exchange_s - hideable;
    cost.step_s = cost.exposed_s;
    for (int t = EPX_SIM_EXPERTS; t < EPX_SIM_TERMS; t++)
        cost.step_s += cost.term[t];
    cost.mfu = epx_flops_mfu(&flops, tokens / cost.step_s, value[EPX_PEAK_FLOPS]);
    cost.mfu_executed = epx_flops_mfu_executed(&flops, tokens / cost.step_s, value[EPX_PEAK_FLOPS],
                                               drops->kept, drops->routed);
    return cost;
}
