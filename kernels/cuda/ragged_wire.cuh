/*
 * ragged's rank wire: a token's assignments to one rank and wave travel as one row, with a list of the places
 * that it stands for. SPDX-License-Identifier: Apache-2.0
 *
 * One cluster, a thread for each token. Wire rows and list entries of a pair (wave, rank) are numbered in the
 * order of tokens, so they are prefix sums over tokens of what each has for the pair. Four pairs at a time
 * share a word of four 16-bit counters; a chunk of tokens is small enough for them. First all blocks count,
 * then they number and write.
 */
#ifndef EPX_KERNELS_CUDA_RAGGED_WIRE_CUH
#define EPX_KERNELS_CUDA_RAGGED_WIRE_CUH

#include "kernels/cuda/ragged_layout.cuh"

namespace epx
{

enum { PAIRS_TOGETHER = 4, FIELD_BITS = 16, FEW_CHOICES = 8 };
typedef unsigned long long fields; /* PAIRS_TOGETHER counters */

/* Tables in shared memory. By expert: its pair, and what takes a place of this rank to one of the batch; by
 * pair: the return region, the base at its rank; and for entries, then wire rows: counted here, in the blocks
 * before, in all, so far. */
struct wire_tables {
    int32_t *pair, *to_place, *region, *base;
    uint32_t *here, *before, *all;
    int32_t pairs;

    __device__ wire_tables(int32_t *words, int32_t experts, int32_t of)
        : pair(words), to_place(words + experts), region(words + 2 * experts), base(region + of),
          here((uint32_t *)(base + of)), before(here + 2 * of), all(before + 2 * of), pairs(of)
    {
    }
};

/* Words of shared memory for them. */
inline int64_t wire_words(int64_t experts, int64_t pairs) { return 2 * experts + 8 * pairs; }

struct wire_shared {
    block_sums<2, fields> sums;
    int64_t room[WARP];
};

/* A block's part of the tokens, and a thread's token in a chunk of them. */
struct wire_share {
    int32_t first, end, chunk; /* tokens of the block; as many at a time */

    __device__ wire_share(const team &our, int32_t tokens, int32_t top_k)
    {
        int32_t each = (tokens + our.blocks - 1) / our.blocks;
        first = min(our.block * each, tokens);
        end = min(first + each, tokens);
        chunk = min((int32_t)blockDim.x, max(((1 << FIELD_BITS) - 1) / top_k, 1));
    }
};

/* A kept assignment's pair and return row; pair -1: not kept. */
struct wire_item {
    int32_t q, row;
};

/* What is known of a token. FEW: its items are kept in registers; else they are found again each time. */
template <bool FEW> struct wire_token {
    const ragged_task &task;
    const wire_tables &tables;
    int32_t t, v;
    bool there;
    wire_item held[FEW ? FEW_CHOICES : 1];

    __device__ wire_token(const ragged_task &of, const wire_tables &with, int32_t token, bool exists,
                          int64_t tokens)
        : task(of), tables(with), t(token), there(exists)
    {
        v = task.splits == 1 || !there ? 0 : split_of(t, tokens, task.splits);
        if constexpr (FEW) {
#pragma unroll
            for (int k = 0; k < FEW_CHOICES; k++)
                held[k] = find(k);
        }
    }
    __device__ wire_item find(int32_t k) const
    {
        wire_item item = {-1, 0};
        if (!there || k >= task.top_k)
            return item;
        int64_t a = (int64_t)t * task.top_k + k, of_sender = (int64_t)v * task.experts;
        int32_t e = __ldg(task.args.expert + a), ordinal = __ldg(task.args.ordinal + a);
        if (e < 0)
            return item;
        const int32_t *accepted = task.args.accepted + (int64_t)task.rank * task.splits * task.experts;
        if (ordinal < accepted[of_sender + e])
            item = {tables.pair[e], task.args.first_row[of_sender + e] + ordinal};
        return item;
    }
    /* Calls fn(k, item) for all choices. */
    template <typename F> __device__ void each(const F &fn) const
    {
        if constexpr (FEW) {
#pragma unroll
            for (int k = 0; k < FEW_CHOICES; k++)
                if (k < task.top_k)
                    fn(k, held[k]);
        } else {
            for (int32_t k = 0; there && k < task.top_k; k++)
                fn(k, find(k));
        }
    }
    /* Entries for the pairs of group g, and which of them the token has. */
    __device__ fields entries(int32_t g, unsigned *has_p) const
    {
        fields sum = 0;
        unsigned has = 0;
        each([&](int32_t, const wire_item &item) {
            int32_t f = item.q - g * PAIRS_TOGETHER;
            if ((uint32_t)f < PAIRS_TOGETHER) {
                sum += (fields)1 << (f * FIELD_BITS);
                has |= 1u << f;
            }
        });
        *has_p = has;
        return sum;
    }
};

__device__ inline uint32_t field_of(fields word, int32_t f)
{
    return (uint32_t)(word >> (f * FIELD_BITS)) & ((1u << FIELD_BITS) - 1);
}

/* 1 in the field of each pair that is there. */
__device__ inline fields ones(unsigned has)
{
    fields word = 0;
#pragma unroll
    for (int f = 0; f < PAIRS_TOGETHER; f++)
        word |= (fields)(has >> f & 1) << (f * FIELD_BITS);
    return word;
}

/* Every assignment of a token gets its return row, or none. */
template <bool FEW> __device__ inline void place_token(const wire_token<FEW> &token)
{
    const ragged_task &task = token.task;
    if (!token.there)
        return;
    token.each([&](int32_t k, const wire_item &item) {
        int32_t a = token.t * task.top_k + k;
        if (item.q >= 0)
            task.args.send[item.row] = a;
        task.args.place[a] = item.q >= 0 ? item.q / task.ranks * task.most + item.row : -1;
    });
}

/* A block's tokens, counted into tables.here. */
template <bool FEW>
__device__ inline void count_tokens(const ragged_task &task, const wire_tables &tables,
                                    const wire_share &mine, int64_t tokens)
{
    for (int32_t t0 = mine.first; t0 < mine.end; t0 += mine.chunk) {
        int32_t x = (int32_t)threadIdx.x, t = t0 + x;
        wire_token<FEW> token(task, tables, t, x < mine.chunk && t < mine.end, tokens);
        place_token(token);
        for (int32_t g = 0; g * PAIRS_TOGETHER < tables.pairs; g++) {
            unsigned has;
            fields entries = token.entries(g, &has), wires = ones(has);
            /* Sums over a warp stay within the fields. */
            uint32_t sum[4] = {(uint32_t)entries, (uint32_t)(entries >> 32), (uint32_t)wires,
                               (uint32_t)(wires >> 32)};
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i] = __reduce_add_sync(ALL, sum[i]);
            int32_t f = lane_id() % PAIRS_TOGETHER, kind = lane_id() / PAIRS_TOGETHER,
                    q = g * PAIRS_TOGETHER + f;
            if (kind < 2 && q < tables.pairs) {
                fields word = kind == 0 ? sum[0] | (fields)sum[1] << 32 : sum[2] | (fields)sum[3] << 32;
                atomicAdd(&tables.here[kind * tables.pairs + q], field_of(word, f));
            }
        }
    }
}

/* tables.before and all of the cluster's blocks; contains its barrier. */
__device__ inline void exchange_counts(const wire_tables &tables, const team &our)
{
    our.sync();
    for (int32_t x = (int32_t)threadIdx.x; x < 2 * tables.pairs * our.blocks; x += (int32_t)blockDim.x) {
        int32_t i = x / our.blocks, b = x - i * our.blocks;
        uint32_t count = our.at(tables.here, b)[i];
        if (count != 0) {
            atomicAdd(&tables.all[i], count);
            if (b < our.block)
                atomicAdd(&tables.before[i], count);
        }
    }
    __syncthreads();
}

/* What the token has for the pairs of group g, whose numbers are known. homes: pairs of lower groups. */
template <bool FEW>
__device__ inline void put_token(const wire_token<FEW> &token, int32_t g, fields entries, unsigned has,
                                 fields entries_before, fields wires_before, int32_t homes)
{
    const ragged_task &task = token.task;
    const wire_tables &tables = token.tables;
    unsigned seen = 0;
    token.each([&](int32_t k, const wire_item &item) {
        int32_t f = item.q - g * PAIRS_TOGETHER;
        if ((uint32_t)f >= PAIRS_TOGETHER)
            return;
        int64_t a = (int64_t)token.t * task.top_k + k;
        uint32_t entry = tables.before[item.q] + field_of(entries_before, f);
        uint32_t wire = tables.before[tables.pairs + item.q] + field_of(wires_before, f);
        int32_t region = tables.region[item.q], base = tables.base[item.q], e = __ldg(task.args.expert + a);
        int32_t c = item.q / task.ranks, row = region + (int32_t)wire;
        task.args.list_place[region + entry] = c * task.most + item.row + tables.to_place[e];
        task.args.list_weight[region + entry] = __ldg(task.args.weights + a);
        task.args.wire_row[a] = base + (int32_t)wire;
        if (!(seen >> f & 1)) {
            task.args.wire_token[row] = token.t;
            task.args.wire_first[row] = base + (int32_t)entry;
            task.args.wire_count[row] = (int32_t)field_of(entries, f);
            task.args.home[(int64_t)token.t * task.top_k + homes + __popc(has & ((1u << f) - 1))] =
                c * task.most + row;
        }
        seen |= 1u << f;
        entries_before += (fields)1 << (f * FIELD_BITS);
    });
}

/* A block's tokens, numbered and written; tables.before moves on behind each chunk. */
template <bool FEW>
__device__ inline void number_tokens(const ragged_task &task, const wire_tables &tables,
                                     const wire_share &mine, int64_t tokens, wire_shared &shared)
{
    for (int32_t t0 = mine.first; t0 < mine.end; t0 += mine.chunk) {
        int32_t x = (int32_t)threadIdx.x, t = t0 + x, homes = 0;
        wire_token<FEW> token(task, tables, t, x < mine.chunk && t < mine.end, tokens);
        for (int32_t g = 0; g * PAIRS_TOGETHER < tables.pairs; g++) {
            unsigned has;
            fields entries = token.entries(g, &has), sum[2] = {entries, ones(has)}, all[2];
            block_before(sum, all, shared.sums);
            put_token(token, g, entries, has, sum[0], sum[1], homes);
            homes += __popc(has);
            __syncthreads(); /* this chunk has read what stands before it */
            int32_t f = x % PAIRS_TOGETHER, kind = x / PAIRS_TOGETHER, q = g * PAIRS_TOGETHER + f;
            if (kind < 2 && q < tables.pairs)
                tables.before[kind * tables.pairs + q] += field_of(all[kind], f);
        }
        for (; token.there && homes < task.top_k; homes++)
            task.args.home[(int64_t)t * task.top_k + homes] = -1;
        __syncthreads();
    }
}

/* What the numbers of wire rows decide, by all threads of one block. */
__device__ inline void set_wire_runs(const ragged_task &task, const wire_tables &tables)
{
    const epx_k_ragged_layout_t &args = task.args;
    for (int32_t q = (int32_t)threadIdx.x; q < tables.pairs; q += (int32_t)blockDim.x) {
        int32_t d = q % task.ranks, wires = (int32_t)tables.all[tables.pairs + q];
        args.home_count[q] = wires;
        args.wire_runs[q] = {tables.region[q], tables.base[q], d, wires};
        if (d != task.rank)
            atomicAdd((unsigned long long *)&args.wave[q / task.ranks].sent_rows, (unsigned long long)wires);
    }
}

/* What is known before the counts are decided; then, behind that, what they say. */
__device__ inline void begin_tables(const ragged_task &task, const wire_tables &tables)
{
    for (int32_t e = (int32_t)threadIdx.x; e < task.experts; e += (int32_t)blockDim.x)
        tables.pair[e] = task.pair(e);
    for (int32_t i = (int32_t)threadIdx.x; i < 2 * tables.pairs; i += (int32_t)blockDim.x)
        tables.here[i] = tables.before[i] = tables.all[i] = 0;
}

__device__ inline void fill_tables(const ragged_task &task, const wire_tables &tables)
{
    for (int32_t e = (int32_t)threadIdx.x; e < task.experts; e += (int32_t)blockDim.x)
        tables.to_place[e] = task.before_me[e];
    for (int32_t q = (int32_t)threadIdx.x; q < tables.pairs; q += (int32_t)blockDim.x) {
        tables.region[q] = (int32_t)task.args.home_start[q];
        tables.base[q] = (int32_t)task.args.base[q];
    }
    __syncthreads();
}

/* All of a cluster; the tables are filled. */
template <bool FEW>
__device__ inline void lay_wire(const ragged_task &task, const team &our, const wire_tables &tables,
                                int64_t tokens, wire_shared &shared)
{
    wire_share mine(our, (int32_t)tokens, task.top_k);
    count_tokens<FEW>(task, tables, mine, tokens);
    exchange_counts(tables, our);
    if (our.block == 0)
        set_wire_runs(task, tables);
    number_tokens<FEW>(task, tables, mine, tokens, shared);
    our.sync();
}

} // namespace epx

#endif
