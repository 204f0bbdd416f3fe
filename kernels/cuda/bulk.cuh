/*
 * Rows through shared memory by bulk copies: one lane of a warp asks for whole pieces, the copy engine of the
 * multiprocessor moves them. SPDX-License-Identifier: Apache-2.0
 *
 * Each warp has slots of its own. A slot is loaded (its barrier's phase completes when the bytes are there),
 * stored or read, and loaded again. Invariants of one warp:
 * - slots are used in turn, item i in slot i mod SLOTS, for the (i / SLOTS)-th time;
 * - a slot is loaded again only when what it was stored to has been read out of it, or, where lanes read it,
 *   behind a __syncwarp() that follows their reads;
 * - nothing is in flight when the kernel ends.
 * Addresses and sizes are multiples of 16 bytes.
 */
#ifndef EPX_KERNELS_CUDA_BULK_CUH
#define EPX_KERNELS_CUDA_BULK_CUH

#include "kernels/cuda/segments.cuh"

namespace epx
{

__device__ inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* One thread arrives in every phase, with the bytes that the phase waits for. */
__device__ inline void phase_init(uint64_t *barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

/* What was initialised is known to the copy engine. */
__device__ inline void phases_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void phase_wait(uint64_t *barrier, uint32_t parity)
{
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

/* One thread: `bytes` bytes on their way to shared memory; they complete a phase of `barrier`. */
__device__ inline void bulk_load(char *to, const char *from, uint32_t bytes, uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

/* One thread: on their way to memory, this GPU's or a peer's; belongs to the thread's open group. */
__device__ inline void bulk_store(char *to, const char *from, uint32_t bytes)
{
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
}

/* Each lane, before the barrier that one lane's store of shared memory stands behind: what lanes wrote there
 * is what the copy engine reads. */
__device__ inline void lanes_wrote() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ inline void bulk_close_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* All of the thread's groups but the last N have been read out of shared memory. */
template <int N> __device__ inline void bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* All of the thread's groups are where they go. */
__device__ inline void bulk_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/* How a kernel of bulk copies is built: warps of a block, slots of a warp, bytes of a slot, loads that are
 * ahead of the stores. */
template <int OF_WARPS, int OF_SLOTS, int OF_BYTES, int OF_AHEAD> struct bulk_build {
    enum {
        WARPS = OF_WARPS,
        SLOTS = OF_SLOTS,
        BYTES = OF_BYTES,
        AHEAD = OF_AHEAD,
        THREADS = WARPS * WARP,
        SHARED = WARPS * SLOTS * BYTES
    };
    static_assert(AHEAD < SLOTS && BYTES % 128 == 0, "a slot is stored before it is loaded again");
};

/* Barriers of a block's slots, and what is known of each slot; beside the slots, which are dynamic. */
template <typename B, typename NOTE> struct bulk_shared {
    uint64_t phase[B::WARPS][B::SLOTS];
    NOTE note[B::WARPS][B::SLOTS];
};

/* One warp, all lanes: its slots with the barrier and the note of each, ready for the first load. */
template <typename B, typename NOTE>
__device__ inline void take_slots(char *dynamic, bulk_shared<B, NOTE> &shared, char *&slots, uint64_t *&phase,
                                  NOTE *&note)
{
    int warp = (int)(threadIdx.x / WARP);
    slots = dynamic + warp * B::SLOTS * B::BYTES;
    phase = shared.phase[warp];
    note = shared.note[warp];
    if (lane_id() == 0) {
        for (int s = 0; s < B::SLOTS; s++)
            phase_init(phase + s);
        phases_ready();
    }
    __syncwarp();
}

/* A position in the sequence of items. */
template <int SLOTS> struct bulk_cursor {
    int32_t item = 0, slot = 0;
    uint32_t parity = 0;

    __device__ void step()
    {
        item++;
        if (++slot == SLOTS)
            slot = 0, parity ^= 1;
    }
};

/* Bytes of each piece when rows of `bytes` bytes are cut into `count`. */
__device__ inline int32_t bulk_piece(int32_t bytes, int32_t count) { return piece_bytes(bytes, count, 128); }

/* Pieces of a row: as few as fit the slots, or more where rows are few. */
template <typename B> __device__ inline int32_t bulk_cut(int32_t rows, int32_t bytes)
{
    constexpr int32_t LEAST = 1024, ROUNDS = 4;
    int32_t least = (bytes - 1) / B::BYTES + 1, most = max(least, (bytes - 1) / LEAST + 1);
    int64_t wanted = (int64_t)ROUNDS * gridDim.x * B::WARPS;
    return (int64_t)rows * least >= wanted ? least
                                           : (int32_t)min((wanted - 1) / max(rows, 1) + 1, (int64_t)most);
}

/* Where a loaded piece goes. */
struct bulk_target {
    char *to;
    uint32_t bytes;
};

/* Pieces from one place to another; lane 0 alone does all of it. */
template <typename B> struct bulk_mover {
    typedef bulk_shared<B, bulk_target> shared;

    char *slots;
    uint64_t *phase;
    bulk_target *target;
    bulk_cursor<B::SLOTS> loaded, stored;

    __device__ bulk_mover(char *dynamic, shared &of) { take_slots<B>(dynamic, of, slots, phase, target); }
    __device__ void store_next()
    {
        phase_wait(phase + stored.slot, stored.parity);
        const bulk_target &t = target[stored.slot];
        bulk_store(t.to, slots + stored.slot * B::BYTES, t.bytes);
        bulk_close_group();
        stored.step();
    }
    __device__ void move(char *to, const char *from, uint32_t bytes)
    {
        /* Behind item i stand the stores of those after it that have been loaded AHEAD steps ago. */
        if (loaded.item >= B::SLOTS)
            bulk_wait_read<B::SLOTS - B::AHEAD - 1>();
        target[loaded.slot] = {to, bytes};
        bulk_load(slots + loaded.slot * B::BYTES, from, bytes, phase + loaded.slot);
        loaded.step();
        if (loaded.item - stored.item > B::AHEAD)
            store_next();
    }
    __device__ void finish()
    {
        while (stored.item < loaded.item)
            store_next();
        bulk_wait_all();
    }
};

/*
 * One warp: moves a piece for each lane that has one (bytes > 0), in the order of lanes. All lanes call it.
 */
template <typename B>
__device__ inline void move_pieces(bulk_mover<B> &mover, char *to, const char *from, int32_t bytes)
{
    unsigned mask = __ballot_sync(ALL, bytes > 0);
    while (mask != 0) {
        int x = __ffs(mask) - 1;
        mask &= mask - 1;
        char *t = (char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)to, x);
        const char *f = (const char *)__shfl_sync(ALL, (unsigned long long)(uintptr_t)from, x);
        int32_t b = __shfl_sync(ALL, bytes, x);
        if (lane_id() == 0)
            mover.move(t, f, (uint32_t)b);
    }
}

/* How rows are moved: more on its way does not help, and pieces of 2 KiB keep few multiprocessors from
 * filling their port. */
typedef bulk_build<8, 4, 4096, 2> move_build;

} // namespace epx

#endif
