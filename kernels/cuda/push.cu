/*
 * push: the entries of runs to the rows of peers. SPDX-License-Identifier: Apache-2.0
 *
 * One warp takes one row, or a piece of it where rows are few, with the parts that stand beside it: those of
 * a few bytes are one lane's. A push of small parts alone has one thread for each entry, and so have
 * checksums, which are serial.
 */
#include "kernels/cuda/checksum.cuh"
#include "kernels/cuda/segments.cuh"
#include "kernels/cuda/table.h"

namespace epx
{
namespace
{

enum { THREADS = 512, TILE = 1024, GRAIN = 1024 };
constexpr int64_t FEW_BYTES = 64;

__host__ __device__ inline bool is_wide(const epx_part_t &part)
{
    return part.kind == EPX_PART_COPY && part.bytes > FEW_BYTES;
}

/* Where one entry goes. */
struct entry {
    int64_t source, row;
    char *base;
};

__device__ inline entry entry_at(const epx_k_push_t &args, const epx_run_t *run, int32_t j)
{
    int64_t i = run->first + j;
    return {args.index != nullptr ? __ldg(args.index + i) : i, run->row + j,
            (char *)__ldg((const uint64_t *)args.dst + run->peer)};
}

__device__ inline char *part_to(const epx_part_t &part, const entry &at)
{
    return at.base + part.dst_offset + at.row * part.dst_stride;
}

__device__ inline const char *part_from(const epx_part_t &part, const entry &at)
{
    int64_t s = part.divide == 1 ? at.source : (int32_t)at.source / part.divide;
    return (const char *)part.src + s * part.src_stride;
}

__device__ inline void put_narrow(const epx_k_push_t &args, const epx_part_t &part, const entry &at)
{
    if (part.kind == EPX_PART_ORIGIN) {
        int32_t *to = (int32_t *)part_to(part, at), s = (int32_t)at.source;
        to[0] = args.rank, to[1] = s / args.columns, to[2] = s % args.columns;
    } else {
        copy_few(part_to(part, at), part_from(part, at), part.bytes);
    }
}

/* All wide parts are cut into the same number of pieces. */
template <bool ALIGNED>
__device__ inline void put_wide(const epx_part_t &part, const entry &at, int32_t piece, int32_t count)
{
    int32_t all = (int32_t)part.bytes, each = piece_bytes(all, count, GRAIN), from = piece * each,
            bytes = min(all - from, each);
    if (bytes > 0)
        copy_bytes<ALIGNED>(part_to(part, at) + from, part_from(part, at) + from, bytes);
}

template <bool ALIGNED>
__global__ void __launch_bounds__(THREADS, 2)
    push_rows(const __grid_constant__ epx_k_push_t args, int32_t widest)
{
    __shared__ segments<TILE> table;
    for (int32_t tile = 0; tile < args.run_count; tile += TILE) {
        const epx_run_t *runs = args.runs + tile;
        int32_t n = args.run_count - tile < TILE ? args.run_count - tile : TILE;
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t i) { return max(__ldg(&runs[i].rows), 0); });
        int32_t cut = cut_rows(total, widest, GRAIN);
        for (int32_t unit = warp_of_grid(); unit < total * cut; unit += warps_of_grid()) {
            int32_t r = unit / cut, piece = unit - r * cut;
            int32_t i = find_segment(table.before, n, r);
            entry at = entry_at(args, runs + i, r - table.before[i]);
            if (at.source < 0)
                continue;
            if (piece == 0 && lane_id() < args.parts && !is_wide(args.part[lane_id()]) &&
                args.part[lane_id()].kind != EPX_PART_CHECKSUM)
                put_narrow(args, args.part[lane_id()], at);
            for (int32_t p = 0; p < args.parts; p++)
                if (is_wide(args.part[p]))
                    put_wide<ALIGNED>(args.part[p], at, piece, cut);
        }
    }
}

__global__ void __launch_bounds__(THREADS)
    push_entries(const __grid_constant__ epx_k_push_t args, bool narrow, bool checksums)
{
    __shared__ segments<TILE> table;
    for (int32_t tile = 0; tile < args.run_count; tile += TILE) {
        const epx_run_t *runs = args.runs + tile;
        int32_t n = args.run_count - tile < TILE ? args.run_count - tile : TILE;
        if (tile > 0)
            __syncthreads();
        int32_t total = add_up<THREADS>(table, n, [&](int32_t i) { return max(__ldg(&runs[i].rows), 0); });
        for (int64_t r = blockIdx.x * THREADS + threadIdx.x; r < total; r += (int64_t)gridDim.x * THREADS) {
            int32_t i = find_segment_alone(table.before, n, (int32_t)r);
            entry at = entry_at(args, runs + i, (int32_t)r - table.before[i]);
            if (at.source < 0)
                continue;
            for (int32_t p = 0; p < args.parts; p++) {
                const epx_part_t &part = args.part[p];
                if (checksums && part.kind == EPX_PART_CHECKSUM)
                    *(uint32_t *)part_to(part, at) = row_checksum(part_from(part, at), part.bytes);
                else if (narrow && part.kind != EPX_PART_CHECKSUM)
                    put_narrow(args, part, at);
            }
        }
    }
}

launch_site aligned_site, rows_site, entries_site;

} // namespace
} // namespace epx

extern "C" epx_status_t epx_cuda_push(const epx_k_push_t *args, epx_stream_t stream)
{
    using namespace epx;
    int64_t bits = 0;
    int32_t widest = 0;
    bool narrow = false, checksums = false;
    for (int32_t p = 0; p < args->parts; p++) {
        const epx_part_t &part = args->part[p];
        if (is_wide(part)) {
            widest = part.bytes > widest ? (int32_t)part.bytes : widest;
            bits |= (int64_t)(uintptr_t)part.src | part.src_stride | part.dst_offset | part.dst_stride |
                    part.bytes;
        } else if (part.kind == EPX_PART_CHECKSUM) {
            checksums = true;
        } else {
            narrow = true;
        }
    }
    if (args->run_count <= 0)
        return EPX_OK;
    epx_status_t status = EPX_OK;
    if (widest > 0) {
        bool aligned = bits % 16 == 0;
        auto kernel = aligned ? push_rows<true> : push_rows<false>;
        shape1 shape = {persistent_blocks(aligned ? aligned_site : rows_site, kernel, THREADS, 0), THREADS, 0,
                        1};
        status = launch("push", shape, stream, kernel, *args, widest);
        narrow = false;
    }
    if (status == EPX_OK && (narrow || checksums)) {
        shape1 shape = {persistent_blocks(entries_site, push_entries, THREADS, 0), THREADS, 0, 1};
        status = launch("push", shape, stream, push_entries, *args, narrow, checksums);
    }
    return status;
}
