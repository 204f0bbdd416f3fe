/* What the parts of ragged's layout share. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_CUDA_RAGGED_TASK_CUH
#define EPX_KERNELS_CUDA_RAGGED_TASK_CUH

#include <epx/kernels_ragged.h>

#include "kernels/cuda/stable.cuh"
#include "kernels/cuda/verdict.cuh"

namespace epx
{

static __device__ __noinline__ int64_t round_up(int64_t rows, int32_t align)
{
    return (rows + align - 1) / align * align;
}

/* The arguments, with what the host's structs hold. */
struct ragged_task {
    epx_k_ragged_layout_t args;
    epx_owners_t real, virt;
    epx_ragged_order_t order;
    rule accept;
    int32_t rank, ranks, splits, top_k, experts;
    int32_t most; /* T_max * K */
    int32_t align;
    /* [E] each, behind the scratch that the host's kernel uses */
    int64_t *wanted;            /* by place in the virtual owners' list; later sums of this rank's walk */
    int32_t *total, *before_me; /* accepted of an expert by all, and by the senders before this rank */

    /* Of this rank, in a route that is good. */
    __device__ int64_t tokens() const
    {
        return fresh((const long long *)&notice_of(args.notices, args.notice_stride, rank)->tokens);
    }
    __device__ count_table counts(bool alive) const
    {
        return {(const char *)args.notices + sizeof(epx_route_notice_t), args.notice_stride, splits, experts,
                alive};
    }
    __device__ int32_t pair(int32_t e) const { return order.wave[e] * ranks + real.owner[e]; }
    __device__ int64_t aligned(int64_t rows) const { return align == 1 ? rows : round_up(rows, align); }
    /* What sender s has accepted at expert e, over its virtual ranks. */
    __device__ int32_t accepted_of(int32_t s, int32_t e) const
    {
        int32_t rows = 0;
#pragma unroll 1
        for (int32_t v = s * splits; v < (s + 1) * splits; v++)
            rows += args.accepted[(int64_t)v * experts + e];
        return rows;
    }
    /* Number of entry i among this rank's own experts in the order of a pass; i is one of wave c. */
    __device__ int32_t slot(int32_t c, int32_t i) const
    {
        int32_t n = i - order.first[c * ranks + rank];
#pragma unroll 1
        for (int32_t w = 0; w < c; w++)
            n += order.first[w * ranks + rank + 1] - order.first[w * ranks + rank];
        return n;
    }
};

} // namespace epx

#endif
