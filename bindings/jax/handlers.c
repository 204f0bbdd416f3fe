/* The custom calls of epx.jax. What each takes and gives is in epx_jax.h. SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <string.h>

#include "bindings/jax/epx_jax.h"
#include "bindings/jax/table.h"

/* Bytes behind a plan in the array that carries it: the number of its route. */
#define TRAILER_BYTES 64

/* What every handler begins with. */
typedef struct call {
    XLA_FFI_CallFrame *frame;
    const char *name;
    epx_jax_rank_t *rank;
    epx_jax_lane_t *lane;
    int32_t wave;
    epx_stream_t stream;
} call_t;

static epx_jax_error_t *begin(call_t *call, XLA_FFI_CallFrame *frame, const char *name)
{
    int64_t group = epx_jax_frame_attribute(frame, "group", -1);
    int64_t lane = epx_jax_frame_attribute(frame, "lane", 0);
    int32_t ordinal = epx_jax_frame_device(frame);
    *call =
        (call_t){.frame = frame, .name = name, .wave = (int32_t)epx_jax_frame_attribute(frame, "wave", 0)};
    call->rank = epx_jax_table_find(group, ordinal);
    if (call->rank == NULL)
        return epx_jax_frame_error(frame, EPX_ERR_ARG,
                                   "%s: no group %" PRId64
                                   " has a rank on device %d; open it with epx.jax.Group "
                                   "over the devices that the program runs on, and keep it open",
                                   name, group, ordinal);
    if (lane < 0 || lane >= call->rank->lanes)
        return epx_jax_frame_error(frame, EPX_ERR_ARG, "%s: lane is %" PRId64 "; the group has lanes 0 to %d",
                                   name, lane, call->rank->lanes - 1);
    call->lane = &call->rank->lane[lane];
    return call->rank->on_host ? NULL : epx_jax_frame_stream(frame, &call->stream);
}

/* ---- buffers ---------------------------------------------------------------------------------------------------- */

/* A buffer that must have so many elements. */
static epx_jax_error_t *need(const call_t *call, const XLA_FFI_Buffer *buffer, const char *what,
                             int64_t elements, void **data_p)
{
    if (buffer == NULL)
        return epx_jax_frame_error(call->frame, EPX_ERR_ARG, "%s: %s is missing", call->name, what);
    if (epx_jax_buffer_elements(buffer) != elements)
        return epx_jax_frame_error(call->frame, EPX_ERR_ARG,
                                   "%s: %s has %" PRId64 " elements; it must have %" PRId64, call->name, what,
                                   epx_jax_buffer_elements(buffer), elements);
    *data_p = buffer->data;
    return NULL;
}

static epx_jax_error_t *operand(const call_t *call, int64_t index, const char *what, int64_t elements,
                                void **data_p)
{
    return need(call, epx_jax_frame_operand(call->frame, index), what, elements, data_p);
}

static epx_jax_error_t *result(const call_t *call, int64_t index, const char *what, int64_t elements,
                               void **data_p)
{
    return need(call, epx_jax_frame_result(call->frame, index), what, elements, data_p);
}

static int64_t plan_elements(const call_t *call) { return call->rank->plan_bytes + TRAILER_BYTES; }
static int64_t row_elements(const call_t *call) { return call->rank->rows * call->rank->width; }

/* Rows of tokens: how many is the caller's. */
static epx_jax_error_t *token_rows(const call_t *call, int64_t index, const char *what, void **data_p)
{
    const XLA_FFI_Buffer *buffer = epx_jax_frame_operand(call->frame, index);
    int64_t tokens = buffer != NULL && buffer->rank == 2 ? buffer->dims[0] : 0;
    return need(call, buffer, what, tokens * call->rank->width, data_p);
}

/* ---- plans in arrays -------------------------------------------------------------------------------------------- */

/*
 * The array of a plan goes through all calls of its pass, one buffer under the names of operand and result.
 * Its bytes are written once, behind the last combine: until then the plan at work is the only one, and what
 * a pass teaches (pooled_wave) is not known. On the host the number of its route stands behind the bytes from
 * the start.
 */
static epx_jax_error_t *number_plan(const call_t *call, int64_t index)
{
    void *array = NULL;
    epx_jax_error_t *error = result(call, index, "plan", plan_elements(call), &array);
    if (error == NULL && call->rank->on_host)
        memcpy((char *)array + call->rank->plan_bytes, &call->lane->number, sizeof(call->lane->number));
    return error;
}

static int64_t number_of(const call_t *call, const void *array)
{
    int64_t number;
    memcpy(&number, (const char *)array + call->rank->plan_bytes, sizeof(number));
    return number;
}

/* The plan given must be the one at work. Where the host cannot look, the tokens' order has to do. */
static epx_jax_error_t *same_plan(const call_t *call)
{
    void *array = NULL;
    epx_jax_error_t *error = operand(call, 0, "plan", plan_elements(call), &array);
    if (error != NULL || !call->rank->on_host || number_of(call, array) == call->lane->number)
        return error;
    return epx_jax_frame_error(call->frame, EPX_ERR_ARG,
                               "%s: the plan is not the one at work on its lane (route %" PRId64
                               ", at work %" PRId64
                               "); give every call the token of the one before, or use another lane",
                               call->name, number_of(call, array), call->lane->number);
}

/* An operand that a result shares its buffer with. */
static epx_jax_error_t *shared(const call_t *call, int64_t index, int64_t to, const char *what, void **data_p)
{
    const XLA_FFI_Buffer *in = epx_jax_frame_operand(call->frame, index);
    const XLA_FFI_Buffer *out = epx_jax_frame_result(call->frame, to);
    if (in == NULL || out == NULL || epx_jax_buffer_elements(in) != epx_jax_buffer_elements(out))
        return epx_jax_frame_error(call->frame, EPX_ERR_ARG, "%s: %s must be operand and result of one shape",
                                   call->name, what);
    if (in->data != out->data)
        return epx_jax_frame_error(call->frame, EPX_ERR_FATAL,
                                   "%s: XLA gave %s two buffers; it must alias them", call->name, what);
    *data_p = out->data;
    return NULL;
}

/* The plan given is handed on; the last combine writes its bytes. */
static epx_jax_error_t *hand_on_plan(const call_t *call, int64_t to, int is_whole)
{
    void *array = NULL;
    epx_jax_error_t *error = shared(call, 0, to, "plan", &array);
    if (error != NULL || !is_whole)
        return error;
    return epx_jax_frame_status(call->frame, epx_plan_save(call->lane->plan, array, call->stream));
}

/* The plan given, of a pass with so many tokens, becomes the one at work. */
static epx_jax_error_t *load_plan(const call_t *call, int64_t tokens)
{
    void *array = NULL;
    epx_jax_error_t *error = operand(call, 0, "plan", plan_elements(call), &array);
    if (error != NULL)
        return error;
    if (call->rank->on_host)
        call->lane->number = number_of(call, array);
    return epx_jax_frame_status(call->frame,
                                epx_plan_load_whole(call->lane->plan, array, tokens, call->stream));
}

/* ---- handlers --------------------------------------------------------------------------------------------------- */

/* `body` between the frame's questions and the answer. */
#define HANDLER(name)                                               \
    static epx_jax_error_t *name##_body(call_t *call);              \
    XLA_FFI_Error *epx_jax_##name(XLA_FFI_CallFrame *frame)         \
    {                                                               \
        call_t call;                                                \
        if (epx_jax_frame_asks_metadata(frame))                     \
            return NULL;                                            \
        epx_jax_error_t *error = begin(&call, frame, "epx " #name); \
        return error != NULL ? error : name##_body(&call);          \
    }                                                               \
    static epx_jax_error_t *name##_body(call_t *call)

HANDLER(route)
{
    const XLA_FFI_Buffer *ids = epx_jax_frame_operand(call->frame, 0);
    const XLA_FFI_Buffer *weights = epx_jax_frame_operand(call->frame, 1);
    if (ids == NULL || weights == NULL || ids->rank != 2 || weights->rank != 2 ||
        ids->dims[0] != weights->dims[0] || ids->dims[1] != weights->dims[1])
        return epx_jax_frame_error(call->frame, EPX_ERR_ARG,
                                   "epx route: ids and weights must both have shape [tokens, top_k]");
    if (weights->dtype != XLA_FFI_DataType_F32 ||
        (ids->dtype != XLA_FFI_DataType_S32 && ids->dtype != XLA_FFI_DataType_S64))
        return epx_jax_frame_error(call->frame, EPX_ERR_ARG,
                                   "epx route: ids must be int32 or int64, weights float32");
    epx_routing_t routing = EPX_ROUTING_INIT;
    routing.tokens = ids->dims[0];
    routing.ids = ids->data;
    routing.id_type = ids->dtype == XLA_FFI_DataType_S32 ? EPX_INT32 : EPX_INT64;
    routing.weights = weights->data;
    if (ids->dims[1] < call->rank->columns)
        return epx_jax_frame_error(call->frame, EPX_ERR_ARG,
                                   "epx route: ids have %" PRId64 " columns; the group's top_k is %d",
                                   ids->dims[1], call->rank->columns);
    epx_status_t status = epx_plan_route(call->lane->plan, &routing, call->stream);
    if (status != EPX_OK)
        return epx_jax_frame_status(call->frame, status);
    call->lane->number = ++call->rank->routes;
    return number_plan(call, 0);
}

/* Results 0 to 2 of a call that gives a batch. */
static epx_jax_error_t *begin_batch(const call_t *call, epx_batch_t *batch)
{
    void *start = NULL, *count = NULL;
    epx_jax_error_t *error = result(call, 0, "rows", row_elements(call), &batch->into_rows);
    if (error == NULL)
        error = result(call, 1, "start", 2 * (int64_t)call->rank->local_experts, &start);
    if (error == NULL)
        error = result(call, 2, "count", 2 * (int64_t)call->rank->local_experts, &count);
    batch->into_start = start;
    batch->into_count = count;
    return error;
}

/* The answer of a call of a forward pass, whose result `to` is the plan. */
static epx_jax_error_t *end_with_plan(const call_t *call, epx_status_t status, int64_t to, int is_combine)
{
    int is_whole = is_combine && call->wave == call->rank->waves - 1;
    return status != EPX_OK ? epx_jax_frame_status(call->frame, status) : hand_on_plan(call, to, is_whole);
}

HANDLER(dispatch)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    void *x = NULL;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = token_rows(call, 1, "x", &x);
    if (error == NULL)
        error = begin_batch(call, &batch);
    if (error != NULL)
        return error;
    return end_with_plan(call, epx_dispatch(call->lane->plan, call->wave, x, &batch, call->stream), 3, 0);
}

HANDLER(dispatch_start)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    void *x = NULL;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = token_rows(call, 1, "x", &x);
    if (error != NULL)
        return error;
    return epx_jax_frame_status(call->frame,
                                epx_dispatch_start(call->lane->plan, call->wave, x, &batch, call->stream));
}

HANDLER(dispatch_done)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = begin_batch(call, &batch);
    if (error != NULL)
        return error;
    return end_with_plan(call, epx_dispatch_finish(call->lane->plan, call->wave, &batch, call->stream), 3, 0);
}

HANDLER(combine_start)
{
    void *y = NULL;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = operand(call, 1, "y", row_elements(call), &y);
    if (error != NULL)
        return error;
    return epx_jax_frame_status(call->frame,
                                epx_combine_start(call->lane->plan, call->wave, y, call->stream));
}

HANDLER(combine_done)
{
    void *sum = NULL;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = shared(call, 2, 0, "sum", &sum);
    if (error != NULL)
        return error;
    return end_with_plan(call, epx_combine_finish(call->lane->plan, call->wave, sum, call->stream), 1, 1);
}

HANDLER(combine)
{
    void *y = NULL, *sum = NULL;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = operand(call, 1, "y", row_elements(call), &y);
    if (error == NULL)
        error = shared(call, 2, 0, "sum", &sum);
    if (error != NULL)
        return error;
    return end_with_plan(call, epx_combine(call->lane->plan, call->wave, y, sum, call->stream), 1, 1);
}

HANDLER(combine_backward)
{
    epx_batch_t batch = EPX_BATCH_INIT;
    void *dout = NULL, *y = NULL;
    epx_jax_error_t *error = token_rows(call, 1, "dout", &dout);
    /* The first wave of a backward pass brings its plan along; the others go on with it. */
    if (error == NULL)
        error = call->wave == 0 ? load_plan(call, epx_jax_frame_operand(call->frame, 1)->dims[0])
                                : same_plan(call);
    if (error == NULL)
        error = operand(call, 2, "y", row_elements(call), &y);
    if (error == NULL)
        error = begin_batch(call, &batch);
    if (error != NULL)
        return error;
    epx_status_t status = epx_combine_backward(call->lane->plan, call->wave, dout, y, &batch, call->stream);
    return epx_jax_frame_status(call->frame, status);
}

HANDLER(dispatch_backward)
{
    void *rows = NULL, *dx = NULL, *dweight = NULL;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = operand(call, 1, "dx_rows", row_elements(call), &rows);
    if (error == NULL)
        error = shared(call, 2, 0, "dx", &dx);
    if (error == NULL)
        error = shared(call, 3, 1, "dweight", &dweight);
    if (error != NULL)
        return error;
    epx_status_t status =
        epx_dispatch_backward(call->lane->plan, call->wave, rows, dx, dweight, call->stream);
    return epx_jax_frame_status(call->frame, status);
}

HANDLER(counts)
{
    void *counts = NULL;
    epx_jax_error_t *error = same_plan(call);
    if (error == NULL)
        error = result(call, 0, "counts", 2 * EPX_PLAN_COUNTS, &counts);
    if (error != NULL)
        return error;
    return epx_jax_frame_status(call->frame, epx_plan_counts(call->lane->plan, counts, call->stream));
}
