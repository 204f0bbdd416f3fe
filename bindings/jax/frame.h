/*
 * One call from XLA, taken apart. SPDX-License-Identifier: Apache-2.0
 *
 * XLA hands a handler its operands, results and attributes in a call frame (xla/ffi/api/c_api.h, as jaxlib
 * ships it). Nothing here knows what they mean.
 */
#ifndef EPX_JAX_FRAME_H
#define EPX_JAX_FRAME_H

#include <epx/epx.h>
#include <xla/ffi/api/c_api.h>

/* An answer of a handler: NULL is success. */
typedef XLA_FFI_Error epx_jax_error_t;

/* Answers XLA's question about the handler itself; returns whether the frame was one. */
int epx_jax_frame_asks_metadata(XLA_FFI_CallFrame *frame);

/* An error with a text; `status` becomes XLA's nearest code. */
epx_jax_error_t *epx_jax_frame_error(const XLA_FFI_CallFrame *frame, epx_status_t status, const char *format,
                                     ...) __attribute__((format(printf, 3, 4)));

/* The library's last error of this thread, for a status that is one; NULL for EPX_OK. */
epx_jax_error_t *epx_jax_frame_status(const XLA_FFI_CallFrame *frame, epx_status_t status);

/* Operand or result `index`; NULL where there are fewer. Owned by the frame. */
const XLA_FFI_Buffer *epx_jax_frame_operand(const XLA_FFI_CallFrame *frame, int64_t index);
const XLA_FFI_Buffer *epx_jax_frame_result(const XLA_FFI_CallFrame *frame, int64_t index);

/* An attribute that is a 64-bit integer; `missing` where the frame has none of the name. */
int64_t epx_jax_frame_attribute(const XLA_FFI_CallFrame *frame, const char *name, int64_t missing);

/* Number of the device that the call runs on, among this process's; -1 where XLA does not tell. */
int32_t epx_jax_frame_device(const XLA_FFI_CallFrame *frame);

/* The stream of a call on a GPU. */
epx_jax_error_t *epx_jax_frame_stream(const XLA_FFI_CallFrame *frame, epx_stream_t *stream_p);

/* Elements of a buffer. */
int64_t epx_jax_buffer_elements(const XLA_FFI_Buffer *buffer);

#endif
