/* The GPU's kernels in one table. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/table.h"

const epx_kernels_t epx_kernels_cuda = {
    .read_ids = epx_cuda_read_ids,
    .push = epx_cuda_push,
    .gather = epx_cuda_gather,
    .scatter = epx_cuda_scatter,
    .combine = epx_cuda_combine,
    .reduce = epx_cuda_reduce,
    .take_dots = epx_cuda_take_dots,
    .scale_dot = epx_cuda_scale_dot,
    .poison = epx_cuda_poison,
    .find_poison = epx_cuda_find_poison,
    .checksum = epx_cuda_checksum,
    .verify = epx_cuda_verify,
    .pooled_gate1 = epx_cuda_pooled_gate1,
    .pooled_gate2 = epx_cuda_pooled_gate2,
    .pooled_extra = epx_cuda_pooled_extra,
    .pooled_pack = epx_cuda_pooled_pack,
    .ragged_layout = epx_cuda_ragged_layout,
    .ragged_return = epx_cuda_ragged_return,
    .ring_layout = epx_cuda_ring_layout,
    .ring_block = epx_cuda_ring_block,
    .word_post = epx_cuda_word_post,
    .word_wait = epx_cuda_word_wait,
    .word_exchange = epx_cuda_word_exchange,
    .word_abort = epx_cuda_word_abort,
};
