/* What a kernel that decides a route says of it. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_HOST_VERDICT_H
#define EPX_KERNELS_HOST_VERDICT_H

#include <epx/kernels.h>

/* The notice of rank r, and its counts behind it. */
static inline const epx_route_notice_t *epx_notice_of(const void *notices, int64_t stride, int32_t r)
{
    return (const epx_route_notice_t *)(const void *)((const char *)notices + r * stride);
}

static inline const int32_t *epx_notice_counts(const epx_route_notice_t *notice)
{
    return (const int32_t *)(const void *)(notice + 1);
}

/* Whose route failed: `rank` itself where its own did, else the lowest; -1: nobody's. */
int32_t epx_notice_culprit(const void *notices, int64_t stride, int32_t rank, int32_t ranks);

/* The status that a rank's own bad notice stands for. */
epx_status_t epx_notice_status(const epx_route_notice_t *notice);

/* The route has failed: head and report say so. notice: the culprit's where it is known, or NULL. */
void epx_verdict_dead(const epx_k_verdict_t *verdict, epx_status_t status, int32_t culprit,
                      const epx_route_notice_t *notice);

/* The counts of the head are complete (as far as they go now): the report gets them, and `done`. */
void epx_verdict_done(const epx_k_verdict_t *verdict);

#endif
