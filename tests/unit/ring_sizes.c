/* ring: what it refuses and how much memory it asks for, by hand. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "ring/ring.h"
#include "unit/kept.h"

/* Three experts, rank 0 owns 0 and 1, rank 1 owns 2. */
static const int32_t owner3[] = {0, 0, 1}, local3[] = {0, 1, 0}, first3[] = {0, 2, 3}, expert3[] = {0, 1, 2};
static const epx_owners_t owners3 = {
    .ranks = 2, .experts = 3, .owner = owner3, .local = local3, .first = first3, .expert = expert3};

static epx_shape_t shape3(void)
{
    return (epx_shape_t){.ranks = 2,
                         .virtual_ranks = 2,
                         .splits = 1,
                         .experts = 3,
                         .top_k = 2,
                         .columns = 2,
                         .width = 100,
                         .tokens_max = 3,
                         .virtual_tokens_max = 3,
                         .row_type = EPX_BF16,
                         .out_type = EPX_BF16,
                         .row_bytes = 200,
                         .row_align = 1,
                         .lanes = 2,
                         .depth = 2,
                         .backward = EPX_BACKWARD_KEPT,
                         .capacity_factor = 0.5,
                         .accept = EPX_ACCEPT_PREFIX,
                         .check = EPX_CHECK_OFF,
                         .timeout_ms = 1000,
                         .real = owners3,
                         .virt = owners3};
}

static epx_sizes_t sizes_of(const epx_shape_t *shape)
{
    epx_sizes_t sizes;
    cr_assert_eq(epx_ring_query(shape, EPX_FABRIC_LOADSTORE, &kept_services, &sizes), EPX_OK);
    return sizes;
}

/* Refused, with a reason that has the word. */
static void expect_refused(const epx_shape_t *shape, uint32_t caps, const char *word)
{
    char reason[256] = "";
    cr_assert_eq(epx_ring_probe(shape, caps, reason, sizeof(reason)), 0, "%s was not refused", word);
    cr_assert_not_null(strstr(reason, word), "'%s' does not say %s", reason, word);
}

/* What goes to the right neighbour stands where it will stand there: as much again as comes from the left. */
Test(ring_sizes, staging_is_as_large_as_what_comes)
{
    epx_shape_t shape = shape3();
    epx_sizes_t plain = sizes_of(&shape), staged;
    cr_assert_eq(epx_ring_query(&shape, 0, &kept_services, &staged), EPX_OK);
    cr_expect_eq(plain.staging_bytes, 0);
    cr_expect_eq(staged.staging_bytes, plain.segment_bytes);
    cr_expect_eq(staged.segment_bytes, 2 * plain.segment_bytes);
    cr_expect_eq(staged.plan_bytes, plain.plan_bytes);
}

Test(ring_sizes, refuses_what_means_nothing)
{
    epx_shape_t shape = shape3();
    char reason[256];
    cr_assert_gt(epx_ring_probe(&shape, EPX_FABRIC_LOADSTORE, reason, sizeof(reason)), 0);
    shape.wire = EPX_WIRE_AUTO;
    cr_assert_gt(epx_ring_probe(&shape, EPX_FABRIC_LOADSTORE, reason, sizeof(reason)), 0);
    cr_assert_gt(epx_ring_probe(&shape, 0, reason, sizeof(reason)), 0);

    shape = shape3();
    shape.waves = 2;
    expect_refused(&shape, EPX_FABRIC_LOADSTORE, "EPX_WAVES");
    shape = shape3();
    shape.overflow = EPX_OVERFLOW_DROP;
    expect_refused(&shape, EPX_FABRIC_LOADSTORE, "EPX_OVERFLOW");
    shape = shape3();
    shape.sender_factor = 1.5;
    expect_refused(&shape, EPX_FABRIC_LOADSTORE, "EPX_SENDER_FACTOR");
    shape = shape3();
    shape.wire = EPX_WIRE_RANK;
    expect_refused(&shape, EPX_FABRIC_LOADSTORE, "EPX_WIRE");
    shape = shape3();
    shape.batch = EPX_BATCH_INDEXED;
    expect_refused(&shape, EPX_FABRIC_LOADSTORE, "EPX_BATCH");
    shape = shape3();
    shape.columns = 3;
    expect_refused(&shape, EPX_FABRIC_LOADSTORE, "spill");
}

/* A_max = 6. Rank 0: phys = 2 * ceil(12 * 0.5 / 3) = 4; rank 1: 2. */
Test(ring_sizes, rows_of_a_batch)
{
    epx_shape_t shape = shape3();
    cr_assert_eq(sizes_of(&shape).batch_rows_max, 4);
    shape.row_align = 4; /* 4 + 2 * 3 */
    cr_assert_eq(sizes_of(&shape).batch_rows_max, 10);
    shape.row_align = 1;
    shape.dropless = 1; /* one block has no more than A_max */
    cr_assert_eq(sizes_of(&shape).batch_rows_max, 6);
    cr_assert_eq(sizes_of(&shape).waves, 2);
}

/* Areas begin at multiples of 256. */
static int64_t up(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/*
 * A block slot: rows 3 * 200, ids and weights 3 * 2 * 4 each. A sum slot: 3 * 100 * 4 and weight gradients.
 * Two ranks have one block slot and two sum slots; more ranks have two of each.
 */
Test(ring_sizes, segment_of_two_ranks)
{
    epx_shape_t shape = shape3();
    int64_t block = up(600) + 2 * up(24), sum = up(1200) + up(24);
    cr_assert_eq(sizes_of(&shape).segment_bytes, 2 * (block + 2 * sum));
    shape.backward = EPX_BACKWARD_RECOMPUTE;
    cr_assert_eq(sizes_of(&shape).segment_bytes, 2 * (2 * block + 2 * sum));
    shape.backward = EPX_BACKWARD_NONE;
    cr_assert_eq(sizes_of(&shape).segment_bytes, 2 * (block + 2 * up(1200)));
    shape.aux_bytes = 7;
    cr_assert_eq(sizes_of(&shape).segment_bytes, 2 * (block + up(21) + 2 * up(1200)));
    shape.check = EPX_CHECK_FULL;
    cr_assert_eq(sizes_of(&shape).segment_bytes, 2 * (block + up(21) + up(12) + 2 * (up(1200) + up(12))));
}

/* The caller's batches need no rows of the library. Depth 2, lanes 2. */
Test(ring_sizes, batch_area)
{
    epx_shape_t shape = shape3();
    int64_t table = 2 * up(16);
    cr_assert_eq(sizes_of(&shape).batch_bytes, 4 * (up(4 * 200) + table));
    shape.origin = 1;
    cr_assert_eq(sizes_of(&shape).batch_bytes, 4 * (up(4 * 200) + table + up(4 * 12)));
    shape.batch_in_caller = 1;
    cr_assert_eq(sizes_of(&shape).batch_bytes, 4 * (table + up(4 * 12)));
    shape.backward = EPX_BACKWARD_RECOMPUTE;
    cr_assert_eq(sizes_of(&shape).batch_bytes, 8 * (table + up(4 * 12)));
}

/* Sizes are the same on all ranks, and asking twice gives the same answer. */
Test(ring_sizes, pure_and_symmetric)
{
    epx_shape_t shape = shape3();
    epx_sizes_t first = sizes_of(&shape), second = sizes_of(&shape);
    cr_assert_eq(memcmp(&first, &second, sizeof(first)), 0);
    shape.rank = 1;
    second = sizes_of(&shape);
    cr_assert_eq(memcmp(&first, &second, sizeof(first)), 0);
    cr_assert_eq(first.plan_bytes % 256, 0);
    cr_assert_eq(first.exchange_bytes, 3 * 8 + 16); /* a notice and three counts, to a multiple of 8 */
}

Test(ring_sizes, shapes_that_cannot_be)
{
    epx_shape_t shape = shape3();
    epx_sizes_t sizes;
    shape.tokens_max = INT32_MAX;
    shape.virtual_tokens_max = INT32_MAX;
    cr_assert_eq(epx_ring_query(&shape, EPX_FABRIC_LOADSTORE, &kept_services, &sizes), EPX_ERR_ARG);
    shape.width = INT32_MAX;
    shape.row_bytes = 2 * (int64_t)INT32_MAX;
    cr_assert_eq(epx_ring_query(&shape, EPX_FABRIC_LOADSTORE, &kept_services, &sizes), EPX_ERR_NO_MEMORY);
}

/* A group of one rank passes nothing on. */
Test(ring_sizes, one_rank)
{
    static const int32_t owner[] = {0, 0, 0}, local[] = {0, 1, 2}, first[] = {0, 3}, expert[] = {0, 1, 2};
    epx_shape_t shape = shape3();
    shape.ranks = shape.virtual_ranks = 1;
    shape.real = shape.virt = (epx_owners_t){1, 3, owner, local, first, expert};
    cr_assert_eq(sizes_of(&shape).segment_bytes, 2 * (up(1200) + up(24)));
    cr_assert_eq(sizes_of(&shape).waves, 1);
}
