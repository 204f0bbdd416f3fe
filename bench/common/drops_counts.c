/* ragged and ring: who is kept follows from the counts. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "bench/common/drops_job.h"
#include "bench/common/parallel.h"
#include "tools/common/program.h"

static int64_t cell(const epx_drops_job_t *job, int32_t s, int32_t e)
{
    return (int64_t)s * job->rule.experts + e;
}

int32_t epx_drops_chunk(const epx_drops_job_t *job, int32_t e)
{
    const epx_owners_t *owners = &job->run->owners;
    int32_t d = owners->owner[e];
    return epx_block_of(owners->local[e], owners->first[d + 1] - owners->first[d], job->rule.waves);
}

static void accept_chunk(void *context, int32_t item, void *scratch)
{
    epx_drops_job_t *job = context;
    epx_ragged_accept(&job->rule, item / job->rule.waves, item % job->rule.waves, job->run->valid_all,
                      job->run->n, job->accepted, scratch);
}

/* ---- ring --------------------------------------------------------------------------------------------------------- */

/* In hop h rank r has the block of rank (r - h) mod N, and passes it on after every hop but the last. */
static void fill_hops(epx_drops_job_t *job)
{
    int32_t ranks = job->rule.ranks;
    epx_drops_t *out = job->out;
    epx_drops_arrays(job, ranks);
    for (int32_t r = 0; r < ranks; r++) {
        for (int32_t h = 0; h < ranks; h++) {
            int32_t s = (r - h + ranks) % ranks;
            int64_t at = (int64_t)h * ranks + r;
            for (int32_t i = job->run->owners.first[r]; i < job->run->owners.first[r + 1]; i++)
                out->rows[at] += job->accepted[cell(job, s, job->run->owners.expert[i])];
            out->sent[at] = h < ranks - 1 ? job->run->tokens[s] : 0;
            out->received[at] = h > 0 ? job->run->tokens[s] : 0;
            out->own[at] = h == 0 ? job->run->tokens[s] : 0;
        }
    }
}

/* ---- ragged ------------------------------------------------------------------------------------------------------- */

/* Rows from s to d in chunk c: pairs[(s * C + c) * N + d]. */
static int32_t *pair(const epx_drops_job_t *job, int32_t s, int32_t c, int32_t d)
{
    return &job->pairs[((int64_t)s * job->rule.waves + c) * job->rule.ranks + d];
}

static void pairs_of_counts(epx_drops_job_t *job)
{
    for (int32_t e = 0; e < job->rule.experts; e++)
        for (int32_t s = 0; s < job->rule.ranks; s++)
            *pair(job, s, epx_drops_chunk(job, e), job->run->owners.owner[e]) +=
                job->accepted[cell(job, s, e)];
}

/* Rank wire: a token's row goes once to an owner in a chunk, if one of its assignments there is kept. */
static void pairs_of_sender(void *context, int32_t s, void *scratch)
{
    epx_drops_job_t *job = context;
    const epx_drops_routing_t *routing = job->run->routing;
    int32_t ranks = job->rule.ranks, chunks = job->rule.waves, experts = job->rule.experts;
    int32_t *left = scratch, *pool = left + experts, *ids = pool + experts;
    int64_t *last = (int64_t *)(void *)(ids + routing->tokens_max * routing->columns +
                                        (routing->tokens_max * routing->columns) % 2);
    memcpy(left, job->accepted + cell(job, s, 0), (size_t)experts * sizeof *left);
    memset(last, 0, (size_t)ranks * (size_t)chunks * sizeof *last);
    for (int32_t e = 0; e < experts; e++)
        pool[e] = epx_drops_chunk(job, e) * ranks + job->run->owners.owner[e];
    int64_t tokens = routing->ids(routing->context, s, ids);
    for (int64_t t = 0; t < tokens; t++) {
        for (int32_t k = 0; k < routing->top_k; k++) {
            int32_t e = ids[t * routing->columns + k];
            if (e < 0 || left[e] == 0)
                continue;
            left[e]--;
            if (last[pool[e]] == t + 1)
                continue;
            last[pool[e]] = t + 1;
            ++*pair(job, s, pool[e] / ranks, pool[e] % ranks);
        }
    }
}

static size_t pair_bytes(const epx_drops_job_t *job)
{
    const epx_drops_routing_t *routing = job->run->routing;
    size_t ints = 2 * (size_t)job->rule.experts + (size_t)(routing->tokens_max * routing->columns) + 2;
    return ints * sizeof(int32_t) + (size_t)job->rule.ranks * (size_t)job->rule.waves * sizeof(int64_t);
}

static void fill_chunks(epx_drops_job_t *job)
{
    int32_t ranks = job->rule.ranks, chunks = job->rule.waves;
    epx_drops_t *out = job->out;
    epx_drops_arrays(job, chunks);
    job->pairs = epx_tool_alloc((size_t)ranks * (size_t)ranks * (size_t)chunks, sizeof *job->pairs);
    for (int32_t e = 0; e < job->rule.experts; e++)
        for (int32_t s = 0; s < ranks; s++)
            out->rows[(int64_t)epx_drops_chunk(job, e) * ranks + job->run->owners.owner[e]] +=
                job->accepted[cell(job, s, e)];
    if (job->how->rank_wire)
        epx_parallel(job->run->threads, ranks, pairs_of_sender, job, pair_bytes(job));
    else
        pairs_of_counts(job);
    for (int32_t s = 0; s < ranks; s++) {
        for (int32_t c = 0; c < chunks; c++) {
            for (int32_t d = 0; d < ranks; d++) {
                int64_t rows = *pair(job, s, c, d), wave = (int64_t)c * ranks;
                out->own[wave + s] += d == s ? rows : 0;
                out->sent[wave + s] += d == s ? 0 : rows;
                out->received[wave + d] += d == s ? 0 : rows;
            }
        }
    }
}

void epx_drops_accept(epx_drops_job_t *job)
{
    size_t ranks = (size_t)job->rule.ranks;
    job->accepted = epx_tool_alloc(ranks * (size_t)job->rule.experts, sizeof *job->accepted);
    epx_parallel(job->run->threads, job->rule.ranks * job->rule.waves, accept_chunk, job,
                 ranks * sizeof(int64_t));
    if (job->how->transport == EPX_DROPS_RING)
        fill_hops(job);
    else
        fill_chunks(job);
}
