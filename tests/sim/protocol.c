/*
 * The transports, core and the comms over a simulated wire, thousands of seeds; and the same over wires with
 * one promise broken, which must be noticed. SPDX-License-Identifier: Apache-2.0
 *
 * A failure prints TEST_SEED=n; TEST_SEED=n in the environment plays that seed alone and prints its trace,
 * which is the same each time. TEST_SEEDS=n sets how many.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/fabric.h"
#include "sim/life.h"
#include "sim/local_fabric.h"
#include "support/world.h"

TestSuite(sim, .init = clean_environment);

enum { SEEDS = 3000, LOCAL_SEEDS = 1500, PIECES_SEEDS = 1000, SAME_SEEDS = 40, MUTANT_SEEDS = 400 };

static uint64_t number_of(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* Seeds from 1 on, or the one that is asked for. */
static void play_all(sim_mutant_t mutant, uint64_t seeds)
{
    uint64_t first = number_of("TEST_SEED", 1), only = number_of("TEST_SEED", 0);
    uint64_t last = only ? only : number_of("TEST_SEEDS", seeds), turns = 0, traces = 0;
    for (uint64_t seed = first; seed <= last && failures() == 0; seed++) {
        life_result_t result = life_play(seed, mutant, -1);
        world_note("TEST_SEED=%llu trace %016llx: %s", (unsigned long long)seed,
                   (unsigned long long)result.trace, result.text);
        turns += (uint64_t)result.turns;
        traces ^= result.trace;
        if (only)
            printf("seed %llu: trace %016llx, %lld turns: %s\n", (unsigned long long)seed,
                   (unsigned long long)result.trace, (long long)result.turns, result.text);
    }
    printf("%llu seeds, %llu turns, traces %016llx\n", (unsigned long long)(last - first + 1),
           (unsigned long long)turns, (unsigned long long)traces);
    settle();
}

Test(sim, seeds) { play_all(SIM_FAITHFUL, SEEDS); }

/* Transports that stage their rows where kernels reach no peer. */
Test(sim, seeds_over_pieces) { play_all(SIM_PIECES, PIECES_SEEDS); }

/* The words, the exchange and the meeting of survivors of the fabric local, interleaved at every access. */
Test(sim, seeds_over_local) { play_all(SIM_LOCAL, LOCAL_SEEDS); }

Test(sim, a_seed_is_a_run)
{
    for (uint64_t seed = 1; seed <= SAME_SEEDS; seed++) {
        life_result_t one = life_play(seed, SIM_FAITHFUL, -1), other = life_play(seed, SIM_FAITHFUL, -1);
        expect(NULL, one.trace == other.trace && one.turns == other.turns,
               "seed %llu: traces %016llx and %016llx", (unsigned long long)seed,
               (unsigned long long)one.trace, (unsigned long long)other.trace);
        one = life_play(seed + 1, SIM_FAITHFUL, -1);
        expect(NULL, one.trace != other.trace, "seeds %llu and %llu have one trace", (unsigned long long)seed,
               (unsigned long long)seed + 1);
    }
    settle();
}

/* In a process of its own: a broken protocol may do anything. Returns the seed by which it was noticed, 0:
 * none. */
static uint64_t notice(sim_mutant_t mutant, int only)
{
    int ends[2];
    uint64_t seed = 0;
    cr_assert_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        for (seed = 1; seed <= MUTANT_SEEDS; seed++) {
            if (write(ends[1], &seed, sizeof(seed)) != (ssize_t)sizeof(seed))
                _exit(2);
            life_result_t result = life_play(seed, mutant, only);
            if (result.failures > 0)
                _exit(1);
        }
        _exit(0);
    }
    close(ends[1]);
    uint64_t got;
    while (read(ends[0], &got, sizeof(got)) == (ssize_t)sizeof(got))
        seed = got;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : seed;
}

static void must_be_noticed(sim_mutant_t mutant, int only)
{
    uint64_t seed = notice(mutant, only);
    printf("%s: noticed with seed %llu\n", sim_mutant_names[mutant], (unsigned long long)seed);
    cr_assert_neq(seed, 0, "%d seeds did not notice: %s", MUTANT_SEEDS, sim_mutant_names[mutant]);
}

static void must_be_noticed_over_local(local_mutant_t mutant)
{
    local_mutant = mutant;
    uint64_t seed = notice(SIM_LOCAL, -1);
    printf("local, %s: noticed with seed %llu\n", local_mutant_names[mutant], (unsigned long long)seed);
    cr_assert_neq(seed, 0, "%d seeds over local did not notice: %s", MUTANT_SEEDS,
                  local_mutant_names[mutant]);
}

Test(sim, a_missing_fence_is_noticed_over_local) { must_be_noticed_over_local(LOCAL_NO_FENCE); }
Test(sim, a_missing_signal_is_noticed_over_local) { must_be_noticed_over_local(LOCAL_NO_SIGNAL); }
Test(sim, a_step_too_early_is_noticed_over_local) { must_be_noticed_over_local(LOCAL_EARLY); }

Test(sim, a_missing_fence_is_noticed) { must_be_noticed(SIM_NO_FENCE, -1); }
Test(sim, a_missing_fence_is_noticed_over_pieces) { must_be_noticed(SIM_PIECES_NO_FENCE, -1); }
Test(sim, a_missing_signal_is_noticed) { must_be_noticed(SIM_NO_SIGNAL, -1); }
Test(sim, a_late_reset_is_noticed) { must_be_noticed(SIM_LATE_RESET, -1); }
Test(sim, a_counter_is_noticed) { must_be_noticed(SIM_COUNTER, -1); }
Test(sim, an_epoch_too_early_is_noticed) { must_be_noticed(SIM_OFF_BY_ONE, -1); }
Test(sim, a_missing_credit_is_noticed) { must_be_noticed(SIM_NO_CREDIT, RING); }
Test(sim, a_missing_fence_is_noticed_by_each_transport)
{
    must_be_noticed(SIM_NO_FENCE, POOLED_WAVE);
    must_be_noticed(SIM_NO_FENCE, RAGGED);
    must_be_noticed(SIM_NO_FENCE, RING);
}
