/* Resident epochs, what post shares with lane. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_HOST_LANE_H
#define EPX_KERNELS_HOST_LANE_H

#include <epx/kernels_words.h>

/* The base of the epochs of a pass that begins. */
uint64_t epx_host_lane_base(const epx_lane_begin_of_t *of);

/* What EPX_LANE_END does. */
void epx_host_lane_end(epx_lane_words_t *words, const epx_plan_head_t *head, const uint64_t *acknowledged);

#endif
