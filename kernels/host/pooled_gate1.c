/* pooled_wave at the sender: who travels, in which wave and slot. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/host/pooled_layout.h"
#include "kernels/host/table.h"
#include "kernels/host/verdict.h"

/* Turns (wave, slot) of one virtual sender's assignments into places; place holds the waves before. */
static void place_block(const epx_k_pooled_gate1_t *args, int32_t sender, int64_t begin, int64_t end)
{
    const epx_k_pooled_layout_t *layout = args->layout;
    for (int64_t a = begin; a < end; a++) {
        if (args->place[a] < 0)
            continue;
        int32_t block = epx_pooled_block(layout, sender, layout->owner[args->expert[a]]);
        args->place[a] = args->place[a] * layout->home_rows + block + args->slot[a];
    }
}

/* Nothing travels but headers, which say why. */
static void die(const epx_k_pooled_gate1_t *args)
{
    for (int32_t i = 0; i < args->layout->splits; i++)
        args->valid[i] = 0;
    epx_verdict_dead(&args->verdict, epx_notice_status(args->notice), args->layout->rank, args->notice);
}

epx_status_t epx_host_pooled_gate1(const epx_k_pooled_gate1_t *args, epx_stream_t stream)
{
    (void)stream;
    const epx_k_pooled_layout_t *layout = args->layout;
    epx_plan_head_t *head = args->verdict.head;
    int64_t tokens = args->notice->tokens;
    epx_owners_t owners;
    epx_rule_t rule = epx_pooled_rule(layout, &owners);
    epx_pooled_counts_t counts = {0};
    if (args->notice->bad_at != EPX_NOTICE_GOOD) {
        die(args);
        return EPX_OK;
    }
    for (int32_t i = 0; i < layout->splits; i++) {
        int64_t first = epx_virtual_first(i, tokens, layout->splits);
        int64_t end = epx_virtual_first(i + 1, tokens, layout->splits);
        int64_t before = counts.routed, a = first * layout->columns;
        epx_pooled_gate1(&rule, args->expert + a, end - first, layout->columns, args->place + a,
                         args->slot + a, args->gate, &counts);
        place_block(args, i, a, end * layout->columns);
        args->valid[i] = counts.routed - before;
    }
    head->tokens = tokens;
    head->routed = counts.routed;
    head->skipped = counts.skipped;
    head->dropped_sender = counts.dropped;
    head->spilled = counts.spilled;
    head->valid = 1;
    return EPX_OK;
}
