/*
 * Measures every pair of ranks with a small exchange over the library itself. SPDX-License-Identifier:
 * Apache-2.0
 *
 * In each round a rank meets one other in a group of two, and all its rows go there and back. Pairs of a
 * round are measured at the same time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epx/epx.h>

#include "tools/common/numbers.h"
#include "tools/common/ranks.h"
#include "tools/common/table.h"
#include "tools/health/health.h"
#include "tools/health/pairs.h"

#include "tools/common/program.h"

/* The best of SLICES counts: a link is as fast as it can be, and what disturbs a rank is not the link. */
enum { WIDTH = 64, ROW_BYTES = WIDTH * 4, HOST_BYTES = 64, SLICES = 5 };

/* What one rank holds. rate, all: [ranks], [ranks, ranks]; hosts [ranks, HOST_BYTES]. */
typedef struct prober {
    epx_rank_t *self;
    const health_probe_t *probe;
    double *rate, *all;
    char *hosts;
    float *x, *y, *out;
    int32_t *ids;
    float *weights;
    int64_t tokens;
    int *verdict_p;
} prober_t;

#define TRY(call, what)                                \
    do {                                               \
        int rc_ = epx_rank_check(p->self, call, what); \
        if (rc_ != EPX_EXIT_OK)                        \
            return rc_;                                \
    } while (0)

/* All waves of one pass: rows go out and come back. */
static int pass(prober_t *p, epx_plan_h plan)
{
    for (int32_t w = 0; w < epx_plan_waves(plan); w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        TRY(epx_dispatch(plan, w, p->x, &batch, NULL), "dispatch");
        TRY(epx_combine(plan, w, p->y, p->out, NULL), "combine");
    }
    return EPX_EXIT_OK;
}

/* Both ranks of a pair agree on the number of passes by the slower one's first pass. */
static int time_passes(prober_t *p, epx_comm_h pair, epx_plan_h plan, double *rate_p)
{
    int rc = pass(p, plan);
    TRY(epx_comm_barrier(pair), "meeting");
    int64_t begun = epx_now_ns();
    rc = rc == EPX_EXIT_OK ? pass(p, plan) : rc;
    if (rc != EPX_EXIT_OK)
        return rc;
    double seconds = (double)(epx_now_ns() - begun) * 1e-9;
    TRY(epx_comm_allreduce(pair, &seconds, 1, EPX_NUMBER_DOUBLE, EPX_MAX),
        "agreeing on the number of passes");
    double wanted = (double)p->probe->probe_ms * 1e-3 / SLICES / (seconds > 1e-7 ? seconds : 1e-7);
    int64_t passes = wanted < 1 ? 1 : wanted > 1e6 ? 1000000 : (int64_t)wanted;
    for (int32_t slice = 0; slice < SLICES; slice++) {
        begun = epx_now_ns();
        for (int64_t i = 0; i < passes && rc == EPX_EXIT_OK; i++)
            rc = pass(p, plan);
        seconds = (double)(epx_now_ns() - begun) * 1e-9;
        double rate = (double)passes * 2 * (double)(p->tokens * ROW_BYTES) / seconds;
        *rate_p = rate > *rate_p ? rate : *rate_p;
    }
    if (rc == EPX_EXIT_OK)
        TRY(epx_comm_allreduce(pair, rate_p, 1, EPX_NUMBER_DOUBLE, EPX_MIN), "comparing rates");
    return rc;
}

static int meet(prober_t *p, epx_comm_h pair, double *rate_p)
{
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_group_info_t info = EPX_GROUP_INFO_INIT;
    epx_routing_t routing = EPX_ROUTING_INIT;
    epx_group_h group = NULL;
    epx_plan_h plan = NULL;
    config.experts = 2;
    config.top_k = 1;
    config.width = WIDTH;
    config.tokens_max = (int32_t)p->tokens;
    config.backward = EPX_BACKWARD_NONE;
    config.capacity_factor = EPX_DROPLESS;
    config.device = "host";
    TRY(epx_group_open(pair, &config, &group), "opening a group of two");
    int rc = epx_rank_check(p->self, epx_group_info(group, &info), "asking the group");
    for (int64_t t = 0; t < p->tokens; t++) { /* the other's expert; which one that is, the group says */
        p->ids[t] = 1 - (info.local_experts > 0 ? info.local_expert_ids[0] : 0);
        p->weights[t] = 1;
    }
    routing.tokens = (int32_t)p->tokens;
    routing.ids = p->ids;
    routing.id_type = EPX_INT32;
    routing.weights = p->weights;
    p->y = epx_tool_alloc((size_t)info.batch_rows_max + 1, ROW_BYTES);
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(p->self, epx_plan_create(group, 0, NULL, &plan), "making a plan");
    if (rc == EPX_EXIT_OK)
        rc = epx_rank_check(p->self, epx_plan_route(plan, &routing, NULL), "routing");
    if (rc == EPX_EXIT_OK)
        rc = time_passes(p, pair, plan, rate_p);
    epx_plan_destroy(&plan);
    epx_group_close(&group);
    free(p->y);
    return rc;
}

static int measure_rounds(prober_t *p)
{
    int32_t ranks = p->self->ranks, me = p->self->rank;
    for (int32_t round = 0; round < health_rounds(ranks); round++) {
        int32_t other = health_partner(ranks, round, me), colour = other < me ? other : me;
        epx_comm_h pair = NULL;
        TRY(epx_comm_split(p->self->comm, other < 0 ? -1 : colour, me, &pair), "pairing");
        int rc = other >= 0 ? meet(p, pair, &p->rate[other]) : EPX_EXIT_OK;
        epx_comm_destroy(&pair);
        if (rc != EPX_EXIT_OK)
            return rc;
    }
    return EPX_EXIT_OK;
}

/* ---- the answer, on rank 0 ---- */

static void show_text(const prober_t *p, double median, const int32_t *slow, int32_t slow_total)
{
    static const epx_column_t columns[] = {{"rank", 1}, {"host", 0}, {"rank", 1}, {"host", 0}, {"rate", 1}};
    int32_t n = p->self->ranks;
    char text[32];
    epx_table_t *table = epx_table_new(columns, 5);
    printf("%d pairs of %d ranks, median %s/s each way\n", n * (n - 1) / 2, n,
           epx_text_of_bytes(text, sizeof text, median));
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = a + 1; b < n; b++) {
            double rate = p->all[(size_t)a * (size_t)n + (size_t)b];
            if (!(rate < p->probe->slow * median))
                continue;
            epx_table_cell(table, "%d", a);
            epx_table_cell(table, "%s", p->hosts + (size_t)a * HOST_BYTES);
            epx_table_cell(table, "%d", b);
            epx_table_cell(table, "%s", p->hosts + (size_t)b * HOST_BYTES);
            epx_table_cell(table, "%s/s, %.0f%%", epx_text_of_bytes(text, sizeof text, rate),
                           100 * rate / median);
        }
    if (slow_total > 0)
        epx_table_print(table, stdout, 2);
    for (int32_t r = 0; r < n; r++)
        if (n > 2 && 2 * slow[r] > n - 1)
            printf("rank %d on %s is slow with %d of %d others\n", r, p->hosts + (size_t)r * HOST_BYTES,
                   slow[r], n - 1);
    epx_table_free(table);
}

static void show_json(const prober_t *p, double median, const int32_t *slow, const char *verdict)
{
    int32_t n = p->self->ranks;
    epx_json_t json = epx_json_begin(stdout, 2);
    epx_json_object(&json, NULL);
    epx_json_text(&json, "program", "epx-health");
    epx_json_text(&json, "verdict", verdict);
    epx_json_real(&json, "median_bytes_per_s", median);
    epx_json_array(&json, "ranks");
    for (int32_t r = 0; r < n; r++) {
        epx_json_object(&json, NULL);
        epx_json_int(&json, "rank", r);
        epx_json_text(&json, "host", p->hosts + (size_t)r * HOST_BYTES);
        epx_json_int(&json, "slow_pairs", slow[r]);
        epx_json_close(&json);
    }
    epx_json_close(&json);
    epx_json_array(&json, "pairs");
    for (int32_t a = 0; a < n; a++)
        for (int32_t b = a + 1; b < n; b++) {
            double rate = p->all[(size_t)a * (size_t)n + (size_t)b];
            epx_json_object(&json, NULL);
            epx_json_int(&json, "a", a);
            epx_json_int(&json, "b", b);
            epx_json_real(&json, "bytes_per_s", rate);
            epx_json_bool(&json, "slow", rate < p->probe->slow * median);
            epx_json_close(&json);
        }
    epx_json_close(&json);
    epx_json_close(&json);
    epx_json_end(&json);
}

static void answer(const prober_t *p)
{
    int32_t n = p->self->ranks, total = 0;
    int32_t *slow = epx_tool_alloc((size_t)n, sizeof *slow);
    double median = health_slow_pairs(p->all, n, p->probe->slow, slow);
    for (int32_t r = 0; r < n; r++)
        total += slow[r];
    /* one pair has nothing to be compared with */
    epx_health_verdict_t verdict = total > 0 ? EPX_HEALTH_WATCH
                                   : n > 2   ? EPX_HEALTH_OK
                                             : EPX_HEALTH_CANNOT_TELL;
    if (p->probe->json)
        show_json(p, median, slow, epx_health_verdict_name(verdict));
    else {
        show_text(p, median, slow, total);
        printf("%s%s\n", epx_health_verdict_name(verdict),
               total > 0 ? ": slow pairs stand out"
               : n > 2   ? ": no pair stands out"
                         : ": a pair alone stands beside nothing");
    }
    *p->verdict_p = total > 0 ? EPX_EXIT_FAILED : n > 2 ? EPX_EXIT_OK : EPX_EXIT_NO_VERDICT;
    free(slow);
}

/* ---- one rank ---- */

typedef struct shared {
    const health_probe_t *probe;
    int verdict;
} shared_t;

static int gather_and_answer(prober_t *p)
{
    char host[HOST_BYTES] = "";
    gethostname(host, sizeof host - 1);
    TRY(epx_comm_allgather(p->self->comm, p->rate, p->all, (size_t)p->self->ranks * sizeof *p->rate),
        "rates");
    TRY(epx_comm_allgather(p->self->comm, host, p->hosts, sizeof host), "names of hosts");
    if (p->self->rank == 0)
        answer(p);
    return EPX_EXIT_OK;
}

static int play(epx_rank_t *self)
{
    shared_t *shared = self->context;
    size_t n = (size_t)self->ranks;
    prober_t p = {.self = self, .probe = shared->probe, .verdict_p = &shared->verdict};
    p.tokens = shared->probe->bytes / ROW_BYTES;
    p.rate = epx_tool_alloc(n, sizeof *p.rate);
    p.all = epx_tool_alloc(n * n, sizeof *p.all);
    p.hosts = epx_tool_alloc(n, HOST_BYTES);
    p.x = epx_tool_alloc((size_t)p.tokens, ROW_BYTES);
    p.out = epx_tool_alloc((size_t)p.tokens, ROW_BYTES);
    p.ids = epx_tool_alloc((size_t)p.tokens, sizeof *p.ids);
    p.weights = epx_tool_alloc((size_t)p.tokens, sizeof *p.weights);
    int rc = measure_rounds(&p);
    if (rc == EPX_EXIT_OK)
        rc = gather_and_answer(&p);
    free(p.weights);
    free(p.ids);
    free(p.out);
    free(p.x);
    free(p.hosts);
    free(p.all);
    free(p.rate);
    return rc;
}

int health_probe(const health_probe_t *probe)
{
    shared_t shared = {.probe = probe, .verdict = EPX_EXIT_OK};
    int rc = epx_ranks_join((int32_t)probe->ranks, play, &shared);
    return rc == EPX_EXIT_OK ? shared.verdict : rc;
}
