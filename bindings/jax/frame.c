/* One call from XLA, taken apart. SPDX-License-Identifier: Apache-2.0 */
#include "bindings/jax/frame.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int epx_jax_frame_asks_metadata(XLA_FFI_CallFrame *frame)
{
    /* The base has another name in each version of the header. */
    XLA_FFI_Metadata_Extension *extension = (void *)frame->extension_start;
    if (extension == NULL || extension->extension_base.type != XLA_FFI_Extension_Metadata)
        return 0;
    XLA_FFI_Metadata *metadata = extension->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    metadata->traits = 0;
    return 1;
}

static XLA_FFI_Error_Code code_of(epx_status_t status)
{
    switch (status) {
    case EPX_ERR_ARG:
    case EPX_ERR_ROUTING:
    case EPX_ERR_MISMATCH: return XLA_FFI_Error_Code_INVALID_ARGUMENT;
    case EPX_ERR_UNSUPPORTED: return XLA_FFI_Error_Code_UNIMPLEMENTED;
    case EPX_ERR_NO_MEMORY: return XLA_FFI_Error_Code_RESOURCE_EXHAUSTED;
    case EPX_ERR_TIMEOUT: return XLA_FFI_Error_Code_DEADLINE_EXCEEDED;
    case EPX_ERR_PEER:
    case EPX_ERR_ABORTED: return XLA_FFI_Error_Code_ABORTED;
    case EPX_ERR_CORRUPT: return XLA_FFI_Error_Code_DATA_LOSS;
    case EPX_OK:
    case EPX_ERR_FABRIC:
    case EPX_ERR_FATAL: break;
    }
    return XLA_FFI_Error_Code_INTERNAL;
}

static epx_jax_error_t *create(const XLA_FFI_CallFrame *frame, epx_status_t status, const char *text)
{
    XLA_FFI_Error_Create_Args args = {
        .struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE, .message = text, .errc = code_of(status)};
    return frame->api->XLA_FFI_Error_Create(&args);
}

epx_jax_error_t *epx_jax_frame_error(const XLA_FFI_CallFrame *frame, epx_status_t status, const char *format,
                                     ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return create(frame, status, text);
}

epx_jax_error_t *epx_jax_frame_status(const XLA_FFI_CallFrame *frame, epx_status_t status)
{
    char text[640];
    if (status == EPX_OK)
        return NULL;
    snprintf(text, sizeof(text), "%s: %.560s", epx_status_name(status), epx_last_error());
    return create(frame, status, text);
}

const XLA_FFI_Buffer *epx_jax_frame_operand(const XLA_FFI_CallFrame *frame, int64_t index)
{
    if (index < 0 || index >= frame->args.size || frame->args.types[index] != XLA_FFI_ArgType_BUFFER)
        return NULL;
    return frame->args.args[index];
}

const XLA_FFI_Buffer *epx_jax_frame_result(const XLA_FFI_CallFrame *frame, int64_t index)
{
    if (index < 0 || index >= frame->rets.size || frame->rets.types[index] != XLA_FFI_RetType_BUFFER)
        return NULL;
    return frame->rets.rets[index];
}

static int is_named(const XLA_FFI_ByteSpan *span, const char *name)
{
    return span->len == strlen(name) && memcmp(span->ptr, name, span->len) == 0;
}

int64_t epx_jax_frame_attribute(const XLA_FFI_CallFrame *frame, const char *name, int64_t missing)
{
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        const XLA_FFI_Scalar *scalar = frame->attrs.attrs[i];
        if (frame->attrs.types[i] == XLA_FFI_AttrType_SCALAR && scalar->dtype == XLA_FFI_DataType_S64 &&
            is_named(frame->attrs.names[i], name))
            return *(const int64_t *)scalar->value;
    }
    return missing;
}

/* The error of one of XLA's own functions, which is ours to destroy. */
static void drop(const XLA_FFI_CallFrame *frame, XLA_FFI_Error *error)
{
    XLA_FFI_Error_Destroy_Args args = {.struct_size = XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, .error = error};
    if (error != NULL)
        frame->api->XLA_FFI_Error_Destroy(&args);
}

int32_t epx_jax_frame_device(const XLA_FFI_CallFrame *frame)
{
    XLA_FFI_DeviceOrdinal_Get_Args args = {
        .struct_size = XLA_FFI_DeviceOrdinal_Get_Args_STRUCT_SIZE, .ctx = frame->ctx, .device_ordinal = -1};
    XLA_FFI_Error *error = frame->api->XLA_FFI_DeviceOrdinal_Get(&args);
    drop(frame, error);
    return error == NULL ? args.device_ordinal : -1;
}

epx_jax_error_t *epx_jax_frame_stream(const XLA_FFI_CallFrame *frame, epx_stream_t *stream_p)
{
    XLA_FFI_Stream_Get_Args args = {.struct_size = XLA_FFI_Stream_Get_Args_STRUCT_SIZE, .ctx = frame->ctx};
    XLA_FFI_Error *error = frame->api->XLA_FFI_Stream_Get(&args);
    *stream_p = args.stream;
    return error;
}

int64_t epx_jax_buffer_elements(const XLA_FFI_Buffer *buffer)
{
    int64_t elements = 1;
    for (int64_t i = 0; i < buffer->rank; i++)
        elements *= buffer->dims[i];
    return elements;
}
