/* pooled_pack: what one wave takes along, in one launch of one cluster. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/pooled.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

/* Assignments into the list of home rows, which is empty. */
__device__ inline void fill_list(const epx_k_pooled_pack_t &args, const pooled_layout &layout,
                                 const team &our)
{
    int32_t n = (int32_t)pooled_tokens(args.tokens, args.tokens_device) * layout.columns;
#pragma unroll 4
    for (int32_t a = our.thread(); a < n; a += our.threads()) {
        int32_t place = args.place[a];
        int64_t h = place - args.lo;
        if (place >= 0 && h >= 0 && h < layout.home_rows && (args.kept == nullptr || args.kept[h] != 0))
            args.list[h] = a;
    }
}

/* The slab that home row h is in. */
__device__ inline int32_t slab_of(const pooled_layout &layout, int32_t h)
{
    return find_segment_alone(layout.base, layout.ranks, h);
}

__device__ inline unsigned char *header_to(const epx_k_pooled_pack_t &args, const pooled_layout &layout,
                                           int32_t d)
{
    int64_t row = args.header_row >= 0 ? args.header_row : d;
    return (unsigned char *)args.dst[d] + args.headers_offset + row * layout.header_bytes;
}

__device__ inline void write_tags(const epx_k_pooled_pack_t &args, const pooled_layout &layout,
                                  const team &our)
{
    int64_t tags = EPX_POOLED_HEADER_VALID + (int64_t)layout.splits * (int64_t)sizeof(int64_t);
    for (int32_t h = our.thread(); h < layout.home_rows; h += our.threads()) {
        int32_t d = slab_of(layout, h), a = args.list[h], q = h - layout.base[d];
        uint32_t tag = a < 0 ? 0 : (uint32_t)layout.local[args.expert[a]] + 1;
        unsigned char *to = header_to(args, layout, d) + tags;
        if (layout.tag_bytes == 2)
            ((uint16_t *)to)[q] = (uint16_t)tag;
        else
            ((uint32_t *)to)[q] = tag;
    }
    for (int32_t i = our.thread(); i < layout.ranks * layout.splits; i += our.threads()) {
        int32_t d = i / layout.splits, v = i - d * layout.splits;
        unsigned char *header = header_to(args, layout, d);
        if (v == 0) {
            ((int32_t *)header)[0] = args.status != nullptr && *args.status < 0 ? *args.status : EPX_OK;
            ((uint32_t *)header)[1] = args.stamp;
        }
        ((int64_t *)(header + EPX_POOLED_HEADER_VALID))[v] = args.valid[v];
    }
}

__global__ void __launch_bounds__(ROUTE_THREADS, 1)
    pooled_pack(const __grid_constant__ epx_k_pooled_pack_t args,
                const __grid_constant__ pooled_layout layout)
{
    team our;
    behind_previous();
    let_next_begin(args.units);
    for (int32_t h = our.thread(); h < layout.home_rows; h += our.threads())
        args.list[h] = -1;
    our.sync();
    fill_list(args, layout, our);
    if (args.dst == nullptr && args.start == nullptr)
        return;
    our.sync();
    if (args.dst != nullptr)
        write_tags(args, layout, our);
    if (args.start != nullptr)
        for (int32_t h = our.thread(); h < layout.home_rows; h += our.threads()) {
            args.start[h] = h;
            args.count[h] = args.list[h] >= 0;
        }
}

launch_site site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_pooled_pack(const epx_k_pooled_pack_t *args, epx_stream_t stream)
{
    using namespace epx;
    const pooled_layout &layout = *args->layout;
    int64_t items = args->tokens_device != nullptr ? layout.assignments_max * layout.splits
                                                   : args->tokens * layout.columns;
    int limit = cluster_limit(site, pooled_pack);
    if (args->units > 0 && args->units < limit)
        limit = args->units;
    int blocks = cluster_for(limit, items > layout.home_rows ? items : layout.home_rows);
    return launch("pooled_pack", {blocks, ROUTE_THREADS, 0, blocks, true}, stream, pooled_pack, *args,
                  layout);
}
