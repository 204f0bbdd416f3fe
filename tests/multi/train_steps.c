/* Training over ranks: the same again is the same, transports agree, drops are counted.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <math.h>
#include <string.h>

#include "train_runs.h"

typedef struct transport {
    char name[16];
} transport_t;

static transport_t transports[] = {{"ragged"}, {"pooled_wave"}, {"ring"}};

ParameterizedTestParameters(train_steps, two_runs_are_bit_equal)
{
    return cr_make_param_array(transport_t, transports, 3);
}

ParameterizedTest(transport_t *transport, train_steps, two_runs_are_bit_equal)
{
    run_t a = run_small(transport->name, 2, 2, 2), b = run_small(transport->name, 2, 2, 2);
    run_well(&a);
    run_well(&b);
    for (int64_t i = 0; i < a.steps; i++) {
        cr_expect_eq(a.step[i].loss, b.step[i].loss);
        cr_expect_eq(a.step[i].grad_norm, b.step[i].grad_norm);
    }
    cr_expect_eq(a.digest, b.digest);
    cr_expect_eq(a.validation, b.validation);
}

static void expect_close(double a, double b, double tolerance, const char *what, int64_t step)
{
    cr_expect(fabs(a - b) <= tolerance * fabs(b), "%s of step %d: %.9g and %.9g", what, (int)step, a, b);
}

/* The number of ranks must not show either: the batch of all ranks together stays the same. */
ParameterizedTestParameters(train_steps, dropless_runs_agree_with_one_rank)
{
    return cr_make_param_array(transport_t, transports, 3);
}

ParameterizedTest(transport_t *transport, train_steps, dropless_runs_agree_with_one_rank)
{
    static const int64_t shapes[][3] = {{2, 1, 6}, {3, 1, 4}, {4, 1, 3}, {2, 2, 3}, {1, 3, 4}};
    run_t one = run_small("ring", 1, 1, 12);
    one.config.group.capacity_factor = EPX_DROPLESS;
    one.config.balance = EPX_BALANCE_BIAS; /* quantiles of another share of the tokens are not the same */
    run_well(&one);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        run_t many = run_small(transport->name, shapes[s][0], shapes[s][1], shapes[s][2]);
        many.config.group.capacity_factor = EPX_DROPLESS;
        many.config.balance = EPX_BALANCE_BIAS;
        run_well(&many);
        for (int64_t i = 0; i < one.steps; i++) {
            expect_close(many.step[i].loss, one.step[i].loss, 1e-5, "loss", i);
            expect_close(many.step[i].grad_norm, one.step[i].grad_norm, 1e-3, "gradient norm", i);
            cr_expect_eq(many.step[i].drop_fraction, 0);
            cr_expect_eq(many.step[i].mfu, many.step[i].mfu_executed);
        }
        /* Five sequences: some ranks evaluate fewer than others, or none. */
        expect_close(many.validation, one.validation, 1e-4, "validation loss", -1);
    }
}

ParameterizedTestParameters(train_steps, every_assignment_is_accounted_for)
{
    return cr_make_param_array(transport_t, transports, 3);
}

ParameterizedTest(transport_t *transport, train_steps, every_assignment_is_accounted_for)
{
    run_t run = run_small(transport->name, 3, 1, 8);
    run.config.group.capacity_factor = 0.8;
    run.config.drop = 0.1;
    run.config.balance = EPX_BALANCE_NONE;
    run_well(&run);
    for (int64_t i = 0; i < run.steps; i++) {
        const epx_metrics_t *m = &run.step[i];
        int64_t all = m->tokens * run.config.model.top_k * run.config.model.layers;
        int64_t lost = m->total.chance + m->total.dropped_sender + m->total.dropped_receiver;
        cr_expect_eq(m->total.valid, all);
        cr_expect_eq(m->total.skipped, 0);
        cr_expect_eq(m->total.kept + lost, all);
        cr_expect_gt(m->total.dropped_sender + m->total.dropped_receiver, 0);
        cr_expect(fabs((double)m->total.chance / (double)all - 0.1) < 0.03);
        cr_expect_float_eq(m->drop_fraction, (double)lost / (double)all, 1e-12);
        cr_expect_float_eq(m->sender_drop_fraction, (double)m->total.dropped_sender / (double)all, 1e-12);
        cr_expect_lt(m->mfu_executed, m->mfu);
        cr_expect_lt(m->mfu_causal, m->mfu);
        cr_expect(isfinite(m->loss));
    }
}

/* What is dropped at random depends on tokens, not on ranks. */
Test(train_steps, random_drops_do_not_depend_on_ranks)
{
    run_t one = run_small("ragged", 1, 1, 6), three = run_small("ragged", 3, 1, 2);
    run_t *runs[] = {&one, &three};
    for (int i = 0; i < 2; i++) {
        runs[i]->config.group.capacity_factor = EPX_DROPLESS;
        runs[i]->config.balance = EPX_BALANCE_BIAS;
        runs[i]->config.drop = 0.25;
        run_well(runs[i]);
    }
    for (int64_t i = 0; i < one.steps; i++) {
        cr_expect_eq(one.step[i].total.chance, three.step[i].total.chance);
        expect_close(three.step[i].loss, one.step[i].loss, 1e-5, "loss", i);
    }
}

static void expect_same_losses(const run_t *a, const run_t *b)
{
    for (int64_t i = 0; i < a->steps; i++)
        cr_expect_eq(a->step[i].loss, b->step[i].loss, "step %d: %.17g and %.17g", (int)i, a->step[i].loss,
                     b->step[i].loss);
}

Test(train_steps, recorded_routing_trains_the_same_model)
{
    run_t recorded = run_small("ragged", 2, 2, 2), forced = run_small("ragged", 2, 2, 2);
    recorded.config.balance = forced.config.balance = EPX_BALANCE_NONE;
    recorded.config.record_routing = run_path("routing");
    recorded.config.record_to = recorded.steps;
    run_well(&recorded);
    forced.config.routing = recorded.config.record_routing;
    run_well(&forced);
    expect_same_losses(&recorded, &forced);
    cr_expect_eq(recorded.digest, forced.digest);
}

Test(train_steps, routing_of_another_shape_is_refused)
{
    run_t recorded = run_small("ragged", 2, 1, 2), forced = run_small("ragged", 3, 1, 2);
    recorded.config.record_routing = run_path("routing");
    recorded.steps = recorded.config.record_to = 1;
    run_well(&recorded);
    forced.config.routing = recorded.config.record_routing;
    cr_expect_eq(run_go(&forced), EPX_TRAIN_USAGE);
    cr_expect(strstr(epx_train_error(), "2 ranks and this run has 3"), "%s", epx_train_error());
}

Test(train_steps, what_cannot_be_opened_is_named)
{
    run_t run = run_small("no_such_transport", 2, 1, 2);
    cr_expect_eq(run_go(&run), EPX_TRAIN_USAGE);
    cr_expect(strstr(epx_train_error(), "no_such_transport"), "%s", epx_train_error());
    run = run_small("ragged", 2, 1, 2);
    run.config.data = "/no/such/text";
    cr_expect_eq(run_go(&run), EPX_TRAIN_USAGE);
    cr_expect(strstr(epx_train_error(), "/no/such/text"), "%s", epx_train_error());
}

/* Quantile balancing must bring the loads of a fixed batch together. */
Test(train_steps, balancing_evens_the_loads)
{
    run_t without = run_small("ragged", 2, 1, 16), with = run_small("ragged", 2, 1, 16);
    without.config.balance = EPX_BALANCE_NONE;
    with.config.balance_rate = 1;
    without.steps = with.steps = 10;
    run_well(&without);
    run_well(&with);
    cr_expect_lt(with.step[9].load_max_over_mean, 1.5);
    cr_expect_lt(with.step[9].load_max_over_mean, without.step[9].load_max_over_mean);
}
