/*
 * ragged's rank wire: a token's assignments to one rank and wave travel as one row, with a list of the places
 * that it stands for. SPDX-License-Identifier: Apache-2.0
 *
 * Blocks of the whole grid, a thread for each assignment; a warp takes whole tokens, so that those of one
 * token and pair (wave, rank) find each other by votes. List entries of a pair are numbered in the order of
 * assignments, wire rows in the order of the tokens' first ones: stable ordinals (stable.cuh) of two kinds,
 * with a key for each pair. A K above 32 leaves no whole token to a warp: there each assignment looks at its
 * token alone.
 */
#ifndef EPX_KERNELS_CUDA_RAGGED_WIRE_CUH
#define EPX_KERNELS_CUDA_RAGGED_WIRE_CUH

#include "kernels/cuda/ragged_task.cuh"
#include "kernels/cuda/relay.cuh"

namespace epx
{

/*
 * Tables in shared memory. By expert: its pair; what takes a return row of this rank to its place at the
 * owner, and, where the rank is one sender, how many are accepted and the first row. By pair: the return
 * region, the base at its rank, where its wave's return rows begin among those of all waves. Behind them the
 * counters.
 */
struct wire_tables {
    int32_t *pair, *to_place, *accepted, *first_row, *region, *base, *wave_at;
    uint32_t *counters;
    int32_t pairs;

    __device__ wire_tables(int32_t *words, int32_t experts, int32_t of)
        : pair(words), to_place(words + experts), accepted(to_place + experts), first_row(accepted + experts),
          region(first_row + experts), base(region + of), wave_at(base + of),
          counters((uint32_t *)(wave_at + of)), pairs(of)
    {
    }
};

/* Words of shared memory for them, with counters of so many warps. */
inline int64_t wire_words(int64_t experts, int64_t pairs, int64_t warps)
{
    return 4 * experts + 3 * pairs + (warps + 3) * 2 * pairs;
}

/* What is read of an assignment before anything is decided. */
struct wire_choice {
    int32_t a, e, ordinal; /* a: its index, -1 where the lane has none */
    int32_t t;             /* token */
    float weight;
};

/* An assignment among those of its token; pair -1: it is not kept. */
struct wire_item {
    int32_t pair, row;
    int32_t entries, home; /* its token's entries for the pair; its token's pairs before this one */
    int32_t homes;         /* its token's pairs */
    bool first;            /* of its token's for the pair */
};

static __device__ __noinline__ int32_t token_of(int32_t a, int32_t top_k) { return a / top_k; }

/* Whole tokens for a warp in one step, and the lane's part; alone: K is too large for that. */
struct wire_step {
    int32_t top_k, tokens, slot; /* tokens of a step; this lane's assignment, or behind all */
    int32_t token;               /* of the step, that the lane's assignment is of */
    bool alone;

    __device__ explicit wire_step(int32_t k)
        : top_k(k), tokens(k <= WARP ? WARP / k : 1), slot(lane_id()), token(k <= WARP ? slot / k : 0),
          alone(k > WARP)
    {
    }
    __device__ int32_t size() const { return alone ? WARP : tokens * top_k; }
    /* Lanes of this lane's token. */
    __device__ unsigned mates() const
    {
        unsigned all = top_k == WARP ? ALL : (1u << top_k) - 1;
        return all << (token * top_k);
    }
};

/* A warp's share of all assignments: steps first .. end - 1. */
struct wire_share {
    int32_t first, end;

    __device__ wire_share(const relay &r, const wire_step &step, int32_t assignments)
    {
        int32_t of_block = (int32_t)(blockDim.x / WARP), warps = r.blocks * of_block,
                steps = (assignments + step.size() - 1) / step.size(), each = (steps + warps - 1) / warps;
        first = min((r.block * of_block + (int32_t)threadIdx.x / WARP) * each, steps);
        end = min(first + each, steps);
    }
};

__device__ inline wire_choice choice_at(const ragged_task &task, const wire_step &step, int32_t number,
                                        int32_t assignments)
{
    int64_t a = (int64_t)number * step.size() + step.slot;
    wire_choice c = {-1, -1, 0, -1, 0.0f};
    if (step.slot < step.size() && a < assignments) {
        c.a = (int32_t)a;
        c.t = step.alone ? token_of(c.a, step.top_k) : number * step.tokens + step.token;
        c.e = fresh(task.args.expert + a);
        c.ordinal = fresh(task.args.ordinal + a);
        c.weight = fresh(task.args.weights + a);
    }
    return c;
}

/* Pair and return row, if the assignment is kept. */
__device__ inline wire_item kept_item(const ragged_task &task, const wire_tables &tables, int32_t a,
                                      int32_t e, int32_t ordinal, int64_t tokens)
{
    wire_item item = {-1, 0, 0, 0, 0, false};
    if (e < 0)
        return item;
    int32_t accepted, first;
    if (task.splits == 1) {
        accepted = tables.accepted[e], first = tables.first_row[e];
    } else {
        int64_t v = split_of(a / task.top_k, tokens, task.splits), at = v * task.experts + e;
        accepted = task.args.accepted[(int64_t)task.rank * task.splits * task.experts + at];
        first = task.args.first_row[at];
    }
    if (ordinal < accepted)
        item.pair = tables.pair[e], item.row = first + ordinal;
    return item;
}

/* What its token's others say, one after the other. */
static __device__ __noinline__ void meet_alone(const ragged_task &task, const wire_tables &tables, int32_t a,
                                               int64_t tokens, wire_item &item)
{
    int32_t t0 = a / task.top_k * task.top_k;
    auto pair_at = [&](int32_t i) {
        return kept_item(task, tables, i, fresh(task.args.expert + i), fresh(task.args.ordinal + i), tokens)
            .pair;
    };
    item.first = item.pair >= 0;
    for (int32_t i = t0; i < t0 + task.top_k; i++) {
        int32_t pair = pair_at(i);
        bool is_new = pair >= 0;
        for (int32_t j = t0; is_new && j < i; j++)
            is_new = pair_at(j) != pair;
        item.homes += is_new;
        item.home += is_new && pair < item.pair;
        item.entries += pair >= 0 && pair == item.pair;
        item.first = item.first && (pair != item.pair || i >= a);
    }
}

/* By votes of a warp. same: the lanes of the pair; pairs: how many there are. */
__device__ inline unsigned meet_mates(const wire_step &step, unsigned same, int32_t pairs, wire_item &item)
{
    unsigned mates = same & step.mates();
    item.first = item.pair >= 0 && (mates & ((1u << lane_id()) - 1)) == 0;
    item.entries = __popc(mates);
    unsigned firsts = __ballot_sync(ALL, item.first);
    int32_t base = step.token * step.top_k;
    if (pairs <= WARP && (step.top_k & (step.top_k - 1)) == 0) {
        /* A bit for each pair of the token. */
        unsigned bit = item.pair >= 0 ? 1u << item.pair : 0, all = bit;
#pragma unroll 1
        for (int32_t d = 1; d < step.top_k; d *= 2)
            all |= __shfl_xor_sync(ALL, all, d);
        item.home = __popc(all & (bit - 1));
    } else {
#pragma unroll 1
        for (int32_t k = 0; k < step.top_k; k++) {
            int32_t other = __shfl_sync(ALL, item.pair, base + k);
            item.home += (firsts >> (base + k) % WARP & 1) != 0 && other < item.pair;
        }
    }
    item.homes = __popc(firsts & step.mates());
    return firsts;
}

/* Numbers of an item within the warp's share: of its entry, and of its wire row. */
struct wire_numbers {
    uint32_t entry, wire;
};

/* One warp: what a step's assignments are, numbered; counters: entries of each pair, then wire rows. WHOLE:
 * steps are of whole tokens. */
template <bool WHOLE = false>
__device__ inline wire_item take_step(const ragged_task &task, const wire_tables &tables,
                                      const wire_step &step, const wire_choice &c, int64_t tokens,
                                      const ordinals &o, wire_numbers *numbers)
{
    wire_item item = kept_item(task, tables, c.a, c.e, c.ordinal, tokens);
    bool kept = item.pair >= 0;
    unsigned same = same_key(item.pair, kept, o.bits), firsts, below = (1u << lane_id()) - 1;
    if (!WHOLE && step.alone) {
        if (c.a >= 0)
            meet_alone(task, tables, c.a, tokens, item);
        firsts = __ballot_sync(ALL, item.first);
    } else {
        firsts = meet_mates(step, same, tables.pairs, item);
    }
    uint32_t entries = 0, wires = 0;
    if (kept) {
        entries = o.mine[item.pair];
        wires = o.mine[tables.pairs + item.pair];
    }
    __syncwarp();
    if (kept && lane_id() == __ffs(same) - 1) {
        o.mine[item.pair] = entries + __popc(same);
        o.mine[tables.pairs + item.pair] = wires + __popc(same & firsts);
    }
    __syncwarp();
    /* Firsts before and this one: the wire row is the last of them, the token's own. */
    numbers->entry = entries + __popc(same & below);
    numbers->wire = wires + __popc(same & firsts & (below | 1u << lane_id())) - 1;
    return item;
}

/* Return row and place of an assignment; a token's homes end with -1. */
__device__ inline void place_choice(const ragged_task &task, const wire_tables &tables, const wire_step &step,
                                    const wire_choice &c, const wire_item &item)
{
    if (c.a < 0)
        return;
    if (c.a - c.t * step.top_k >= item.homes)
        task.args.home[c.a] = -1;
    if (item.pair >= 0)
        task.args.send[item.row] = c.a;
    task.args.place[c.a] = item.pair >= 0 ? tables.wave_at[item.pair] + item.row : -1;
}

/* What is written of a kept assignment once all is counted; small, since a lane holds several. */
struct wire_result {
    int32_t pair;      /* -1: nothing; the top bit of a kept one's: it is not its token's first */
    int32_t place;     /* at the owner */
    uint32_t of_token; /* entries of the pair, and the number of its home */
    wire_numbers numbers;
    float weight;

    __device__ wire_result() {}
    __device__ wire_result(const ragged_task &task, const wire_tables &tables, const wire_choice &c,
                           const wire_item &item, const wire_numbers &of_item)
        : pair(item.pair), place(0), of_token((uint32_t)item.entries << 16 | (uint32_t)item.home),
          numbers(of_item), weight(c.weight)
    {
        if (pair >= 0) {
            place = tables.wave_at[pair] + item.row + tables.to_place[c.e];
            pair |= item.first ? 0 : NOT_FIRST;
        }
    }
    enum { NOT_FIRST = 1 << 30 };
};

/* entry, wire: numbers among all of the pair. */
__device__ inline void put_result(const ragged_task &task, const wire_tables &tables, const ordinals &o,
                                  const wire_step &step, const wire_choice &c, const wire_result &r,
                                  bool held)
{
    const epx_k_ragged_layout_t &args = task.args;
    if (r.pair < 0)
        return;
    int32_t q = r.pair & ~wire_result::NOT_FIRST, region = tables.region[q], base = tables.base[q];
    uint32_t entry = r.numbers.entry + o.before[q], wire = r.numbers.wire + o.before[tables.pairs + q];
    if (held)
        entry += o.mine[q], wire += o.mine[tables.pairs + q];
    int32_t row = region + (int32_t)wire;
    args.list_place[region + entry] = r.place;
    args.list_weight[region + entry] = r.weight;
    args.wire_row[c.a] = base + (int32_t)wire;
    if (r.pair & wire_result::NOT_FIRST)
        return;
    args.wire_token[row] = c.t;
    args.wire_first[row] = base + (int32_t)entry;
    args.wire_count[row] = (int32_t)(r.of_token >> 16);
    args.home[(int64_t)c.t * step.top_k + (r.of_token & 0xffff)] = tables.wave_at[q] + row;
}

/* All threads: the block's counts to the blocks behind it, and those before it to o.before; in the last block
 * o.all. */
__device__ inline void hand_on(const relay &r, ordinals &o)
{
    __syncthreads();
    add_up_block(o);
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x)
        r.put(k, o.total[k]); /* added up by this thread */
    __syncthreads();
    look_back(r, o.keys, o.before);
    __syncthreads();
    if (!r.is_last())
        return;
    for (int32_t k = (int32_t)threadIdx.x; k < o.keys; k += (int32_t)blockDim.x)
        o.all[k] = o.before[k] + o.total[k];
    if (threadIdx.x == 0)
        r.move_on();
    __syncthreads();
}

/* What the numbers of wire rows decide, by all threads of one block. */
__device__ inline void set_wire_runs(const ragged_task &task, const wire_tables &tables, const ordinals &o)
{
    const epx_k_ragged_layout_t &args = task.args;
    for (int32_t q = (int32_t)threadIdx.x; q < tables.pairs; q += (int32_t)blockDim.x) {
        int32_t d = q % task.ranks, wires = (int32_t)o.all[tables.pairs + q];
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
    for (int32_t q = (int32_t)threadIdx.x; q < tables.pairs; q += (int32_t)blockDim.x)
        tables.wave_at[q] = q / task.ranks * task.most;
}

__device__ inline void fill_tables(const ragged_task &task, const wire_tables &tables)
{
    const int32_t *accepted = task.args.accepted + (int64_t)task.rank * task.splits * task.experts;
    for (int32_t e = (int32_t)threadIdx.x; e < task.experts; e += (int32_t)blockDim.x) {
        tables.to_place[e] = task.before_me[e];
        tables.accepted[e] = accepted[e];
        tables.first_row[e] = task.args.first_row[e];
    }
    for (int32_t q = (int32_t)threadIdx.x; q < tables.pairs; q += (int32_t)blockDim.x) {
        tables.region[q] = (int32_t)task.args.home_start[q];
        tables.base[q] = (int32_t)task.args.base[q];
    }
    __syncthreads();
}

/*
 * All of a grid. ready(): behind it, all is decided. A share of at most HELD steps is looked at once: what
 * it is, is kept until all is counted. Both passes are one loop, since instructions are what takes longest.
 */
template <typename F>
__device__ inline void lay_wire(const ragged_task &task, const relay &r, const wire_tables &tables,
                                int64_t tokens, const F &ready)
{
    int32_t assignments = (int32_t)tokens * task.top_k;
    wire_step step(task.top_k);
    wire_share mine(r, step, assignments);
    bool held = mine.end - mine.first <= HELD;
    wire_choice choice[HELD];
    wire_result result[HELD];
#pragma unroll
    for (int j = 0; j < HELD; j++)
        choice[j] = choice_at(task, step, held && mine.first + j < mine.end ? mine.first + j : INT32_MAX,
                              assignments);
    begin_tables(task, tables);
    ready();
    fill_tables(task, tables);
    ordinals o(tables.counters, 2 * tables.pairs);
    clear_counters(o);
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            hand_on(r, o);
            if (r.is_last())
                set_wire_runs(task, tables, o);
        }
#pragma unroll 1
        for (int32_t i = mine.first; i < mine.end; i++) {
            int32_t j = held ? i - mine.first : 0;
            if (!held)
                choice[0] = choice_at(task, step, i, assignments);
            wire_choice c = choice[j];
            if (pass == 0 || !held) {
                wire_numbers numbers;
                wire_item item = take_step(task, tables, step, c, tokens, o, &numbers);
                result[j] = wire_result(task, tables, c, item, numbers);
                if (pass == 0)
                    place_choice(task, tables, step, c, item);
            }
            if (pass == 1)
                put_result(task, tables, o, step, c, result[j], held);
        }
    }
}

} // namespace epx

#endif
