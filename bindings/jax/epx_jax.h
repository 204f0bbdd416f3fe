/*
 * What epx.jax calls of libepx_jax: the table of groups that handlers find by number, and the handlers.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A handler is told a number and learns from XLA on which device it runs; together they name a group's rank.
 * All calls of one rank come from one thread at a time, because every handler consumes a token that the one
 * before it made; the table is locked while it is searched and changed only.
 *
 * Operands and results (T tokens, K columns of ids, H width, R rows of a batch, L local experts; token:
 * s32[1], a value without meaning that orders the calls of a rank; plan: u8[epx_plan_bytes]):
 *
 *   epx_jax_route              ids s32|s64[T,K], weights f32[T,K], token
 *                              -> plan, token
 *   epx_jax_dispatch           plan, x[T,H], token
 *                              -> rows[R,H], start, count, plan, token
 *   epx_jax_dispatch_start     plan, x[T,H], token
 *                              -> token
 *   epx_jax_dispatch_done      as epx_jax_dispatch
 *   epx_jax_combine            plan, y[R,H], sum[T,H], token
 *                              -> sum[T,H], plan, token
 *   epx_jax_combine_start      plan, y[R,H], token
 *                              -> token
 *   epx_jax_combine_done       as epx_jax_combine
 *   epx_jax_combine_backward   plan, dout[T,H], y[R,H], token
 *                              -> dy[R,H], start, count, token
 *   epx_jax_dispatch_backward  plan, dx_rows[R,H], dx[T,H], dweight[T,K], token
 *                              -> dx[T,H], dweight[T,K], token
 *   epx_jax_counts             plan, token
 *                              -> counts, token
 *
 * start, count: int64 [L], given as s32[L,2] (low word first), since JAX may not know 64-bit types. counts:
 * int64 [6] likewise: routed, skipped, kept, spilled, dropped_sender, dropped_receiver. sum and dx are the
 * out type; operand and result share one buffer, so that what a wave adds meets what earlier waves have
 * added. So do the plan that a call takes and the one that it gives; its bytes are there behind the last
 * combine of a pass. Attributes, all s64: group, lane, wave.
 *
 * One handle for each (rank, lane) holds the plan that is at work. A route fills it; a backward pass loads it
 * from the plan that it is given (epx_plan_load_whole); calls in between must be given the plan that is at
 * work.
 */
#ifndef EPX_JAX_H
#define EPX_JAX_H

#include "bindings/jax/frame.h"

/*
 * Adds n ranks of one or several groups of equal shape: the rank that runs on device ordinals[i] (of this
 * process) uses groups[i]. Returns its number >= 0, or -1 with the library's kind of text in
 * epx_jax_table_error. The groups stay the caller's, and open until it is removed.
 */
int64_t epx_jax_table_add(int32_t n, const int32_t *ordinals, const epx_group_h *groups);

/* Forgets a number and destroys its plans. No handler may be running with it. */
void epx_jax_table_remove(int64_t number);

/* Text of the last failed epx_jax_table_add. */
const char *epx_jax_table_error(void);

XLA_FFI_Error *epx_jax_route(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_dispatch(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_dispatch_start(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_dispatch_done(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_combine(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_combine_start(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_combine_done(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_combine_backward(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_dispatch_backward(XLA_FFI_CallFrame *frame);
XLA_FFI_Error *epx_jax_counts(XLA_FFI_CallFrame *frame);

#endif
