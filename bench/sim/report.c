/* Tables and JSON. SPDX-License-Identifier: Apache-2.0 */
#include "bench/sim/report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"

double epx_sim_memory_bytes(const epx_sim_result_t *result)
{
    return result->memory_problem[0] == '\0' ? (double)result->memory.total_bytes : NAN;
}

char *epx_sim_case_name(const epx_sim_settings_t *s, const epx_sim_case_t *one, char *text, size_t bytes)
{
    int others = 0, unusual = one->overflow != NULL && strcmp(one->overflow, "drop") != 0;
    for (int32_t i = 0; i < s->case_count; i++)
        others += strcmp(s->cases[i].transport, one->transport) == 0;
    unusual |= one->accept != NULL && strcmp(one->accept, "prefix") != 0;
    snprintf(text, bytes, "%s%s%s", one->transport, others > 1 || unusual ? ", " : "",
             others > 1 || unusual ? (one->accept ? one->accept : one->overflow) : "");
    return text;
}

/* ---- JSON --------------------------------------------------------------------------------------------------------- */

static void json_shape(const epx_sim_settings_t *s, epx_json_t *json)
{
    const epx_model_config_t *model = &s->shape.model;
    epx_json_object(json, "shape");
    epx_json_text(json, "preset", s->shape.name);
    epx_json_int(json, "ranks", s->shape.ranks);
    epx_json_int(json, "tokens", s->shape.tokens);
    epx_json_int(json, "experts", model->experts);
    epx_json_int(json, "top_k", model->top_k);
    epx_json_int(json, "width", epx_config_row_width(model));
    epx_json_int(json, "model_width", model->width);
    epx_json_int(json, "expert_width", model->expert_width);
    epx_json_int(json, "layers", model->layers);
    epx_json_int(json, "sequence", model->sequence);
    epx_json_int(json, "context_parallel", s->shape.context_parallel);
    epx_json_text(json, "row_type", epx_sim_row_types[s->shape.row_type]);
    epx_json_close(json);
}

static void json_machine(const epx_sim_settings_t *s, epx_json_t *json)
{
    epx_json_object(json, "machine");
    epx_json_text(json, "name", s->machine.name);
    epx_json_object(json, "constants");
    for (int i = 0; i < EPX_CONSTANTS; i++)
        epx_json_real(json, epx_constant_row((epx_constant_t)i)->name, s->machine.value[i]);
    epx_json_close(json);
    epx_json_close(json);
}

static void json_spread(epx_json_t *json, const char *key, const epx_sim_spread_t *spread)
{
    epx_json_object(json, key);
    epx_json_real(json, "mean", spread->mean);
    epx_json_real(json, "deviation", spread->deviation);
    epx_json_real(json, "min", spread->least);
    epx_json_real(json, "max", spread->most);
    epx_json_real(json, "p99", spread->p99);
    epx_json_close(json);
}

static void json_memory(epx_json_t *json, const epx_sim_result_t *result)
{
    if (result->memory_problem[0] != '\0') {
        epx_json_null(json, "memory_bytes");
        epx_json_text(json, "memory_problem", result->memory_problem);
        return;
    }
    epx_json_int(json, "memory_bytes", result->memory.total_bytes);
    epx_json_object(json, "memory");
    for (int32_t i = 0; i < result->memory.items; i++)
        epx_json_int(json, result->memory.item[i].name, result->memory.item[i].bytes);
    epx_json_int(json, "plan_bytes", result->memory.plan_bytes);
    epx_json_close(json);
}

static void json_counts(epx_json_t *json, const epx_sim_result_t *result)
{
    double dropped = (double)(result->dropped_sender + result->dropped_receiver);
    epx_json_int(json, "samples", result->samples);
    epx_json_int(json, "routed", result->routed);
    epx_json_int(json, "skipped", result->skipped);
    epx_json_int(json, "kept", result->kept);
    epx_json_int(json, "spilled", result->spilled);
    epx_json_int(json, "dropped_sender", result->dropped_sender);
    epx_json_int(json, "dropped_receiver", result->dropped_receiver);
    epx_json_real(json, "drop_fraction", result->routed > 0 ? dropped / (double)result->routed : 0);
    json_spread(json, "drops", &result->drop_spread);
    json_spread(json, "drops_sender", &result->sender_spread);
    json_spread(json, "drops_receiver", &result->receiver_spread);
    epx_json_bool(json, "estimate", result->estimate);
    epx_json_real(json, "max_over_mean_load", result->load);
}

static void json_cost(epx_json_t *json, const epx_sim_cost_t *cost)
{
    epx_json_real(json, "bytes_per_transfer", cost->transfer_bytes);
    epx_json_real(json, "remote_bytes_per_transfer", cost->remote_bytes);
    epx_json_real(json, "predicted_exchange_ms", cost->exchange_s * 1e3);
    epx_json_real(json, "predicted_exposed_ms", cost->exposed_s * 1e3);
    epx_json_real(json, "predicted_exposed_least_ms", cost->exposed_least_s * 1e3);
    epx_json_real(json, "predicted_step_ms", cost->step_s * 1e3);
    epx_json_real(json, "predicted_mfu", cost->mfu);
    epx_json_real(json, "predicted_mfu_executed", cost->mfu_executed);
    epx_json_object(json, "terms");
    for (int t = 0; t < EPX_SIM_TERMS; t++)
        epx_json_real(json, epx_sim_term_name((epx_sim_term_t)t), cost->term[t] * 1e3);
    epx_json_close(json);
}

/* The members of one case, into the open object. */
static void report_case(const epx_sim_settings_t *s, const epx_sim_case_t *one,
                        const epx_sim_result_t *result, epx_json_t *json)
{
    int pooled = one->rules.transport == EPX_DROPS_POOLED_WAVE;
    epx_json_text(json, "transport", one->transport);
    epx_json_text(json, "accept", one->accept);
    epx_json_text(json, "overflow", one->overflow);
    epx_json_int(json, "ranks", s->shape.ranks);
    epx_json_int(json, "waves", result->waves);
    if (one->rules.capacity_factor < 0)
        epx_json_text(json, "capacity_factor", "dropless");
    else
        epx_json_real(json, "capacity_factor", one->rules.capacity_factor);
    if (pooled)
        epx_json_real(json, "sender_factor", one->rules.sender_factor);
    if (one->rules.transport == EPX_DROPS_RAGGED)
        epx_json_text(json, "wire", one->rules.rank_wire ? "rank" : "assignment");
    json_counts(json, result);
    json_memory(json, result);
    json_cost(json, &result->cost);
}

/* ---- tables ------------------------------------------------------------------------------------------------------- */

static void print_drops(const epx_sim_point_t *point)
{
    static const epx_column_t columns[] = {{"transport", 0}, {"drops", 1},        {"spread", 1},
                                           {"least", 1},     {"most", 1},         {"by sender", 1},
                                           {"receiver", 1},  {"max/mean load", 1}};
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    char name[64];
    for (int32_t i = 0; i < point->settings.case_count; i++) {
        const epx_sim_result_t *result = &point->result[i];
        epx_table_cell(table, "%s",
                       epx_sim_case_name(&point->settings, &point->settings.cases[i], name, sizeof name));
        epx_table_cell(table, "%.4f%%", 100 * result->drop_spread.mean);
        epx_table_cell(table, "%.4f", 100 * result->drop_spread.deviation);
        epx_table_cell(table, "%.4f%%", 100 * result->drop_spread.least);
        epx_table_cell(table, "%.4f%%", 100 * result->drop_spread.most);
        epx_table_cell(table, "%.4f%%", 100 * result->sender_spread.mean);
        epx_table_cell(table, "%.4f%%%s", 100 * result->receiver_spread.mean,
                       result->estimate ? " (estimate)" : "");
        epx_table_cell(table, "%.3f", result->load);
    }
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

static void print_costs(const epx_sim_point_t *point)
{
    static const epx_column_t columns[] = {{"transport", 0}, {"transfer", 1}, {"memory", 1}, {"exchange", 1},
                                           {"exposed", 1},   {"step", 1},     {"MFU", 1},    {"executed", 1}};
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    char text[64];
    for (int32_t i = 0; i < point->settings.case_count; i++) {
        const epx_sim_cost_t *cost = &point->result[i].cost;
        double memory = epx_sim_memory_bytes(&point->result[i]);
        epx_table_cell(table, "%s",
                       epx_sim_case_name(&point->settings, &point->settings.cases[i], text, sizeof text));
        epx_table_cell(table, "%s", epx_text_of_bytes(text, sizeof text, cost->transfer_bytes));
        epx_table_cell(table, "%s", isnan(memory) ? "-" : epx_text_of_bytes(text, sizeof text, memory));
        epx_table_cell(table, "%s", epx_text_of_seconds(text, sizeof text, cost->exchange_s));
        epx_table_cell(table, "%s", epx_text_of_seconds(text, sizeof text, cost->exposed_s));
        epx_table_cell(table, "%s", epx_text_of_seconds(text, sizeof text, cost->step_s));
        epx_table_cell(table, "%.2f%%", 100 * cost->mfu);
        epx_table_cell(table, "%.2f%%", 100 * cost->mfu_executed);
    }
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

static void seconds_cell(epx_table_t *table, double seconds)
{
    char text[32];
    if (seconds < 5e-10)
        epx_table_cell(table, "0");
    else
        epx_table_cell(table, "%s", epx_text_of_seconds(text, sizeof text, seconds));
}

static void print_terms(const epx_sim_point_t *point)
{
    epx_column_t columns[EPX_SIM_CASES + 2] = {{"term, of a step", 0}};
    char name[EPX_SIM_CASES][64];
    int32_t count = point->settings.case_count;
    for (int32_t i = 0; i < count; i++)
        columns[i + 1] = (epx_column_t){
            epx_sim_case_name(&point->settings, &point->settings.cases[i], name[i], sizeof name[i]), 1};
    columns[count + 1] = (epx_column_t){"", 0};
    epx_table_t *table = epx_table_new(columns, count + 2);
    for (int t = 0; t < EPX_SIM_TERMS; t++) {
        const char *term = epx_sim_term_name((epx_sim_term_t)t);
        epx_table_cell(table, "%.*s", (int)strcspn(term, "_"), term);
        for (int32_t i = 0; i < count; i++)
            seconds_cell(table, point->result[i].cost.term[t]);
        epx_table_cell(table, "%s", epx_sim_term_meaning((epx_sim_term_t)t));
    }
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

/* What a reader must know about what is shown. */
static void print_notes(const epx_sim_point_t *point)
{
    char name[64];
    for (int32_t i = 0; i < point->settings.case_count; i++) {
        const epx_sim_result_t *result = &point->result[i];
        epx_sim_case_name(&point->settings, &point->settings.cases[i], name, sizeof name);
        if (result->estimate)
            printf("\n%s: the routing has counts only; its second gate depends on order, so its drops are an "
                   "estimate\n",
                   name);
        if (result->memory_problem[0] != '\0')
            printf("\n%s cannot be opened: %s\n", name, result->memory_problem);
    }
}

/* ---- both --------------------------------------------------------------------------------------------------------- */

void epx_sim_report_begin(const epx_sim_settings_t *s, int32_t samples, epx_json_t *json)
{
    char routing[512];
    epx_sim_routing_text(&s->routing, routing, sizeof routing);
    int64_t seed = s->routing.seed >= 0 ? s->routing.seed : s->seed;
    if (json != NULL) {
        epx_json_text(json, "program", "epx-sim");
        epx_json_text(json, "version", epx_version());
        json_shape(s, json);
        epx_json_text(json, "routing", routing);
        if (s->routing.kind != EPX_SIM_BY_FILE)
            epx_json_int(json, "seed", seed);
        epx_json_int(json, "samples", samples);
        json_machine(s, json);
        return;
    }
    printf("epx %s: %s, %lld ranks x %lld tokens, %lld experts, top-%lld, rows of %lld %s, sequences of %lld",
           epx_version(), s->shape.name, (long long)s->shape.ranks, (long long)s->shape.tokens,
           (long long)s->shape.model.experts, (long long)s->shape.model.top_k,
           (long long)epx_config_row_width(&s->shape.model), epx_sim_row_types[s->shape.row_type],
           (long long)s->shape.model.sequence);
    if (s->shape.context_parallel > 1)
        printf(" over %lld ranks", (long long)s->shape.context_parallel);
    printf("\nrouting %s", routing);
    if (s->routing.kind != EPX_SIM_BY_FILE)
        printf(", seed %lld", (long long)seed);
    printf(", %d sample%s of a layer; %d layers on %s\n\n", samples, samples == 1 ? "" : "s",
           (int)s->shape.model.layers, s->machine.name);
}

void epx_sim_report_point(const epx_sim_point_t *point, epx_json_t *json)
{
    if (json == NULL) {
        print_drops(point);
        putchar('\n');
        print_costs(point);
        putchar('\n');
        print_terms(point);
        print_notes(point);
        return;
    }
    epx_json_array(json, "transports");
    for (int32_t i = 0; i < point->settings.case_count; i++) {
        epx_json_object(json, NULL);
        report_case(&point->settings, &point->settings.cases[i], &point->result[i], json);
        epx_json_close(json);
    }
    epx_json_close(json);
}
