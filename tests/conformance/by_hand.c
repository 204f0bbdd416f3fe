/*
 * The accept rules on inputs small enough to be worked out on paper. Each example holds for the oracle, so
 * that the oracle itself is tested, and for the library, which is compared with it. SPDX-License-Identifier:
 * Apache-2.0
 *
 * ids: one line a rank, choices in (token, k) order. fates: for each of them "wave.place" where it is kept, S
 * dropped at the sender, R dropped at the receiver, x replaced by another choice, . not used, - skipped.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/drive.h"

TestSuite(by_hand, .init = clean_environment);

typedef struct example {
    const char *arm;
    int ranks, experts, spill;
    /* 0: what most examples have, which is as many as plan_waves, 1, 4, 1 and 1 */
    int waves, top_k, tokens_max;
    double cf, cs;
    const char *ids[3], *fates[3];
    int plan_waves;
} example_t;

static void read_ids(problem_t *p, int rank, const char *text)
{
    char *end;
    int64_t n = 0;
    for (; *text; text = end + strspn(end, " "))
        p->ids[rank][n++] = strtoll(text, &end, 10);
    p->tokens[rank] = n / p->columns;
}

static void write_fates(const oracle_t *o, int rank, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = 0;
    for (int64_t a = 0; a < o->p->tokens[rank] * o->p->columns; a++) {
        const seat_t *seat = &o->seat[rank][a];
        static const char letters[] = {'.', '-', 'K', 'S', 'x', 'R'};
        const char *space = used ? " " : "";
        if (seat->fate == KEPT)
            used +=
                (size_t)snprintf(text + used, bytes - used, "%s%d.%d", space, seat->wave, (int)seat->place);
        else
            used += (size_t)snprintf(text + used, bytes - used, "%s%c", space, letters[seat->fate]);
    }
}

static void work_out(const example_t *ex)
{
    arm_t arm = *arm_named(ex->arm);
    char text[256];
    int waves = ex->waves > 0 ? ex->waves : ex->plan_waves;
    arm.waves = arm.kind == RING ? 0 : waves;
    arm.spill = ex->spill;
    problem_t *p = problem_new(&arm, ex->ranks, ex->experts, ex->top_k > 0 ? ex->top_k : 1, 3,
                               ex->tokens_max > 0 ? ex->tokens_max : 4);
    p->cf = ex->cf > 0 ? ex->cf : 1;
    p->cs = ex->cs > 0 ? ex->cs : 1;
    problem_inputs(p, NOTHING, NULL, 9);
    for (int r = 0; r < ex->ranks; r++)
        read_ids(p, r, ex->ids[r]);
    oracle_t *o = oracle_new(p, p->arm.wire);
    cr_assert_eq(o->waves, ex->plan_waves, "%s: the oracle has %d waves, the paper %d", ex->arm, o->waves,
                 ex->plan_waves);
    for (int r = 0; r < ex->ranks; r++) {
        write_fates(o, r, text, sizeof(text));
        cr_assert_str_eq(text, ex->fates[r], "%s rank %d: the oracle says '%s', the paper '%s'", ex->arm, r,
                         text, ex->fates[r]);
    }
    oracle_free(o);
    problem_check(p, SERIAL);
}

Test(by_hand, pooled_wave_sender_gate)
{
    /* P = ceil(8*1*1 / (2*2)) = 2, R = ceil(16*1 / 4) = 4. Rank 0: limit 2; rank 1: V = 4, limit ceil(4/4)
       = 1. Receiver: V = 12, limit ceil(12/4) = 3. Slot 0 of both senders comes before slot 1 of rank 0. */
    work_out(&(example_t){.arm = "pooled_wave",
                          .ranks = 2,
                          .experts = 2,
                          .tokens_max = 8,
                          .plan_waves = 2,
                          .ids = {"0 0 0 0 0 0 0 0", "0 0 0 0"},
                          .fates = {"0.0 1.0 0.2 1.2 S S S S", "0.1 1.1 S S"}});
}

Test(by_hand, pooled_wave_receiver_gate)
{
    /* As above with cf = 0.5: R = 2, limit ceil(12*0.5 / 4) = 2: the third row of each wave is refused. */
    work_out(&(example_t){.arm = "pooled_wave",
                          .ranks = 2,
                          .experts = 2,
                          .tokens_max = 8,
                          .cf = 0.5,
                          .plan_waves = 2,
                          .ids = {"0 0 0 0 0 0 0 0", "0 0 0 0"},
                          .fates = {"0.0 1.0 R R S S S S", "0.1 1.1 S S"}});
}

Test(by_hand, pooled_wave_slots_are_shared_by_the_experts_of_a_rank)
{
    /* S = 1, E = 2: P = ceil(4*2*1 / (2*1)) = 4, R = ceil(4*1 / 2) = 2: four slots, two rows per expert, e at
     * e*R. */
    work_out(&(example_t){.arm = "pooled_wave",
                          .ranks = 1,
                          .experts = 2,
                          .plan_waves = 1,
                          .ids = {"1 1 1 0"},
                          .fates = {"0.2 0.3 R 0.0"}});
}

Test(by_hand, pooled_wave_spill)
{
    /* P = ceil(4*1*1 / 2) = 2 = limit of rank 0. Tokens 2 and 3 are refused; 2 proposes expert 1 and gets
       ordinal 0, 3 proposes expert 0, which is full. Rank 1: V = 1, limit ceil(1/2) = 1. R = 8, receiver's
       limit ceil(5*2/2) = 5. */
    work_out(&(example_t){.arm = "pooled_wave_spill",
                          .ranks = 2,
                          .experts = 2,
                          .spill = 1,
                          .cf = 2,
                          .plan_waves = 1,
                          .ids = {"0 1 0 1 0 1 0 0", "1 0"},
                          .fates = {"0.0 . 0.1 . x 0.0 S .", "0.1 ."}});
}

Test(by_hand, pooled_wave_spill_in_rounds)
{
    /* S = 1, W = 1, cs = 0.5, K = 2, X = 2, T_max = 2: A_max = 4, P = ceil(4*4*0.5 / 4) = 2 = limit, R =
       ceil(4*4 / 4) = 4. Rank 0 is full after token 0: token 1's two assignments are refused, its proposals
       too. */
    work_out(&(example_t){.arm = "pooled_wave_spill",
                          .ranks = 1,
                          .experts = 4,
                          .top_k = 2,
                          .spill = 2,
                          .tokens_max = 2,
                          .cf = 4,
                          .cs = 0.5,
                          .plan_waves = 1,
                          .ids = {"0 1 -1 0 0 2 3 1"},
                          .fates = {"0.0 0.4 . . S S . ."}});
}

Test(by_hand, pooled_wave_spill_second_choice_after_minus_one)
{
    /* P = ceil(4*2*1 / 4) = 2 = limit, R = ceil(8*2 / 4) = 4. Tokens 2 and 3 of rank 0 are refused. Token 2
       has -1 as its first spill choice and expert 3 as its second: it gets slot 1 of rank 1 in round 1, token
       3 slot 0 in round 0. */
    work_out(&(example_t){.arm = "pooled_wave_spill",
                          .ranks = 2,
                          .experts = 4,
                          .spill = 2,
                          .cf = 2,
                          .plan_waves = 1,
                          .ids = {"0 2 3 0 2 3 1 -1 3 1 2 3", ""},
                          .fates = {"0.0 . . 0.1 . . x . 0.4 x 0.0 .", ""}});
}

Test(by_hand, pooled_wave_extra_wave)
{
    /* P = ceil(4/4) = 1, R = ceil(8/4) = 2: to rank 0 one row of each sender per wave, until rank 0's four
     * have gone. */
    work_out(&(example_t){.arm = "pooled_wave_extra",
                          .waves = 2,
                          .ranks = 2,
                          .experts = 2,
                          .plan_waves = 4,
                          .ids = {"0 0 0 0", "0 0 1"},
                          .fates = {"0.0 1.0 2.0 3.0", "0.1 1.1 0.0"}});
}

Test(by_hand, pooled_wave_extra_wave_of_nothing_has_one_wave)
{
    work_out(&(example_t){.arm = "pooled_wave_extra",
                          .waves = 2,
                          .ranks = 2,
                          .experts = 2,
                          .plan_waves = 1,
                          .ids = {"-1 -1", "-1"},
                          .fates = {"- -", "-"}});
}

Test(by_hand, pooled_wave_dropless)
{
    /* P = ceil(4/2) = 2, R = S*P = 2. */
    work_out(&(example_t){.arm = "pooled_wave_dropless",
                          .ranks = 1,
                          .experts = 1,
                          .plan_waves = 2,
                          .ids = {"0 0 0 0"},
                          .fates = {"0.0 1.0 0.1 1.1"}});
}

Test(by_hand, ragged_prefix)
{
    /* V = 6, cap = ceil(6*1/2) = 3: rank 0 comes first and takes it all. */
    work_out(&(example_t){.arm = "ragged_1",
                          .ranks = 2,
                          .experts = 2,
                          .plan_waves = 1,
                          .ids = {"0 0 0", "0 0 1"},
                          .fates = {"0.0 0.1 0.2", "S S 0.0"}});
}

Test(by_hand, ragged_fair)
{
    /* 3 of 5: shares 3*3/5 = 1 rest 4 and 3*2/5 = 1 rest 1; the one left goes to rank 0. */
    work_out(&(example_t){.arm = "ragged_fair",
                          .ranks = 2,
                          .experts = 2,
                          .plan_waves = 1,
                          .ids = {"0 0 0", "0 0 1"},
                          .fates = {"0.0 0.1 S", "0.2 S 0.0"}});
}

Test(by_hand, ragged_fair_ties_go_to_the_lower_sender)
{
    /* V = 6, cf = 0.5: cap = ceil(3/1) = 3 of 6: shares of three senders with 2 each are 1 each. With cf =
       2/3, cap = 4: 4*2/6 = 1 rest 2 for all three, the one left goes to rank 0. */
    work_out(&(example_t){.arm = "ragged_fair",
                          .ranks = 3,
                          .experts = 1,
                          .tokens_max = 2,
                          .cf = 2.0 / 3,
                          .plan_waves = 1,
                          .ids = {"0 0", "0 0", "0 0"},
                          .fates = {"0.0 0.1", "0.2 S", "0.3 S"}});
}

Test(by_hand, ragged_prefix_starves_the_later_expert)
{
    /* Rank 0 owns experts 0, 1: V = 8, cap = ceil(8*2/4) = 4: expert 0 takes all four. */
    work_out(&(example_t){.arm = "ragged_1",
                          .ranks = 2,
                          .experts = 4,
                          .plan_waves = 1,
                          .ids = {"0 0 0 0", "1 2 2 3"},
                          .fates = {"0.0 0.1 0.2 0.3", "S 0.0 0.1 0.2"}});
}

Test(by_hand, ragged_waterfill_does_not)
{
    /* c = 2: expert 1 keeps its one, the slack of one goes to expert 0. */
    work_out(&(example_t){.arm = "ragged_waterfill",
                          .ranks = 2,
                          .experts = 4,
                          .plan_waves = 1,
                          .ids = {"0 0 0 0", "1 2 2 3"},
                          .fates = {"0.0 0.1 0.2 S", "0.3 0.0 0.1 0.2"}});
}

Test(by_hand, ragged_chunks)
{
    /* Chunks {0, 1} and {2}: caps ceil(4*2/3) = 3 and ceil(4/3) = 2. */
    work_out(&(example_t){.arm = "ragged",
                          .ranks = 1,
                          .experts = 3,
                          .plan_waves = 2,
                          .ids = {"0 2 1 2"},
                          .fates = {"0.0 1.0 0.1 1.1"}});
}

Test(by_hand, ragged_more_chunks_than_experts)
{
    work_out(&(example_t){.arm = "ragged",
                          .ranks = 2,
                          .experts = 3,
                          .cf = 2,
                          .plan_waves = 3,
                          .ids = {"0 1 2", "2 1 0"},
                          .fates = {"0.0 1.0 0.0", "0.1 1.1 0.1"}});
}

Test(by_hand, case18_capacity_hit_exactly)
{
    work_out(&(example_t){.arm = "ragged",
                          .ranks = 1,
                          .experts = 2,
                          .plan_waves = 2,
                          .ids = {"0 0 1 1"},
                          .fates = {"0.0 0.1 1.0 1.1"}});
    work_out(&(example_t){.arm = "pooled_wave_1",
                          .ranks = 1,
                          .experts = 2,
                          .plan_waves = 1,
                          .ids = {"0 0 1 1"},
                          .fates = {"0.0 0.1 0.2 0.3"}});
}

Test(by_hand, case18_one_over)
{
    work_out(&(example_t){.arm = "ragged",
                          .ranks = 1,
                          .experts = 2,
                          .plan_waves = 2,
                          .ids = {"0 0 0 1"},
                          .fates = {"0.0 0.1 S 1.0"}});
    work_out(&(example_t){.arm = "pooled_wave_1",
                          .ranks = 1,
                          .experts = 2,
                          .plan_waves = 1,
                          .ids = {"0 0 0 1"},
                          .fates = {"0.0 0.1 R 0.2"}});
}

Test(by_hand, capacity_follows_the_valid_assignments)
{
    /* Two of four are valid: cap = ceil(2*1/2) = 1 where the buffer has room for 2; and 0.5 rows are still
     * one row. */
    work_out(&(example_t){.arm = "ragged",
                          .ranks = 1,
                          .experts = 2,
                          .plan_waves = 2,
                          .ids = {"0 -1 0 -1"},
                          .fates = {"0.0 - S -"}});
    work_out(&(example_t){.arm = "ragged",
                          .ranks = 1,
                          .experts = 2,
                          .cf = 0.1,
                          .plan_waves = 2,
                          .ids = {"0 1 0 1"},
                          .fates = {"0.0 1.0 S S"}});
}

Test(by_hand, ring)
{
    /* V = 6, cap = 3. Expert 0: two of rank 0, one of rank 1, a hop later; expert 1: both. */
    work_out(&(example_t){.arm = "ring",
                          .ranks = 2,
                          .experts = 2,
                          .plan_waves = 2,
                          .ids = {"0 0 1", "0 0 1"},
                          .fates = {"0.0 0.1 1.0", "1.0 S 0.0"}});
}
