/*
 * A job that goes on when processes or hosts go: steps until a call fails, then epx_group_recover with
 * whoever is left, and as many steps again. SPDX-License-Identifier: Apache-2.0
 *
 *   survive STEPS [STEPS_AFTER]
 *
 * One process per rank, started by any launcher that lets the others live when one dies. Every step is
 * checked: expert e multiplies its rows by e + 1, so that what a token gets back does not depend on where the
 * experts live. Ends with 0 when the last step was right, with 1 when it was not or this rank was left
 * behind.
 *
 *   cc examples/survive.c -o survive $(pkg-config --cflags --libs epx)
 */
#include <epx/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { EXPERTS = 12, TOP_K = 2, WIDTH = 64, TOKENS = 32, RECOVERIES = 3 };

typedef struct job {
    epx_group_h group;
    epx_group_info_t info;
    epx_plan_h plan;
    float x[TOKENS * WIDTH], out[TOKENS * WIDTH], weights[TOKENS * TOP_K];
    int32_t ids[TOKENS * TOP_K];
    float *y;
} job_t;

static void inputs(job_t *job, int rank)
{
    for (int i = 0; i < TOKENS * WIDTH; i++)
        job->x[i] = (float)(1 + (rank * 31 + i) % 97);
    for (int i = 0; i < TOKENS * TOP_K; i++) { /* token t chooses experts t + rank and t + rank + 5 */
        job->ids[i] = (i / TOP_K + rank + i % TOP_K * 5) % EXPERTS;
        job->weights[i] = 0.5f;
    }
}

/* What depends on who is there. */
static epx_status_t equip(job_t *job)
{
    epx_status_t status = epx_group_info(job->group, &job->info);
    if (status == EPX_OK)
        status = epx_plan_create(job->group, 0, NULL, &job->plan);
    free(job->y);
    job->y = calloc((size_t)job->info.batch_rows_max * WIDTH, sizeof(*job->y));
    return job->y != NULL ? status : EPX_ERR_NO_MEMORY;
}

static void run_experts(job_t *job, const epx_batch_t *batch)
{
    const float *rows = batch->rows;
    for (int e = 0; e < batch->local_experts; e++) {
        int64_t first = batch->expert_start[e] * WIDTH, count = batch->expert_count[e] * WIDTH;
        for (int64_t i = first; i < first + count; i++)
            job->y[i] = rows[i] * (float)(job->info.local_expert_ids[e] + 1);
    }
}

static epx_status_t step(job_t *job)
{
    epx_routing_t routing = {
        .size = sizeof(routing), .tokens = TOKENS, .ids = job->ids, .weights = job->weights};
    epx_status_t status = epx_plan_route(job->plan, &routing, NULL);
    for (int w = 0; w < epx_plan_waves(job->plan) && status == EPX_OK; w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        status = epx_dispatch(job->plan, w, job->x, &batch, NULL);
        if (status != EPX_OK)
            break;
        run_experts(job, &batch);
        status = epx_combine(job->plan, w, job->y, job->out, NULL);
    }
    return status;
}

/* All numbers are small and whole, so that sums are exact in any order. */
static int is_right(const job_t *job)
{
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < WIDTH; h++) {
            float factor =
                0.5f * (float)(job->ids[t * TOP_K] + 1) + 0.5f * (float)(job->ids[t * TOP_K + 1] + 1);
            if (job->out[t * WIDTH + h] != factor * job->x[t * WIDTH + h])
                return 0;
        }
    return 1;
}

static long long now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
    static job_t job = {.info = EPX_GROUP_INFO_INIT};
    long steps = argc > 1 ? atol(argv[1]) : 100, after = argc > 2 ? atol(argv[2]) : steps;
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_comm_h comm;
    config.experts = EXPERTS, config.top_k = TOP_K, config.width = WIDTH, config.tokens_max = TOKENS;
    config.capacity_factor = EPX_DROPLESS;
    if (epx_comm_world(&comm) != EPX_OK || epx_group_open(comm, &config, &job.group) != EPX_OK) {
        fprintf(stderr, "survive: %s\n", epx_last_error());
        return 1;
    }
    int rank = epx_comm_rank(comm), recoveries = 0;
    inputs(&job, rank);
    epx_status_t status = equip(&job);
    for (long done = 0; done < steps;) {
        if (status == EPX_OK)
            status = step(&job);
        if (status == EPX_OK && !is_right(&job)) {
            fprintf(stderr, "survive: rank %d: step %ld is wrong\n", rank, done);
            return 1;
        }
        if (status == EPX_OK) {
            if (++done == 1) {
                printf("rank %d of %d: the first step is right\n", job.info.rank, job.info.ranks);
                fflush(stdout);
            }
            continue;
        }
        printf("rank %d: at %lld ms: %s: %s\n", rank, now_ms(), epx_status_name(status), epx_last_error());
        if (++recoveries > RECOVERIES || epx_group_recover(job.group, NULL) != EPX_OK) {
            fprintf(stderr, "survive: rank %d: no recovery: %s\n", rank, epx_last_error());
            return 1;
        }
        epx_plan_destroy(&job.plan);
        status = equip(&job);
        printf("rank %d: at %lld ms: recovered, rank %d of %d now\n", rank, now_ms(), job.info.rank,
               job.info.ranks);
        fflush(stdout);
        done = 0;
        steps = after;
    }
    printf("rank %d: %ld steps among %d ranks were right\n", rank, steps, job.info.ranks);
    epx_plan_destroy(&job.plan);
    epx_group_close(&job.group);
    epx_comm_destroy(&comm);
    free(job.y);
    return 0;
}
