/* What a case came to. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/common/terminal.h"

/* Order statistics of one operation, in seconds. */
typedef struct spread {
    double median, min, max, p90, p99;
} spread_t;

/* Assignments of all ranks. */
typedef struct counts {
    int64_t routed, skipped, kept, spilled, dropped_sender, dropped_receiver, remote_rows;
} counts_t;

static const char *wire_name(epx_wire_t wire)
{
    return wire == EPX_WIRE_RANK ? "rank" : wire == EPX_WIRE_ASSIGNMENT ? "assignment" : "-";
}

static spread_t spread_of(double *values, size_t count)
{
    epx_sort_reals(values, count);
    return (spread_t){.median = epx_quantile(values, count, 0.5),
                      .min = epx_quantile(values, count, 0),
                      .max = epx_quantile(values, count, 1),
                      .p90 = epx_quantile(values, count, 0.9),
                      .p99 = epx_quantile(values, count, 0.99)};
}

/* What the operation is called where this case ran. */
static const char *name_of(const epx_perf_case_t *shared, int op)
{
    return op == EPX_PERF_COPY && shared->device != NULL ? "row_copy" : epx_perf_op_name((epx_perf_op_t)op);
}

/* The fabric alone: what it carries is no row. */
static int is_fabric(int op) { return op == EPX_PERF_FABRIC || op == EPX_PERF_FABRIC_ONE_WAY; }

static int32_t waves_of(const epx_perf_case_t *shared, int op)
{
    return op == EPX_PERF_ROUTE || op == EPX_PERF_WHOLE_DISPATCH || is_fabric(op) ? 1 : shared->waves;
}

/* From the first rank that began to the last that ended, all waves. */
static double together(const epx_perf_case_t *shared, int op, int64_t iteration)
{
    int64_t sum = 0;
    for (int32_t w = 0; w < waves_of(shared, op); w++) {
        int64_t at = (iteration * EPX_PERF_OPS + op) * shared->waves + w, begun = INT64_MAX, ended = 0;
        for (int32_t r = 0; r < shared->settings->ranks; r++) {
            const epx_perf_part_t *part = &shared->part[r];
            begun = part->begun[at] < begun ? part->begun[at] : begun;
            ended = part->ended[at] > ended ? part->ended[at] : ended;
        }
        sum += ended - begun;
    }
    return (double)sum * 1e-9;
}

/* One rank's own time in the calls of one operation, all waves. */
static double alone(const epx_perf_case_t *shared, int op, int64_t iteration, int32_t rank)
{
    int64_t sum = 0;
    for (int32_t w = 0; w < waves_of(shared, op); w++) {
        int64_t at = (iteration * EPX_PERF_OPS + op) * shared->waves + w;
        sum += shared->part[rank].ended[at] - shared->part[rank].begun[at];
    }
    return (double)sum * 1e-9;
}

static spread_t spread_of_op(const epx_perf_case_t *shared, int op)
{
    const epx_perf_settings_t *s = shared->settings;
    size_t count = 0, room = (size_t)s->iterations * (size_t)s->ranks;
    double *values = epx_tool_alloc(room, sizeof *values);
    for (int64_t i = 0; i < s->iterations; i++) {
        if (!s->latency)
            values[count++] = together(shared, op, i);
        for (int32_t r = 0; s->latency && r < s->ranks; r++)
            values[count++] = alone(shared, op, i, r);
    }
    spread_t spread = spread_of(values, count);
    free(values);
    return spread;
}

/* Median of what the calls took of the host, all waves: of the slowest rank, or of all ranks together. */
static double host_seconds(const epx_perf_case_t *shared, int op, int sums)
{
    const epx_perf_settings_t *s = shared->settings;
    double *values = epx_tool_alloc((size_t)s->iterations, sizeof *values);
    for (int64_t i = 0; i < s->iterations; i++) {
        int64_t most = 0;
        for (int32_t r = 0; r < s->ranks; r++) {
            int64_t sum = 0;
            for (int32_t w = 0; w < waves_of(shared, op); w++)
                sum += shared->part[r].host_ns[(i * EPX_PERF_OPS + op) * shared->waves + w];
            most = sums ? most + sum : sum > most ? sum : most;
        }
        values[i] = (double)most * 1e-9;
    }
    double median = spread_of(values, (size_t)s->iterations).median;
    free(values);
    return median;
}

/* Median of a copy's time over the operation's, pass by pass, so that a busy machine disturbs both. */
static double share_of(const epx_perf_case_t *shared, int copy, int op)
{
    const epx_perf_settings_t *s = shared->settings;
    double *values = epx_tool_alloc((size_t)s->iterations, sizeof *values);
    for (int64_t i = 0; i < s->iterations; i++) {
        double time = together(shared, op, i);
        values[i] = op == copy || time <= 0 ? 1 : together(shared, copy, i) / time;
    }
    double share = spread_of(values, (size_t)s->iterations).median;
    free(values);
    return share;
}

static counts_t counts_of(const epx_perf_case_t *shared)
{
    counts_t all = {0};
    for (int32_t r = 0; r < shared->settings->ranks; r++) {
        const epx_perf_part_t *part = &shared->part[r];
        all.routed += part->stats.routed;
        all.skipped += part->stats.skipped;
        all.kept += part->stats.kept;
        all.spilled += part->stats.spilled;
        all.dropped_sender += part->stats.dropped_sender;
        all.dropped_receiver += part->stats.dropped_receiver;
        all.remote_rows += part->seen_remote;
    }
    return all;
}

static int64_t remote_bytes_of(const epx_perf_case_t *shared, int op)
{
    int64_t sum = 0;
    for (int32_t r = 0; r < shared->settings->ranks; r++)
        sum += shared->part[r].remote_bytes[op];
    return sum;
}

static int moves_rows(int op) { return op != EPX_PERF_ROUTE; }

/* The machine's own copies, which operations are compared with. */
static int is_copy(int op) { return op == EPX_PERF_COPY || op == EPX_PERF_DEVICE_COPY; }

static int is_shown(const epx_perf_case_t *shared, int op)
{
    if (is_copy(op))
        return !shared->settings->latency && (op == EPX_PERF_COPY || shared->device != NULL);
    return shared->settings->shown[op];
}

/* Payload of the operation that went to other ranks. */
static int64_t remote_payload(const epx_perf_case_t *shared, const counts_t *counts, int op)
{
    return op == EPX_PERF_COPY          ? counts->remote_rows * shared->row_bytes
           : op == EPX_PERF_DEVICE_COPY ? 0
                                        : remote_bytes_of(shared, op);
}

static double payload_of(const epx_perf_case_t *shared, const counts_t *counts, int op)
{
    return (double)(is_fabric(op) ? remote_bytes_of(shared, op) : counts->kept * shared->row_bytes);
}

/* Ranks that send. */
static double senders_of(const epx_perf_case_t *shared, int op)
{
    int64_t ranks = shared->settings->ranks;
    return (double)(op == EPX_PERF_FABRIC_ONE_WAY ? ranks / 2 : ranks);
}

/* ---- tables ---- */

static const char *seconds(char *text, double value) { return epx_text_of_seconds(text, 32, value); }

static double per_second(double bytes, double time) { return time > 0 ? bytes / time * 1e-9 : 0; }

static void throughput_row(epx_table_t *table, const epx_perf_case_t *shared, const counts_t *counts, int op)
{
    char text[4][32];
    spread_t t = spread_of_op(shared, op);
    epx_table_cell(table, "%s", name_of(shared, op));
    epx_table_cell(table, "%s", seconds(text[0], t.median));
    epx_table_cell(table, "%s", seconds(text[1], t.min));
    epx_table_cell(table, "%s", seconds(text[2], t.max));
    if (shared->device != NULL)
        epx_table_cell(table, "%s", seconds(text[3], host_seconds(shared, op, 0)));
    if (!moves_rows(op)) {
        for (int i = 0; i < 6 + (shared->device != NULL); i++)
            epx_table_cell(table, "-");
        return;
    }
    double payload = payload_of(shared, counts, op), remote = (double)remote_payload(shared, counts, op);
    epx_table_cell(table, "%s", epx_text_of_bytes(text[0], sizeof text[0], payload));
    epx_table_cell(table, "%s", epx_text_of_bytes(text[1], sizeof text[1], remote));
    epx_table_cell(table, "%.2f", per_second(payload, t.median));
    epx_table_cell(table, "%.2f", per_second(remote, t.median));
    epx_table_cell(table, "%.2f", per_second(remote, t.median) / senders_of(shared, op));
    if (is_fabric(op))
        epx_table_cell(table, "-");
    else
        epx_table_cell(table, "%.2f", share_of(shared, EPX_PERF_COPY, op));
    if (shared->device != NULL)
        epx_table_cell(table, "%.2f", share_of(shared, EPX_PERF_DEVICE_COPY, op));
}

static void print_throughput(const epx_perf_case_t *shared, const counts_t *counts)
{
    static const epx_column_t columns[] = {{"operation", 0}, {"median", 1},   {"min", 1},  {"max", 1},
                                           {"payload", 1},   {"remote", 1},   {"GB/s", 1}, {"remote GB/s", 1},
                                           {"a rank", 1},    {"of memcpy", 1}};
    static const epx_column_t on_device[] = {{"operation", 0}, {"median", 1},      {"min", 1},
                                             {"max", 1},       {"host", 1},        {"payload", 1},
                                             {"remote", 1},    {"GB/s", 1},        {"remote GB/s", 1},
                                             {"a rank", 1},    {"of row_copy", 1}, {"of device_copy", 1}};
    epx_table_t *table = shared->device != NULL
                             ? epx_table_new(on_device, sizeof on_device / sizeof *on_device)
                             : epx_table_new(columns, sizeof columns / sizeof *columns);
    for (int op = 0; op < EPX_PERF_OPS; op++)
        if (is_shown(shared, op))
            throughput_row(table, shared, counts, op);
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

static void print_latency(const epx_perf_case_t *shared)
{
    static const epx_column_t columns[] = {{"operation", 0}, {"median", 1}, {"p90", 1}, {"p99", 1},
                                           {"min", 1},       {"max", 1},    {"host", 1}};
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns - (shared->device == NULL));
    for (int op = 0; op < EPX_PERF_OPS; op++) {
        char text[32];
        if (!is_shown(shared, op))
            continue;
        spread_t t = spread_of_op(shared, op);
        const double cells[] = {t.median, t.p90, t.p99, t.min, t.max};
        epx_table_cell(table, "%s", name_of(shared, op));
        for (int i = 0; i < 5; i++)
            epx_table_cell(table, "%s", seconds(text, cells[i]));
        if (shared->device != NULL)
            epx_table_cell(table, "%s", seconds(text, host_seconds(shared, op, 0)));
    }
    epx_table_print(table, stdout, 2);
    epx_table_free(table);
}

static double percent(int64_t part, int64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

/* Each floor, and the share of it that the dispatch reached, all waves together. */
static void print_link(const epx_perf_case_t *shared)
{
    const epx_perf_link_t *link = &shared->link;
    const struct {
        const char *name;
        double seconds;
    } ways[] = {{"peer stores", link->stores_s},
                {"copy engine", link->engine_s},
                {"NCCL all-to-all", link->all_to_all_s}};
    char text[2][32];
    if (link->bytes == 0)
        return;
    double dispatch = spread_of_op(shared, EPX_PERF_DISPATCH).median;
    printf("  the link, %s from each rank:", epx_text_of_bytes(text[0], sizeof text[0], (double)link->bytes));
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (ways[i].seconds > 0)
            printf("%s %s in %s (%.0f GB/s; dispatch %.2f)", i > 0 ? "," : "", ways[i].name,
                   seconds(text[1], ways[i].seconds), per_second((double)link->bytes, ways[i].seconds),
                   dispatch > 0 ? ways[i].seconds / dispatch : 0);
    printf("%s\n", link->all_to_all_s > 0 ? "" : ", NCCL all-to-all left out: it failed or is not there");
}

static double percent_more(double with, double alone) { return alone > 0 ? 100 * (with / alone - 1) : 0; }

static void print_beside(const epx_perf_case_t *shared)
{
    const epx_perf_beside_t *b = &shared->beside;
    char text[4][32];
    if (b->why_not[0] != '\0')
        printf("  beside a matrix product: left out, %s\n", b->why_not);
    if (b->what[0] == '\0')
        return;
    printf("  %s: %s alone (%.0f TFLOP/s), %s beside passes: %.1f%% more, with %.1f%% of the multiprocessors "
           "for rows\n  a pass: %s alone, %s beside products\n",
           b->what, seconds(text[0], b->alone_s), b->flops / b->alone_s * 1e-12, seconds(text[1], b->with_s),
           percent_more(b->with_s, b->alone_s),
           100.0 * (shared->sm_budget > 0 ? shared->sm_budget : shared->units) / (shared->units + 1e-9),
           seconds(text[2], b->exchange_alone_s), seconds(text[3], b->exchange_with_s));
    if (b->told_s > 0)
        printf("  the product told to use the other multiprocessors: %s, %.1f%% more than alone\n",
               seconds(text[0], b->told_s), percent_more(b->told_s, b->alone_s));
}

static void print_case(const epx_perf_case_t *shared, const counts_t *counts)
{
    char memory[32], wire[32] = "", budget[48] = "";
    if (shared->sm_budget > 0)
        snprintf(budget, sizeof budget, ", %d multiprocessors", shared->sm_budget);
    if (shared->wire == EPX_WIRE_RANK || shared->wire == EPX_WIRE_ASSIGNMENT)
        snprintf(wire, sizeof wire, ", %s wire", wire_name(shared->wire));
    printf("%s, %lld tokens: %s fabric, %s device%s, %d wave%s%s; %s per rank\n", shared->transport_name,
           (long long)shared->tokens, shared->fabric_name, shared->device_name, budget, shared->waves,
           shared->waves == 1 ? "" : "s", wire,
           epx_text_of_bytes(memory, sizeof memory, (double)shared->memory.total_bytes));
    printf("  %lld assignments: %.3f%% kept, %.3f%% dropped by senders, %.3f%% by receivers; %s\n",
           (long long)counts->routed, percent(counts->kept, counts->routed),
           percent(counts->dropped_sender, counts->routed), percent(counts->dropped_receiver, counts->routed),
           shared->settings->check ? "every row and sum was right" : "not checked");
    if (shared->settings->latency)
        print_latency(shared);
    else
        print_throughput(shared, counts);
    print_link(shared);
    print_beside(shared);
    putchar('\n');
    fflush(stdout);
}

/* ---- JSON ---- */

static void json_spread(epx_json_t *json, const char *key, const spread_t *t, int tail)
{
    epx_json_object(json, key);
    epx_json_real(json, "median", t->median);
    epx_json_real(json, "min", t->min);
    epx_json_real(json, "max", t->max);
    if (tail) {
        epx_json_real(json, "p90", t->p90);
        epx_json_real(json, "p99", t->p99);
    }
    epx_json_close(json);
}

static void json_op(epx_json_t *json, const epx_perf_case_t *shared, const counts_t *counts, int op)
{
    spread_t t = spread_of_op(shared, op);
    double payload = payload_of(shared, counts, op);
    epx_json_object(json, NULL);
    epx_json_text(json, "op", name_of(shared, op));
    json_spread(json, "seconds", &t, shared->settings->latency);
    if (moves_rows(op)) {
        int64_t remote = remote_payload(shared, counts, op);
        if (!is_fabric(op))
            epx_json_int(json, "rows", counts->kept);
        epx_json_int(json, "payload_bytes", (int64_t)payload);
        epx_json_int(json, "remote_bytes", remote);
        if (!shared->settings->latency) {
            epx_json_real(json, "payload_bytes_per_s", payload / t.median);
            epx_json_real(json, "remote_bytes_per_s", (double)remote / t.median);
            epx_json_real(json, "remote_bytes_per_s_of_a_rank",
                          (double)remote / t.median / senders_of(shared, op));
            if (!is_fabric(op))
                epx_json_real(json, shared->device != NULL ? "share_of_row_copy" : "share_of_memcpy",
                              share_of(shared, EPX_PERF_COPY, op));
            if (shared->device != NULL)
                epx_json_real(json, "share_of_device_copy", share_of(shared, EPX_PERF_DEVICE_COPY, op));
        }
    }
    if (shared->device != NULL)
        epx_json_real(json, "host_seconds", host_seconds(shared, op, 0));
    else
        epx_json_real(json, "processor_seconds", host_seconds(shared, op, 1));
    epx_json_close(json);
}

static void json_link(epx_json_t *json, const epx_perf_case_t *shared)
{
    const epx_perf_link_t *link = &shared->link;
    if (link->bytes == 0)
        return;
    epx_json_object(json, "link");
    epx_json_int(json, "bytes", link->bytes);
    epx_json_real(json, "peer_stores_s", link->stores_s);
    epx_json_real(json, "copy_engine_s", link->engine_s);
    epx_json_real(json, "nccl_all_to_all_s", link->all_to_all_s);
    epx_json_close(json);
}

static void json_beside(epx_json_t *json, const epx_perf_case_t *shared)
{
    const epx_perf_beside_t *b = &shared->beside;
    if (b->what[0] == '\0')
        return;
    epx_json_object(json, "beside");
    epx_json_text(json, "what", b->what);
    epx_json_real(json, "alone_s", b->alone_s);
    epx_json_real(json, "with_s", b->with_s);
    epx_json_real(json, "told_s", b->told_s);
    epx_json_real(json, "flops", b->flops);
    epx_json_real(json, "pass_alone_s", b->exchange_alone_s);
    epx_json_real(json, "pass_with_s", b->exchange_with_s);
    epx_json_close(json);
}

static void json_case(epx_json_t *json, const epx_perf_case_t *shared, const counts_t *counts)
{
    epx_json_object(json, NULL);
    epx_json_text(json, "transport", shared->transport_name);
    epx_json_text(json, "fabric", shared->fabric_name);
    epx_json_text(json, "device", shared->device_name);
    epx_json_text(json, "wire", wire_name(shared->wire));
    epx_json_int(json, "sm_budget", shared->sm_budget);
    epx_json_int(json, "waves", shared->waves);
    epx_json_int(json, "tokens", shared->tokens);
    epx_json_int(json, "batch_rows_max", shared->rows_max);
    epx_json_int(json, "memory_bytes", shared->memory.total_bytes);
    epx_json_int(json, "routed", counts->routed);
    epx_json_int(json, "skipped", counts->skipped);
    epx_json_int(json, "kept", counts->kept);
    epx_json_int(json, "spilled", counts->spilled);
    epx_json_int(json, "dropped_sender", counts->dropped_sender);
    epx_json_int(json, "dropped_receiver", counts->dropped_receiver);
    epx_json_bool(json, "checked", shared->settings->check);
    epx_json_array(json, "operations");
    for (int op = 0; op < EPX_PERF_OPS; op++)
        if (is_shown(shared, op))
            json_op(json, shared, counts, op);
    epx_json_close(json);
    json_link(json, shared);
    json_beside(json, shared);
    epx_json_close(json);
}

void epx_perf_report_begin(const epx_perf_settings_t *s, epx_json_t *json)
{
    char skew[512];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    epx_skew_text(&s->skew, skew, sizeof skew);
    if (s->recorded.routing != NULL)
        snprintf(skew, sizeof skew, "%s", s->recorded.routing);
    if (json == NULL) {
        printf("epx %s: %lld ranks as %s on %ld cores, %lld experts, top-%lld, rows of %lld %s, %s, "
               "seed %lld%s%s\n\n",
               epx_version(), (long long)s->ranks, s->processes > 1 ? "processes" : "threads", cores,
               (long long)s->experts, (long long)s->top_k, (long long)s->width,
               epx_perf_row_types[s->row_type], skew, (long long)s->seed, s->cold ? ", cold" : "",
               s->graph ? ", replayed from graphs" : "");
        return;
    }
    epx_json_object(json, NULL);
    epx_json_text(json, "program", "epx-perf");
    epx_json_text(json, "version", epx_version());
    epx_json_int(json, "cores", cores);
    epx_json_int(json, "ranks", s->ranks);
    epx_json_text(json, "ranks_are", s->processes > 1 ? "processes" : "threads");
    epx_json_int(json, "experts", s->experts);
    epx_json_int(json, "top_k", s->top_k);
    epx_json_int(json, "width", s->width);
    epx_json_text(json, "row_type", epx_perf_row_types[s->row_type]);
    epx_json_text(json, "skew", skew);
    epx_json_int(json, "seed", s->seed);
    epx_json_int(json, "iterations", s->iterations);
    epx_json_int(json, "warmup", s->warmup);
    epx_json_bool(json, "cold", s->cold);
    epx_json_bool(json, "graph", s->graph);
    epx_json_text(json, "mode", s->latency ? "latency" : "throughput");
    epx_json_array(json, "cases");
}

void epx_perf_report_case(const epx_perf_case_t *shared, epx_json_t *json)
{
    counts_t counts = counts_of(shared);
    epx_progress_clear();
    if (json != NULL)
        json_case(json, shared, &counts);
    else
        print_case(shared, &counts);
}

int epx_perf_report_end(epx_json_t *json)
{
    if (json == NULL)
        return 0;
    epx_json_close(json);
    epx_json_close(json);
    return epx_json_end(json);
}
