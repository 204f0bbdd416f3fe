/* Which rule acts when, and what needs nobody else. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/fault/fault.h"

#include <signal.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/bell.h"
#include "fabric/fault/internal.h"

static _Atomic uint64_t process_trace;
static _Atomic int64_t process_first_ns;

static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static int is_of_comm(const epx_fault_rule_t *rule) { return rule->op >= EPX_FAULT_OP_ALLREDUCE; }

/* Everything but the point and the peer. */
static int fits_call(const epx_fault_t *fault, const epx_fault_rule_t *rule)
{
    const epx_fault_call_t *call = &fault->call;
    int comm_call = call->op >= EPX_FAULT_OP_ALLREDUCE;
    return epx_fault_names_group(rule, fault->name) &&
           (rule->rank == EPX_FAULT_ANY || rule->rank == fault->rank) && is_of_comm(rule) == comm_call &&
           (rule->op == EPX_FAULT_ANY || rule->op == call->op) &&
           (rule->seq == EPX_FAULT_ANY || (uint64_t)rule->seq == call->seq) &&
           (rule->wave == EPX_FAULT_ANY || rule->wave == call->wave);
}

/* Rows overtake nothing unless they are held back where they are stored. */
static epx_fault_point_t point_of(const epx_fault_rule_t *rule)
{
    return rule->what == EPX_FAULT_REORDER ? EPX_FAULT_PUT_PRE : rule->at;
}

int epx_fault_may(const epx_fault_t *fault, epx_fault_point_t point)
{
    for (int32_t i = 0; i < fault->spec.rules; i++)
        if (point_of(&fault->spec.rule[i]) == point && fits_call(fault, &fault->spec.rule[i]))
            return 1;
    return 0;
}

/* What has happened, as one number: where, to whom, what. */
static uint64_t event_of(const epx_fault_t *fault, int32_t rule, int32_t peer)
{
    const epx_fault_rule_t *r = &fault->spec.rule[rule];
    uint64_t event = fault->spec.seed * 0x9e3779b97f4a7c15u;
    event = mix(event ^ ((uint64_t)(uint32_t)fault->rank << 32 | (uint32_t)peer));
    event = mix(event ^ fault->call.seq);
    event = mix(event ^ ((uint64_t)(uint32_t)fault->call.op << 32 | (uint32_t)fault->call.wave));
    return mix(event ^ ((uint64_t)r->at << 32 | (uint64_t)r->what << 16 | (uint64_t)rule));
}

static void add_to_trace(epx_fault_t *fault, uint64_t event)
{
    uint64_t trace = atomic_load_explicit(&fault->trace, memory_order_relaxed), next = mix(trace ^ event);
    atomic_store_explicit(&fault->trace, next, memory_order_relaxed);
    int64_t never = 0;
    atomic_compare_exchange_strong(&process_first_ns, &never, epx_clock_ns());
    /* One sum over all ranks: what each adds last stands for its whole history. */
    atomic_fetch_add_explicit(&process_trace, next - trace, memory_order_relaxed);
}

int64_t epx_fault_first_ns_of_process(void) { return atomic_load(&process_first_ns); }

uint64_t epx_fault_trace_of_process(void) { return atomic_load(&process_trace); }

static int is_over(const epx_fault_t *fault)
{
    return fault->inner != NULL && fault->inner->ops->aborted(fault->inner, NULL) >= 0;
}

enum { SLICE_NS = 50000000 };

/* Sleeps, or until the group ends; ns < 0: until then. */
static void sleep_for(const epx_fault_t *fault, int64_t ns)
{
    int64_t end = epx_clock_ns() + ns;
    while (!is_over(fault)) {
        int64_t left = ns < 0 ? SLICE_NS : end - epx_clock_ns();
        if (left <= 0)
            return;
        epx_nap_ns(left < SLICE_NS ? left : SLICE_NS);
    }
}

static void spin_for(const epx_fault_t *fault, int64_t ns)
{
    int64_t end = epx_clock_ns() + ns;
    while (epx_clock_ns() < end && !is_over(fault))
        epx_spin_pause();
}

/* A rank that is a thread cannot be stopped alone: it stays in this call until its group has ended. */
static void stop_rank(const epx_fault_t *fault)
{
    if (fault->inner == NULL || (fault->inner->caps & EPX_FABRIC_SHARED_ADDRESS) == 0)
        raise(SIGSTOP);
    else
        sleep_for(fault, -1);
}

/* A kernel ahead of the call in its stream (units 0), or beside it: the rank's host goes on. */
static int launch_spin(epx_fault_t *fault, int64_t ns, int32_t units)
{
    const epx_device_ops_t *device = fault->device;
    if (device == NULL || device->host_access)
        return 0;
    uint64_t *stop = atomic_load_explicit(&fault->stop, memory_order_acquire);
    if (stop == NULL)
        stop = device->allocate_shared(sizeof(*stop));
    epx_stream_t stream = fault->call.stream;
    if (stop != NULL) {
        __atomic_store_n(stop, 0, __ATOMIC_RELAXED);
        /* Who ends the group from here on stores 1 there; who has ended it before is seen by the kernel's
         * end. */
        atomic_exchange_explicit(&fault->stop, stop, memory_order_seq_cst);
        if (is_over(fault))
            __atomic_store_n(stop, 1, __ATOMIC_RELEASE);
    }
    if (units > 0 && fault->beside == NULL && device->stream_create(&fault->beside) != EPX_OK)
        return 0;
    epx_k_spin_t spin = {.ns = ns, .stop = stop, .units = units};
    if (device->kernels->spin(&spin, units > 0 ? fault->beside : stream) != EPX_OK)
        epx_log(EPX_LOG_ERROR, "fault", "%s: no kernel could be launched: %s", fault->name, epx_last_error());
    return 1;
}

void epx_fault_end_kernels(epx_fault_t *fault)
{
    uint64_t *stop = atomic_load_explicit(&fault->stop, memory_order_seq_cst);
    if (stop != NULL)
        __atomic_store_n(stop, 1, __ATOMIC_RELEASE);
}

#define FOREVER_NS ((int64_t)3600 * 1000000000)

static void act(epx_fault_t *fault, const epx_fault_rule_t *rule, epx_fault_hits_t *hits)
{
    switch (rule->what) {
    case EPX_FAULT_HOG: launch_spin(fault, FOREVER_NS, (int32_t)rule->argument); break;
    case EPX_FAULT_DELAY: sleep_for(fault, rule->argument * 1000000); break;
    case EPX_FAULT_SPIN:
        if (!launch_spin(fault, rule->argument * 1000000, 0))
            spin_for(fault, rule->argument * 1000000);
        break;
    case EPX_FAULT_STOP: stop_rank(fault); break;
    case EPX_FAULT_KILL: raise(SIGKILL); break;
    case EPX_FAULT_EXIT: _exit(1);
    default: hits->what |= 1u << rule->what; hits->argument[rule->what] = rule->argument;
    }
}

epx_fault_hits_t epx_fault_at(epx_fault_t *fault, epx_fault_point_t point, int32_t peer)
{
    epx_fault_hits_t hits = {0};
    for (int32_t i = 0; i < fault->spec.rules; i++) {
        const epx_fault_rule_t *rule = &fault->spec.rule[i];
        if (point_of(rule) != point || !fits_call(fault, rule) ||
            (rule->peer != EPX_FAULT_ANY && rule->peer != peer) ||
            (rule->times > 0 && fault->acted[i] >= rule->times))
            continue;
        uint64_t event = event_of(fault, i, peer);
        if ((double)(mix(event) >> 11) * 0x1p-53 >= rule->chance)
            continue;
        fault->acted[i]++;
        add_to_trace(fault, event);
        epx_log(EPX_LOG_INFO, "fault", "%s: rank %d: %s at %s of %s %llu", fault->name, fault->rank,
                epx_fault_do_name(rule->what), epx_fault_point_name(point), epx_fault_op_name(fault->call.op),
                (unsigned long long)fault->call.seq);
        act(fault, rule, &hits);
    }
    return hits;
}
