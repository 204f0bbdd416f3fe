/* What pooled_wave refuses, and how large it is. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <limits.h>
#include <string.h>

#include "pooled_wave/internal.h"
#include "unit/kept.h"

enum { LOCAL = EPX_FABRIC_LOADSTORE | EPX_FABRIC_ONE_SIDED_WORDS };

static const epx_transport_ops_t *const ops = &epx_transport_pooled_wave;

/* Five experts: three of rank 0, two of rank 1; K = 2, H = 4 of fp32. */
static const int32_t owner[] = {0, 0, 0, 1, 1}, local[] = {0, 1, 2, 0, 1}, first[] = {0, 3, 5},
                     expert[] = {0, 1, 2, 3, 4};

static epx_shape_t five_experts(void)
{
    epx_owners_t owners = {2, 5, owner, local, first, expert};
    return (epx_shape_t){.ranks = 2,
                         .virtual_ranks = 2,
                         .splits = 1,
                         .experts = 5,
                         .top_k = 2,
                         .columns = 2,
                         .width = 4,
                         .tokens_max = 10,
                         .virtual_tokens_max = 10,
                         .row_type = EPX_FP32,
                         .out_type = EPX_FP32,
                         .row_bytes = 16,
                         .row_align = 1,
                         .lanes = 2,
                         .depth = 2,
                         .backward = EPX_BACKWARD_KEPT,
                         .capacity_factor = 1.5,
                         .sender_factor = 1.25,
                         .waves = 2,
                         .overflow = EPX_OVERFLOW_DROP,
                         .wire = EPX_WIRE_AUTO,
                         .batch = EPX_BATCH_EXPANDED,
                         .check = EPX_CHECK_OFF,
                         .real = owners,
                         .virt = owners};
}

static void expect_refused(const epx_shape_t *shape, uint32_t caps, const char *word)
{
    char reason[256] = "";
    int score = ops->probe(shape, caps, reason, sizeof(reason));
    cr_expect_eq(score, 0, "not refused: %s", word);
    cr_expect(strstr(reason, word) != NULL, "'%s' does not say '%s'", reason, word);
}

Test(pooled_sizes, settings_without_meaning_are_refused)
{
    char reason[256] = "x";
    epx_shape_t shape = five_experts();
    cr_expect_gt(ops->probe(&shape, LOCAL, reason, sizeof(reason)), 0);
    cr_expect_gt(ops->probe(&shape, 0, reason, sizeof(reason)), 0);

    shape.accept = EPX_ACCEPT_PREFIX;
    expect_refused(&shape, LOCAL, "EPX_ACCEPT");
    shape = five_experts();
    shape.wire = EPX_WIRE_RANK;
    expect_refused(&shape, LOCAL, "EPX_WIRE=rank");
    shape = five_experts();
    shape.columns = 3;
    expect_refused(&shape, LOCAL, "spill_choices");

    shape = five_experts();
    shape.wire = EPX_WIRE_ASSIGNMENT;
    cr_expect_gt(ops->probe(&shape, LOCAL, reason, sizeof(reason)), 0, "%s", reason);
}

static epx_pooled_dims_t dims_of(const epx_shape_t *shape)
{
    epx_pooled_dims_t dims;
    cr_assert_eq(epx_pooled_dims(shape, LOCAL, &kept_services, &dims), EPX_OK, "%s", kept_text);
    return dims;
}

Test(pooled_sizes, dimensions_follow_the_formulas)
{
    /* A_max = 20: P(0) = ceil(20*3*1.25 / 10) = 8, P(1) = ceil(20*2*1.25 / 10) = 5, R = ceil(40*1.5 / 10)
     * = 6. */
    epx_shape_t shape = five_experts();
    epx_pooled_dims_t dims = dims_of(&shape);
    cr_expect(dims.home_rows == 13 && dims.slab_rows == 8 && dims.rows_per_expert == 6 &&
              dims.batch_rows == 18);
    cr_expect(dims.tag_bytes == 2 && dims.header_bytes == 32 && dims.sides == 1 && dims.local_max == 3);

    shape.row_align = 4;
    dims = dims_of(&shape);
    cr_expect(dims.rows_per_expert == 8 && dims.batch_rows == 24);

    /* dropless: P = ceil(20/2) = 10 for each destination, R = 2 * 10. */
    shape = five_experts();
    shape.dropless = 1;
    dims = dims_of(&shape);
    cr_expect(dims.home_rows == 20 && dims.slab_rows == 10 && dims.rows_per_expert == 20);
}

static epx_sizes_t sizes_of(const epx_shape_t *shape)
{
    epx_sizes_t sizes;
    cr_assert_eq(ops->query(shape, LOCAL, &kept_services, &sizes), EPX_OK, "%s", kept_text);
    return sizes;
}

Test(pooled_sizes, what_a_shape_does_without_takes_no_memory)
{
    epx_shape_t shape = five_experts();
    epx_sizes_t plain = sizes_of(&shape);
    cr_expect(plain.waves == 2 && plain.batch_rows_max == 18 && plain.wire == EPX_WIRE_ASSIGNMENT);
    cr_expect_eq(plain.plan_bytes % EPX_AREA_ALIGN, 0);

    shape.backward = EPX_BACKWARD_NONE;
    cr_expect_lt(sizes_of(&shape).segment_bytes, plain.segment_bytes);
    shape.backward = EPX_BACKWARD_RECOMPUTE;
    cr_expect_gt(sizes_of(&shape).segment_bytes, plain.segment_bytes);
    cr_expect_eq(sizes_of(&shape).batch_bytes, 2 * plain.batch_bytes);

    shape = five_experts();
    shape.batch_in_caller = 1;
    cr_expect_eq(sizes_of(&shape).batch_bytes, 0);
    /* Indexed batches are the slabs, gradients are not. */
    shape = five_experts();
    shape.batch = EPX_BATCH_INDEXED;
    cr_expect_eq(sizes_of(&shape).batch_bytes, plain.batch_bytes);
    shape.backward = EPX_BACKWARD_RECOMPUTE;
    cr_expect_eq(sizes_of(&shape).batch_bytes, plain.batch_bytes);
    shape.backward = EPX_BACKWARD_NONE;
    cr_expect_eq(sizes_of(&shape).batch_bytes, 0);
    /* Sums that go on from wave to wave are in memory, unless out has room for them. */
    shape = five_experts();
    shape.overflow = EPX_OVERFLOW_EXTRA_WAVE;
    int64_t without_acc = sizes_of(&shape).scratch_bytes;
    shape.row_type = shape.out_type = EPX_BF16;
    shape.row_bytes = 8;
    cr_expect_gt(sizes_of(&shape).scratch_bytes, without_acc);
    /* Twice the slots: of what comes in; what comes home has a place for each of the two waves. In units of
     * 256 bytes as below. */
    shape = five_experts();
    shape.depth = 4;
    cr_expect_eq(plain.segment_bytes, 2 * (2 * 3 + 2 + 1 + 1) * 256);
    cr_expect_eq(sizes_of(&shape).segment_bytes, 2 * (4 * 3 + 2 + 1 + 1) * 256);
    shape.depth = 2;
    shape.waves =
        4; /* P = 4 and 3, so 7 rows come home in a wave, 2 * 4 come in; 28 rows of 16 bytes are 2 units */
    cr_expect_eq(sizes_of(&shape).segment_bytes, 2 * (2 * 3 + 1 + 2 + 1) * 256);
    shape.depth = 1; /* too many waves: home has one place, for 7 rows */
    cr_expect_eq(sizes_of(&shape).segment_bytes, 2 * (3 + 1 + 1 + 1) * 256);
}

static int64_t staging_of(const epx_shape_t *shape)
{
    epx_sizes_t sizes, plain = sizes_of(shape);
    cr_assert_eq(ops->query(shape, EPX_FABRIC_ONE_SIDED_WORDS, &kept_services, &sizes), EPX_OK, "%s",
                 kept_text);
    cr_expect_eq(plain.staging_bytes, 0);
    cr_expect_eq(sizes.scratch_bytes, plain.scratch_bytes);
    return sizes.staging_bytes;
}

/*
 * In units of 256 bytes. Each of four slots: two headers of 32 bytes 1, 2 * 8 rows of 16 bytes 1, their
 * weights
 * 1. What comes home to each of two lanes in two waves, 26 rows: kept bits 1, rows 2, dots 1. Staged, home
 * has room for 2 * 2 * 8 rows, which takes no more here.
 */
Test(pooled_sizes, staging_mirrors_what_one_rank_sends)
{
    epx_shape_t shape = five_experts();
    cr_expect_eq(sizes_of(&shape).segment_bytes, (4 * 3 + 2 * 4) * 256);
    cr_expect_eq(staging_of(&shape), (4 * 3 + 2 * 4) * 256);
    shape.backward = EPX_BACKWARD_NONE;
    cr_expect_eq(staging_of(&shape), (4 * 2 + 2 * 3) * 256);
    /* Gradients come in apart: header, rows, weights; dots go home. */
    shape.backward = EPX_BACKWARD_RECOMPUTE;
    cr_expect_eq(staging_of(&shape), (4 * 5 + 2 * 4) * 256);
    /* 16 rows of 272 bytes come in, 17 units; home has room for twice as many, where 26 would take 28. */
    shape = five_experts();
    shape.row_bytes = 272;
    shape.width = 68;
    cr_expect_eq(staging_of(&shape), (4 * (1 + 17 + 1) + 2 * (1 + 34 + 1)) * 256);
}

Test(pooled_sizes, plans_do_not_grow_with_extra_waves)
{
    epx_shape_t shape = five_experts();
    shape.overflow = EPX_OVERFLOW_EXTRA_WAVE;
    epx_sizes_t sizes = sizes_of(&shape);
    cr_expect_eq(sizes.waves, 0, "each route decides");
    cr_expect_eq(sizes.exchange_bytes, 5 * 4, "one rank's counts");
    int64_t plan_bytes = sizes.plan_bytes;
    shape.capacity_factor = shape.sender_factor = 0.01; /* P = R = 1: as many waves as it takes */
    cr_expect_eq(sizes_of(&shape).plan_bytes, plan_bytes);
}

static void expect_too_large(const epx_shape_t *shape, epx_status_t status)
{
    epx_sizes_t sizes;
    kept_text[0] = '\0';
    cr_expect_eq(ops->query(shape, LOCAL, &kept_services, &sizes), status, "%s", kept_text);
    cr_expect(kept_text[0] != '\0');
}

Test(pooled_sizes, two_to_the_31_rows_are_refused)
{
    epx_shape_t shape = five_experts();
    shape.tokens_max = shape.virtual_tokens_max = INT_MAX / 2;
    expect_too_large(&shape, EPX_ERR_ARG); /* about 2^31 * 1.25 slots at a sender */
    shape.sender_factor = 0.5;
    shape.capacity_factor = 1e300;
    expect_too_large(&shape, EPX_ERR_ARG);
    shape = five_experts();
    shape.capacity_factor = 1e9;
    expect_too_large(&shape, EPX_ERR_ARG);
    shape = five_experts();
    shape.sender_factor = 1e300;
    expect_too_large(&shape, EPX_ERR_ARG);
    /* Few rows, each of them huge. */
    shape = five_experts();
    shape.width = INT_MAX / 4;
    shape.row_bytes = 4 * (int64_t)shape.width;
    shape.lanes = 4096;
    shape.depth = 1024;
    shape.tokens_max = shape.virtual_tokens_max = 1 << 20;
    expect_too_large(&shape, EPX_ERR_NO_MEMORY);
}
