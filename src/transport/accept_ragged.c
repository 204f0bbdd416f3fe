/* Who is kept when the counts of all ranks are known: prefix, waterfill, fair. SPDX-License-Identifier:
 * Apache-2.0 */
#include "transport/accept.h"
#include "transport/accept_common.h"

int64_t epx_ragged_physical(const epx_rule_t *rule, int32_t chunk_experts)
{
    int64_t all = rule->ranks * rule->assignments_max;
    if (chunk_experts == 0)
        return 0;
    if (rule->dropless)
        return all;
    return chunk_experts * epx_max64(1, epx_accept_ceil(all, rule->cf, rule->experts));
}

int64_t epx_ragged_capacity(const epx_rule_t *rule, int32_t chunk_experts, int64_t valid_all)
{
    if (chunk_experts == 0)
        return 0;
    if (rule->dropless)
        return valid_all;
    int64_t logical = epx_accept_ceil(valid_all * chunk_experts, rule->cf, rule->experts);
    return epx_min64(epx_max64(logical, chunk_experts), epx_ragged_physical(rule, chunk_experts));
}

/* The even share of one expert, c. */
static int64_t even_share(const epx_rule_t *rule, int64_t valid_all)
{
    return rule->dropless ? valid_all : epx_accept_ceil(valid_all, rule->cf, rule->experts);
}

/* N_e: what all ranks want of an expert. */
static int64_t wanted(const epx_rule_t *rule, const int32_t *n, int32_t e)
{
    int64_t sum = 0;
    for (int32_t s = 0; s < rule->ranks; s++)
        sum += n[(int64_t)s * rule->experts + e];
    return sum;
}

/* Senders ascending take what is left of `quota`; returns the rest. */
static int64_t take_ascending(const epx_rule_t *rule, int32_t e, int64_t quota, const int32_t *n,
                              int32_t *acc)
{
    for (int32_t s = 0; s < rule->ranks; s++) {
        int64_t i = (int64_t)s * rule->experts + e;
        acc[i] = (int32_t)epx_min64(n[i], quota);
        quota -= acc[i];
    }
    return quota;
}

/*
 * The largest t such that at least `seats` >= 1 remainders are >= t, found by halving [1, bound): remainders
 * above t win a seat for sure, those equal to t compete by rank. At least `seats` remainders are >= 1, see
 * take_fair.
 */
static int64_t seat_threshold(const int64_t *remainder, int32_t ranks, int64_t seats, int64_t bound)
{
    int64_t low = 1, high = bound;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, above = 0;
        for (int32_t s = 0; s < ranks; s++)
            above += remainder[s] >= middle;
        if (above >= seats)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/*
 * Largest remainder in integers: sender s gets floor(n * quota / all), and the seats that are left go to the
 * largest remainders, ties to the lower sender. The remainders sum to seats * all and each is below all, so
 * more than `seats` of them are positive when seats > 0, and nobody gets more than he asked for.
 */
static void take_fair(const epx_rule_t *rule, int32_t e, int64_t quota, int64_t all, const int32_t *n,
                      int32_t *acc, int64_t *remainder)
{
    int64_t seats = quota, above = 0;
    for (int32_t s = 0; s < rule->ranks; s++) {
        int64_t i = (int64_t)s * rule->experts + e, product = n[i] * quota;
        acc[i] = (int32_t)(product / all);
        remainder[s] = product % all;
        seats -= acc[i];
    }
    if (seats == 0)
        return;

    int64_t threshold = seat_threshold(remainder, rule->ranks, seats, all);
    for (int32_t s = 0; s < rule->ranks; s++)
        above += remainder[s] > threshold;
    int64_t ties = seats - above;
    for (int32_t s = 0; s < rule->ranks; s++) {
        int64_t i = (int64_t)s * rule->experts + e;
        if (remainder[s] > threshold)
            acc[i]++;
        else if (remainder[s] == threshold && ties > 0) {
            acc[i]++;
            ties--;
        }
    }
}

/*
 * Two passes over the experts, both ascending: the first learns how much stays unused below the even share,
 * the second gives every expert its floor and hands out what is unused. At most experts * share rows, which
 * fit: the physical capacity is the same product at the largest possible share.
 */
static void accept_by_level(const epx_rule_t *rule, const int32_t *expert, int32_t experts, int64_t share,
                            const int32_t *n, int32_t *acc, int64_t *scratch)
{
    int64_t slack = 0;
    for (int32_t i = 0; i < experts; i++)
        slack += share - epx_min64(wanted(rule, n, expert[i]), share);

    for (int32_t i = 0; i < experts; i++) {
        int64_t all = wanted(rule, n, expert[i]);
        int64_t base = epx_min64(all, share), more = epx_min64(all - base, slack);
        int64_t quota = base + more;
        slack -= more;
        if (rule->accept == EPX_ACCEPT_FAIR && quota < all)
            take_fair(rule, expert[i], quota, all, n, acc, scratch);
        else
            take_ascending(rule, expert[i], quota, n, acc);
    }
}

void epx_ragged_accept(const epx_rule_t *rule, int32_t d, int32_t c, int64_t valid_all, const int32_t *n,
                       int32_t *acc, int64_t *scratch)
{
    int32_t first = rule->owners->first[d], local_experts = rule->owners->first[d + 1] - first;
    int32_t from = epx_block_first(c, local_experts, rule->waves);
    int32_t experts = epx_block_first(c + 1, local_experts, rule->waves) - from;
    const int32_t *expert = rule->owners->expert + first + from;

    if (rule->accept == EPX_ACCEPT_WATERFILL || rule->accept == EPX_ACCEPT_FAIR) {
        accept_by_level(rule, expert, experts, even_share(rule, valid_all), n, acc, scratch);
        return;
    }
    int64_t cap = epx_ragged_capacity(rule, experts, valid_all);
    for (int32_t i = 0; i < experts; i++)
        cap = take_ascending(rule, expert[i], cap, n, acc);
}
