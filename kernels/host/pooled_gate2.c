/* pooled_wave at the receiver: who is kept, and where his row stands. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/pooled_layout.h"
#include "kernels/host/table.h"
#include "kernels/host/verdict.h"

#include <string.h>

static const unsigned char *header_of(const epx_k_pooled_gate2_t *args, int32_t source)
{
    return args->headers + source * args->layout->header_bytes;
}

/* V over the group: every header tells its sender's valid assignments. */
static int64_t sum_valid(const epx_k_pooled_gate2_t *args)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    int64_t sum = 0;
    for (int32_t r = 0; r < layout->ranks; r++) {
        for (int32_t i = 0; i < layout->splits; i++) {
            int64_t valid;
            memcpy(&valid, header_of(args, r) + EPX_POOLED_HEADER_VALID + (size_t)i * sizeof(valid),
                   sizeof(valid));
            sum += valid;
        }
    }
    return sum;
}

/* Looks at one header and widens its tags; what is no tag becomes an empty slot and is reported. */
static void read_header(const epx_k_pooled_gate2_t *args, int32_t source, int32_t slots, int32_t *tag)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    const unsigned char *header = header_of(args, source);
    const unsigned char *tags = header + EPX_POOLED_HEADER_VALID + (size_t)layout->splits * sizeof(int64_t);
    uint32_t stamp;
    memcpy(&stamp, header + sizeof(int32_t), sizeof(stamp));
    if (stamp != args->stamp && args->bad[0] < 0) {
        args->bad[0] = source;
        args->bad[1] = stamp;
    }
    for (int32_t q = 0; q < slots; q++) {
        uint32_t value = 0;
        if (layout->tag_bytes == 2) {
            uint16_t narrow;
            memcpy(&narrow, tags + (size_t)q * sizeof(narrow), sizeof(narrow));
            value = narrow;
        } else {
            memcpy(&value, tags + (size_t)q * sizeof(value), sizeof(value));
        }
        if (value > (uint32_t)layout->experts) {
            if (args->bad[0] < 0) {
                args->bad[0] = source;
                args->bad[1] = -(int64_t)value;
            }
            value = 0;
        }
        tag[q] = (int32_t)value;
    }
}

/* Turns ordinals within the local expert into batch rows, and remembers the way back. */
static void lay_out(const epx_k_pooled_gate2_t *args, int64_t begin, int64_t end, int32_t expert_offset)
{
    int64_t stride = args->layout->rows_per_expert;
    for (int64_t q = begin; q < end; q++) {
        int32_t j = args->to[q];
        args->kept[q] = j >= 0;
        if (j < 0)
            continue;
        int64_t g = (expert_offset + args->tag[q] - 1) * stride + j;
        args->to[q] = (int32_t)g;
        args->from[g] = (int32_t)q;
    }
}

/* One virtual destination, the j-th of this rank. */
static int64_t gate_one(const epx_k_pooled_gate2_t *args, const epx_rule_t *rule, int32_t j, int64_t limit)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    int32_t m = layout->splits, v = layout->rank * m + j;
    int32_t mine = layout->base[layout->rank],
            expert_offset = layout->first[v] - layout->first[layout->rank * m];
    int64_t slots = epx_pooled_slots(rule, layout->first[v + 1] - layout->first[v]);
    const int32_t **tag = (const int32_t **)args->pointer;
    int32_t **row = (int32_t **)args->pointer + layout->virtual_ranks;

    for (int32_t s = 0; s < layout->virtual_ranks; s++) {
        int64_t q = (int64_t)(s / m) * layout->slab_rows + epx_pooled_block(layout, s % m, v) - mine;
        tag[s] = args->tag + q;
        row[s] = args->to + q;
    }
    int64_t refused = epx_pooled_gate2(rule, v, limit, tag, row, args->count + expert_offset);
    for (int32_t s = 0; s < layout->virtual_ranks; s++) {
        int64_t q = tag[s] - args->tag;
        lay_out(args, q, q + slots, expert_offset);
    }
    return refused;
}

/* The lowest source whose header says that its route failed, or -1. */
static int32_t failed_source(const epx_k_pooled_gate2_t *args)
{
    for (int32_t r = 0; r < args->layout->ranks; r++) {
        int32_t status;
        memcpy(&status, header_of(args, r), sizeof(status));
        if (status < 0)
            return r;
    }
    return -1;
}

/* Some source's route failed: nothing has come. */
static void die(const epx_k_pooled_gate2_t *args, int32_t source, int32_t local_experts)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    int64_t rows = (int64_t)layout->ranks * layout->slab_rows;
    for (int64_t q = 0; q < rows; q++) {
        args->to[q] = -1;
        args->kept[q] = 0;
    }
    for (int32_t e = 0; e < local_experts; e++) {
        args->start[e] = (int64_t)e * layout->rows_per_expert;
        args->count[e] = 0;
    }
    if (args->verdict.head->valid >= 0)
        epx_verdict_dead(&args->verdict, EPX_ERR_PEER, source, NULL);
    epx_verdict_done(&args->verdict);
}

epx_status_t epx_host_pooled_gate2(const epx_k_pooled_gate2_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_k_pooled_layout_t *layout = args->layout;
    epx_owners_t owners;
    epx_rule_t rule = epx_pooled_rule(layout, &owners);
    int32_t me = layout->rank, m = layout->splits, slots = layout->base[me + 1] - layout->base[me];
    int32_t local_experts = layout->first[(me + 1) * m] - layout->first[me * m];
    int64_t limit = epx_pooled_rows(&rule), refused = 0, kept = 0;
    if (!layout->extra_wave)
        limit = epx_pooled_receiver_limit(&rule, sum_valid(args));

    args->bad[0] = args->bad[1] = -1;
    if (args->counts == 2)
        args->verdict.head->kept = args->verdict.head->dropped_receiver = 0;
    if (args->confirmed != NULL)
        *args->confirmed = 1;
    int32_t source = args->verdict.head->valid < 0 ? me : failed_source(args);
    if (source >= 0) {
        die(args, source, local_experts);
        return EPX_OK;
    }
    for (int32_t r = 0; r < layout->ranks; r++)
        read_header(args, r, slots, args->tag + (int64_t)r * layout->slab_rows);
    for (int32_t j = 0; j < m; j++)
        refused += gate_one(args, &rule, j, limit);
    for (int32_t e = 0; e < local_experts; e++) {
        args->start[e] = (int64_t)e * layout->rows_per_expert;
        kept += args->count[e];
    }
    if (args->counts) {
        args->verdict.head->kept += kept;
        args->verdict.head->dropped_receiver += refused;
    }
    epx_verdict_done(&args->verdict);
    return EPX_OK;
}
