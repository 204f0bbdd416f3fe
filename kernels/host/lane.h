/* Resident epochs, what post shares with lane. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_HOST_LANE_H
#define EPX_KERNELS_HOST_LANE_H

#include <epx/kernels_words.h>

/* The base of the epochs of a pass that begins. */
uint64_t epx_host_lane_base(const epx_lane_begin_of_t *of);

#endif
