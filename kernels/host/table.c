/* The host's kernels in one table. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/table.h"

const epx_kernels_t epx_kernels_host = {
    .read_ids = epx_host_read_ids,
    .push = epx_host_push,
    .gather = epx_host_gather,
    .scatter = epx_host_scatter,
    .combine = epx_host_combine,
    .reduce = epx_host_reduce,
    .take_dots = epx_host_take_dots,
    .scale_dot = epx_host_scale_dot,
    .poison = epx_host_poison,
    .find_poison = epx_host_find_poison,
    .checksum = epx_host_checksum,
    .verify = epx_host_verify,
    .pooled_gate1 = epx_host_pooled_gate1,
    .pooled_gate2 = epx_host_pooled_gate2,
    .pooled_extra = epx_host_pooled_extra,
    .pooled_pack = epx_host_pooled_pack,
    .ragged_layout = epx_host_ragged_layout,
    .ragged_return = epx_host_ragged_return,
    .ring_layout = epx_host_ring_layout,
    .ring_block = epx_host_ring_block,
    .word_post = epx_host_word_post,
    .word_wait = epx_host_word_wait,
    .word_exchange = epx_host_word_exchange,
    .word_abort = epx_host_word_abort,
};
