/* pooled_wave: both gates, or extra_wave's schedule. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "bench/common/drops_job.h"
#include "bench/common/parallel.h"
#include "tools/common/program.h"

static int32_t owned(const epx_drops_run_t *run, int32_t d)
{
    return run->owners.first[d + 1] - run->owners.first[d];
}

/* ---- tags --------------------------------------------------------------------------------------------------------- */

static int64_t tags_of(const epx_drops_job_t *job, int32_t from, int32_t to)
{
    return job->offset[to] - job->offset[from];
}

/* The next destinations that fit in the budget, one at least; from = to when none is left. */
static void next_block(epx_drops_job_t *job)
{
    job->from = job->to;
    while (job->to < job->rule.ranks &&
           (job->to == job->from || tags_of(job, job->from, job->to + 1) * job->tag_bytes <= job->budget))
        job->to++;
}

void epx_drops_pooled_open(epx_drops_job_t *job, int64_t budget)
{
    int32_t ranks = job->rule.ranks, most = 0;
    int64_t largest = 0;
    job->slots = epx_tool_alloc((size_t)ranks, sizeof *job->slots);
    job->offset = epx_tool_alloc((size_t)ranks + 1, sizeof *job->offset);
    for (int32_t d = 0; d < ranks; d++) {
        int32_t experts = owned(job->run, d);
        most = experts > most ? experts : most;
        job->slots[d] = epx_pooled_slots(&job->rule, experts);
        job->offset[d + 1] = job->offset[d] + job->rule.waves * ranks * job->slots[d];
    }
    job->tag_bytes = most < UINT8_MAX ? 1 : most < UINT16_MAX ? 2 : 4;
    job->budget = job->keep ? INT64_MAX : budget;
    for (next_block(job); job->from < job->to; next_block(job)) {
        int64_t tags = tags_of(job, job->from, job->to);
        largest = tags > largest ? tags : largest;
    }
    job->tags = epx_tool_alloc((size_t)largest, (size_t)job->tag_bytes);
    job->from = job->to = 0;
    next_block(job);
}

void epx_drops_pooled_close(epx_drops_job_t *job)
{
    free(job->slots);
    free(job->offset);
    free(job->tags);
}

/* First tag of a slab, counted in tags. */
static int64_t slab(const epx_drops_job_t *job, int32_t d, int32_t wave, int32_t s)
{
    return job->offset[d] - job->offset[job->from] + ((int64_t)wave * job->rule.ranks + s) * job->slots[d];
}

static inline void put_tag(const epx_drops_job_t *job, int64_t at, uint32_t tag)
{
    switch (job->tag_bytes) {
    case 1: job->tags[at] = (uint8_t)tag; break;
    case 2: ((uint16_t *)(void *)job->tags)[at] = (uint16_t)tag; break;
    default: ((uint32_t *)(void *)job->tags)[at] = tag; break;
    }
}

static inline uint32_t get_tag(const epx_drops_job_t *job, int64_t at)
{
    switch (job->tag_bytes) {
    case 1: return job->tags[at];
    case 2: return ((const uint16_t *)(const void *)job->tags)[at];
    default: return ((const uint32_t *)(const void *)job->tags)[at];
    }
}

uint32_t epx_drops_tag(const epx_drops_job_t *job, int32_t d, int32_t wave, int32_t s, int32_t slot)
{
    return get_tag(job, slab(job, d, wave, s) + slot);
}

/* ---- gate 1 ------------------------------------------------------------------------------------------------------- */

size_t epx_drops_gate_bytes(const epx_drops_run_t *run)
{
    size_t places = (size_t)run->routing->tokens_max * (size_t)run->routing->columns;
    return 2 * (size_t)run->routing->ranks * sizeof(int64_t) + 2 * places * sizeof(int32_t);
}

/* A wave moves every slab, full or not. */
static void count_slabs(const epx_drops_job_t *job, int32_t s)
{
    int64_t all = 0, ranks = job->rule.ranks;
    for (int32_t d = 0; d < ranks; d++)
        all += job->slots[d];
    for (int32_t w = 0; w < job->rule.waves; w++) {
        job->out->own[w * ranks + s] = job->slots[s];
        job->out->sent[w * ranks + s] = all - job->slots[s];
        job->out->received[w * ranks + s] = (ranks - 1) * job->slots[s];
    }
}

/* Where each destination's first slab of this sender is; INT64_MIN for destinations that are not held. */
static void find_slabs(const epx_drops_job_t *job, int32_t s, int64_t *base)
{
    for (int32_t d = 0; d < job->rule.ranks; d++) {
        base[d] = d >= job->from && d < job->to ? slab(job, d, 0, s) : INT64_MIN;
        for (int32_t w = 0; w < job->rule.waves && base[d] >= 0; w++)
            memset(job->tags + slab(job, d, w, s) * job->tag_bytes, 0,
                   (size_t)(job->slots[d] * job->tag_bytes));
    }
}

void epx_drops_gate_sender(epx_drops_job_t *job, int32_t s, int64_t tokens, const int32_t *ids, void *scratch)
{
    int32_t columns = job->run->routing->columns, ranks = job->rule.ranks;
    const int32_t *owner = job->run->owners.owner, *local = job->run->owners.local;
    int64_t places = tokens * columns, *gate = scratch, *base = gate + ranks;
    int32_t *wave = (int32_t *)(base + ranks), *slot = wave + job->run->routing->tokens_max * columns;
    epx_pooled_counts_t counts = {0};
    epx_pooled_gate1(&job->rule, ids, tokens, columns, wave, slot, gate, &counts);
    find_slabs(job, s, base);
    for (int64_t a = 0; a < places; a++) {
        if (slot[a] < 0)
            continue;
        int32_t d = owner[ids[a]];
        if (base[d] >= 0)
            put_tag(job, base[d] + wave[a] * ranks * job->slots[d] + slot[a], (uint32_t)local[ids[a]] + 1);
    }
    if (job->from > 0) /* counted in the first walk */
        return;
    atomic_fetch_add(&job->dropped_sender, counts.dropped);
    atomic_fetch_add(&job->spilled, counts.spilled);
    count_slabs(job, s);
}

/* ---- gate 2 ------------------------------------------------------------------------------------------------------- */

static size_t receive_bytes(const epx_drops_job_t *job)
{
    int64_t most = 1, slots = 0;
    for (int32_t d = job->from; d < job->to; d++) {
        most = owned(job->run, d) > most ? owned(job->run, d) : most;
        slots = job->slots[d] > slots ? job->slots[d] : slots;
    }
    size_t ranks = (size_t)job->rule.ranks;
    return (size_t)most * sizeof(int64_t) +
           ranks * (2 * sizeof(void *) + 2 * (size_t)slots * sizeof(int32_t));
}

/* What gate 2 refused becomes an empty slot. */
static void blank_refused(const epx_drops_job_t *job, int64_t from, const int32_t *row, int64_t slots)
{
    for (int64_t i = 0; i < slots; i++)
        if (row[i] < 0)
            put_tag(job, from + i, 0);
}

static void receive(void *context, int32_t item, void *scratch)
{
    epx_drops_job_t *job = context;
    int32_t ranks = job->rule.ranks, d = job->from + item / job->rule.waves, wave = item % job->rule.waves;
    int64_t slots = job->slots[d], kept = 0, *count = scratch;
    const int32_t **tag =
        (const int32_t **)(void *)(count + (owned(job->run, d) > 0 ? owned(job->run, d) : 1));
    int32_t **row = (int32_t **)(void *)(tag + ranks);
    int32_t *tags = (int32_t *)(void *)(row + ranks), *rows = tags + ranks * slots;
    if (slots == 0)
        return;
    for (int32_t s = 0; s < ranks; s++) {
        int64_t at = slab(job, d, wave, s);
        tag[s] = tags + s * slots;
        row[s] = rows + s * slots;
        for (int64_t i = 0; i < slots; i++)
            tags[s * slots + i] = (int32_t)get_tag(job, at + i);
    }
    int64_t refused = epx_pooled_gate2(&job->rule, d, job->receiver_limit, tag, row, count);
    for (int32_t e = 0; e < owned(job->run, d); e++)
        kept += count[e];
    job->out->rows[(int64_t)wave * ranks + d] = kept;
    job->out->refused[(int64_t)wave * ranks + d] = refused;
    for (int32_t s = 0; s < ranks && job->keep && refused > 0; s++)
        blank_refused(job, slab(job, d, wave, s), row[s], slots);
}

void epx_drops_pooled_receive(epx_drops_job_t *job)
{
    if (job->done)
        return;
    job->receiver_limit = epx_pooled_receiver_limit(&job->rule, job->run->valid_all);
    epx_parallel(job->run->threads, (job->to - job->from) * job->rule.waves, receive, job,
                 receive_bytes(job));
    job->out->spilled = atomic_load(&job->spilled);
    job->out->dropped_sender = atomic_load(&job->dropped_sender);
    job->done = job->to == job->rule.ranks;
    if (!job->done)
        next_block(job);
}

/* ---- extra_wave --------------------------------------------------------------------------------------------------- */

typedef struct receiver {
    epx_drops_job_t *job;
    int32_t d;
} receiver_t;

static void take_move(void *context, int32_t wave, int32_t s, int32_t e, int32_t first, int32_t rows)
{
    const receiver_t *receiver = context;
    epx_drops_job_t *job = receiver->job;
    job->out->rows[(int64_t)wave * job->rule.ranks + receiver->d] += rows;
    if (!job->keep)
        return;
    if (job->move_count == job->move_room) {
        job->move_room = job->move_room > 0 ? 2 * job->move_room : 4096;
        job->moves = realloc(job->moves, (size_t)job->move_room * sizeof *job->moves);
        if (job->moves == NULL)
            exit(epx_tool_fail(EPX_EXIT_FAILED, "no memory for %lld moves: take fewer ranks",
                               (long long)job->move_room));
    }
    job->moves[job->move_count++] =
        (epx_drops_move_t){.sender = s, .expert = e, .first = first, .rows = rows, .wave = wave};
}

void epx_drops_extra_wave(epx_drops_job_t *job)
{
    int32_t ranks = job->rule.ranks, waves = 1;
    size_t cells = (size_t)ranks * ((size_t)job->rule.experts + 1);
    int32_t *remaining = epx_tool_alloc(cells, sizeof *remaining);
    for (int32_t d = 0; d < ranks; d++) {
        int32_t own = epx_pooled_extra_waves(&job->rule, d, job->run->n, remaining, NULL, NULL);
        waves = own > waves ? own : waves;
    }
    epx_drops_arrays(job, waves);
    for (int32_t d = 0; d < ranks; d++) {
        receiver_t receiver = {.job = job, .d = d};
        epx_pooled_extra_waves(&job->rule, d, job->run->n, remaining, take_move, &receiver);
    }
    int64_t all = 0;
    for (int32_t d = 0; d < ranks; d++)
        all += epx_pooled_slots(&job->rule, owned(job->run, d));
    for (int32_t w = 0; w < waves; w++) {
        for (int32_t r = 0; r < ranks; r++) {
            int64_t slots = epx_pooled_slots(&job->rule, owned(job->run, r));
            job->out->own[(int64_t)w * ranks + r] = slots;
            job->out->sent[(int64_t)w * ranks + r] = all - slots;
            job->out->received[(int64_t)w * ranks + r] = (ranks - 1) * slots;
        }
    }
    free(remaining);
}
