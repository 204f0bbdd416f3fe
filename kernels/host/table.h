/*
 * The host kernels. Every function here is the host's version of the entry of the same name in epx_kernels_t;
 * see include/epx/kernels.h. The stream is ignored, all calls are synchronous and return EPX_OK.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_KERNELS_HOST_TABLE_H
#define EPX_KERNELS_HOST_TABLE_H

#include <epx/kernels.h>

extern const epx_kernels_t epx_kernels_host;

epx_status_t epx_host_read_ids(const epx_k_read_ids_t *args, epx_stream_t stream);
epx_status_t epx_host_push(const epx_k_push_t *args, epx_stream_t stream);
epx_status_t epx_host_gather(const epx_k_gather_t *args, epx_stream_t stream);
epx_status_t epx_host_scatter(const epx_k_scatter_t *args, epx_stream_t stream);
epx_status_t epx_host_combine(const epx_k_combine_t *args, epx_stream_t stream);
int epx_host_sums_soon(int64_t tokens, int32_t width, epx_type_t row_type);
epx_status_t epx_host_reduce(const epx_k_reduce_t *args, epx_stream_t stream);
epx_status_t epx_host_take_dots(const epx_k_take_dots_t *args, epx_stream_t stream);
epx_status_t epx_host_scale_dot(const epx_k_scale_dot_t *args, epx_stream_t stream);
epx_status_t epx_host_poison(const epx_k_poison_t *args, epx_stream_t stream);
epx_status_t epx_host_find_poison(const epx_k_find_poison_t *args, epx_stream_t stream);
epx_status_t epx_host_checksum(const epx_k_checksum_t *args, epx_stream_t stream);
epx_status_t epx_host_verify(const epx_k_verify_t *args, epx_stream_t stream);

/* Written beside their transports: kernels/host/pooled_wave_*.c, ragged_*.c, ring_*.c. */
epx_status_t epx_host_pooled_gate1(const struct epx_k_pooled_gate1 *args, epx_stream_t stream);
epx_status_t epx_host_pooled_gate2(const struct epx_k_pooled_gate2 *args, epx_stream_t stream);
epx_status_t epx_host_pooled_extra(const struct epx_k_pooled_extra *args, epx_stream_t stream);
epx_status_t epx_host_pooled_pack(const struct epx_k_pooled_pack *args, epx_stream_t stream);
epx_status_t epx_host_ragged_layout(const struct epx_k_ragged_layout *args, epx_stream_t stream);
epx_status_t epx_host_ragged_return(const struct epx_k_ragged_return *args, epx_stream_t stream);
epx_status_t epx_host_ragged_flow(const struct epx_k_ragged_flow *args, epx_stream_t stream);
epx_status_t epx_host_ragged_home(const struct epx_k_ragged_home *args, epx_stream_t stream);
extern const epx_flow_limits_t epx_host_flow_limits;
epx_status_t epx_host_ring_layout(const struct epx_k_ring_layout *args, epx_stream_t stream);
epx_status_t epx_host_ring_block(const struct epx_k_ring_block *args, epx_stream_t stream);
epx_status_t epx_host_word_post(const struct epx_k_word_post *args, epx_stream_t stream);
epx_status_t epx_host_word_wait(const struct epx_k_word_wait *args, epx_stream_t stream);
epx_status_t epx_host_word_exchange(const struct epx_k_word_exchange *args, epx_stream_t stream);
epx_status_t epx_host_word_abort(const struct epx_k_word_abort *args, epx_stream_t stream);
epx_status_t epx_host_stamp(const struct epx_k_stamp *args, epx_stream_t stream);
epx_status_t epx_host_spin(const struct epx_k_spin *args, epx_stream_t stream);
epx_status_t epx_host_lane(const struct epx_k_lane *args, epx_stream_t stream);

#endif
