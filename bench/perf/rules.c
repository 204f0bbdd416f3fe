/* Times the accept rules on their own. SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/rules.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench/common/parallel.h"
#include "src/transport/accept.h"
#include "tools/common/numbers.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/common/terminal.h"

enum { RANKS = 64, TOKENS = 65536, TOP_K = 8, SPILL = 2, EXPERTS = 384, WAVES = 3, CHUNKS = 2 };
#define FACTOR 1.15
#define ASSIGNMENTS ((int64_t)TOKENS * TOP_K) /* of one rank */

typedef struct work work_t;
typedef void (*item_fn)(work_t *work, int32_t item, void *scratch);

struct work {
    epx_rule_t rule;
    int32_t owner[EXPERTS], local[EXPERTS], first[RANKS + 1], expert[EXPERTS];
    epx_owners_t owners;
    epx_skew_t skew;
    uint64_t seed;
    int32_t columns;
    int32_t *ids[2];  /* [RANKS, TOKENS, TOP_K], and with SPILL more columns */
    int32_t *n, *acc; /* [RANKS, EXPERTS] */
    uint8_t *kept;    /* [RANKS, ASSIGNMENTS] */
    int32_t *tags;    /* [destination, wave, sender, slot] */
    int64_t slots;    /* per destination and wave: the largest P */
    int64_t valid_all;
    atomic_llong routed, accepted, refused;
    int64_t seconds_ns;
    item_fn fn; /* of the loop that is running */
};

static void run_item(void *context, int32_t item, void *scratch)
{
    work_t *work = context;
    work->fn(work, item, scratch);
}

/* fn for each item 0..items-1, over so many threads, each with scratch of its own. */
static void each(work_t *work, int64_t threads, int32_t items, item_fn fn, size_t scratch_bytes)
{
    work->fn = fn;
    epx_parallel((int32_t)threads, items, run_item, work, scratch_bytes);
}

/* ---- ragged ---- */

static void count_sender(work_t *work, int32_t s, void *scratch)
{
    const int32_t *ids = work->ids[0] + s * ASSIGNMENTS;
    int32_t *n = work->n + (size_t)s * EXPERTS;
    (void)scratch;
    memset(n, 0, EXPERTS * sizeof *n);
    for (int64_t a = 0; a < ASSIGNMENTS; a++)
        n[ids[a]]++;
}

static void accept_chunk(work_t *work, int32_t item, void *scratch)
{
    epx_ragged_accept(&work->rule, item / CHUNKS, item % CHUNKS, work->valid_all, work->n, work->acc,
                      scratch);
}

/* Kept are the first acc of each (sender, expert) in (token, k) order. */
static void mark_sender(work_t *work, int32_t s, void *scratch)
{
    const int32_t *ids = work->ids[0] + s * ASSIGNMENTS;
    uint8_t *kept = work->kept + s * ASSIGNMENTS;
    int32_t *left = scratch;
    int64_t accepted = 0;
    memcpy(left, work->acc + (size_t)s * EXPERTS, EXPERTS * sizeof *left);
    for (int64_t a = 0; a < ASSIGNMENTS; a++) {
        int32_t more = left[ids[a]];
        kept[a] = more > 0;
        accepted += more > 0;
        left[ids[a]] = more - (more > 0);
    }
    atomic_fetch_add(&work->accepted, accepted);
    atomic_fetch_add(&work->refused, ASSIGNMENTS - accepted);
}

static void run_ragged(work_t *work, int64_t threads)
{
    work->rule.waves = CHUNKS;
    each(work, threads, RANKS, count_sender, 1);
    each(work, threads, RANKS * CHUNKS, accept_chunk, RANKS * sizeof(int64_t));
    each(work, threads, RANKS, mark_sender, EXPERTS * sizeof(int32_t));
}

/* ---- pooled_wave ---- */

static int32_t *slab_of(const work_t *work, int32_t d, int32_t wave, int32_t s)
{
    return work->tags + (((int64_t)d * WAVES + wave) * RANKS + s) * work->slots;
}

/* Gate 1 of one sender, and the tags that it puts before its rows. */
static void gate_sender(work_t *work, int32_t s, void *scratch)
{
    int64_t rows = (int64_t)TOKENS * work->columns, *gate = scratch;
    int32_t *wave = (int32_t *)(gate + RANKS), *slot = wave + rows;
    const int32_t *ids = work->ids[work->columns > TOP_K] + s * rows;
    epx_pooled_counts_t counts = {0};
    epx_pooled_gate1(&work->rule, ids, TOKENS, work->columns, wave, slot, gate, &counts);
    for (int32_t d = 0; d < RANKS; d++)
        for (int32_t w = 0; w < WAVES; w++)
            memset(slab_of(work, d, w, s), 0, (size_t)work->slots * sizeof(int32_t));
    for (int64_t a = 0; a < rows; a++)
        if (wave[a] >= 0)
            slab_of(work, work->owner[ids[a]], wave[a], s)[slot[a]] = work->local[ids[a]] + 1;
    atomic_fetch_add(&work->routed, counts.routed);
    atomic_fetch_add(&work->refused, counts.dropped);
}

/* Gate 2 of one receiver and wave. */
static void gate_receiver(work_t *work, int32_t item, void *scratch)
{
    int32_t d = item / WAVES, wave = item % WAVES, local_experts = work->first[d + 1] - work->first[d];
    const int32_t *tag[RANKS];
    int32_t *row[RANKS];
    int64_t *count = scratch, accepted = 0;
    for (int32_t s = 0; s < RANKS; s++) {
        tag[s] = slab_of(work, d, wave, s);
        row[s] = (int32_t *)(count + EXPERTS) + s * work->slots;
    }
    int64_t limit = epx_pooled_receiver_limit(&work->rule, work->valid_all);
    int64_t refused = epx_pooled_gate2(&work->rule, d, limit, tag, row, count);
    for (int32_t e = 0; e < local_experts; e++)
        accepted += count[e];
    atomic_fetch_add(&work->accepted, accepted);
    atomic_fetch_add(&work->refused, refused);
}

static void run_gates(work_t *work, int64_t threads)
{
    size_t rows = (size_t)TOKENS * (size_t)work->columns;
    work->rule.waves = WAVES;
    each(work, threads, RANKS, gate_sender, RANKS * sizeof(int64_t) + 2 * rows * sizeof(int32_t));
    each(work, threads, RANKS * WAVES, gate_receiver,
         EXPERTS * sizeof(int64_t) + (size_t)(RANKS * work->slots) * sizeof(int32_t));
}

static void count_move(void *context, int32_t wave, int32_t s, int32_t e, int32_t first, int32_t rows)
{
    (void)wave, (void)s, (void)e, (void)first;
    *(int64_t *)context += rows;
}

static void schedule_receiver(work_t *work, int32_t d, void *scratch)
{
    int64_t moved = 0;
    epx_pooled_extra_waves(&work->rule, d, work->n, scratch, count_move, &moved);
    atomic_fetch_add(&work->accepted, moved);
}

static void run_extra_wave(work_t *work, int64_t threads)
{
    work->rule.waves = WAVES;
    each(work, threads, RANKS, count_sender, 1);
    each(work, threads, RANKS, schedule_receiver, RANKS * (EXPERTS + 1) * sizeof(int32_t));
}

/* ---- all of them ---- */

static const struct {
    const char *name;
    void (*run)(work_t *work, int64_t threads);
    epx_accept_t accept;
    int32_t columns;
} rules[] = {
    {"ragged prefix", run_ragged, EPX_ACCEPT_PREFIX, TOP_K},
    {"ragged waterfill", run_ragged, EPX_ACCEPT_WATERFILL, TOP_K},
    {"ragged fair", run_ragged, EPX_ACCEPT_FAIR, TOP_K},
    {"pooled_wave drop", run_gates, EPX_ACCEPT_PREFIX, TOP_K},
    {"pooled_wave spill", run_gates, EPX_ACCEPT_PREFIX, TOP_K + SPILL},
    {"pooled_wave extra_wave", run_extra_wave, EPX_ACCEPT_PREFIX, TOP_K},
};
enum { RULES = sizeof rules / sizeof *rules };

static void draw_sender(work_t *work, int32_t s, void *scratch)
{
    epx_skew_source_t source = epx_skew_open(&work->skew, s, RANKS, EXPERTS, TOP_K + SPILL, work->seed);
    (void)scratch;
    for (int64_t t = 0; t < TOKENS; t++) {
        int32_t *wide = work->ids[1] + (s * (int64_t)TOKENS + t) * (TOP_K + SPILL);
        epx_skew_token(&source, t, TOP_K + SPILL, wide);
        memcpy(work->ids[0] + s * ASSIGNMENTS + t * TOP_K, wide, TOP_K * sizeof *wide);
    }
    epx_skew_close(&source);
}

static work_t *set_up(const epx_perf_settings_t *settings)
{
    work_t *work = epx_tool_alloc(1, sizeof *work);
    for (int32_t r = 0; r <= RANKS; r++)
        work->first[r] = epx_first_expert(r, RANKS, EXPERTS);
    for (int32_t e = 0; e < EXPERTS; e++) {
        work->owner[e] = epx_owner_of(e, RANKS, EXPERTS);
        work->local[e] = e - work->first[work->owner[e]];
        work->expert[e] = e;
    }
    work->owners = (epx_owners_t){RANKS, EXPERTS, work->owner, work->local, work->first, work->expert};
    work->rule = (epx_rule_t){.ranks = RANKS,
                              .experts = EXPERTS,
                              .top_k = TOP_K,
                              .assignments_max = ASSIGNMENTS,
                              .cf = FACTOR,
                              .cs = FACTOR,
                              .waves = WAVES,
                              .owners = &work->owners};
    work->slots = epx_pooled_slots(&work->rule, work->first[1]);
    work->valid_all = RANKS * ASSIGNMENTS;
    work->skew = settings->skew;
    work->seed = (uint64_t)settings->seed;
    work->ids[0] = epx_tool_alloc((size_t)RANKS * TOKENS * TOP_K, sizeof(int32_t));
    work->ids[1] = epx_tool_alloc((size_t)RANKS * TOKENS * (TOP_K + SPILL), sizeof(int32_t));
    work->n = epx_tool_alloc(RANKS * EXPERTS, sizeof *work->n);
    work->acc = epx_tool_alloc(RANKS * EXPERTS, sizeof *work->acc);
    work->kept = epx_tool_alloc(RANKS * (size_t)ASSIGNMENTS, 1);
    work->tags = epx_tool_alloc((size_t)(RANKS * WAVES * RANKS * work->slots), sizeof *work->tags);
    epx_progress("drawing the routing of %d ranks", RANKS);
    each(work, settings->threads, RANKS, draw_sender, 1);
    return work;
}

static void free_work(work_t *work)
{
    free(work->ids[0]);
    free(work->ids[1]);
    free(work->n);
    free(work->acc);
    free(work->kept);
    free(work->tags);
    free(work);
}

/* One run: on a clock on the wall, and of all threads together, which a busy machine does not lengthen. */
typedef struct span {
    double seconds, cpu_seconds;
} span_t;

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Time of one run of a rule; what it kept and refused is left in `work`. */
static span_t time_rule(work_t *work, int64_t threads, int rule)
{
    atomic_store(&work->routed, 0);
    atomic_store(&work->accepted, 0);
    atomic_store(&work->refused, 0);
    work->rule.accept = rules[rule].accept;
    work->columns = rules[rule].columns;
    double cpu = cpu_seconds();
    int64_t begun = epx_now_ns();
    rules[rule].run(work, threads);
    return (span_t){.seconds = (double)(epx_now_ns() - begun) * 1e-9, .cpu_seconds = cpu_seconds() - cpu};
}

static void show(epx_json_t *json, epx_table_t *table, int rule, const double *sorted, size_t runs,
                 double cpu,

                 int64_t kept)
{
    double all = (double)(RANKS * ASSIGNMENTS), median = epx_quantile(sorted, runs, 0.5);
    if (json != NULL) {
        epx_json_object(json, NULL);
        epx_json_text(json, "rule", rules[rule].name);
        epx_json_real(json, "seconds", median);
        epx_json_real(json, "seconds_min", sorted[0]);
        epx_json_real(json, "seconds_max", sorted[runs - 1]);
        epx_json_real(json, "cpu_seconds", cpu);
        epx_json_int(json, "kept", kept);
        epx_json_int(json, "dropped", RANKS * ASSIGNMENTS - kept);
        epx_json_close(json);
        return;
    }
    epx_table_cell(table, "%s", rules[rule].name);
    epx_table_cell(table, "%.3f s", median);
    epx_table_cell(table, "%.3f s", sorted[0]);
    epx_table_cell(table, "%.3f s", sorted[runs - 1]);
    epx_table_cell(table, "%.3f s", cpu);
    epx_table_cell(table, "%.1f", all / median * 1e-6);
    epx_table_cell(table, "%.4f%%", 100 * (1 - (double)kept / all));
}

static int run_rules(work_t *work, const epx_perf_settings_t *settings, epx_json_t *json, epx_table_t *table)
{
    enum { RUNS = 3 };
    for (int rule = 0; rule < RULES; rule++) {
        double seconds[RUNS], cpu[RUNS];
        for (int i = 0; i < RUNS; i++) {
            epx_progress("%s: run %d of %d", rules[rule].name, i + 1, RUNS);
            span_t span = time_rule(work, settings->threads, rule);
            seconds[i] = span.seconds;
            cpu[i] = span.cpu_seconds;
        }
        epx_sort_reals(cpu, RUNS);
        epx_sort_reals(seconds, RUNS);
        int64_t kept = atomic_load(&work->accepted), refused = atomic_load(&work->refused);
        if (kept + refused != RANKS * ASSIGNMENTS)
            return epx_tool_fail(
                EPX_EXIT_FAILED, "%s: %lld kept and %lld refused are not %lld: this is a bug in the rule",
                rules[rule].name, (long long)kept, (long long)refused, (long long)(RANKS * ASSIGNMENTS));
        show(json, table, rule, seconds, RUNS, cpu[RUNS / 2], kept);
    }
    return EPX_EXIT_OK;
}

int epx_perf_rules(const epx_perf_settings_t *settings, epx_json_t *json)
{
    static const epx_column_t columns[] = {{"rule", 0}, {"median", 1},        {"min", 1},    {"max", 1},
                                           {"CPU", 1},  {"M decisions/s", 1}, {"dropped", 1}};
    char skew[64];
    if (settings->skew.kind == EPX_SKEW_EMPTY_RANK)
        return epx_tool_fail(EPX_EXIT_USAGE,
                             "--accept-rules counts tokens of every rank: choose another --skew");
    epx_skew_text(&settings->skew, skew, sizeof skew);
    work_t *work = set_up(settings);
    epx_table_t *table = epx_table_new(columns, sizeof columns / sizeof *columns);
    if (json != NULL) {
        epx_json_object(json, NULL);
        epx_json_text(json, "program", "epx-perf");
        epx_json_text(json, "version", epx_version());
        epx_json_text(json, "mode", "accept-rules");
        epx_json_int(json, "ranks", RANKS);
        epx_json_int(json, "assignments", ASSIGNMENTS);
        epx_json_int(json, "experts", EXPERTS);
        epx_json_text(json, "skew", skew);
        epx_json_int(json, "threads", settings->threads);
        epx_json_array(json, "rules");
    }
    int rc = run_rules(work, settings, json, table);
    epx_progress_clear();
    if (json != NULL) {
        epx_json_close(json);
        epx_json_close(json);
        if (epx_json_end(json) != 0)
            rc = EPX_EXIT_FAILED;
    } else if (rc == EPX_EXIT_OK) {
        printf("accept rules, %d ranks x %lld assignments (%d experts, %s), %lld threads, from ids to the "
               "last decision\n\n",
               RANKS, (long long)ASSIGNMENTS, EXPERTS, skew, (long long)settings->threads);
        epx_table_print(table, stdout, 2);
    }
    epx_table_free(table);
    free_work(work);
    return rc;
}
