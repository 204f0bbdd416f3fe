/*
 * The accept rules on the GPU, bit-equal to src/transport/accept.h. SPDX-License-Identifier: Apache-2.0
 *
 * The host walks experts and senders one by one. Here the same chains are clamped prefix sums: who takes
 * min(wanted, left) in a row of takers gets clamp(all - wanted by those before, 0, wanted).
 */
#ifndef EPX_KERNELS_CUDA_ACCEPT_CUH
#define EPX_KERNELS_CUDA_ACCEPT_CUH

#include <epx/transport.h>

#include "kernels/cuda/cluster.cuh"

namespace epx
{

/* What the rules read of a shape. */
struct rule {
    int32_t ranks, experts, waves, dropless; /* virtual ranks; waves or chunks */
    epx_accept_t accept;
    int64_t assignments_max;
    double cf, cs;
    int64_t most_each; /* ragged, ring: rows that there is memory for, of each expert of a chunk */
};

__host__ __host__ __device__ inline int64_t accept_ceil(int64_t product, double factor, int64_t divisor);

inline rule rule_of(const epx_shape_t *shape, int32_t waves)
{
    rule r = {shape->virtual_ranks,   shape->experts,       waves,
              shape->dropless,        shape->accept,        (int64_t)shape->virtual_tokens_max * shape->top_k,
              shape->capacity_factor, shape->sender_factor, 1};
    int64_t each = accept_ceil(r.ranks * r.assignments_max, r.cf, r.experts);
    r.most_each = each > 1 ? each : 1;
    return r;
}

__device__ inline int64_t clamp(int64_t value, int64_t low, int64_t high)
{
    return max(low, min(value, high));
}

/* One multiplication and one division in double, each rounded (--fmad=false); saturates as on the host. */
__device__ inline int64_t accept_ceil(int64_t product, double factor, int64_t divisor)
{
    double rows = ceil((double)product * factor / (double)divisor);
    const int64_t saturated = (int64_t)1 << 40;
    return rows < (double)saturated ? (int64_t)rows : saturated;
}

/* ---- pooled_wave ---- */

__device__ inline int64_t pooled_slots(const rule &r, int32_t local_experts)
{
    if (local_experts == 0)
        return 0;
    if (r.dropless)
        return (r.assignments_max + r.waves - 1) / r.waves;
    return max((int64_t)1,
               accept_ceil(r.assignments_max * local_experts, r.cs, (int64_t)r.experts * r.waves));
}

__device__ inline int64_t pooled_rows(const rule &r)
{
    if (r.dropless)
        return r.ranks * pooled_slots(r, 1);
    return max((int64_t)1, accept_ceil(r.ranks * r.assignments_max, r.cf, (int64_t)r.experts * r.waves));
}

__device__ inline int64_t pooled_sender_limit(const rule &r, int32_t local_experts, int64_t valid)
{
    int64_t physical = pooled_slots(r, local_experts);
    if (r.dropless)
        return physical;
    return min(physical, accept_ceil(valid * local_experts, r.cs, (int64_t)r.experts * r.waves));
}

__device__ inline int64_t pooled_receiver_limit(const rule &r, int64_t valid_all)
{
    int64_t physical = pooled_rows(r);
    return r.dropless ? physical : min(physical, accept_ceil(valid_all, r.cf, (int64_t)r.experts * r.waves));
}

/* ---- ragged, ring ---- */

__device__ inline int64_t ragged_capacity(const rule &r, int32_t chunk_experts, int64_t valid_all)
{
    if (chunk_experts == 0)
        return 0;
    if (r.dropless)
        return valid_all;
    return clamp(accept_ceil(valid_all * chunk_experts, r.cf, r.experts), chunk_experts,
                 chunk_experts * r.most_each);
}

__device__ inline int64_t even_share(const rule &r, int64_t valid_all)
{
    return r.dropless ? valid_all : accept_ceil(valid_all, r.cf, r.experts);
}

static __device__ __noinline__ int32_t real_of(int32_t s, int32_t splits) { return s / splits; }

/* Counts of all virtual senders as they came: behind the notice of each rank, [m, E]. A dead route has none.
 */
struct count_table {
    const char *first;
    int64_t stride;
    int32_t splits, experts;
    bool alive;

    __device__ int32_t at(int32_t s, int32_t e) const
    {
        int32_t r = splits == 1 ? s : real_of(s, splits);
        const int32_t *of_rank = (const int32_t *)(first + r * stride);
        return alive ? fresh(of_rank + (int64_t)(s - r * splits) * experts + e) : 0;
    }
};

/* Some neighbouring lanes of a warp that work on one expert; lanes = 1, 2, ... 32. */
struct gang {
    int32_t lanes, lane;
    unsigned mask;

    __device__ explicit gang(int32_t width) : lanes(width), lane(lane_id() % width)
    {
        mask = width == WARP ? ALL : ((1u << width) - 1) << (lane_id() - lane);
    }
    __device__ int64_t sum(int64_t value) const
    {
#pragma unroll 1
        for (int32_t d = lanes / 2; d > 0; d /= 2)
            value += __shfl_xor_sync(mask, value, d, lanes);
        return value;
    }
    __device__ int64_t through(int64_t value) const /* with those of the lanes before */
    {
#pragma unroll 1
        for (int32_t d = 1; d < lanes; d *= 2) {
            int64_t other = __shfl_up_sync(mask, value, d, lanes);
            value += lane >= d ? other : 0;
        }
        return value;
    }
    __device__ int64_t of_last(int64_t value) const { return __shfl_sync(mask, value, lanes - 1, lanes); }
};

inline int32_t gang_width(int32_t ranks)
{
    int32_t width = 1;
    while (width < WARP && width < ranks)
        width *= 2;
    return width;
}

/* An expert in its chunk: places first .. end - 1 of its owner's list, itself at `at`. */
struct chunk_place {
    int32_t first, at, end;
};

/* Chunk c of the owner of the expert e at place `at`. */
__device__ inline chunk_place chunk_of(const rule &r, const epx_owners_t &owners, int32_t at, int32_t e,
                                       int32_t c)
{
    int32_t v = owners.owner[e], begin = owners.first[v], n = owners.first[v + 1] - begin;
    return {begin + split_first(c, n, r.waves), at, begin + split_first(c + 1, n, r.waves)};
}

/* How many rows the expert takes, of all senders. wanted[x]: what they want of the expert at place x of its
 * owner's list. */
__device__ inline int64_t quota_of(const rule &r, const gang &g, const int64_t *wanted,
                                   const chunk_place &place, int64_t valid_all)
{
    int64_t mine = wanted[place.at], before = 0;
    if (r.accept != EPX_ACCEPT_WATERFILL && r.accept != EPX_ACCEPT_FAIR) {
        int64_t cap = ragged_capacity(r, place.end - place.first, valid_all);
#pragma unroll 8
        for (int32_t x = place.first + g.lane; x < place.at; x += g.lanes)
            before += wanted[x];
        return clamp(cap - g.sum(before), 0, mine);
    }
    /* What experts leave of their even share goes, experts ascending, to those that want more. */
    int64_t share = even_share(r, valid_all), slack = 0, base = min(mine, share);
#pragma unroll 8
    for (int32_t x = place.first + g.lane; x < place.end; x += g.lanes) {
        slack += share - min(wanted[x], share);
        before += x < place.at ? wanted[x] - min(wanted[x], share) : 0;
    }
    return base + clamp(g.sum(slack) - g.sum(before), 0, mine - base);
}

/*
 * Senders ascending take what is left of quota. emit(s, before, rows) on the lane of each sender: what it
 * takes, and what those before it took. ready: what sender g.lane wants, where all have a lane; else counts
 * are read.
 */
template <typename F>
__device__ inline void take_ascending(const rule &r, const gang &g, int32_t e, int64_t quota,
                                      const count_table &n, int32_t ready, int32_t *acc, const F &emit)
{
    int64_t before = 0;
#pragma unroll 1
    for (int32_t s0 = 0; s0 < r.ranks; s0 += g.lanes) {
        int32_t s = s0 + g.lane;
        int64_t want = s >= r.ranks         ? 0
                       : r.ranks <= g.lanes ? ready
                                            : n.at(s, e),
                through = before + g.through(want);
        int64_t first = min(quota, through - want), rows = min(quota, through) - first;
        if (s < r.ranks) {
            acc[(int64_t)s * r.experts + e] = (int32_t)rows;
            emit(s, first, rows);
        }
        before = g.of_last(through);
    }
}

/* Shares in proportion, what is left of them to the largest remainders, ties to the lower sender. */
__device__ inline void take_fair(const rule &r, const gang &g, int32_t e, int64_t quota, int64_t all,
                                 const count_table &n, int32_t *acc)
{
    auto product = [&](int32_t s) { return n.at(s, e) * quota; };
    int64_t given = 0;
#pragma unroll 1
    for (int32_t s = g.lane; s < r.ranks; s += g.lanes)
        given += product(s) / all;
    int64_t seats = quota - g.sum(given), low = 1, high = all;
    while (seats > 0 && high - low > 1) {
        int64_t middle = low + (high - low) / 2, reach = 0;
#pragma unroll 1
        for (int32_t s = g.lane; s < r.ranks; s += g.lanes)
            reach += product(s) % all >= middle;
        if (g.sum(reach) >= seats)
            low = middle;
        else
            high = middle;
    }
    int64_t above = 0, ties_before = 0;
#pragma unroll 1
    for (int32_t s = g.lane; s < r.ranks; s += g.lanes)
        above += product(s) % all > low;
    int64_t ties = seats > 0 ? seats - g.sum(above) : 0;
#pragma unroll 1
    for (int32_t s0 = 0; s0 < r.ranks; s0 += g.lanes) {
        int32_t s = s0 + g.lane;
        int64_t want = s < r.ranks ? product(s) : 0, remainder = want % all;
        int64_t tie = s < r.ranks && remainder == low, through = g.through(tie);
        bool one_more =
            seats > 0 && s < r.ranks && (remainder > low || (tie && ties_before + through <= ties));
        if (s < r.ranks)
            acc[(int64_t)s * r.experts + e] = (int32_t)(want / all) + one_more;
        ties_before += g.of_last(through);
    }
}

/* What a gang knows of an expert before anything is decided; much of it is loaded while others still count.
 */
struct expert_facts {
    int32_t e, c;
    chunk_place place;
    int32_t ready; /* what sender g.lane wants, where all senders have a lane */
};

/* c: the expert's chunk, or -1 where there is one chunk. */
__device__ inline expert_facts facts_of(const rule &r, const gang &g, const epx_owners_t &owners,
                                        const int32_t *wave, const count_table &n, int32_t at)
{
    expert_facts f = {};
    f.e = owners.expert[at];
    f.c = wave != nullptr ? wave[f.e] : 0;
    f.place = chunk_of(r, owners, at, f.e, f.c);
    if (r.ranks <= g.lanes && g.lane < r.ranks)
        f.ready = n.at(g.lane, f.e);
    return f;
}

/* What all senders want of an expert, by a gang; complete on its first lane. */
__device__ inline void add_up_wanted(const rule &r, const gang &g, const count_table &n,
                                     const expert_facts &f, int64_t *wanted)
{
    int64_t sum = f.ready;
#pragma unroll 1
    for (int32_t s = g.lane; r.ranks > g.lanes && s < r.ranks; s += g.lanes)
        sum += n.at(s, f.e);
    sum = g.sum(sum);
    if (g.lane == 0)
        wanted[f.place.at] = sum;
}

/* V from `wanted`, by all threads of a block. */
__device__ inline int64_t add_up_valid(const rule &r, const int64_t *wanted, int64_t *room)
{
    int64_t sum = 0;
#pragma unroll 1
    for (int32_t x = (int32_t)threadIdx.x; x < r.experts; x += (int32_t)blockDim.x)
        sum += wanted[x];
    return block_sum(sum, room);
}

/*
 * acc[s, e] of all experts and senders, by a cluster, which it synchronises once. done(facts, quota,
 * ascending): by the gang behind each expert; emit as in take_ascending, called where the rule takes senders
 * ascending.
 */
template <typename E, typename D>
__device__ inline void accept_all(const rule &r, const team &our, const gang &g, const epx_owners_t &owners,
                                  const int32_t *wave, const count_table &n, int64_t *wanted, int64_t *room,
                                  int32_t *acc, const E &emit, const D &done)
{
    int32_t mine = our.thread() / g.lanes, gangs = our.threads() / g.lanes;
    expert_facts first = {};
    if (mine < r.experts)
        first = facts_of(r, g, owners, wave, n, mine);
#pragma unroll 1
    for (int32_t at = mine; at < r.experts; at += gangs)
        add_up_wanted(r, g, n, at == mine ? first : facts_of(r, g, owners, wave, n, at), wanted);
    our.sync();
    int64_t valid_all = add_up_valid(r, wanted, room);
#pragma unroll 1
    for (int32_t at = mine; at < r.experts; at += gangs) {
        expert_facts f = at == mine ? first : facts_of(r, g, owners, wave, n, at);
        int64_t quota = quota_of(r, g, wanted, f.place, valid_all);
        bool ascending = r.accept != EPX_ACCEPT_FAIR || quota >= wanted[at];
        if (ascending)
            take_ascending(r, g, f.e, quota, n, f.ready, acc,
                           [&](int32_t s, int64_t before, int64_t rows) { emit(f, s, before, rows); });
        else
            take_fair(r, g, f.e, quota, wanted[at], n, acc);
        __syncwarp(g.mask);
        done(f, quota, ascending);
    }
}

} // namespace epx

#endif
