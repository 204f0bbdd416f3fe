/* A step of the tests of ranks with a GPU each. SPDX-License-Identifier: Apache-2.0 */
#include "gpus/step.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern char **environ;

const char *const arm_names[ARMS] = {"ragged_rank", "ragged_dropless", "pooled_wave_dropless", "ring"};

int gpus(void)
{
    test_device();
    return ranks_most();
}

problem_t *problem_for(int arm, int ranks)
{
    problem_t *p = problem_new(arm_named(arm_names[arm]), ranks, EXPERTS, TOP_K, WIDTH, TOKENS);
    p->timeout_ms = 20000;
    p->arm.fabric = "nccl";
    int *tokens = calloc((size_t)ranks, sizeof(*tokens));
    cr_assert(tokens != NULL);
    for (int r = 0; r < ranks; r++)
        tokens[r] = TOKENS - 3 * (r % 4);
    problem_inputs(p, DISTINCT, tokens, 11);
    free(tokens);
    return p;
}

pid_t start_rank(const char *test, int rank, int ranks)
{
    char variables[3][64],
        *arguments[] = {(char *)"alone-gpus", (char *)"--filter", (char *)(size_t)test, NULL};
    char *names[1024];
    size_t n = 0;
    pid_t process = -1;
    snprintf(variables[0], sizeof(variables[0]), "EPX_RANK=%d", rank);
    snprintf(variables[1], sizeof(variables[1]), "EPX_WORLD_SIZE=%d", ranks);
    snprintf(variables[2], sizeof(variables[2]), "EPX_ROOT=127.0.0.1:%d", 20000 + (int)getpid() % 12000);
    for (; environ[n] != NULL && n < 1000; n++)
        names[n] = environ[n];
    for (int i = 0; i < 3; i++)
        names[n++] = variables[i];
    names[n] = NULL;
    /* What its runner sums up is told by how it ends: a rank that is to die would stand in the log as a
     * crash.
     */
    posix_spawn_file_actions_t quiet;
    if (posix_spawn_file_actions_init(&quiet) != 0)
        return -1;
    posix_spawn_file_actions_addopen(&quiet, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    int status = posix_spawn(&process, "/proc/self/exe", &quiet, NULL, arguments, names);
    posix_spawn_file_actions_destroy(&quiet);
    return status == 0 ? process : -1;
}

void step_new(step_t *s, int waves)
{
    size_t sum = (size_t)TOKENS * WIDTH * sizeof(float),
           rows = (size_t)s->session.info.batch_rows_max * WIDTH * 4;
    s->tokens = both_new(sizeof(*s->tokens));
    s->ids = both_new((size_t)TOKENS * TOP_K * sizeof(*s->ids));
    s->weights = both_new((size_t)TOKENS * TOP_K * sizeof(*s->weights));
    s->dweight = both_new((size_t)TOKENS * TOP_K * sizeof(*s->dweight));
    s->x = both_new(sum);
    s->dout = both_new(sum);
    s->out = both_new(sum);
    s->dx = both_new(sum);
    for (int w = 0; w < waves; w++) {
        s->rows[w] = device_new(rows);
        s->dy[w] = device_new(rows);
        s->start[w] = both_new(EXPERTS * sizeof(int64_t));
        s->count[w] = both_new(EXPERTS * sizeof(int64_t));
    }
}

void step_free(step_t *s, int waves)
{
    size_t rows = (size_t)s->session.info.batch_rows_max * WIDTH * 4;
    both_free(s->tokens);
    both_free(s->ids);
    both_free(s->weights);
    both_free(s->dweight);
    both_free(s->x);
    both_free(s->dout);
    both_free(s->out);
    both_free(s->dx);
    for (int w = 0; w < waves; w++) {
        device_free(s->rows[w], rows);
        device_free(s->dy[w], rows);
        both_free(s->start[w]);
        both_free(s->count[w]);
    }
}

static epx_batch_t step_batch(const step_t *s, int wave, int backward)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    batch.into_rows = backward ? s->dy[wave] : s->rows[wave];
    batch.into_start = s->start[wave];
    batch.into_count = s->count[wave];
    return batch;
}

void step_route(step_t *s)
{
    rank_t *self = s->session.self;
    epx_stream_t stream = rank_stream();
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.ids = s->ids;
    routing.id_type = EPX_INT32;
    routing.weights = s->weights;
    routing.tokens_device = s->tokens;
    expect_came(self, "epx_plan_route", epx_plan_route(s->plan, &routing, stream), EPX_OK);
}

void step_forward(step_t *s)
{
    rank_t *self = s->session.self;
    epx_stream_t stream = rank_stream();
    for (int w = 0; w < epx_plan_waves(s->plan); w++) {
        epx_batch_t batch = step_batch(s, w, 0);
        expect_came(self, "epx_dispatch", epx_dispatch(s->plan, w, s->x, &batch, stream), EPX_OK);
        expect_came(self, "epx_combine", epx_combine(s->plan, w, batch.rows, s->out, stream), EPX_OK);
    }
}

void step_make(step_t *s)
{
    rank_t *self = s->session.self;
    epx_stream_t stream = rank_stream();
    step_route(s);
    step_forward(s);
    for (int w = 0; w < epx_plan_waves(s->plan); w++) {
        epx_batch_t dy = step_batch(s, w, 1);
        expect_came(self, "epx_combine_backward",
                    epx_combine_backward(s->plan, w, s->dout, s->rows[w], &dy, stream), EPX_OK);
        expect_came(self, "epx_dispatch_backward",
                    epx_dispatch_backward(s->plan, w, dy.rows, s->dx, s->dweight, stream), EPX_OK);
    }
}

void step_draw(step_t *s, dice_t *dice)
{
    *s->tokens = (int64_t)(dice_bits(dice) % (TOKENS + 1));
    for (int a = 0; a < TOKENS * TOP_K; a++) {
        s->ids[a] = (int32_t)(dice_bits(dice) % EXPERTS);
        s->weights[a] = (float)(dice_bits(dice) % 5);
    }
    for (int i = 0; i < TOKENS * WIDTH; i++) {
        s->x[i] = (float)(dice_bits(dice) % 17) - 8;
        s->dout[i] = (float)(dice_bits(dice) % 9) - 4;
        s->out[i] = s->dx[i] = -1e9f;
    }
}

void step_check(const step_t *s, int replay)
{
    rank_t *self = s->session.self;
    for (int64_t t = 0; t < *s->tokens; t++) {
        float sum = 0;
        for (int k = 0; k < TOP_K; k++)
            sum += s->weights[t * TOP_K + k];
        for (int h = 0; h < WIDTH; h++) {
            int64_t i = t * WIDTH + h;
            if (!expect(self, s->out[i] == sum * s->x[i] && s->dx[i] == sum * s->dout[i],
                        "replay %d: token %d, h %d: out %g, dx %g, not %g, %g", replay, (int)t, h, s->out[i],
                        s->dx[i], sum * s->x[i], sum * s->dout[i]))
                return;
        }
        float dot = 0;
        for (int h = 0; h < WIDTH; h++)
            dot += s->x[t * WIDTH + h] * s->dout[t * WIDTH + h];
        for (int k = 0; k < TOP_K; k++)
            expect(self, s->dweight[t * TOP_K + k] == dot, "replay %d: token %d: dweight %g, not %g", replay,
                   (int)t, s->dweight[t * TOP_K + k], dot);
    }
}
