/*
 * The CUDA kernels: every function here is the GPU's version of the entry of the same name in epx_kernels_t,
 * bit-equal to kernels/host; see include/epx/kernels.h. Each has a file of its own, with its launch. Calls
 * return when the launch is in the stream. SPDX-License-Identifier: Apache-2.0
 *
 * NaN: where arithmetic yields a NaN its bits may differ from the host's, which keeps payloads; that it is
 * one does not. Scratch arguments are scratch: what is left in them differs.
 */
#ifndef EPX_KERNELS_CUDA_TABLE_H
#define EPX_KERNELS_CUDA_TABLE_H

#include <epx/kernels.h>

#ifdef __cplusplus
extern "C" {
#endif

extern const epx_kernels_t epx_kernels_cuda;

/* put of the device: device.h. */
epx_status_t epx_cuda_put(void *to, const void *from, size_t bytes, epx_stream_t stream);

epx_status_t epx_cuda_read_ids(const epx_k_read_ids_t *args, epx_stream_t stream);
epx_status_t epx_cuda_push(const epx_k_push_t *args, epx_stream_t stream);
epx_status_t epx_cuda_gather(const epx_k_gather_t *args, epx_stream_t stream);
epx_status_t epx_cuda_scatter(const epx_k_scatter_t *args, epx_stream_t stream);
epx_status_t epx_cuda_combine(const epx_k_combine_t *args, epx_stream_t stream);
epx_status_t epx_cuda_combine_sums(const epx_k_combine_t *args, epx_stream_t stream);
int epx_cuda_sums_soon(int64_t tokens, int32_t width, epx_type_t row_type);
epx_status_t epx_cuda_reduce(const epx_k_reduce_t *args, epx_stream_t stream);
epx_status_t epx_cuda_take_dots(const epx_k_take_dots_t *args, epx_stream_t stream);
epx_status_t epx_cuda_scale_dot(const epx_k_scale_dot_t *args, epx_stream_t stream);
epx_status_t epx_cuda_poison(const epx_k_poison_t *args, epx_stream_t stream);
epx_status_t epx_cuda_find_poison(const epx_k_find_poison_t *args, epx_stream_t stream);
epx_status_t epx_cuda_checksum(const epx_k_checksum_t *args, epx_stream_t stream);
epx_status_t epx_cuda_verify(const epx_k_verify_t *args, epx_stream_t stream);
epx_status_t epx_cuda_pooled_gate1(const struct epx_k_pooled_gate1 *args, epx_stream_t stream);
epx_status_t epx_cuda_pooled_gate2(const struct epx_k_pooled_gate2 *args, epx_stream_t stream);
epx_status_t epx_cuda_pooled_extra(const struct epx_k_pooled_extra *args, epx_stream_t stream);
epx_status_t epx_cuda_pooled_pack(const struct epx_k_pooled_pack *args, epx_stream_t stream);
epx_status_t epx_cuda_ragged_layout(const struct epx_k_ragged_layout *args, epx_stream_t stream);
epx_status_t epx_cuda_ragged_return(const struct epx_k_ragged_return *args, epx_stream_t stream);
epx_status_t epx_cuda_ragged_flow(const struct epx_k_ragged_flow *args, epx_stream_t stream);
epx_status_t epx_cuda_ragged_home(const struct epx_k_ragged_home *args, epx_stream_t stream);
extern const epx_flow_limits_t epx_cuda_flow_limits;
epx_status_t epx_cuda_ring_layout(const struct epx_k_ring_layout *args, epx_stream_t stream);
epx_status_t epx_cuda_ring_block(const struct epx_k_ring_block *args, epx_stream_t stream);
epx_status_t epx_cuda_word_post(const struct epx_k_word_post *args, epx_stream_t stream);
epx_status_t epx_cuda_word_wait(const struct epx_k_word_wait *args, epx_stream_t stream);
epx_status_t epx_cuda_word_exchange(const struct epx_k_word_exchange *args, epx_stream_t stream);
epx_status_t epx_cuda_word_abort(const struct epx_k_word_abort *args, epx_stream_t stream);
epx_status_t epx_cuda_stamp(const struct epx_k_stamp *args, epx_stream_t stream);
epx_status_t epx_cuda_spin(const struct epx_k_spin *args, epx_stream_t stream);
epx_status_t epx_cuda_lane(const struct epx_k_lane *args, epx_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
