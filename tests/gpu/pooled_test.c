/* pooled_wave's gates, packing and extra waves. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_pooled_wave.h>

#include "gpu/notices.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"
#include "transport/accept.h"

static const shape_limits_t some = {.experts = 300, .ranks = 20, .splits = 4, .tokens = 300, .top_k = 12};
static const shape_limits_t few = {.experts = 20, .ranks = 5, .splits = 3, .tokens = 40, .top_k = 5};
static const shape_limits_t large = {.experts = 256, .ranks = 3, .splits = 1, .tokens = 9000, .top_k = 8};

enum { STAMP = 0x1234 };

/* A shape as pooled_wave lays it out. */
typedef struct pooled_case {
    shaped_t s;
    epx_k_pooled_layout_t layout; /* host tables */
    twin_t base, before;
} pooled_case_t;

static int32_t *ints(const twin_t *twin) { return (int32_t *)(void *)twin->host; }

static int32_t count_most(const epx_owners_t *owners)
{
    int32_t most = 0;
    for (int32_t r = 0; r < owners->ranks; r++)
        most =
            owners->first[r + 1] - owners->first[r] > most ? owners->first[r + 1] - owners->first[r] : most;
    return most;
}

static void number_rows(pooled_case_t *c)
{
    const epx_shape_t *shape = &c->s.shape;
    epx_rule_t rule = epx_rule_of(shape, shape->waves);
    c->base = twin_make((size_t)(shape->ranks + 1) * 4),
    c->before = twin_make((size_t)shape->virtual_ranks * 4);
    ints(&c->base)[0] = 0;
    for (int32_t d = 0; d < shape->ranks; d++) {
        int32_t slots = 0;
        for (int32_t v = d * shape->splits; v < (d + 1) * shape->splits; v++) {
            ints(&c->before)[v] = slots;
            slots += (int32_t)epx_pooled_slots(&rule, shape->virt.first[v + 1] - shape->virt.first[v]);
        }
        slots *= shape->splits;
        ints(&c->base)[d + 1] = ints(&c->base)[d] + slots;
        c->layout.slab_rows = slots > c->layout.slab_rows ? slots : c->layout.slab_rows;
    }
    c->layout.home_rows = ints(&c->base)[shape->ranks];
    int64_t align = shape->row_align, rows = epx_pooled_rows(&rule);
    c->layout.rows_per_expert = (int32_t)((rows + align - 1) / align * align);
    twin_send(&c->base), twin_send(&c->before);
}

static pooled_case_t make_pooled(dice_t *dice, const shape_limits_t *limits)
{
    pooled_case_t c = {.s = shaped_make(dice, limits)};
    epx_shape_t *shape = &c.s.shape;
    if (dice_range(dice, 0, 2) == 0 && shape->top_k < shape->experts)
        shape->columns += (int32_t)dice_range(
            dice, 1, shape->experts - shape->top_k < 4 ? shape->experts - shape->top_k : 4);
    c.layout = (epx_k_pooled_layout_t){.rank = shape->rank,
                                       .ranks = shape->ranks,
                                       .virtual_ranks = shape->virtual_ranks,
                                       .splits = shape->splits,
                                       .experts = shape->experts,
                                       .top_k = shape->top_k,
                                       .columns = shape->columns,
                                       .waves = shape->waves,
                                       .dropless = shape->dropless,
                                       .assignments_max = (int64_t)shape->virtual_tokens_max * shape->top_k,
                                       .cf = shape->capacity_factor,
                                       .cs = shape->sender_factor,
                                       .local_experts_max = count_most(&shape->virt),
                                       .tag_bytes = dice_range(dice, 0, 1) ? 2 : 4};
    number_rows(&c);
    c.layout.header_bytes = (EPX_POOLED_HEADER_VALID + 8 * (int64_t)shape->splits +
                             c.layout.tag_bytes * c.layout.slab_rows + 15) /
                            16 * 16;
    return c;
}

static epx_k_pooled_layout_t layout_on(const pooled_case_t *c, int device)
{
    epx_k_pooled_layout_t layout = c->layout;
    epx_shape_t shape = shaped_on(&c->s, device);
    layout.owner = shape.virt.owner, layout.local = shape.virt.local;
    layout.first = shape.virt.first, layout.expert = shape.virt.expert;
    layout.base = side_of(&c->base, device), layout.before = side_of(&c->before, device);
    return layout;
}

/* One rank's route up to its places. */
typedef struct sent {
    int64_t tokens;
    twin_t notice, expert, place, slot, gate, valid;
    verdict_twin_t verdict;
} sent_t;

static sent_t draw_sent(const pooled_case_t *c, dice_t *dice, int may_fail)
{
    const epx_k_pooled_layout_t *layout = &c->layout;
    sent_t sent = {.tokens = dice_range(dice, 0, 4) == 0 ? c->s.shape.tokens_max
                                                         : dice_range(dice, 0, c->s.shape.tokens_max)};
    size_t n = (size_t)(sent.tokens * layout->columns);
    sent.notice = twin_make(sizeof(epx_route_notice_t)), sent.expert = twin_make(n * 4 + 4),
    sent.place = twin_make(n * 4 + 4);
    sent.slot = twin_make(n * 4 + 4), sent.gate = twin_make((size_t)layout->virtual_ranks * 8);
    sent.valid = twin_make((size_t)layout->splits * 8), sent.verdict = verdict_make();
    int64_t *ids = malloc(n * 8 + 8);
    draw_ids(ids, (int64_t)n, layout->experts, dice);
    for (size_t a = 0; a < n; a++)
        ints(&sent.expert)[a] = (int32_t)ids[a];
    free(ids);
    epx_route_notice_t notice = {.tokens = sent.tokens, .bad_at = EPX_NOTICE_GOOD};
    if (may_fail && dice_range(dice, 0, 9) == 0)
        notice = (epx_route_notice_t){
            .tokens = sent.tokens, .bad_at = dice_range(dice, 0, 1) ? 3 : EPX_NOTICE_TOKENS, .bad_id = 9};
    memcpy(sent.notice.host, &notice, sizeof(notice));
    twin_send(&sent.notice), twin_send(&sent.expert), twin_send(&sent.place), twin_send(&sent.valid);
    return sent;
}

static epx_k_pooled_gate1_t gate1_args(const sent_t *sent, const epx_k_pooled_layout_t *layout, int device)
{
    return (epx_k_pooled_gate1_t){.layout = layout,
                                  .notice = side_of(&sent->notice, device),
                                  .expert = side_of(&sent->expert, device),
                                  .place = side_of(&sent->place, device),
                                  .slot = side_of(&sent->slot, device),
                                  .gate = side_of(&sent->gate, device),
                                  .valid = side_of(&sent->valid, device),
                                  .verdict = verdict_on(&sent->verdict, device)};
}

static void compare_gate1(dice_t *dice, const shape_limits_t *limits)
{
    pooled_case_t c = make_pooled(dice, limits);
    sent_t sent = draw_sent(&c, dice, 1);
    for (int device = 0; device <= 1; device++) {
        epx_k_pooled_layout_t layout = layout_on(&c, device);
        epx_k_pooled_gate1_t args = gate1_args(&sent, &layout, device);
        CHECK((device ? epx_cuda_pooled_gate1 : epx_host_pooled_gate1)(&args, NULL) == EPX_OK, "%s",
              epx_last_error());
    }
    verdict_same(&sent.verdict);
    twin_same(&sent.valid, "valid");
    if (((const epx_route_notice_t *)(const void *)sent.notice.host)->bad_at == EPX_NOTICE_GOOD)
        twin_same(&sent.place, "place");
}

static void pooled_gate1(void)
{
    for (dice_t dice; gpu_round(&dice, 150);)
        compare_gate1(&dice, gpu_small() ? &few : &some);
}

static void pooled_gate1_of_many_tokens(void)
{
    for (dice_t dice; gpu_round(&dice, 6);)
        compare_gate1(&dice, gpu_small() ? &few : &large);
}

static void pooled_pack(void)
{
    for (dice_t dice; gpu_round(&dice, 80);) {
        pooled_case_t c = make_pooled(&dice, gpu_small() ? &few : &some);
        sent_t sent = draw_sent(&c, &dice, 0);
        size_t home = (size_t)c.layout.home_rows;
        int with_kept = dice_range(&dice, 0, 2) == 0, with_rows = dice_range(&dice, 0, 1) != 0,
            failed = dice_range(&dice, 0, 3) == 0;
        twin_t kept = twin_make(with_kept ? home : 0), list = twin_make(home * 4), status = twin_make(4);
        twin_t headers = twin_make((size_t)(c.layout.header_bytes * c.layout.ranks)),
               start = twin_make(home * 8), count = twin_make(home * 8);
        for (size_t h = 0; h < kept.bytes; h++)
            kept.host[h] = dice_range(&dice, 0, 3) != 0;
        ints(&status)[0] = failed ? EPX_ERR_ROUTING : 1;
        epx_k_pooled_gate1_t gate = gate1_args(&sent, &c.layout, 0);
        epx_k_pooled_layout_t on_host = layout_on(&c, 0);
        gate.layout = &on_host;
        epx_host_pooled_gate1(&gate, NULL);
        twin_send(&sent.place), twin_send(&sent.valid), twin_send(&kept), twin_send(&status);
        twin_send(&list), twin_send(&headers), twin_send(&start), twin_send(&count);
        int64_t wave = dice_range(&dice, 0, c.layout.waves - 1);
        int32_t units = (int32_t)dice_range(&dice, 0, 6); /* blocks are a power of two within them */
        twin_t dst = twin_make((size_t)c.layout.ranks * sizeof(void *));
        for (int device = 1; device >= 0; device--) {
            for (int32_t d = 0; d < c.layout.ranks; d++)
                ((void **)(void *)dst.host)[d] = side_of(&headers, device);
            if (device)
                twin_send(&dst);
            epx_k_pooled_layout_t layout = layout_on(&c, device);
            epx_k_pooled_pack_t args = {.units = units,
                                        .layout = &layout,
                                        .tokens = sent.tokens,
                                        .expert = side_of(&sent.expert, device),
                                        .place = side_of(&sent.place, device),
                                        .lo = wave * c.layout.home_rows,
                                        .kept = side_or_null(&kept, device),
                                        .list = side_of(&list, device),
                                        .valid = side_of(&sent.valid, device),
                                        .status = side_of(&status, device),
                                        .stamp = STAMP,
                                        .dst = side_of(&dst, device),
                                        .header_row = -1,
                                        .start = with_rows ? side_of(&start, device) : NULL,
                                        .count = with_rows ? side_of(&count, device) : NULL};
            CHECK((device ? epx_cuda_pooled_pack : epx_host_pooled_pack)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&list, "list"), twin_same(&headers, "headers"), twin_same(&start, "start"),
            twin_same(&count, "count");
    }
}

/* Headers that every rank sends to this one, made by the host's kernels; then some are spoiled. */
static void make_headers(const pooled_case_t *c, const twin_t *headers, int32_t me, dice_t *dice)
{
    for (int32_t r = 0; r < c->layout.ranks; r++) {
        epx_k_pooled_layout_t layout = layout_on(c, 0);
        layout.rank = r;
        int64_t tokens = dice_range(dice, 0, c->s.shape.tokens_max), n = tokens * layout.columns;
        int64_t *ids = malloc((size_t)n * 8 + 8), *long_scratch = malloc((size_t)layout.virtual_ranks * 8),
                *valid;
        int32_t *expert = malloc((size_t)n * 4 + 4), *place = malloc((size_t)n * 4 + 4),
                *slot = malloc((size_t)n * 4 + 4);
        int32_t *list = malloc((size_t)layout.home_rows * 4 + 4);
        unsigned char *mine = calloc(1, (size_t)(layout.header_bytes * layout.ranks));
        void **dst = malloc((size_t)layout.ranks * sizeof(*dst));
        for (int32_t d = 0; d < layout.ranks; d++)
            dst[d] = mine;
        valid = malloc((size_t)layout.splits * 8);
        draw_ids(ids, n, layout.experts, dice);
        for (int64_t a = 0; a < n; a++)
            expert[a] = (int32_t)ids[a];
        epx_plan_head_t head = {0};
        epx_route_notice_t notice = {.tokens = tokens, .bad_at = EPX_NOTICE_GOOD};
        epx_k_pooled_gate1_t gate = {.layout = &layout,
                                     .notice = &notice,
                                     .expert = expert,
                                     .place = place,
                                     .slot = slot,
                                     .gate = long_scratch,
                                     .valid = valid,
                                     .verdict = {.head = &head}};
        epx_host_pooled_gate1(&gate, NULL);
        epx_k_pooled_pack_t pack = {.layout = &layout,
                                    .tokens = tokens,
                                    .expert = expert,
                                    .place = place,
                                    .list = list,
                                    .valid = valid,
                                    .stamp = STAMP,
                                    .dst = dst,
                                    .header_row = -1};
        epx_host_pooled_pack(&pack, NULL);
        memcpy(headers->host + r * layout.header_bytes, mine + me * layout.header_bytes,
               (size_t)layout.header_bytes);
        free(ids), free(long_scratch), free(expert), free(place), free(slot), free(list), free(mine),
            free(valid), free(dst);
    }
}

static void spoil_headers(const pooled_case_t *c, const twin_t *headers, int32_t slots, dice_t *dice)
{
    int64_t kind = dice_range(dice, 0, 7), bytes = c->layout.header_bytes;
    unsigned char *header = headers->host + dice_range(dice, 0, c->layout.ranks - 1) * bytes;
    if (kind == 0)
        header[5] ^= 1; /* the stamp */
    if (kind == 1)
        memset(header, 0xff, 4); /* the status */
    if (kind == 2 && slots > 0) {
        unsigned char *tags = header + EPX_POOLED_HEADER_VALID + 8 * c->layout.splits;
        for (int i = 0; i < 3; i++)
            memset(tags + dice_range(dice, 0, slots - 1) * c->layout.tag_bytes, 0x7e,
                   (size_t)c->layout.tag_bytes);
    }
}

static void compare_gate2(dice_t *dice, const shape_limits_t *limits)
{
    pooled_case_t c = make_pooled(dice, limits);
    int32_t me = c.layout.rank, slots = ints(&c.base)[me + 1] - ints(&c.base)[me];
    int32_t local = c.s.shape.real.first[me + 1] - c.s.shape.real.first[me];
    size_t rows = (size_t)c.layout.slab_rows * (size_t)c.layout.ranks;
    c.layout.extra_wave = dice_range(dice, 0, 3) == 0;
    twin_t headers = twin_make((size_t)(c.layout.header_bytes * c.layout.ranks)),
           tag = twin_make(rows * 4 + 4);
    twin_t pointer = twin_make((size_t)c.layout.virtual_ranks * 16), to = twin_make(rows * 4 + 4),
           kept = twin_make(rows + 4);
    twin_t from = twin_make((size_t)local * (size_t)c.layout.rows_per_expert * 4 + 4), bad = twin_make(16);
    twin_t start = twin_make((size_t)local * 8 + 8), count = twin_make((size_t)local * 8 + 8);
    verdict_twin_t verdict = verdict_make();
    make_headers(&c, &headers, me, dice);
    spoil_headers(&c, &headers, slots, dice);
    if (dice_range(dice, 0, 9) == 0)
        ((epx_plan_head_t *)(void *)verdict.head.host)->valid = EPX_ERR_ROUTING;
    int counts = (int)dice_range(dice, 0, 2);
    twin_t confirmed = twin_make(4);
    ints(&confirmed)[0] = 0;
    twin_send(&verdict.head);
    twin_send(&headers), twin_send(&to), twin_send(&kept), twin_send(&from), twin_send(&start),
        twin_send(&count), twin_send(&bad), twin_send(&confirmed);
    for (int device = 0; device <= 1; device++) {
        epx_k_pooled_layout_t layout = layout_on(&c, device);
        epx_k_pooled_gate2_t args = {.layout = &layout,
                                     .headers = side_of(&headers, device),
                                     .stamp = STAMP,
                                     .tag = side_of(&tag, device),
                                     .pointer = side_of(&pointer, device),
                                     .to = side_of(&to, device),
                                     .from = side_of(&from, device),
                                     .kept = side_of(&kept, device),
                                     .start = side_of(&start, device),
                                     .count = side_of(&count, device),
                                     .counts = counts,
                                     .confirmed = side_of(&confirmed, device),
                                     .verdict = verdict_on(&verdict, device),
                                     .bad = side_of(&bad, device)};
        CHECK((device ? epx_cuda_pooled_gate2 : epx_host_pooled_gate2)(&args, NULL) == EPX_OK, "%s",
              epx_last_error());
    }
    verdict_same(&verdict);
    twin_same(&to, "to"), twin_same(&kept, "kept"), twin_same(&from, "from"), twin_same(&start, "start"),
        twin_same(&count, "count");
    twin_same(&bad, "bad"), twin_same(&confirmed, "confirmed");
}

static void pooled_gate2(void)
{
    for (dice_t dice; gpu_round(&dice, 150);)
        compare_gate2(&dice, gpu_small() ? &few : &some);
}

static void pooled_gate2_of_many_tokens(void)
{
    for (dice_t dice; gpu_round(&dice, 6);)
        compare_gate2(&dice, gpu_small() ? &few : &large);
}

static void pooled_extra(void)
{
    for (dice_t dice; gpu_round(&dice, 60);) {
        pooled_case_t c = make_pooled(&dice, gpu_small() ? &few : &some);
        c.layout.extra_wave = 1;
        c.layout.columns = c.s.shape.columns = c.s.shape.top_k;
        noticed_t n = noticed_make(&c.s, &dice);
        int64_t E = c.layout.experts, m = c.layout.splits, N = c.layout.virtual_ranks;
        twin_t counts = twin_make((size_t)(N * E) * 4), move = twin_make((size_t)(m * E) * 12),
               waves = twin_make(4);
        twin_t remaining = twin_make((size_t)(N * (c.layout.local_experts_max + 1)) * 4),
               valid = twin_make((size_t)m * 8);
        twin_t routed = twin_make(8),
               place = twin_make((size_t)(c.s.shape.tokens_max * c.layout.columns) * 4);
        if (n.dead)
            continue;
        for (int32_t r = 0; r < c.layout.ranks; r++)
            memcpy(counts.host + r * m * E * 4, n.notices.host + r * n.stride + sizeof(epx_route_notice_t),
                   (size_t)(m * E) * 4);
        twin_send(&counts), twin_send(&place);
        for (int pass = 0; pass <= 2; pass++) {
            for (int device = 0; device <= 1; device++) {
                epx_k_pooled_layout_t layout = layout_on(&c, device);
                epx_k_pooled_extra_t args = {.layout = &layout,
                                             .counts = side_of(&counts, device),
                                             .remaining = side_of(&remaining, device),
                                             .waves = pass == 0 ? side_of(&waves, device) : NULL,
                                             .valid = pass == 0 ? side_of(&valid, device) : NULL,
                                             .routed = pass == 0 ? side_of(&routed, device) : NULL,
                                             .wave =
                                                 pass == 1 ? 0 : (int32_t)(n.tokens % (ints(&waves)[0] + 1)),
                                             .tokens = n.tokens,
                                             .expert = side_of(&n.expert, device),
                                             .ordinal = side_of(&n.ordinal, device),
                                             .move = side_of(&move, device),
                                             .place = pass == 0 ? NULL : side_of(&place, device)};
                CHECK((device ? epx_cuda_pooled_extra : epx_host_pooled_extra)(&args, NULL) == EPX_OK, "%s",
                      epx_last_error());
            }
            if (pass == 0)
                twin_same(&waves, "waves"), twin_same(&valid, "valid"), twin_same(&routed, "routed");
            else
                twin_same(&place, "place");
        }
    }
}

const gpu_test_t gpu_pooled_tests[] = {{"pooled_gate1", pooled_gate1},
                                       {"pooled_gate1_of_many_tokens", pooled_gate1_of_many_tokens},
                                       {"pooled_pack", pooled_pack},
                                       {"pooled_gate2", pooled_gate2},
                                       {"pooled_gate2_of_many_tokens", pooled_gate2_of_many_tokens},
                                       {"pooled_extra", pooled_extra},
                                       {NULL, NULL}};
