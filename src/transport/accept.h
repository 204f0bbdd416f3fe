/*
 * The accept rules: who is kept. Pure functions over counts and ids, no allocation, no state; used by the
 * transports, by the host kernels, by epx-sim, and as the reference for the CUDA kernels.
 * SPDX-License-Identifier: Apache-2.0
 *
 * "Rank" here is a rank as the rules see it: one of N virtual ranks (N = S where nothing is virtual). All
 * capacities are computed as: integer products in int64, then one multiplication and one division in double,
 * then ceil; results saturate at 2^40 rows, far above what opening refuses.
 */
#ifndef EPX_TRANSPORT_ACCEPT_H
#define EPX_TRANSPORT_ACCEPT_H

#include <stddef.h>
#include <stdint.h>

#include <epx/transport.h>

/* The part of a group's shape that the rules read. */
typedef struct epx_rule {
    int32_t ranks;           /* N */
    int32_t experts;         /* E */
    int32_t top_k;           /* K */
    int64_t assignments_max; /* A_max of one rank = virtual T_max * K */
    double cf, cs;
    int32_t dropless;
    int32_t waves;              /* W (pooled_wave) or C (ragged; ring: 1) */
    epx_accept_t accept;        /* PREFIX, WATERFILL, FAIR */
    const epx_owners_t *owners; /* of N ranks */
} epx_rule_t;

/* The rule of a shape: virtual ranks, virtual T_max. `waves` as given. */
epx_rule_t epx_rule_of(const epx_shape_t *shape, int32_t waves);

/* Virtual sender of token t of T tokens split in m blocks, the first T mod m one token more. */
int32_t epx_virtual_sender(int64_t t, int64_t tokens, int32_t m);
/* First token of block v (v = m gives T). */
int64_t epx_virtual_first(int32_t v, int64_t tokens, int32_t m);

/* First of the items of part c when n items are split in `parts` blocks, the first n mod parts one more
 * (experts over ranks, chunks). */
int32_t epx_block_first(int32_t c, int32_t n, int32_t parts);
/* The part that item i is in. */
int32_t epx_block_of(int32_t i, int32_t n, int32_t parts);

/* ---- pooled_wave ---- */

/* P(d); 0 where the destination owns no expert. */
int64_t epx_pooled_slots(const epx_rule_t *rule, int32_t local_experts);
/* R. */
int64_t epx_pooled_rows(const epx_rule_t *rule);
/* min(P, logical) of a sender with V(s) = valid, per destination and wave. */
int64_t epx_pooled_sender_limit(const epx_rule_t *rule, int32_t local_experts, int64_t valid);
/* min(R, logical) with V = valid_all, per local expert and wave. */
int64_t epx_pooled_receiver_limit(const epx_rule_t *rule, int64_t valid_all);

/*
 * Gate 1 of one sender (with virtual ranks: of one virtual sender, its tokens only). expert [tokens, columns]
 * with -1 for none, columns = K + X; X > 0 spills.
 *
 * Outputs, both [tokens, columns]: `wave` that the assignment travels in and `slot` within (destination,
 * wave), -1 where it does not travel. An assignment of columns >= K travels only when it replaced a refused
 * one (spill).
 *
 * scratch: [N] int64. Counts (NULL: not wanted) are added to: routed, skipped of the first K columns;
 * spilled: refused ones that travel by another choice, whatever gate 2 then says; dropped: refused ones that
 * do not travel.
 *
 * Decisions. A choice of -1 proposes nothing: the assignment stays refused and may propose the next choice. A
 * choice that the token already uses is an assignment like any other. V(s) counts the first K columns only. A
 * refused proposal takes no ordinal.
 */
typedef struct epx_pooled_counts {
    int64_t routed, skipped, dropped, spilled;
} epx_pooled_counts_t;
void epx_pooled_gate1(const epx_rule_t *rule, const int32_t *expert, int64_t tokens, int32_t columns,
                      int32_t *wave, int32_t *slot, int64_t *scratch, epx_pooled_counts_t *counts);

/*
 * Gate 2 of one receiver d and one wave. tag[s] points to P(d) entries: local expert + 1, 0 for an empty slot
 * (anything else counts as empty). row[s] (P(d) entries) out: ordinal j of the row within its local expert,
 * or -1 (empty or refused). count [El] out: kept rows of each local expert. Returns how many were refused.
 * `limit` is epx_pooled_receiver_limit, the same for all waves of a routing.
 */
int64_t epx_pooled_gate2(const epx_rule_t *rule, int32_t d, int64_t limit, const int32_t *const *tag,
                         int32_t *const *row, int64_t *count);

/*
 * extra_wave: the schedule of one destination d, with the physical P and R. n [N, E] counts; move(context,
 * wave, s, e, first, rows), or NULL: in this wave s sends e's assignments first .. first + rows - 1 of
 * (token, k) order. Calls come by wave, then expert, then sender, all ascending, rows >= 1. Returns the
 * number of waves for d (0 when nothing goes there). remaining: scratch [N * El(d) + N] int32.
 */
typedef void (*epx_extra_wave_move_fn)(void *context, int32_t wave, int32_t s, int32_t e, int32_t first,
                                       int32_t rows);
int32_t epx_pooled_extra_waves(const epx_rule_t *rule, int32_t d, const int32_t *n, int32_t *remaining,
                               epx_extra_wave_move_fn move, void *context);

/* ---- ragged, ring ---- */
int64_t epx_ragged_physical(const epx_rule_t *rule, int32_t chunk_experts);                    /* phys */
int64_t epx_ragged_capacity(const epx_rule_t *rule, int32_t chunk_experts, int64_t valid_all); /* cap */

/*
 * Accepts for one receiver d and chunk c: acc[s * E + e] <= n[s * E + e] for the experts of that chunk, all
 * s; other entries are left alone. n, acc [N, E]. valid_all = V. scratch [N] int64.
 *
 * Decisions (G experts in the chunk, c = ceil(V * cf / E), c = V when dropless):
 *
 * An empty chunk has phys = cap = 0, dropless too.
 *
 * waterfill takes G * c rows at most: every expert gets floor_g = min(N_g, c), and the slack, the sum of c -
 * floor_g, goes, experts ascending, to those with N_g > c, up to N_g. cap is prefix's alone.
 *
 * fair: quota_g of an expert as waterfill's; where quota_g < N_g, floor(n * quota_g / N_g) each in exact
 * integers (needs n * quota_g < 2^63), then one more to the largest remainders, ties to the lower sender.
 */
void epx_ragged_accept(const epx_rule_t *rule, int32_t d, int32_t c, int64_t valid_all, const int32_t *n,
                       int32_t *acc, int64_t *scratch);

#endif
