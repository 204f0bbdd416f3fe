/*
 * What a kernel that decides a route says of it: see epx_k_verdict_t, and kernels/host/verdict.h, whose twins
 * these are. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_CUDA_VERDICT_CUH
#define EPX_KERNELS_CUDA_VERDICT_CUH

#include "kernels/cuda/accept.cuh"

namespace epx
{

__device__ inline const epx_route_notice_t *notice_of(const void *notices, int64_t stride, int32_t r)
{
    return (const epx_route_notice_t *)((const char *)notices + r * stride);
}

__device__ inline int64_t bad_at(const void *notices, int64_t stride, int32_t r)
{
    return fresh((const long long *)&notice_of(notices, stride, r)->bad_at);
}

/* All threads of a block: whose route failed, `rank` itself where its own did, else the lowest; -1: nobody's.
 */
__device__ inline int32_t notice_culprit(const void *notices, int64_t stride, int32_t rank, int32_t ranks,
                                         int64_t *room)
{
    int32_t lowest = INT32_MAX;
#pragma unroll 1
    for (int32_t r = (int32_t)threadIdx.x; r < ranks; r += (int32_t)blockDim.x)
        if (bad_at(notices, stride, r) != EPX_NOTICE_GOOD)
            lowest = min(lowest, r == rank ? -1 : r);
    lowest = __reduce_min_sync(ALL, lowest);
    __syncthreads();
    if (lane_id() == 0)
        room[threadIdx.x / WARP] = lowest;
    __syncthreads();
    lowest = lane_id() < (int)(blockDim.x / WARP) ? (int32_t)room[lane_id()] : INT32_MAX;
    lowest = __reduce_min_sync(ALL, lowest);
    return lowest == INT32_MAX ? -1 : lowest < 0 ? rank : lowest;
}

__device__ inline epx_status_t notice_status(const epx_route_notice_t *notice)
{
    return notice->bad_at == EPX_NOTICE_TOKENS ? EPX_ERR_ARG : EPX_ERR_ROUTING;
}

/* The host may look at any time: what it looks at first is written last. */
__device__ inline void publish(uint64_t *word, uint64_t value)
{
    __threadfence_system();
    *(volatile uint64_t *)word = value;
}

/* One thread. notice: the culprit's where it is known, or NULL. */
__device__ inline void verdict_dead(const epx_k_verdict_t &verdict, epx_status_t status, int32_t culprit,
                                    const epx_route_notice_t *notice)
{
    epx_route_report_t *report = verdict.report;
    verdict.head->valid = status;
    verdict.head->tokens = 0;
    if (report == nullptr)
        return;
    report->status = status;
    report->rank = culprit;
    report->bad_at = notice != nullptr ? notice->bad_at : 0;
    report->bad_id = notice != nullptr ? notice->bad_id : 0;
    publish(&report->dead, verdict.route);
}

/* One thread: the counts of the head are complete, as far as they go now. */
__device__ inline void verdict_done(const epx_k_verdict_t &verdict)
{
    const volatile epx_plan_head_t *head = verdict.head;
    epx_route_report_t *report = verdict.report;
    if (report == nullptr)
        return;
    report->routed = head->routed;
    report->skipped = head->skipped;
    report->kept = head->kept;
    report->spilled = head->spilled;
    report->dropped_sender = head->dropped_sender;
    report->dropped_receiver = head->dropped_receiver;
    publish(&report->done, verdict.route);
}

/* One thread: the verdict of a route that all ranks' notices decide. `tokens` of this rank. */
__device__ inline void verdict_by_notices(const epx_k_verdict_t &verdict, const void *notices, int64_t stride,
                                          int32_t rank, int32_t culprit)
{
    if (culprit < 0) {
        verdict.head->tokens = notice_of(notices, stride, rank)->tokens;
        verdict.head->valid = 1;
        return;
    }
    const epx_route_notice_t *notice = notice_of(notices, stride, culprit);
    verdict_dead(verdict, culprit == rank ? notice_status(notice) : EPX_ERR_PEER, culprit, notice);
}

} // namespace epx

#endif
