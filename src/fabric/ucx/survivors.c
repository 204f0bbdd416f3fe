/* Fabric `ucx`: the meeting of those that are left. The protocol is in internal.h. SPDX-License-Identifier:
 * Apache-2.0 */
#include <string.h>

#include "base/fail.h"
#include "fabric/ucx/internal.h"

enum { GRACE_MS = 1000, ALONE_MS = 200, SLICE_MS = 20, GATHER_MS = 60000 };

/* A decision is (the deciding rank + 1); the members are bytes beside it. Who joins says whether it was there
 * all the time. */
enum { JOINED = 1, JOINED_AFTER_STANDSTILL = 2 };

static int64_t at(const ucx_fabric_t *fabric, int64_t row, int32_t rank)
{
    (void)fabric;
    return row + (int64_t)rank * (int64_t)sizeof(uint64_t);
}

/* JOINED, JOINED_AFTER_STANDSTILL, or 0: not yet. */
static uint64_t joined_as(const ucx_fabric_t *fabric, int32_t p)
{
    return p == fabric->base.rank
               ? (uint64_t)fabric->joined
               : atomic_load_explicit(epx_ucx_word(fabric, at(fabric, fabric->layout.joined, p)),
                                      memory_order_acquire);
}

static int has_joined(const ucx_fabric_t *fabric, int32_t p) { return joined_as(fabric, p) != 0; }

static int is_dead(const ucx_fabric_t *fabric, int32_t p) { return atomic_load(&fabric->peer[p].is_dead); }

/* The lowest rank that has joined and lives. */
static int32_t leader_of(const ucx_fabric_t *fabric)
{
    int32_t p = 0;
    while (p < fabric->base.rank && (!has_joined(fabric, p) || is_dead(fabric, p)))
        p++;
    return p;
}

static int all_there(const ucx_fabric_t *fabric)
{
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        if (!has_joined(fabric, p) && !is_dead(fabric, p))
            return 0;
    return 1;
}

static int is_there(const ucx_fabric_t *fabric, int32_t p)
{
    return has_joined(fabric, p) && !is_dead(fabric, p);
}

/* How many are there; *awake_p: how many of them did not stand still. */
static int32_t count_there(const ucx_fabric_t *fabric, int32_t *awake_p)
{
    int32_t there = 0;
    *awake_p = 0;
    for (int32_t p = 0; p < fabric->base.ranks; p++) {
        there += is_there(fabric, p);
        *awake_p += is_there(fabric, p) && joined_as(fabric, p) == JOINED;
    }
    return there;
}

/* The others may have decided without those who are there, and left. Somebody who did not stand still would
 * know of it, with the exception of one who is alone. */
static int may_be_left_behind(const ucx_fabric_t *fabric)
{
    int32_t awake, there = count_there(fabric, &awake);
    return there < fabric->base.ranks && (there == 1 || awake == 0);
}

/* Word of what others decided may never come over connections that their ends have closed. So who stood still
 * for so long that it may have been left behind does not go on, alone or with others like it, unless they are
 * most of all ranks: then the others are few, if it is not just that all were stopped and some were lost. */
static int may_go_on(const ucx_fabric_t *fabric)
{
    int32_t awake, there = count_there(fabric, &awake);
    return awake > 0 || 2 * there > fabric->base.ranks;
}

/* This rank decides: who has joined and lives is in, or came too late as this one did; nobody is a member
 * then. */
static void decide(ucx_fabric_t *fabric, uint8_t *member)
{
    const ucx_layout_t *l = &fabric->layout;
    int go_on = may_go_on(fabric);
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        member[p] = (uint8_t)(go_on && is_there(fabric, p));
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        if (member[p] && p != fabric->base.rank)
            (void)epx_ucx_put(fabric, &fabric->control, p, l->member, member, (size_t)fabric->base.ranks);
    epx_ucx_fence(fabric);
    for (int32_t p = 0; p < fabric->base.ranks; p++) /* those left out learn that it is over */
        if (go_on ? member[p] || !is_dead(fabric, p) : is_there(fabric, p))
            epx_ucx_set(fabric, p, l->decided, (uint64_t)fabric->base.rank + 1);
}

static uint64_t decision(ucx_fabric_t *fabric)
{
    return atomic_load_explicit(epx_ucx_word(fabric, fabric->layout.decided), memory_order_acquire);
}

static int stood_still(int64_t timeout_ms)
{
    return epx_ucx_stood_still(timeout_ms / 2, timeout_ms + GRACE_MS);
}

static void join(ucx_fabric_t *fabric, int64_t timeout_ms)
{
    fabric->joined = stood_still(timeout_ms) ? JOINED_AFTER_STANDSTILL : JOINED;
    for (int32_t p = 0; p < fabric->base.ranks; p++)
        if (p != fabric->base.rank && !is_dead(fabric, p))
            epx_ucx_set(fabric, p, at(fabric, fabric->layout.joined, fabric->base.rank),
                        (uint64_t)fabric->joined);
}

/* Waits until somebody has decided; decides where it is this rank's turn. Nobody is a member where it came
 * too late. */
static void meet(ucx_fabric_t *fabric, int64_t timeout_ms, uint8_t *member)
{
    int64_t begin_ns = epx_clock_ns(), deadline_ns = begin_ns + timeout_ms * 1000000;
    for (;;) {
        uint32_t bell = epx_bell_count(epx_ucx_bell(fabric));
        int64_t now_ns = epx_clock_ns();
        int32_t leader = leader_of(fabric), me = fabric->base.rank;
        if (decision(fabric) != 0)
            break;
        /* A leader that does not decide in time is passed over: after its grace this rank stands alone. */
        int waited = !may_be_left_behind(fabric) || now_ns >= begin_ns + (int64_t)ALONE_MS * 1000000;
        if ((leader == me && ((all_there(fabric) && waited) || now_ns >= deadline_ns)) ||
            now_ns >= deadline_ns + (int64_t)GRACE_MS * 1000000 * (me + 1)) {
            if (stood_still(timeout_ms)) /* since it joined, too */
                fabric->joined = JOINED_AFTER_STANDSTILL;
            decide(fabric, member);
            return;
        }
        if (fabric->far_count > 0)
            epx_ucx_help();
        epx_bell_sleep_shared(epx_ucx_bell(fabric), bell, now_ns + (int64_t)SLICE_MS * 1000000);
    }
    epx_ucx_saw(fabric, (int32_t)decision(fabric) - 1);
    memcpy(member, (const uint8_t *)fabric->control.base + fabric->layout.member, (size_t)fabric->base.ranks);
}

static int survivors_gather(void *context, const void *send, void *receive, size_t bytes)
{
    return epx_ucx_gather(context, UCX_SURVIVORS_CHANNEL, send, receive, bytes, GATHER_MS) == EPX_OK ? 0 : -1;
}

epx_status_t epx_ucx_survivors(epx_fabric_t *base, int64_t timeout_ms, uint8_t *alive_p,
                               epx_bootstrap_t *bootstrap_p)
{
    ucx_fabric_t *fabric = (ucx_fabric_t *)base;
    memset(alive_p, 0, (size_t)base->ranks);
    if (decision(fabric) == 0) {
        join(fabric, timeout_ms);
        meet(fabric, timeout_ms, alive_p);
    }
    epx_status_t status = epx_circle_close(base, fabric->name, alive_p, fabric->alive, &fabric->survivors);
    if (status == EPX_OK)
        *bootstrap_p = epx_circle_bootstrap(&fabric->survivors, fabric, survivors_gather);
    return status;
}
