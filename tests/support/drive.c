/* Buffers, groups and batches of drive.h. SPDX-License-Identifier: Apache-2.0 */
#include "support/drive.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 64

void (*calls_hook)(int begins);

void calls(rank_t *self, const char *call, int number)
{
    self->at = call;
    self->number = number;
    if (calls_hook)
        calls_hook(1);
}

/* The address is a multiple of align and, so that more is never taken for granted, not of twice that. */
void buffer_new(buffer_t *b, size_t bytes, size_t align)
{
    b->bytes = bytes;
    b->whole = (bytes + 2 * GUARD + align + 511) / 256 * 256;
    b->base = on_host() ? aligned_alloc(256, b->whole) : both_new(b->whole);
    cr_assert_not_null(b->base);
    poison(b->base, bytes + 2 * GUARD + align);
    b->data = b->base + GUARD + align;
}

void buffer_free(buffer_t *b, rank_t *self, const char *what)
{
    if (!b->base)
        return;
    drained();
    int before = is_poison(b->data - GUARD, GUARD), behind = is_poison(b->data + b->bytes, GUARD);
    expect(self, before && behind, "%s: bytes %s the buffer were written", what,
           before ? "behind" : "before");
    both_free(b->base);
    *b = (buffer_t){0};
}

/* ---- what the library hands out ---------------------------------------------------------------------------- */

/* A thread's copies of a batch. */
static _Thread_local struct {
    void *memory[5];
} seen;

static const void *look_at(int which, const void *device, size_t bytes)
{
    free(seen.memory[which]);
    seen.memory[which] = NULL;
    if (device == NULL)
        return NULL;
    seen.memory[which] = malloc(bytes + 1);
    cr_assert_not_null(seen.memory[which]);
    fetch(seen.memory[which], device, bytes);
    return seen.memory[which];
}

static void forget_batch(void)
{
    for (int i = 0; i < 5; i++)
        look_at(i, NULL, 0);
}

/* Rows that there are to look at: indexed, up to the last that the index names. */
static size_t rows_held(const epx_batch_t *here, size_t rows_max)
{
    size_t rows = 0;
    if (here->row_index == NULL)
        return rows_max;
    /* Counts may be wrong: check_counts says so. */
    for (int32_t e = 0; e < here->local_experts; e++)
        for (int64_t g = here->expert_start[e], i = 0;
             i < here->expert_count[e] && g >= 0 && g < (int64_t)rows_max; g++, i++)
            if (here->row_index[g] >= (int32_t)rows && here->row_index[g] < (int32_t)rows_max)
                rows = (size_t)here->row_index[g] + 1;
    return rows;
}

epx_batch_t batch_here(const session_t *session, const epx_batch_t *batch)
{
    const problem_t *p = session->p;
    epx_batch_t here = *batch;
    size_t rows = (size_t)session->info.batch_rows_max, experts = (size_t)session->info.local_experts;
    if (on_host())
        return here;
    drained();
    here.row_index = look_at(1, batch->row_index, rows * sizeof(int32_t));
    here.origin = look_at(2, batch->origin, rows * sizeof(epx_origin_t));
    here.row_aux = look_at(3, batch->row_aux, rows * (size_t)p->aux_bytes);
    look_at(4, NULL, 0);
    int64_t *counts = seen.memory[4] = calloc(2 * experts + 1, sizeof(*counts));
    cr_assert_not_null(counts);
    fetch(counts, batch->expert_start, experts * sizeof(*counts));
    fetch(counts + experts, batch->expert_count, experts * sizeof(*counts));
    here.expert_start = counts;
    here.expert_count = counts + experts;
    here.rows_max = (int64_t)rows_held(&here, rows);
    here.rows = (void *)(size_t)look_at(0, batch->rows, (size_t)here.rows_max * problem_row_bytes(p));
    return here;
}

int session_open(session_t *session, rank_t *self, const problem_t *p, const epx_group_config_t *config)
{
    epx_group_config_t own = problem_config(p);
    *session = (session_t){.self = self, .p = p, .info = EPX_GROUP_INFO_INIT};
    calls(self, "epx_group_open", 0);
    epx_status_t status = epx_group_open(self->comm, config ? config : &own, &session->group);
    if (calls_hook)
        calls_hook(0);
    if (!expect_status(self, "epx_group_open", status, EPX_OK))
        return 0;
    return expect_status(self, "epx_group_info", epx_group_info(session->group, &session->info), EPX_OK);
}

void session_close(session_t *session)
{
    session->self->at = "epx_group_close";
    drained();
    forget_batch();
    epx_group_close(&session->group);
    expect(session->self, session->group == NULL, "epx_group_close left the handle");
}

void session_problem(session_t *session, const problem_t *p) { session->p = p; }

epx_routing_t session_routing(const session_t *session, buffer_t *ids, buffer_t *weights)
{
    const problem_t *p = session->p;
    int rank = session->self->rank;
    size_t cells = (size_t)p->tokens[rank] * (size_t)p->columns;
    epx_routing_t routing = EPX_ROUTING_INIT;
    buffer_new(ids, cells * type_size(p->id_type), type_size(p->id_type));
    buffer_new(weights, cells * sizeof(float), sizeof(float));
    for (size_t i = 0; i < cells; i++) {
        int64_t wide = p->ids[rank][i];
        int32_t narrow = (int32_t)wide;
        memcpy(ids->data + i * type_size(p->id_type),
               p->id_type == EPX_INT64 ? (void *)&wide : (void *)&narrow, type_size(p->id_type));
    }
    memcpy(weights->data, p->weights[rank], cells * sizeof(float));
    routing.tokens = p->tokens[rank];
    routing.ids = ids->data;
    routing.id_type = p->id_type;
    routing.weights = (const float *)(void *)weights->data;
    return routing;
}

epx_status_t session_route(session_t *session, epx_plan_h plan)
{
    buffer_t ids, weights;
    epx_routing_t routing = session_routing(session, &ids, &weights);
    calls(session->self, "epx_plan_route", 0);
    epx_status_t status = epx_plan_route(plan, &routing, rank_stream());
    if (calls_hook)
        calls_hook(0);
    /* The host reads them before it returns, a device in stream order. */
    drained();
    poison(ids.data, ids.bytes);
    poison(weights.data, weights.bytes);
    buffer_free(&ids, session->self, "ids");
    buffer_free(&weights, session->self, "weights");
    return status;
}

void wave_new(wave_buffers_t *wave, const session_t *session)
{
    const problem_t *p = session->p;
    size_t row = problem_row_bytes(p), rows = (size_t)session->info.batch_rows_max;
    size_t experts = (size_t)session->info.local_experts;
    buffer_new(&wave->rows, rows * row, problem_alignment(p, p->row_type));
    buffer_new(&wave->y, rows * row, problem_alignment(p, p->row_type));
    buffer_new(&wave->start, experts * sizeof(int64_t), sizeof(int64_t));
    buffer_new(&wave->count, experts * sizeof(int64_t), sizeof(int64_t));
}

void wave_free(wave_buffers_t *wave, rank_t *self)
{
    buffer_free(&wave->rows, self, "into_rows");
    buffer_free(&wave->y, self, "y");
    buffer_free(&wave->start, self, "into_start");
    buffer_free(&wave->count, self, "into_count");
}

epx_batch_t wave_batch(const pass_t *pass, const wave_buffers_t *wave)
{
    const problem_t *p = pass->session->p;
    epx_batch_t batch = EPX_BATCH_INIT;
    if (pass->into || p->in_caller) {
        batch.into_rows = wave->rows.data;
        batch.into_start = (int64_t *)(void *)wave->start.data;
        batch.into_count = (int64_t *)(void *)wave->count.data;
    }
    if (p->aux_bytes && !pass->no_aux)
        batch.aux = p->aux[pass->session->self->rank];
    return batch;
}
