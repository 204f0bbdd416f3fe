/*
 * The kernels of pooled_wave on inputs worked out by hand: places, slabs, the receiver's gate, the extra_wave
 * schedule. SPDX-License-Identifier: Apache-2.0
 */
#include <criterion/criterion.h>

#include <string.h>

#include "kernels/host/table.h"
#include <epx/kernels_pooled_wave.h>

static void expect_ints(const char *what, const int32_t *got, const int32_t *wanted, int n)
{
    for (int i = 0; i < n; i++)
        cr_expect_eq(got[i], wanted[i], "%s[%d] is %d, not %d", what, i, got[i], wanted[i]);
}

static void expect_longs(const char *what, const int64_t *got, const int64_t *wanted, int n)
{
    for (int i = 0; i < n; i++)
        cr_expect_eq(got[i], wanted[i], "%s[%d] is %lld, not %lld", what, i, (long long)got[i],
                     (long long)wanted[i]);
}

/* One choice a token, one wave, factors of 1. `owners`: which rank has which expert. */
typedef struct owners {
    const int32_t *owner, *local, *first, *expert, *base, *before;
} owners_t;

static epx_k_pooled_layout_t new_layout(int32_t ranks, int32_t experts, const owners_t *owners)
{
    return (epx_k_pooled_layout_t){.ranks = ranks,
                                   .virtual_ranks = ranks,
                                   .splits = 1,
                                   .experts = experts,
                                   .top_k = 1,
                                   .columns = 1,
                                   .waves = 1,
                                   .cf = 1,
                                   .cs = 1,
                                   .owner = owners->owner,
                                   .local = owners->local,
                                   .first = owners->first,
                                   .expert = owners->expert,
                                   .base = owners->base,
                                   .before = owners->before};
}

/*
 * Three experts, rank 0 owns 0 and 1, rank 1 owns 2; T_max = 6, K = 1, W = 2, cs = 1.
 *   P(0) = ceil(6*2 / (3*2)) = 2    P(1) = ceil(6*1 / (3*2)) = 1    so base = 0 2 3, three home rows a wave
 */
static const int32_t three_owner[] = {0, 0, 1}, three_local[] = {0, 1, 0}, three_first[] = {0, 2, 3},
                     three_expert[] = {0, 1, 2}, three_base[] = {0, 2, 3}, three_before[] = {0, 0};

static epx_k_pooled_layout_t three_experts(void)
{
    epx_k_pooled_layout_t layout = new_layout(
        2, 3, &(owners_t){three_owner, three_local, three_first, three_expert, three_base, three_before});
    layout.waves = 2;
    layout.assignments_max = 6;
    layout.home_rows = 3;
    layout.slab_rows = 2;
    layout.rows_per_expert = 2;
    layout.tag_bytes = 2;
    layout.header_bytes = 32;
    return layout;
}

/* Striped over two waves; the third assignment to expert 2 finds its one slot taken in both. */
static const int32_t three_ids[] = {0, 1, 0, 2, 2, 2}, three_places[] = {0, 3, 1, 2, 5, -1};

Test(pooled_gates, places_are_numbered_by_wave_destination_slot)
{
    epx_k_pooled_layout_t layout = three_experts();
    int32_t place[6], slot[6];
    int64_t gate[2], valid[1];
    epx_plan_head_t head = {.routed = -1, .skipped = -1, .dropped_sender = -1, .spilled = -1};
    epx_route_report_t report = {0};
    epx_route_notice_t notice = {.tokens = 6, .bad_at = EPX_NOTICE_GOOD};
    epx_k_pooled_gate1_t args = {.layout = &layout,
                                 .notice = &notice,
                                 .expert = three_ids,
                                 .place = place,
                                 .slot = slot,
                                 .gate = gate,
                                 .valid = valid,
                                 .verdict = {.head = &head, .report = &report, .route = 9}};
    cr_assert_eq(epx_host_pooled_gate1(&args, NULL), EPX_OK);
    expect_ints("place", place, three_places, 6);
    cr_expect_eq(valid[0], 6);
    cr_expect(head.routed == 6 && head.skipped == 0 && head.dropped_sender == 1 && head.spilled == 0);
    cr_expect(head.valid == 1 && head.tokens == 6 && report.done == 0 && report.dead == 0);

    /* No tokens at all. */
    notice.tokens = 0;
    cr_assert_eq(epx_host_pooled_gate1(&args, NULL), EPX_OK);
    cr_expect(head.routed == 0 && head.skipped == 0 && head.dropped_sender == 0 && valid[0] == 0);

    /* Ids that are bad: nothing travels, and the head says why. */
    notice = (epx_route_notice_t){.tokens = 6, .bad_at = 4, .bad_id = 3};
    cr_assert_eq(epx_host_pooled_gate1(&args, NULL), EPX_OK);
    cr_expect(head.valid == EPX_ERR_ROUTING && head.tokens == 0 && valid[0] == 0);
    cr_expect(report.dead == 9 && report.status == EPX_ERR_ROUTING && report.rank == layout.rank &&
              report.bad_at == 4 && report.bad_id == 3);
}

Test(pooled_gates, a_spilled_choice_has_a_place_of_its_own)
{
    /* K = 1, X = 1: the refused sixth assignment goes to expert 0. Destination 0 has had three, which leaves
     * the ordinal 3: wave 1, slot 1, home row 1 of wave 1. */
    epx_k_pooled_layout_t layout = three_experts();
    layout.columns = 2;
    static const int32_t ids[] = {0, 2, 1, 2, 0, -1, 2, 0, 2, 1, 2, 0};
    static const int32_t wanted[] = {0, -1, 3, -1, 1, -1, 2, -1, 5, -1, -1, 4};
    int32_t place[12], slot[12];
    int64_t gate[2], valid[1];
    epx_plan_head_t head;
    epx_route_notice_t notice = {.tokens = 6, .bad_at = EPX_NOTICE_GOOD};
    epx_k_pooled_gate1_t args = {.layout = &layout,
                                 .notice = &notice,
                                 .expert = ids,
                                 .place = place,
                                 .slot = slot,
                                 .gate = gate,
                                 .valid = valid,
                                 .verdict = {.head = &head}};
    cr_assert_eq(epx_host_pooled_gate1(&args, NULL), EPX_OK);
    expect_ints("place", place, wanted, 12);
    cr_expect(head.routed == 6 && head.skipped == 0 && head.dropped_sender == 0 && head.spilled == 1 &&
              valid[0] == 6);
}

/*
 * One rank that plays two, an expert each; T_max = 4, so 2 a virtual sender: P = ceil(2*1 / 2) = 1. The slab
 * holds sender 0's slots for both destinations, then sender 1's.
 */
Test(pooled_gates, virtual_slabs_lie_by_sender_then_destination)
{
    static const int32_t owner[] = {0, 1}, local[] = {0, 0}, first[] = {0, 1, 2}, expert[] = {0, 1};
    static const int32_t base[] = {0, 4}, before[] = {0, 1}, ids[] = {0, 1, 1, 0}, wanted[] = {0, 1, 3, 2};
    epx_k_pooled_layout_t layout = new_layout(1, 2, &(owners_t){owner, local, first, expert, base, before});
    layout.virtual_ranks = layout.splits = 2;
    layout.assignments_max = 2;
    layout.home_rows = layout.slab_rows = 4;
    layout.rows_per_expert = 2;
    layout.tag_bytes = 2;
    layout.header_bytes = 32;
    int32_t place[4], slot[4], list[4], tag[4], to[4], from[4];
    int64_t gate[2], valid[2], start[2], count[2], bad[2];
    epx_plan_head_t head = {0};
    epx_route_notice_t notice = {.tokens = 4, .bad_at = EPX_NOTICE_GOOD};
    unsigned char headers[32], kept[4];
    void *pointer[4];
    epx_k_pooled_gate1_t gate1 = {.layout = &layout,
                                  .notice = &notice,
                                  .expert = ids,
                                  .place = place,
                                  .slot = slot,
                                  .gate = gate,
                                  .valid = valid,
                                  .verdict = {.head = &head}};
    cr_assert_eq(epx_host_pooled_gate1(&gate1, NULL), EPX_OK);
    expect_ints("place", place, wanted, 4);
    expect_longs("valid", valid, (const int64_t[]){2, 2}, 2);

    /* R = ceil(2*2 / 2) = 2: each expert keeps both rows, sender 0's first. */
    epx_k_pooled_pack_t pack = {.layout = &layout,
                                .tokens = 4,
                                .expert = ids,
                                .place = place,
                                .list = list,
                                .valid = valid,
                                .stamp = 7,
                                .dst = (void *const[]){headers}};
    cr_assert_eq(epx_host_pooled_pack(&pack, NULL), EPX_OK);
    expect_ints("list", list, (const int32_t[]){0, 1, 3, 2}, 4);
    epx_k_pooled_gate2_t gate2 = {.layout = &layout,
                                  .headers = headers,
                                  .stamp = 7,
                                  .tag = tag,
                                  .pointer = pointer,
                                  .to = to,
                                  .from = from,
                                  .kept = kept,
                                  .start = start,
                                  .count = count,
                                  .verdict = {.head = &head},
                                  .bad = bad};
    cr_assert_eq(epx_host_pooled_gate2(&gate2, NULL), EPX_OK);
    expect_ints("to", to, (const int32_t[]){0, 2, 1, 3}, 4);
    expect_ints("from", from, (const int32_t[]){0, 2, 1, 3}, 4);
    expect_longs("start", start, (const int64_t[]){0, 2}, 2);
    expect_longs("count", count, (const int64_t[]){2, 2}, 2);
}

static uint16_t narrow_tag(const unsigned char *header, int q)
{
    uint16_t tag;
    memcpy(&tag, header + 16 + 2 * q, sizeof(tag));
    return tag;
}

Test(pooled_gates, a_wave_packs_its_own_rows)
{
    epx_k_pooled_layout_t layout = three_experts();
    int32_t list[3];
    int64_t valid = 6, start[3], count[3];
    unsigned char headers[64], peer[2][8 + 96];
    void *dst[] = {headers, headers};
    uint8_t kept[] = {1, 1, 0};
    epx_k_pooled_pack_t args = {.layout = &layout,
                                .tokens = 6,
                                .expert = three_ids,
                                .place = three_places,
                                .lo = 3,
                                .list = list,
                                .valid = &valid,
                                .stamp = 0xabcd,
                                .dst = dst,
                                .header_row = -1,
                                .start = start,
                                .count = count};
    cr_assert_eq(epx_host_pooled_pack(&args, NULL), EPX_OK);
    expect_ints("list of wave 1", list, (const int32_t[]){1, -1, 4}, 3);
    expect_longs("start", start, (const int64_t[]){0, 1, 2}, 3);
    expect_longs("count", count, (const int64_t[]){1, 0, 1}, 3);
    /* Expert 1 is the second of rank 0, expert 2 the first of rank 1. */
    cr_expect(narrow_tag(headers, 0) == 2 && narrow_tag(headers, 1) == 0 && narrow_tag(headers + 32, 0) == 1);
    uint32_t stamp;
    int64_t told;
    memcpy(&stamp, headers + 32 + 4, sizeof(stamp));
    memcpy(&told, headers + 32 + EPX_POOLED_HEADER_VALID, sizeof(told));
    cr_expect(stamp == 0xabcd && told == 6);

    /* The same straight to the headers of two peers, where this rank's is the last of three. */
    args.dst = (void *[]){peer[0], peer[1]};
    args.headers_offset = 8;
    args.header_row = 2;
    memset(peer, 0x55, sizeof(peer));
    cr_assert_eq(epx_host_pooled_pack(&args, NULL), EPX_OK);
    for (int d = 0; d < 2; d++) {
        cr_expect_eq(narrow_tag(peer[d] + 8 + 64, 0), narrow_tag(headers + 32 * d, 0));
        for (int i = 0; i < 8 + 64; i++)
            cr_expect_eq(peer[d][i], 0x55, "byte %d at peer %d", i, d);
    }

    args.kept = kept;
    args.dst = NULL;
    args.start = NULL;
    cr_assert_eq(epx_host_pooled_pack(&args, NULL), EPX_OK);
    expect_ints("list without what was refused", list, (const int32_t[]){1, -1, -1}, 3);
}

/*
 * Rank 0 of two owns both experts; T_max = 3, W = 1, cs = 1, cf = 0.5:
 *   P(0) = ceil(3*2 / 2) = 3    R = ceil(6*0.5 / 2) = 2    V = 3 + 2, limit min(2, ceil(5*0.5 / 2)) = 2
 * Slots round-robin: e0 of source 0, e0 of source 1, e0 of source 0 (refused), nothing, e1 of source 0, e1 of
 * source 1.
 */
typedef struct receiver {
    epx_k_pooled_layout_t layout;
    unsigned char headers[2 * 48];
    int32_t tag[6], to[6], from[4];
    uint8_t kept[6];
    int64_t start[2], count[2], bad[2];
    epx_plan_head_t head;
    epx_route_report_t report;
    void *pointer[4];
} receiver_t;

static const int32_t two_owner[] = {0, 0}, two_local[] = {0, 1}, two_first[] = {0, 2, 2},
                     two_expert[] = {0, 1}, two_base[] = {0, 3, 3}, two_before[] = {0, 0};

static void put_tag(receiver_t *r, int source, int q, uint32_t tag)
{
    unsigned char *at = r->headers + 48 * source + 16 + r->layout.tag_bytes * q;
    uint16_t narrow = (uint16_t)tag;
    if (r->layout.tag_bytes == 2)
        memcpy(at, &narrow, sizeof(narrow));
    else
        memcpy(at, &tag, sizeof(tag));
}

static void fill_receiver(receiver_t *r, int32_t tag_bytes)
{
    static const uint32_t tags[2][3] = {{1, 1, 2}, {1, 0, 2}};
    static const int64_t valid[2] = {3, 2};
    static const uint32_t stamp = 5;
    memset(r, 0xee, sizeof(*r));
    r->layout =
        new_layout(2, 2, &(owners_t){two_owner, two_local, two_first, two_expert, two_base, two_before});
    r->layout.assignments_max = 3;
    r->layout.cf = 0.5;
    r->layout.home_rows = r->layout.slab_rows = 3;
    r->layout.rows_per_expert = 2;
    r->layout.tag_bytes = tag_bytes;
    r->layout.header_bytes = 48;
    r->head = (epx_plan_head_t){.valid = 1, .tokens = 3, .kept = 100, .dropped_receiver = 100};
    r->report = (epx_route_report_t){0};
    for (int s = 0; s < 2; s++) {
        memset(r->headers + 48 * s, 0, 4); /* EPX_OK */
        memcpy(r->headers + 48 * s + 4, &stamp, sizeof(stamp));
        memcpy(r->headers + 48 * s + EPX_POOLED_HEADER_VALID, &valid[s], sizeof(valid[s]));
        for (int q = 0; q < 3; q++)
            put_tag(r, s, q, tags[s][q]);
    }
}

static void receive(receiver_t *r)
{
    epx_k_pooled_gate2_t args = {.layout = &r->layout,
                                 .headers = r->headers,
                                 .stamp = 5,
                                 .tag = r->tag,
                                 .pointer = r->pointer,
                                 .to = r->to,
                                 .from = r->from,
                                 .kept = r->kept,
                                 .start = r->start,
                                 .count = r->count,
                                 .counts = 1,
                                 .verdict = {.head = &r->head, .report = &r->report, .route = 9},
                                 .bad = r->bad};
    cr_assert_eq(epx_host_pooled_gate2(&args, NULL), EPX_OK);
}

Test(pooled_gates, the_receiver_walks_slots_round_robin)
{
    receiver_t r;
    for (int32_t tag_bytes = 2; tag_bytes <= 4; tag_bytes += 2) {
        fill_receiver(&r, tag_bytes);
        receive(&r);
        expect_ints("to", r.to, (const int32_t[]){0, -1, 2, 1, -1, 3}, 6);
        expect_ints("from", r.from, (const int32_t[]){0, 3, 2, 5}, 4);
        cr_expect_arr_eq(r.kept, ((const uint8_t[]){1, 0, 1, 1, 0, 1}), 6);
        expect_longs("start", r.start, (const int64_t[]){0, 2}, 2);
        expect_longs("count", r.count, (const int64_t[]){2, 2}, 2);
        cr_expect(r.head.kept == 104 && r.head.dropped_receiver == 101 && r.bad[0] == -1);
        cr_expect(r.report.done == 9 && r.report.dead == 0 && r.report.kept == 104);
    }
}

Test(pooled_gates, a_header_of_another_move_is_reported)
{
    receiver_t r;
    uint32_t stale = 4;
    fill_receiver(&r, 2);
    memcpy(r.headers + 48 + 4, &stale, sizeof(stale));
    receive(&r);
    expect_longs("bad", r.bad, (const int64_t[]){1, 4}, 2);
}

/* A source's route failed: whatever the headers hold, nothing has come; its own word about itself stays. */
Test(pooled_gates, a_header_of_a_failed_route_ends_the_plan)
{
    receiver_t r;
    const int32_t failed = EPX_ERR_ROUTING;
    for (int own = 0; own < 2; own++) {
        fill_receiver(&r, 2);
        memcpy(r.headers + 48, &failed, sizeof(failed));
        if (own)
            r.head.valid = EPX_ERR_ROUTING;
        receive(&r);
        expect_ints("to", r.to, (const int32_t[]){-1, -1, -1, -1, -1, -1}, 6);
        cr_expect_arr_eq(r.kept, ((const uint8_t[6]){0}), 6);
        expect_longs("count", r.count, (const int64_t[]){0, 0}, 2);
        cr_expect(r.head.valid == (own ? EPX_ERR_ROUTING : EPX_ERR_PEER) && r.head.kept == 100);
        cr_expect(r.report.done == 9 && r.report.dead == (own ? 0 : 9));
        cr_expect(own || (r.report.rank == 1 && r.report.status == EPX_ERR_PEER && r.head.tokens == 0));
    }
}

Test(pooled_gates, a_tag_that_no_expert_has_is_an_empty_slot_and_reported)
{
    receiver_t r;
    for (int32_t tag_bytes = 2; tag_bytes <= 4; tag_bytes += 2) {
        fill_receiver(&r, tag_bytes);
        put_tag(&r, 1, 0, tag_bytes == 2 ? 0xffff : 0xffffffff);
        receive(&r);
        expect_longs("bad", r.bad, (const int64_t[]){1, tag_bytes == 2 ? -0xffff : -0xffffffffll}, 2);
        /* Without it expert 0 keeps both rows of source 0. */
        expect_ints("to", r.to, (const int32_t[]){0, 1, 2, -1, -1, 3}, 6);
    }
}

/*
 * extra_wave: an expert a rank, T_max = 3, W = 1, cs = cf = 1: P = ceil(3/2) = 2, R = ceil(6/2) = 3. Rank 0
 * wants expert 0 three times; rank 1 twice, and expert 1 once. Destination 0: wave 0 takes 2 of rank 0 and 1
 * of rank 1, wave 1 the rest.
 */
Test(pooled_gates, extra_waves_follow_from_the_counts)
{
    static const int32_t owner[] = {0, 1}, local[] = {0, 0}, first[] = {0, 1, 2}, expert[] = {0, 1};
    static const int32_t base[] = {0, 2, 4}, before[] = {0, 0};
    static const int32_t counts[] = {3, 0, 2, 1}, ids[] = {0, 1, 0}, ordinal[] = {0, 0, 1};
    static const int32_t wanted[3][3] = {{0, 2, -1}, {-1, -1, 0}, {-1, -1, -1}};
    int32_t remaining[4], move[2 * 3], place[3], waves = 0;
    int64_t valid = 0, routed = 0;
    epx_k_pooled_layout_t layout = new_layout(2, 2, &(owners_t){owner, local, first, expert, base, before});
    layout.rank = 1;
    layout.extra_wave = 1;
    layout.assignments_max = 3;
    layout.home_rows = 4;
    layout.slab_rows = 2;
    epx_k_pooled_extra_t whole = {.layout = &layout,
                                  .counts = counts,
                                  .remaining = remaining,
                                  .waves = &waves,
                                  .valid = &valid,
                                  .routed = &routed};
    cr_assert_eq(epx_host_pooled_extra(&whole, NULL), EPX_OK);
    cr_expect(waves == 2 && valid == 3 && routed == 3);
    for (int32_t wave = 0; wave < 3; wave++) {
        epx_k_pooled_extra_t one = {.layout = &layout,
                                    .counts = counts,
                                    .remaining = remaining,
                                    .wave = wave,
                                    .tokens = 3,
                                    .expert = ids,
                                    .ordinal = ordinal,
                                    .move = move,
                                    .place = place};
        cr_assert_eq(epx_host_pooled_extra(&one, NULL), EPX_OK);
        expect_ints("place", place, wanted[wave], 3);
    }

    static const int32_t none[] = {0, 0, 0, 0};
    whole.counts = none;
    cr_assert_eq(epx_host_pooled_extra(&whole, NULL), EPX_OK);
    cr_expect(waves == 1 && routed == 0, "a pass of nothing has one wave, so that out is written");
}
