/*
 * ring: the order of its sums, and what it counts as sent, by hand. SPDX-License-Identifier: Apache-2.0
 *
 * The caller's expert e answers y = answer[e] to any row, and backward dx_row = dy; so that a token's sum is
 * a chain over its weights. In fp32 1 + 2^24 is 2^24 (a tie goes to the even neighbour), and 1 - 2^24 is
 * exact: of 1, 2^24 and -2^24 in any order the sum is 0 where -2^24 comes last, and 1 otherwise.
 */
#include <criterion/criterion.h>

#include "support/drive.h"

TestSuite(ring_sums, .init = clean_environment);

enum { RANKS = 3, TOKENS = 4, K = 3 };

static const float BIG = 16777216.0f, SMALL = 1.0f / 16777216.0f;

/* One step: every rank has the same number of tokens, H = 1. */
typedef struct step {
    int experts, tokens;
    int32_t ids[RANKS][TOKENS][K];
    float weights[RANKS][TOKENS][K], answer[6];
    float wanted[RANKS][TOKENS], wanted_dx[RANKS][TOKENS];
} step_t;

static void answer(rank_t *self, const step_t *step, const epx_batch_t *batch, float *y)
{
    int first = self->rank * (step->experts / RANKS);
    for (int e = 0; e < batch->local_experts; e++)
        for (int64_t i = 0; i < batch->expert_count[e]; i++)
            y[batch->expert_start[e] + i] = step->answer[first + e];
}

static void echo(const epx_batch_t *batch, float *rows)
{
    for (int e = 0; e < batch->local_experts; e++)
        for (int64_t i = 0; i < batch->expert_count[e]; i++) {
            int64_t row = batch->expert_start[e] + i;
            rows[row] = ((const float *)batch->rows)[row];
        }
}

static void step_rank(rank_t *self)
{
    const step_t *step = self->arg;
    epx_group_config_t config = EPX_GROUP_CONFIG_INIT;
    epx_routing_t routing = EPX_ROUTING_INIT;
    epx_group_h group = NULL;
    epx_plan_h plan = NULL;
    float x[TOKENS] = {1, 1, 1, 1}, out[TOKENS] = {0}, dweight[TOKENS * K], rows[TOKENS * K];
    config.experts = step->experts;
    config.top_k = K;
    config.width = 1;
    config.tokens_max = TOKENS;
    config.transport = "ring";
    config.capacity_factor = EPX_DROPLESS;
    routing.tokens = step->tokens;
    routing.ids = step->ids[self->rank];
    routing.weights = &step->weights[self->rank][0][0];
    if (!expect_status(self, "epx_group_open", epx_group_open(self->comm, &config, &group), EPX_OK))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "epx_plan_route", epx_plan_route(plan, &routing, rank_stream()), EPX_OK);
    for (int w = 0; w < RANKS; w++) {
        epx_batch_t batch = EPX_BATCH_INIT;
        expect_status(self, "epx_dispatch", epx_dispatch(plan, w, x, &batch, rank_stream()), EPX_OK);
        answer(self, step, &batch, rows);
        expect_status(self, "epx_combine", epx_combine(plan, w, rows, out, rank_stream()), EPX_OK);
    }
    for (int t = 0; t < step->tokens; t++)
        expect(self, out[t] == step->wanted[self->rank][t], "out[%d] is %.9g, not %.9g", t, (double)out[t],
               (double)step->wanted[self->rank][t]);
    for (int w = 0; w < RANKS; w++) {
        epx_batch_t dy = EPX_BATCH_INIT;
        expect_status(self, "epx_combine_backward",
                      epx_combine_backward(plan, w, x, rows, &dy, rank_stream()), EPX_OK);
        echo(&dy, rows);
        expect_status(self, "epx_dispatch_backward",
                      epx_dispatch_backward(plan, w, rows, out, dweight, rank_stream()), EPX_OK);
    }
    for (int t = 0; t < step->tokens; t++)
        expect(self, out[t] == step->wanted_dx[self->rank][t], "dx[%d] is %.9g, not %.9g", t, (double)out[t],
               (double)step->wanted_dx[self->rank][t]);
    epx_plan_destroy(&plan);
    epx_group_close(&group);
}

/*
 * Expert e is rank e's. A block of rank r meets the ranks r, r + 1, r + 2: the expert that adds last is r + 2
 * (mod 3), whatever the order of the ids. Token j has -2^24 for expert j.
 */
Test(ring_sums, hops_in_order)
{
    step_t step = {.experts = RANKS, .tokens = RANKS, .answer = {1, 1, 1}};
    for (int r = 0; r < RANKS; r++)
        for (int t = 0; t < RANKS; t++) {
            for (int k = 0; k < K; k++) {
                int e = (k + r + t) % RANKS; /* some order */
                step.ids[r][t][k] = e;
                step.weights[r][t][k] = e == t ? -BIG : e == (t + 1) % RANKS ? 1 : BIG;
            }
            step.wanted[r][t] = step.wanted_dx[r][t] = t == (r + 2) % RANKS ? 0 : 1;
        }
    world_run(RANKS, step_rank, &step);
}

/* Experts 2r and 2r + 1 are rank r's. The own expert adds 1, then two of the next rank add by k. */
Test(ring_sums, choices_in_order_within_a_hop)
{
    step_t step = {.experts = 2 * RANKS, .tokens = 4, .answer = {1, 1, 1, 1, 1, 1}};
    static const float weights[TOKENS][K] = {{1, BIG, -BIG}, {1, -BIG, BIG}, {BIG, 1, -BIG}, {-BIG, 1, BIG}};
    static const float wanted[TOKENS] = {0, 1, 0, 1};
    for (int r = 0; r < RANKS; r++)
        for (int t = 0; t < TOKENS; t++) {
            int next = 2 * ((r + 1) % RANKS), own = t < 2 ? 0 : 1; /* the own expert's place among the ids */
            int other = t % 2;                                     /* which of the next rank's comes first */
            for (int k = 0; k < K; k++) {
                int second = k == K - 1;
                step.ids[r][t][k] = k == own ? 2 * r : next + (second ? 1 - other : other);
                step.weights[r][t][k] = weights[t][k];
            }
            step.wanted[r][t] = step.wanted_dx[r][t] = wanted[t];
        }
    world_run(RANKS, step_rank, &step);
}

/*
 * a = 1 + 2^-12. The own expert adds -a first; then a * a - a = 2^-12 + 2^-24 comes from the next rank. Where
 * the product is rounded before it is added, 2^-24 is lost. Backward the rows are -1 and a, unweighted.
 */
Test(ring_sums, products_are_not_rounded_between_hops)
{
    const float a = 1 + 1.0f / 4096;
    step_t step = {.experts = RANKS, .tokens = 1, .answer = {a, a, a}};
    for (int r = 0; r < RANKS; r++) {
        static const float weights[K] = {1 + 1.0f / 4096, -1, 5};
        const int32_t ids[K] = {(r + 1) % RANKS, r, -1};
        for (int k = 0; k < K; k++) {
            step.ids[r][0][k] = ids[k];
            step.weights[r][0][k] = weights[k];
        }
        step.wanted[r][0] = 1.0f / 4096 + SMALL;
        step.wanted_dx[r][0] = 1.0f / 4096;
    }
    world_run(RANKS, step_rank, &step);
}

/* ---- bytes -------------------------------------------------------------------------------------------------------- */

/* After a forward pass, then after a backward pass too. */
typedef struct bytes {
    int64_t sent, sent_meta, received, received_meta;
} bytes_t;

/*
 * T = 2, 0, 1; rows of 12 bytes with 5 of aux, K = 1: id and weight are 8 bytes. A notice (24
 * bytes) and three counts, to a multiple of 8: 40. Rank r sends its own block and its left neighbour's, and
 * three blocks' sums of 12 bytes a token (three tokens). Rank 0: (2 + 1) * 17 + 36, 2 * 40 + 3 * 8. Backward:
 * no aux, and 4 bytes of weight gradient with every sum.
 */
static const bytes_t wanted_bytes[RANKS][2] = {
    {{87, 104, 53, 88}, {159, 140, 101, 108}},
    {{70, 96, 87, 104}, {130, 124, 159, 140}},
    {{53, 88, 70, 96}, {101, 108, 130, 124}},
};

static void check_bytes(rank_t *self, epx_plan_h plan, const bytes_t *wanted)
{
    epx_plan_stats_t s = EPX_PLAN_STATS_INIT;
    expect_status(self, "epx_plan_stats", epx_plan_stats(plan, &s, rank_stream()), EPX_OK);
    expect(self, s.sent_bytes == wanted->sent, "sent %d, not %d", (int)s.sent_bytes, (int)wanted->sent);
    expect(self, s.sent_meta_bytes == wanted->sent_meta, "sent meta %d, not %d", (int)s.sent_meta_bytes,
           (int)wanted->sent_meta);
    expect(self, s.received_bytes == wanted->received, "received %d, not %d", (int)s.received_bytes,
           (int)wanted->received);
    expect(self, s.received_meta_bytes == wanted->received_meta, "received meta %d, not %d",
           (int)s.received_meta_bytes, (int)wanted->received_meta);
}

static void bytes_rank(rank_t *self)
{
    trial_t *trial = self->arg;
    session_t session;
    epx_plan_h plan = NULL;
    if (!session_open(&session, self, trial->problem, NULL))
        return;
    expect_status(self, "epx_plan_create", epx_plan_create(session.group, 0, NULL, &plan), EPX_OK);
    expect_status(self, "epx_plan_route", session_route(&session, plan), EPX_OK);
    pass_t pass = {.session = &session, .plan = plan, .o = trial->oracle};
    pass_forward(&pass);
    check_bytes(self, plan, &wanted_bytes[self->rank][0]);
    pass_backward(&pass);
    check_bytes(self, plan, &wanted_bytes[self->rank][1]);
    pass_free(&pass);
    epx_plan_destroy(&plan);
    session_close(&session);
}

Test(ring_sums, bytes_by_hand)
{
    trial_t trial = {.problem = problem_new(arm_named("ring_dropless"), RANKS, 3, 1, 3, 2)};
    trial.problem->aux_bytes = 5;
    problem_inputs(trial.problem, UNIFORM, (int[]){2, 0, 1}, 3);
    trial.oracle = oracle_of(trial.problem);
    world_run(RANKS, bytes_rank, &trial);
    oracle_free(trial.oracle);
    problem_free(trial.problem);
}
