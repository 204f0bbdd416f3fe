/* Counting what the rules keep: set-up, the walk over all ranks, sums. SPDX-License-Identifier: Apache-2.0 */
#include "bench/common/drops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/common/drops_job.h"
#include "bench/common/parallel.h"
#include "tools/common/program.h"

/* Tags of one case; more than that are made in several walks over the ids. */
#define TAG_BUDGET ((int64_t)1 << 30)
#define CELLS_MAX ((int64_t)1 << 29) /* of [N, E] and [N, C, N] */

/* ---- set-up ------------------------------------------------------------------------------------------------------- */

/* Owners ascend with experts, so that the list of experts by owner is 0 .. E - 1. */
static void open_owners(epx_drops_run_t *run)
{
    const epx_drops_routing_t *routing = run->routing;
    int32_t ranks = routing->ranks, experts = routing->experts;
    int32_t real = routing->real_ranks > 0 ? routing->real_ranks : ranks, parts = ranks / real;
    run->tables = epx_tool_alloc(3 * (size_t)experts + (size_t)ranks + 1, sizeof *run->tables);
    int32_t *owner = run->tables, *local = owner + experts, *expert = local + experts;
    int32_t *first = expert + experts;
    for (int32_t e = 0; e < experts; e++) {
        int32_t r = epx_block_of(e, experts, real), from = epx_block_first(r, experts, real);
        int32_t own = epx_block_first(r + 1, experts, real) - from;
        owner[e] = r * parts + epx_block_of(e - from, own, parts);
        expert[e] = e;
        first[owner[e] + 1]++;
    }
    for (int32_t r = 0; r < ranks; r++)
        first[r + 1] += first[r];
    for (int32_t e = 0; e < experts; e++)
        local[e] = e - first[owner[e]];
    run->owners = (epx_owners_t){ranks, experts, owner, local, first, expert};
}

static int32_t rule_waves(const epx_drops_case_t *how)
{
    return how->transport == EPX_DROPS_RING ? 1 : how->waves;
}

static epx_rule_t rule_of(const epx_drops_run_t *run, const epx_drops_case_t *how)
{
    const epx_drops_routing_t *routing = run->routing;
    return (epx_rule_t){.ranks = routing->ranks,
                        .experts = routing->experts,
                        .top_k = routing->top_k,
                        .assignments_max = routing->tokens_max * routing->top_k,
                        .cf = how->capacity_factor,
                        .cs = how->sender_factor,
                        .dropless = how->capacity_factor < 0,
                        .waves = rule_waves(how),
                        .accept = how->accept,
                        .owners = &run->owners};
}

static int check(const epx_drops_routing_t *routing, const epx_drops_case_t *cases, int32_t count,
                 char *problem, size_t bytes)
{
    int64_t ranks = routing->ranks;
    if (ranks < 1 || routing->experts < 1 || routing->top_k < 1 || routing->columns < routing->top_k ||
        routing->tokens_max < 1 || routing->tokens_max * routing->columns > INT32_MAX ||
        (routing->real_ranks > 0 && ranks % routing->real_ranks != 0)) {
        snprintf(problem, bytes, "the routing has a shape that cannot be: check ranks, experts and tokens");
        return -1;
    }
    for (int32_t i = 0; i < count; i++) {
        const epx_drops_case_t *how = &cases[i];
        int pooled = how->transport == EPX_DROPS_POOLED_WAVE;
        if (rule_waves(how) < 1 || how->capacity_factor == 0 || (pooled && !(how->sender_factor > 0))) {
            snprintf(problem, bytes, "waves and capacities of a case must be above 0: give them");
            return -1;
        }
        if (ranks * routing->experts > CELLS_MAX || ranks * ranks * rule_waves(how) > CELLS_MAX) {
            snprintf(problem, bytes,
                     "%d ranks with %d experts and %d waves are more counts than fit: use fewer",
                     routing->ranks, routing->experts, rule_waves(how));
            return -1;
        }
        if (pooled && how->overflow == EPX_OVERFLOW_SPILL && routing->columns == routing->top_k) {
            snprintf(problem, bytes, "spill needs more choices than %d per token: this routing has none",
                     routing->top_k);
            return -1;
        }
    }
    return 0;
}

/* ---- the walk over all ranks --------------------------------------------------------------------------------------- */

typedef struct walk {
    epx_drops_run_t *run;
    epx_drops_job_t *jobs;
    int32_t count;
    int first; /* counts are made in the first walk only */
} walk_t;

static size_t ids_bytes(const epx_drops_routing_t *routing)
{
    size_t bytes = (size_t)routing->tokens_max * (size_t)routing->columns * sizeof(int32_t);
    return (bytes + 63) & ~(size_t)63;
}

/* n of one rank; ids beyond the first K columns are other choices, not assignments. */
static void count_sender(epx_drops_run_t *run, int32_t s, int64_t tokens, const int32_t *ids)
{
    const epx_drops_routing_t *routing = run->routing;
    int32_t *n = run->n + (int64_t)s * routing->experts;
    for (int64_t t = 0; t < tokens; t++)
        for (int32_t k = 0; k < routing->top_k; k++)
            if (ids[t * routing->columns + k] >= 0)
                n[ids[t * routing->columns + k]]++;
    run->tokens[s] = tokens;
}

static void walk_sender(void *context, int32_t s, void *scratch)
{
    walk_t *walk = context;
    const epx_drops_routing_t *routing = walk->run->routing;
    int32_t *ids = scratch;
    int64_t tokens = routing->ids(routing->context, s, ids);
    if (walk->first)
        count_sender(walk->run, s, tokens, ids);
    for (int32_t i = 0; i < walk->count; i++) {
        epx_drops_job_t *job = &walk->jobs[i];
        if (epx_drops_gated(job) && !job->done)
            epx_drops_gate_sender(job, s, tokens, ids, (char *)scratch + ids_bytes(routing));
    }
}

static void sum_counts(epx_drops_run_t *run)
{
    int64_t cells = (int64_t)run->routing->ranks * run->routing->experts, assignments = 0;
    for (int64_t i = 0; i < cells; i++)
        run->valid_all += run->n[i];
    for (int32_t s = 0; s < run->routing->ranks; s++)
        assignments += run->tokens[s] * run->routing->top_k;
    run->skipped = assignments - run->valid_all;
}

/* What does not depend on the rule. */
static void fill_common(epx_drops_job_t *job)
{
    const epx_drops_run_t *run = job->run;
    epx_drops_t *out = job->out;
    out->routed = run->valid_all;
    out->skipped = run->skipped;
    memcpy(out->tokens, run->tokens, (size_t)out->ranks * sizeof *out->tokens);
    for (int32_t s = 0; s < out->ranks; s++)
        for (int32_t e = 0; e < run->routing->experts; e++)
            out->asked[run->owners.owner[e]] += run->n[(int64_t)s * run->routing->experts + e];
}

/* What was kept, where; and the rest, which must add up. */
static void sum_up(epx_drops_job_t *job)
{
    epx_drops_t *out = job->out;
    fill_common(job);
    for (int64_t p = 0; p < (int64_t)out->waves * out->ranks; p++) {
        out->kept += out->rows[p];
        out->dropped_receiver += out->refused[p];
    }
    if (!epx_drops_gated(job))
        out->dropped_sender = out->routed - out->kept;
    else if (out->routed != out->kept + out->dropped_sender + out->dropped_receiver)
        exit(epx_tool_fail(EPX_EXIT_FAILED,
                           "%lld routed are not %lld kept, %lld and %lld dropped: this is a bug in the gates",
                           (long long)out->routed, (long long)out->kept, (long long)out->dropped_sender,
                           (long long)out->dropped_receiver));
}

static void open_job(epx_drops_job_t *job)
{
    if (epx_drops_gated(job)) {
        epx_drops_arrays(job, job->rule.waves);
        epx_drops_pooled_open(job, TAG_BUDGET);
    }
}

static void close_job(epx_drops_job_t *job)
{
    if (epx_drops_gated(job))
        epx_drops_pooled_close(job);
    free(job->accepted);
    free(job->pairs);
    free(job->moves);
}

/* Gate 2 of the destinations whose tags are held, and then the next ones; or all of it, from the counts. */
static void finish_block(epx_drops_job_t *job, int first)
{
    if (epx_drops_gated(job))
        epx_drops_pooled_receive(job);
    else if (first && job->how->transport == EPX_DROPS_POOLED_WAVE)
        epx_drops_extra_wave(job);
    else if (first)
        epx_drops_accept(job);
}

static void run_jobs(epx_drops_run_t *run, epx_drops_job_t *jobs, int32_t count)
{
    walk_t walk = {.run = run, .jobs = jobs, .count = count, .first = 1};
    size_t scratch = ids_bytes(run->routing) + epx_drops_gate_bytes(run);
    for (int more = 1; more; walk.first = 0) {
        epx_parallel(run->threads, run->routing->ranks, walk_sender, &walk, scratch);
        if (walk.first)
            sum_counts(run);
        more = 0;
        for (int32_t i = 0; i < count; i++) {
            finish_block(&jobs[i], walk.first);
            more |= epx_drops_gated(&jobs[i]) && !jobs[i].done;
        }
    }
    for (int32_t i = 0; i < count; i++)
        sum_up(&jobs[i]);
}

static int open_run(epx_drops_run_t *run, epx_drops_job_t *jobs, const epx_drops_case_t *cases, int32_t count,
                    epx_drops_t *drops, char *problem, size_t problem_bytes)
{
    const epx_drops_routing_t *routing = run->routing;
    if (check(routing, cases, count, problem, problem_bytes) != 0)
        return -1;
    open_owners(run);
    run->n = epx_tool_alloc((size_t)routing->ranks * (size_t)routing->experts, sizeof *run->n);
    run->tokens = epx_tool_alloc((size_t)routing->ranks, sizeof *run->tokens);
    for (int32_t i = 0; i < count; i++) {
        drops[i] = (epx_drops_t){0};
        jobs[i].run = run;
        jobs[i].how = &cases[i];
        jobs[i].out = &drops[i];
        jobs[i].rule = rule_of(run, &cases[i]);
        open_job(&jobs[i]);
    }
    return 0;
}

static void close_run(epx_drops_run_t *run, epx_drops_job_t *jobs, int32_t count)
{
    for (int32_t i = 0; i < count; i++)
        close_job(&jobs[i]);
    free(run->tables);
    free(run->n);
    free(run->tokens);
}

int epx_drops_count(const epx_drops_routing_t *routing, const epx_drops_case_t *cases, int32_t count,
                    int32_t threads, epx_drops_t *drops, char *problem, size_t problem_bytes)
{
    epx_drops_run_t run = {.routing = routing, .threads = threads};
    epx_drops_job_t *jobs = epx_tool_alloc((size_t)count, sizeof *jobs);
    int rc = open_run(&run, jobs, cases, count, drops, problem, problem_bytes);
    if (rc == 0) {
        run_jobs(&run, jobs, count);
        close_run(&run, jobs, count);
    }
    free(jobs);
    return rc;
}

int epx_drops_fates(const epx_drops_routing_t *routing, const epx_drops_case_t *how, int32_t threads,
                    epx_drops_t *drops, epx_fate_fn fn, void *context, char *problem, size_t problem_bytes)
{
    epx_drops_run_t run = {.routing = routing, .threads = threads};
    epx_drops_job_t job = {.keep = 1};
    int rc = open_run(&run, &job, how, 1, drops, problem, problem_bytes);
    if (rc == 0) {
        run_jobs(&run, &job, 1);
        rc = epx_drops_tell(&job, fn, context);
        close_run(&run, &job, 1);
    }
    return rc;
}

void epx_drops_free(epx_drops_t *drops)
{
    free(drops->tokens);
    free(drops->asked);
    free(drops->rows);
    *drops = (epx_drops_t){0};
}

double epx_drops_load(const epx_drops_t *drops)
{
    int64_t most = 0;
    for (int32_t r = 0; r < drops->ranks; r++)
        most = drops->asked[r] > most ? drops->asked[r] : most;
    return drops->routed > 0 ? (double)most * drops->ranks / (double)drops->routed : 1;
}
