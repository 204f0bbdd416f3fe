/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/fibres.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "base/bell.h"
#include "base/clock.h"

enum { FIBRES_MAX = 16, STACK_BYTES = 512 * 1024 };

typedef struct fibre {
    ucontext_t context;
    char *stack;
    sim_fn fn;
    void *arg;
    int ended;
    /* what it waits for; ready NULL: only for its turn */
    sim_ready_fn ready;
    void *ready_context;
    int64_t deadline_ns;
} fibre_t;

static struct {
    fibre_t fibre[FIBRES_MAX];
    int count, running;
    ucontext_t scheduler;
    int64_t now_ns, turns;
    dice_t dice;
    uint64_t trace;
    const sim_wire_t *wire;
} sim = {.running = -1};

int sim_self(void) { return sim.running; }
int64_t sim_now_ns(void) { return sim.now_ns; }
uint64_t sim_trace(void) { return sim.trace; }
int64_t sim_turns(void) { return sim.turns; }
void sim_set_wire(const sim_wire_t *wire) { sim.wire = wire; }

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

void sim_note(uint64_t event) { sim.trace = mix(sim.trace * 31 + event); }

uint64_t sim_dice(uint64_t below)
{
    return below > 1 ? (uint64_t)dice_range(&sim.dice, 0, (int64_t)below - 1) : 0;
}

void sim_wait(sim_ready_fn ready, void *context, int64_t deadline_ns)
{
    fibre_t *self = &sim.fibre[sim.running];
    self->ready = ready;
    self->ready_context = context;
    self->deadline_ns = deadline_ns;
    swapcontext(&self->context, &sim.scheduler);
}

void sim_turn(void)
{
    if (sim.running >= 0)
        sim_wait(NULL, NULL, 0);
}

/* ---- the library's clock ---------------------------------------------------------------------------------------- */

static int never(void *context)
{
    (void)context;
    return 0;
}

static void nap(int64_t ns) { sim_wait(never, NULL, sim.now_ns + ns); }

typedef struct bell_wait {
    epx_bell_t *bell;
    uint32_t count;
} bell_wait_t;

static int has_rung(void *context)
{
    const bell_wait_t *wait = context;
    return atomic_load(&wait->bell->count) != wait->count;
}

static void bell_sleep(epx_bell_t *bell, uint32_t count, int64_t deadline_ns)
{
    bell_wait_t wait = {bell, count};
    sim_wait(has_rung, &wait, deadline_ns);
}

static const epx_clock_ops_t clock_ops = {
    .now_ns = sim_now_ns, .nap_ns = nap, .bell_sleep = bell_sleep, .spin_pause = sim_turn};

/* ---- the scheduler ---------------------------------------------------------------------------------------------- */

static void fibre_main(void)
{
    fibre_t *self = &sim.fibre[sim.running];
    self->fn(self->arg);
    self->ended = 1;
    swapcontext(&self->context, &sim.scheduler);
}

static int can_go(const fibre_t *fibre)
{
    return !fibre->ended &&
           (fibre->ready == NULL || fibre->deadline_ns <= sim.now_ns || fibre->ready(fibre->ready_context));
}

static void go(int i)
{
    sim.running = i;
    sim.fibre[i].ready = NULL;
    swapcontext(&sim.scheduler, &sim.fibre[i].context);
    sim.running = -1;
}

/* One turn: a fibre or a message, whichever the dice say. 0: nothing can happen now; *next_ns_p: when it can.
 */
static int one_turn(int64_t *next_ns_p)
{
    int able[FIBRES_MAX], n = 0;
    *next_ns_p = INT64_MAX;
    int messages = sim.wire != NULL ? sim.wire->ready(sim.wire->context, next_ns_p) : 0;
    for (int i = 0; i < sim.count; i++) {
        const fibre_t *fibre = &sim.fibre[i];
        if (can_go(fibre))
            able[n++] = i;
        else if (!fibre->ended && fibre->deadline_ns < *next_ns_p)
            *next_ns_p = fibre->deadline_ns;
    }
    if (n + messages == 0)
        return 0;
    int choice = (int)sim_dice((uint64_t)(n + messages));
    sim.now_ns += (int64_t)sim_dice(400);
    sim_note((uint64_t)choice << 1);
    if (choice < n)
        go(able[choice]);
    else
        sim_note(sim.wire->deliver(sim.wire->context, choice - n));
    return 1;
}

static int all_ended(void)
{
    for (int i = 0; i < sim.count; i++)
        if (!sim.fibre[i].ended)
            return 0;
    return 1;
}

static sim_end_t schedule(int64_t turns_max)
{
    for (sim.turns = 0; !all_ended(); sim.turns++) {
        int64_t next_ns;
        if (sim.turns > turns_max)
            return SIM_TOO_LONG;
        if (one_turn(&next_ns))
            continue;
        if (next_ns == INT64_MAX)
            return SIM_DEADLOCK;
        sim.now_ns = next_ns;
    }
    return SIM_ENDED;
}

/* Stacks are kept from run to run, with a page behind each that cannot be touched. */
static char *stack_of(fibre_t *fibre)
{
    if (fibre->stack == NULL) {
        char *memory = mmap(NULL, STACK_BYTES + 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_NONE) != 0)
            abort();
        fibre->stack = memory + 4096;
    }
    return fibre->stack;
}

sim_end_t sim_run(uint64_t seed, int n, sim_fn fn, void *const *args, int64_t turns_max)
{
    sim.count = n;
    sim.now_ns = 1;
    sim.trace = seed;
    sim.dice = (dice_t){seed * 0x9e3779b97f4a7c15u + 1};
    for (int i = 0; i < n; i++) {
        fibre_t *fibre = &sim.fibre[i];
        *fibre = (fibre_t){.stack = stack_of(fibre), .fn = fn, .arg = args[i]};
        getcontext(&fibre->context);
        fibre->context.uc_stack.ss_sp = fibre->stack;
        fibre->context.uc_stack.ss_size = STACK_BYTES;
        fibre->context.uc_link = &sim.scheduler;
        makecontext(&fibre->context, fibre_main, 0);
    }
    epx_clock_stand_in(&clock_ops);
    sim_end_t end = schedule(turns_max);
    epx_clock_stand_in(NULL);
    sim.wire = NULL;
    return end;
}
