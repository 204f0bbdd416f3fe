/* Sizes, refusals and the choice of the wire of `ragged`. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "ragged/internal.h"
#include "unit/kept.h"

enum { LOCAL = EPX_FABRIC_LOADSTORE | EPX_FABRIC_SHARED_ADDRESS, NETWORK = 0 };

/* Experts in blocks over real ranks; no virtual ones. */
static int32_t owner[256], local[256], first[129], expert[256];

static epx_shape_t shape_of(int32_t ranks, int32_t experts, int32_t top_k, int32_t tokens_max, int32_t chunks,
                            double cf)
{
    for (int32_t r = 0, e = 0; r < ranks; r++) {
        first[r] = e;
        for (int32_t i = 0; i < experts / ranks + (r < experts % ranks); i++, e++) {
            owner[e] = r;
            local[e] = i;
            expert[e] = e;
        }
        first[r + 1] = e;
    }
    epx_owners_t owners = {ranks, experts, owner, local, first, expert};
    return (epx_shape_t){.ranks = ranks,
                         .virtual_ranks = ranks,
                         .splits = 1,
                         .experts = experts,
                         .top_k = top_k,
                         .columns = top_k,
                         .width = 4,
                         .tokens_max = tokens_max,
                         .virtual_tokens_max = tokens_max,
                         .row_type = EPX_FP32,
                         .out_type = EPX_FP32,
                         .row_bytes = 16,
                         .row_align = 1,
                         .lanes = 1,
                         .depth = 1,
                         .capacity_factor = cf,
                         .waves = chunks,
                         .backward = EPX_BACKWARD_KEPT,
                         .real = owners,
                         .virt = owners};
}

static epx_sizes_t sizes_of(const epx_shape_t *shape)
{
    epx_sizes_t sizes;
    kept_text[0] = '\0';
    cr_assert_eq(epx_ragged_query(shape, LOCAL, &kept_services, &sizes), EPX_OK, "%s", kept_text);
    return sizes;
}

/* E = 12 over S = 4 and C = 2: El = 3, the larger chunk has 2. phys = 2 * ceil(4 * 10 * 2 * 1.15 / 12) = 2
 * * 8. */
Test(ragged_sizes, largest_chunk)
{
    epx_shape_t shape = shape_of(4, 12, 2, 10, 2, 1.15);
    cr_assert_eq(sizes_of(&shape).batch_rows_max, 16);
    shape.row_align = 8;
    cr_assert_eq(sizes_of(&shape).batch_rows_max, 16 + 2 * 7);
    shape.dropless = 1;
    cr_assert_eq(sizes_of(&shape).batch_rows_max, 80 + 2 * 7);
}

/* E < S, one token, one row per expert at least; the default number of chunks. */
Test(ragged_sizes, small_shapes)
{
    epx_shape_t shape = shape_of(4, 2, 1, 1, 0, 0.01);
    epx_sizes_t sizes = sizes_of(&shape);
    cr_assert_eq(sizes.batch_rows_max, 1);
    cr_assert_eq(sizes.waves, 2);
    cr_assert_eq(sizes.exchange_bytes, 3 * 8 + 2 * 4); /* a notice and two counts */
}

/* Gradient slots: apart only with recompute; none take weights or dots without a backward pass. */
Test(ragged_sizes, gradient_slots)
{
    epx_shape_t shape = shape_of(2, 4, 2, 64, 2, 1);
    shape.backward = EPX_BACKWARD_NONE;
    int64_t none = sizes_of(&shape).segment_bytes;
    shape.backward = EPX_BACKWARD_KEPT;
    int64_t kept = sizes_of(&shape).segment_bytes;
    shape.backward = EPX_BACKWARD_RECOMPUTE;
    int64_t recompute = sizes_of(&shape).segment_bytes;
    int64_t slot = 64 * 16; /* one expert's even share of 2 * 64 * 2 assignments, in rows of 16 bytes */
    cr_assert_eq(none, slot + 64 * 2 * 16);
    cr_assert_eq(kept, none + 64 * 4 + 64 * 2 * 4);
    cr_assert_eq(recompute, kept + slot + 64 * 4);
    shape.lanes = 3;
    shape.depth = 2;
    cr_assert_eq(sizes_of(&shape).segment_bytes, 6 * 2 * (slot + 64 * 4) + 3 * (64 * 2 * 16 + 64 * 2 * 4));
}

/* The slot is the batch on the assignment wire; the rank wire needs an area, but not for rows that the caller
 * holds. */
Test(ragged_sizes, batch_area)
{
    epx_shape_t shape = shape_of(2, 4, 2, 64, 2, 1);
    shape.wire = EPX_WIRE_ASSIGNMENT;
    cr_assert_eq(sizes_of(&shape).batch_bytes, 0);
    shape.wire = EPX_WIRE_RANK;
    cr_assert_eq(sizes_of(&shape).batch_bytes, 64 * 16);
    shape.batch_in_caller = 1;
    cr_assert_eq(sizes_of(&shape).batch_bytes, 0);
    shape.batch_in_caller = 0;
    shape.batch = EPX_BATCH_INDEXED;
    shape.backward = EPX_BACKWARD_NONE;
    cr_assert_eq(sizes_of(&shape).batch_bytes, 0);
}

Test(ragged_sizes, giants_are_refused)
{
    epx_sizes_t sizes;
    epx_shape_t shape = shape_of(64, 64, 8, 1 << 20, 1, 1);
    shape.dropless = 1; /* 2^29 rows */
    cr_assert_eq(epx_ragged_query(&shape, LOCAL, &kept_services, &sizes), EPX_OK);
    shape.tokens_max = shape.virtual_tokens_max = 1 << 22; /* 2^31 */
    cr_assert_eq(epx_ragged_query(&shape, LOCAL, &kept_services, &sizes), EPX_ERR_ARG);
    cr_assert(strstr(kept_text, "2147483648 rows"), "%s", kept_text);
    shape.dropless = 0;
    shape.waves = 65536; /* 2^25 * 2^16 places */
    cr_assert_eq(epx_ragged_query(&shape, LOCAL, &kept_services, &sizes), EPX_ERR_ARG);
    cr_assert(strstr(kept_text, "EPX_WAVES"), "%s", kept_text);
    shape.waves = 1;
    shape.tokens_max = shape.virtual_tokens_max = INT32_MAX;
    cr_assert_eq(epx_ragged_query(&shape, LOCAL, &kept_services, &sizes), EPX_ERR_ARG);
}

static int64_t staging_of(const epx_shape_t *shape, uint32_t caps)
{
    epx_sizes_t sizes;
    cr_assert_eq(epx_ragged_query(shape, caps, &kept_services, &sizes), EPX_OK, "%s", kept_text);
    epx_sizes_t plain;
    cr_assert_eq(epx_ragged_query(shape, caps | EPX_FABRIC_LOADSTORE, &kept_services, &plain), EPX_OK);
    cr_assert_eq(sizes.segment_bytes - plain.segment_bytes, sizes.staging_bytes);
    return sizes.staging_bytes;
}

/*
 * T_max * K = 512 assignments of 16 bytes may leave a rank, with 4 bytes of weight each: 10240. As many may
 * be sent back, with a gradient of the weight each: 10240. However many ranks there are.
 */
Test(ragged_sizes, staging_is_what_one_rank_sends)
{
    epx_shape_t shape = shape_of(8, 64, 8, 64, 1, 1);
    shape.wire = EPX_WIRE_ASSIGNMENT;
    cr_assert_eq(staging_of(&shape, LOCAL), 0);
    cr_assert_eq(staging_of(&shape, NETWORK), 20480);
    shape = shape_of(64, 64, 8, 64, 1, 1);
    shape.wire = EPX_WIRE_ASSIGNMENT;
    cr_assert_eq(staging_of(&shape, NETWORK), 20480);
    /* What goes out has one area for each lane, what goes home one for each slot. */
    shape.lanes = 2;
    shape.depth = 3;
    cr_assert_eq(staging_of(&shape, NETWORK), 2 * 10240 + 6 * 10240);
    /* Gradients go out of their own, beside rows that are dispatched again. */
    shape.backward = EPX_BACKWARD_RECOMPUTE;
    cr_assert_eq(staging_of(&shape, NETWORK), 4 * 10240 + 6 * 10240);
    shape.backward = EPX_BACKWARD_NONE;
    cr_assert_eq(staging_of(&shape, NETWORK), 2 * 8192 + 6 * 8192);
    shape = shape_of(1, 64, 8, 64, 1, 1);
    cr_assert_eq(staging_of(&shape, NETWORK), 0);
}

static void refused(const epx_shape_t *shape, uint32_t caps, const char *word)
{
    char reason[256] = "";
    int score = epx_ragged_probe(shape, caps, reason, sizeof(reason));
    cr_assert_eq(score, 0, "accepted, though %s", word);
    cr_assert(strstr(reason, word), "%s", reason);
}

Test(ragged_sizes, settings_without_meaning)
{
    char reason[256];
    epx_shape_t good = shape_of(2, 4, 2, 64, 2, 1), shape = good;
    cr_assert_gt(epx_ragged_probe(&good, LOCAL, reason, sizeof(reason)), 0);
    cr_assert_gt(epx_ragged_probe(&good, NETWORK, reason, sizeof(reason)), 0);
    shape.overflow = EPX_OVERFLOW_DROP;
    refused(&shape, LOCAL, "EPX_OVERFLOW");
    shape = good;
    shape.sender_factor = 1.15;
    refused(&shape, LOCAL, "EPX_SENDER_FACTOR");
    shape = good;
    shape.batch = EPX_BATCH_INDEXED;
    cr_assert_gt(epx_ragged_probe(&shape, LOCAL, reason, sizeof(reason)), 0);
    cr_assert_eq(epx_ragged_wire(&shape, LOCAL), EPX_WIRE_RANK);
    shape.wire = EPX_WIRE_ASSIGNMENT;
    refused(&shape, LOCAL, "EPX_BATCH");
}

/* 8 ranks, 1 chunk, K = 8: 8 * (1 - (7/8)^8) = 5.251 wire rows. 64 ranks: 64 * (1 - (63/64)^8) = 7.575, 5%
 * fewer. */
Test(ragged_sizes, wire_by_predicted_time)
{
    epx_shape_t shape = shape_of(8, 64, 8, 64, 1, 1);
    epx_ragged_times_t times = epx_ragged_predict(&shape, LOCAL);
    cr_assert_float_eq(times.wire_rows, 5.251, 1e-3);
    cr_assert_float_eq(times.assignment, 16, 1e-9);
    cr_assert_float_eq(times.rank, 3 * 5.251 + 24, 3e-3);
    cr_assert_eq(epx_ragged_wire(&shape, LOCAL), EPX_WIRE_ASSIGNMENT);
    cr_assert_eq(epx_ragged_wire(&shape, NETWORK), EPX_WIRE_RANK);
    shape.wire = EPX_WIRE_ASSIGNMENT;
    cr_assert_eq(epx_ragged_wire(&shape, NETWORK), EPX_WIRE_ASSIGNMENT);

    shape = shape_of(64, 64, 8, 64, 1, 1);
    times = epx_ragged_predict(&shape, EPX_FABRIC_LOADSTORE);
    cr_assert_float_eq(times.wire_rows, 7.575, 1e-3);
    cr_assert_eq(epx_ragged_wire(&shape, EPX_FABRIC_LOADSTORE), EPX_WIRE_ASSIGNMENT);
    shape = shape_of(2, 64, 8, 64, 1, 1);
    cr_assert_eq(epx_ragged_wire(&shape, EPX_FABRIC_LOADSTORE), EPX_WIRE_RANK);
}
