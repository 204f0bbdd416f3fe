/*
 * ragged_home: a combine whose last sums are made while the rest travels; H1 to H5 are in
 * include/epx/kernels_ragged.h. SPDX-License-Identifier: Apache-2.0
 *
 * Some blocks send, as many as fill a link, and the others add up tokens. They do not share a multiprocessor:
 * stores to a peer fill the port of theirs while the link is full, and what else is read there stands behind
 * them. Nothing is drawn: a warp's pieces are fixed by its number, so all that one needs is looked up while
 * those before it are dealt with, and nobody waits for more than the warps whose pieces he uses.
 */
#include "kernels/cuda/home.cuh"
#include "kernels/cuda/progress.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

/* Of SHARES blocks SENDERS send. */
enum { SENDERS = 10, SHARES = 33, LOOK_NS = 100, NAP_NS = 300, LINGER_NS = 100000 };

/* A clock of 31 bits: differences up to two seconds. */
__device__ inline uint32_t short_ns() { return (uint32_t)(now_ns() & 0x7fffffff); }

/* One warp that sends. */
template <typename B, typename T, int N> struct home_sender {
    const home_facts &facts;
    const epx_k_ragged_home_t &args;
    send_adder<B, T, N> &adder;
    term_list list;
    home_deal of;
    int32_t run_first = 0, run_row = 0; /* of the run to the rank of this lane */

    __device__ home_sender(const home_facts &f, send_adder<B, T, N> &with, home_deal which)
        : facts(f), args(f.args),
          adder(with), list{f.args.list, f.args.weights, (const char *)f.args.y, f.args.row_bytes}, of(which)
    {
        if (lane_id() < args.ranks)
            run_first = (int32_t)fresh(&args.runs[lane_id()].first),
            run_row = (int32_t)fresh(&args.runs[lane_id()].row);
    }
    /* Lanes at once: piece x of this warp. */
    __device__ reduced_piece find(int32_t x, int32_t pieces) const
    {
        int32_t others = args.ranks - 1, m = others == 1 ? x : x / others,
                rank = facts.peer(others == 1 ? 0 : x - m * others);
        int32_t unit = of.unit(m), row = unit / facts.cut;
        int32_t rows = __shfl_sync(ALL, facts.sends, rank);
        int64_t j = (int64_t)__shfl_sync(ALL, run_first, rank) + row,
                at = (int64_t)__shfl_sync(ALL, run_row, rank) + row;
        char *to = (char *)facts.base_of(rank);
        reduced_piece piece = {};
        piece.from = (unit - row * facts.cut) * facts.each;
        piece.bytes = min((int32_t)args.row_bytes - piece.from, facts.each);
        if (x < pieces && row < rows && piece.bytes > 0) {
            piece.out = to + args.returns + at * args.row_bytes + piece.from;
            piece.begin = fresh(args.first + j), piece.count = fresh(args.count + j);
        }
        return piece;
    }
    /* All terms of one; number: of the piece behind it. */
    __device__ void add(const reduced_piece &piece, listed_terms t, int32_t number)
    {
        if (piece.count <= 0) {
            adder.drain();
            adder.clear(piece.out, piece.bytes);
            adder.say(number);
            return;
        }
        for (int32_t k = 0; k < piece.count; k++) {
            if (k % WARP == 0 && k > 0)
                t = listed_terms(list, piece, k);
            int64_t row = __shfl_sync(ALL, t.row, k % WARP);
            float weight = __shfl_sync(ALL, t.weight, k % WARP);
            if (k + 1 == piece.count && lane_id() == 0)
                adder.ring[adder.given % HOME_RING] = number;
            adder.load(list.rows + row * list.stride + piece.from, weight, piece.bytes,
                       k + 1 == piece.count ? piece.out : nullptr);
        }
        adder.given++;
    }
    __device__ void go()
    {
        int32_t pieces = facts.pieces(of);
        for (int32_t first = 0; first < pieces; first += WARP) {
            reduced_piece piece = find(first + lane_id(), pieces);
            unsigned mask = __ballot_sync(ALL, piece.out != nullptr);
            if (mask == 0)
                continue;
            int32_t x = __ffs(mask) - 1;
            reduced_piece next = piece.of_lane(x);
            listed_terms t(list, next, 0);
            while (mask != 0) {
                reduced_piece now = next;
                listed_terms of_now = t;
                int32_t number = first + __ffs(mask);
                mask &= mask - 1;
                if (mask != 0) {
                    next = piece.of_lane(__ffs(mask) - 1);
                    t = listed_terms(list, next, 0); /* on their way while these are dealt with */
                }
                add(now, of_now, number);
            }
        }
        adder.drain();
        adder.say(pieces); /* those at the end that are not there */
    }
};

/* One warp tells all ranks what the senders of its block have done: one fence for all of them. H2. */
struct home_teller {
    const home_facts &facts;
    const epx_k_ragged_home_t &args;
    home_shared &shared;
    int32_t team;
    home_deal of; /* of the sender of this lane */

    __device__ void go()
    {
        int32_t pieces = facts.pieces(of), most = lane_id() < team ? pieces : 0, told = 0;
        while (__any_sync(ALL, told < most)) {
            int32_t now = told < most ? atomicOr_block(&shared.progress[lane_id()], 0) : told;
            if (!__any_sync(ALL, now > told)) {
                __nanosleep(LOOK_NS);
                continue;
            }
            fence_system();
            int32_t rounds = now / (args.ranks - 1), before = told / (args.ranks - 1);
            for (int32_t q = 0; q < args.ranks; q++) {
                uint64_t *words = (uint64_t *)(facts.base_of(q) + args.words);
                if (rounds == before)
                    continue;
                for (int32_t j = 0; j < of.own; j++)
                    store_word(words + (int64_t)args.rank * EPX_HOME_STREAMS + of.warp + j * of.warps,
                               facts.word(of.rounds(rounds, j)));
            }
            __syncwarp();
            told = now;
        }
    }
};

/* One warp that adds up tokens. */
template <typename B, typename T, int N> struct home_user {
    const home_facts &facts;
    const epx_k_ragged_home_t &args;
    home_adder<B, T, N> &adder;
    term_list own;
    home_deal of;
    int32_t units, known_at = -1, known = 0;
    int32_t rounds =
        (int32_t)((__reduce_max_sync(ALL, (unsigned)facts.sends) * facts.cut + args.streams - 1) /
                  args.streams); /* that this rank sends */

    __device__ home_user(const home_facts &f, home_adder<B, T, N> &with, home_deal which)
        : facts(f), args(f.args),
          adder(with), own{f.args.own_list + f.shift, f.args.own_weights + f.shift, nullptr, 0}, of(which),
          units(f.tokens * f.cut)
    {
    }
    /* ---- what is looked up ahead, in three steps: return rows, where the own list is, what is in it ---- */
    __device__ int32_t find_row(int32_t m, int32_t end) const
    {
        int32_t unit = m < end ? of.unit(m) : units, row = -1;
        if (unit < units && lane_id() < args.columns)
            row = fresh(args.home + (int64_t)(unit / facts.cut) * args.columns + lane_id());
        return row;
    }
    __device__ bool is_mine(int32_t row) const
    {
        return row >= facts.own_start && row < facts.own_start + facts.own_rows;
    }
    struct own_list {
        int32_t begin, count;
    };
    __device__ own_list find_list(int32_t row) const
    {
        own_list at = {0, 0};
        if (is_mine(row))
            at = {(int32_t)fresh(args.own_first + row), (int32_t)fresh(args.own_count + row)};
        return at;
    }
    __device__ own_list list_of(int32_t row, own_list at) const
    {
        unsigned mine = __ballot_sync(ALL, is_mine(row));
        int x = mine != 0 ? __ffs(mine) - 1 : 0;
        return {__shfl_sync(ALL, at.begin, x), __shfl_sync(ALL, at.count, x)};
    }
    __device__ listed_terms terms_of(own_list at) const
    {
        return listed_terms(own, reduced_piece{nullptr, at.begin, at.count, 0, 0}, 0);
    }
    /* ---- H3 ---- */
    __device__ bool has_come(int32_t row, int32_t from)
    {
        if (args.here)
            return true;
        unsigned which = __ballot_sync(ALL, row >= facts.start && row < facts.start + facts.comes);
        int32_t rank = __ffs(which) - 1,
                unit = (row - __shfl_sync(ALL, facts.start, rank)) * facts.cut + from / facts.each,
                round = unit / args.streams, stream = unit - round * args.streams,
                at = rank * EPX_HOME_STREAMS + stream;
        if (at == known_at && known > round)
            return true;
        const uint64_t *words = (const uint64_t *)(facts.base_of(args.rank) + args.words), *word = words + at,
                       *mine = words + (int64_t)args.rank * EPX_HOME_STREAMS + stream;
        known_at = at;
        for (uint32_t left_at = 0;;) {
            uint64_t seen = 0;
            uint32_t now = 0;
            if (lane_id() == 0) {
                if (adder.is_idle()) /* H5 */
                    now = facts.rounds_of(*(const volatile uint64_t *)mine) >= rounds ? short_ns() | 1 : 0;
                seen = load_acquire(word);
            }
            known = facts.rounds_of(__shfl_sync(ALL, seen, 0));
            if (known > round) {
                if (lane_id() == 0)
                    to_bulk_copies();
                return true;
            }
            if (!adder.is_idle()) {
                adder.use_next(); /* meanwhile */
                continue;
            }
            now = __shfl_sync(ALL, now, 0);
            if (left_at == 0)
                left_at = now;
            if (now != 0 && ((now - left_at) & 0x7fffffff) > (uint32_t)LINGER_NS)
                return false;
            __nanosleep(NAP_NS);
        }
    }
    /* Whether a unit was added, or left out. rows: its return rows, one on each lane. H4. */
    __device__ bool add(int32_t unit, int32_t rows, own_list at, listed_terms t)
    {
        int32_t token = unit / facts.cut, from = (unit - token * facts.cut) * facts.each,
                bytes = min((int32_t)args.row_bytes - from, facts.each);
        if (unit >= units || bytes <= 0)
            return true;
        char *out = (char *)args.out + (int64_t)token * args.row_bytes + from;
        unsigned mine = __ballot_sync(ALL, is_mine(rows)), left = __ballot_sync(ALL, rows >= 0) & ~mine,
                 lower = mine != 0 ? left & (mine - 1) : 0;
        if (left == 0 && at.count <= 0) {
            adder.clear(out, bytes);
            return true;
        }
        for (int32_t k = 0; k < at.count; k++) {
            if (k % WARP == 0 && k > 0)
                t = listed_terms(own, reduced_piece{nullptr, at.begin, at.count, 0, 0}, k);
            bool end = k + 1 == at.count;
            int64_t row = __shfl_sync(ALL, t.row, k % WARP);
            adder.load((const char *)args.y + row * args.row_bytes + from,
                       __shfl_sync(ALL, t.weight, k % WARP), bytes, end ? WHOLE | (lower == 0 ? NEXT : 0) : 0,
                       end && left == 0 ? out : nullptr);
        }
        while (left != 0) {
            int k = __ffs(left) - 1;
            int32_t row = __shfl_sync(ALL, rows, k);
            bool last_lower = at.count > 0 && lower != 0 && (lower & (lower - 1)) == 0;
            if (!has_come(row, from))
                return false;
            left &= left - 1, lower &= lower - 1;
            adder.load(facts.base_of(args.rank) + args.returns + row * args.row_bytes + from, 1.0f, bytes,
                       last_lower ? NEXT : 0, left == 0 ? out : nullptr);
        }
        return true;
    }
    /* Pieces `first` .. of this warp; how many there are up to the first that is left out. */
    __device__ int32_t go(int32_t first)
    {
        int32_t end = of.count(units), m = first;
        int32_t row = find_row(m, end), row1 = find_row(m + 1, end), row2 = find_row(m + 2, end);
        own_list at = list_of(row, find_list(row)), at1 = find_list(row1);
        listed_terms t = terms_of(at);
        for (; m < end; m++) {
            int32_t rows = row;
            own_list of_now = at;
            listed_terms t_now = t;
            at = list_of(row1, at1), t = terms_of(at);
            at1 = find_list(row2);
            row = row1, row1 = row2, row2 = find_row(m + 3, end);
            if (!add(of.unit(m), rows, of_now, t_now))
                break;
        }
        adder.drain();
        bulk_wait_all();
        return m;
    }
    /* H5. What the start has used. */
    __device__ int32_t used() const
    {
        int32_t m = 0;
        for (int32_t j = 0; j < of.own; j++)
            m += fresh(args.used + of.warp + j * of.warps);
        return m;
    }
    __device__ void note_used(int32_t m) const
    {
        for (int32_t j = lane_id(); j < of.own; j += WARP)
            args.used[of.warp + j * of.warps] = of.rounds(m, j);
    }
};

/* Blocks that send are spread evenly: this one is the number-th of them, or of the others. */
struct home_role {
    bool sends;
    int32_t number, blocks;

    __device__ home_role(int32_t senders)
    {
        int32_t b = (int32_t)blockIdx.x, n = (int32_t)gridDim.x, before = b * senders / n;
        sends = (b + 1) * senders / n > before;
        number = sends ? before : b - before;
        blocks = sends ? senders : n - senders;
    }
};

template <typename BS, typename T, int N>
__device__ inline void send_all(const home_facts &facts, const home_role &role, char *dynamic,
                                bulk_shared<BS, reduce_note> &phases, home_shared &shared)
{
    int32_t warp = (int32_t)(threadIdx.x / WARP);
    home_deal of(role.number * BS::WARPS + (warp < BS::WARPS ? warp : lane_id() % BS::WARPS),
                 role.blocks * BS::WARPS, facts.args.streams);
    if (warp == BS::WARPS) {
        home_teller teller{facts, facts.args, shared, BS::WARPS, of};
        teller.go();
    } else {
        send_adder<BS, T, N> adder(dynamic, phases, shared);
        home_sender<BS, T, N> sender(facts, adder, of);
        sender.go();
    }
}

template <typename BU, typename T, int N>
__device__ inline void use_all(const home_facts &facts, const home_role &role, char *dynamic,
                               bulk_shared<BU, reduce_note> &phases)
{
    home_adder<BU, T, N> adder(dynamic, phases);
    home_deal of(role.number * BU::WARPS + (int32_t)(threadIdx.x / WARP), role.blocks * BU::WARPS,
                 facts.args.user_streams);
    home_user<BU, T, N> user(facts, adder, of);
    user.note_used(user.go(facts.args.here ? user.used() : 0));
}

/* BS: of a block that sends, which has one warp more; BU: of one that adds up. */
template <typename BS, typename BU, typename T, int N>
__global__ void __launch_bounds__(BU::THREADS, 1)
    home_rows(const __grid_constant__ epx_k_ragged_home_t args, int32_t senders)
{
    static_assert((int)BS::WARPS + 1 == (int)BU::WARPS, "blocks are alike");
    extern __shared__ __align__(128) char dynamic[];
    __shared__ union {
        bulk_shared<BS, reduce_note> s;
        bulk_shared<BU, reduce_note> u;
    } phases;
    __shared__ home_shared shared;
    if (threadIdx.x < HOME_TEAM)
        shared.progress[threadIdx.x] = 0;
    __syncthreads();
    behind_previous();
    let_next_begin();
    say_begun(args.call);
    home_role role(senders);
    if ((args.gate != nullptr && *(const volatile int32_t *)args.gate != 1) || (args.here && role.sends))
        return;
    uint64_t epoch =
        args.call.lane != nullptr ? lane_base(args.call.lane, args.call.head, args.call.generation) : 0;
    home_facts facts(args, epoch + args.call.add);
    if (role.sends)
        send_all<BS, T, N>(facts, role, dynamic, phases.s, shared);
    else
        use_all<BU, T, N>(facts, role, dynamic, phases.u);
}

typedef direct_build<11, 5, EPX_HOME_PIECE> home_send_build;
typedef sum_build<12, 4, EPX_HOME_PIECE> home_use_build;

template <typename T, int N> launch_site home_site;

template <typename T, int N> epx_status_t launch_home(const epx_k_ragged_home_t *args, epx_stream_t stream)
{
    typedef home_send_build BS;
    typedef home_use_build BU;
    constexpr int SHARED = (int)BS::SHARED > (int)BU::SHARED ? (int)BS::SHARED : (int)BU::SHARED;
    int blocks = persistent_blocks(home_site<T, N>, home_rows<BS, BU, T, N>, BU::THREADS, SHARED, 0);
    int32_t senders = blocks > SHARES ? blocks * SENDERS / SHARES : 1;
    blocks = blocks > 1 ? blocks : 2; /* one of each kind */
    return launch("combine", {blocks, BU::THREADS, SHARED, 1, true}, stream, home_rows<BS, BU, T, N>, *args,
                  senders);
}

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_ragged_home(const epx_k_ragged_home_t *args, epx_stream_t stream)
{
    using namespace epx;
    return by_type(args->row_type, true, [&](auto type, auto n) {
        typedef decltype(type) T;
        constexpr int N = decltype(n)::value;
        if constexpr (N > 1)
            return launch_home<T, N>(args, stream);
        else
            return (epx_status_t)EPX_ERR_ARG; /* rows are aligned */
    });
}
