/* Reading a router's ids. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/table.h"
#include "transport/accept.h"

#include <string.h>

static inline int64_t id_at(const epx_k_read_ids_t *args, int64_t a)
{
    return args->id_type == EPX_INT64 ? ((const int64_t *)args->ids)[a] : ((const int32_t *)args->ids)[a];
}

/* Unsigned, so that id + 1 cannot overflow: -1 becomes 0, and everything else outside 0..E-1 becomes larger
 * than E. */
static inline int id_is_bad(int64_t id, int32_t experts) { return (uint64_t)id + 1 > (uint64_t)experts; }

/* The first bad id, or `n`. The type is decided outside of the loops. */
static int64_t first_bad(const epx_k_read_ids_t *args, int64_t n)
{
    const int64_t *wide = args->ids;
    const int32_t *narrow = args->ids;
    int64_t a = 0;
    if (args->id_type == EPX_INT64)
        while (a < n && !id_is_bad(wide[a], args->experts))
            a++;
    else
        while (a < n && !id_is_bad(narrow[a], args->experts))
            a++;
    return a;
}

/* Tokens first .. end - 1, all of one virtual sender, whose counts are zero before. Returns the ids of -1
 * among k < K. */
static int64_t read_block(const epx_k_read_ids_t *args, int64_t first, int64_t end, int32_t *counts)
{
    int64_t skipped = 0;
    for (int64_t t = first; t < end; t++) {
        for (int32_t k = 0; k < args->columns; k++) {
            int64_t a = t * args->columns + k;
            int32_t e = (int32_t)id_at(args, a), ordinal = -1;
            if (k < args->top_k) {
                if (e >= 0)
                    ordinal = counts[e]++;
                else
                    skipped++;
            }
            args->expert[a] = e;
            if (args->ordinal != NULL)
                args->ordinal[a] = ordinal;
        }
    }
    return skipped;
}

/* Nothing is derived from T, which may come from the device, before it has been looked at. */
static int64_t look(const epx_k_read_ids_t *args, int64_t tokens, epx_route_notice_t *notice)
{
    *notice = (epx_route_notice_t){.tokens = tokens, .bad_at = EPX_NOTICE_TOKENS, .bad_id = tokens};
    if (tokens < 0 || tokens > args->tokens_max)
        return EPX_NOTICE_TOKENS;
    int64_t n = tokens * args->columns, bad = first_bad(args, n);
    notice->bad_at = bad < n ? bad : EPX_NOTICE_GOOD;
    notice->bad_id = bad < n ? id_at(args, bad) : 0;
    return notice->bad_at;
}

epx_status_t epx_host_read_ids(const epx_k_read_ids_t *args, epx_stream_t stream)
{
    if (args->lane != NULL)
        epx_host_lane(args->lane, stream);
    int64_t tokens = args->tokens_device != NULL ? *args->tokens_device : args->tokens, skipped = 0;
    if (look(args, tokens, args->notice) != EPX_NOTICE_GOOD)
        return EPX_OK;

    memset(args->counts, 0, (size_t)args->splits * (size_t)args->experts * sizeof(*args->counts));
    for (int32_t v = 0; v < args->splits; v++)
        skipped += read_block(args, epx_virtual_first(v, tokens, args->splits),
                              epx_virtual_first(v + 1, tokens, args->splits),
                              args->counts + (int64_t)v * args->experts);
    *args->skipped = skipped;
    if (args->weights != NULL && tokens > 0)
        memcpy(args->weights_copy, args->weights, (size_t)(tokens * args->columns) * sizeof(float));
    return EPX_OK;
}
