/* Sums over rows and the two kinds of gradient. SPDX-License-Identifier: Apache-2.0 */
#include <epx/kernels_ragged.h>

#include "gpu/check.h"
#include "kernels/cuda/table.h"
#include "kernels/host/table.h"

static epx_type_t some_type(dice_t *dice)
{
    static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
    return types[dice_range(dice, 0, 2)];
}

static int32_t some_width(dice_t *dice)
{
    static const int32_t usual[] = {8, 64, 100, 256, 1024, 2880, 7168};
    return (int32_t)(dice_range(dice, 0, 1) ? usual[dice_range(dice, 0, 6)] : dice_range(dice, 1, 600));
}

static int32_t *ints(const twin_t *twin) { return (int32_t *)(void *)twin->host; }
static int64_t *longs(const twin_t *twin) { return (int64_t *)(void *)twin->host; }

static void combine(void)
{
    for (dice_t dice; gpu_round(&dice, 100);) {
        epx_type_t type = some_type(&dice), out_type = dice_range(&dice, 0, 1) ? type : EPX_FP32;
        int32_t width = some_width(&dice), waves = (int32_t)dice_range(&dice, 1, 3);
        int32_t columns =
            (int32_t)(dice_range(&dice, 0, 4) == 0 ? dice_range(&dice, 30, 70) : dice_range(&dice, 1, 9));
        int64_t tokens = gpu_small() ? dice_range(&dice, 0, 9) : dice_range(&dice, 0, 200),
                rows = dice_range(&dice, 1, 300) * (dice_range(&dice, 0, 1) ? waves : 1);
        int64_t stride = width * (int64_t)type_size(type) + (dice_range(&dice, 0, 3) == 0 ? 16 : 0),
                places = rows * waves;
        int in_out = out_type == EPX_FP32 && dice_range(&dice, 0, 1),
            with_kept = dice_range(&dice, 0, 2) == 0;
        int with_weights = dice_range(&dice, 0, 3) != 0, device_tokens = dice_range(&dice, 0, 3) == 0;
        int32_t units = (int32_t)dice_range(&dice, 0, 3); /* many sums for each block go another way */
        twin_t row = twin_make((size_t)(rows * stride)),
               place = twin_make((size_t)(tokens * columns) * 4 + 4);
        twin_t weights = twin_make(with_weights ? (size_t)(tokens * columns) * 4 + 4 : 0),
               count = twin_make(8);
        twin_t kept = twin_make(with_kept ? (size_t)rows : 0),
               acc = twin_make((size_t)(tokens * width) * 4 + 4);
        twin_t out = twin_make((size_t)(tokens * width) * type_size(out_type) + 4);
        twin_fill_numbers(&row, type, &dice);
        twin_fill_numbers(&weights, EPX_FP32, &dice);
        for (int64_t a = 0; a < tokens * columns; a++)
            ints(&place)[a] = dice_range(&dice, 0, 4) == 0 ? -1 : (int32_t)dice_range(&dice, 0, places + 5);
        for (int64_t r = 0; r < rows && with_kept; r++)
            kept.host[r] = dice_range(&dice, 0, 3) != 0;
        longs(&count)[0] = tokens;
        twin_send(&row), twin_send(&place), twin_send(&weights), twin_send(&kept), twin_send(&acc),
            twin_send(&out);
        twin_send(&count);
        int at_once = waves > 1 && rows % waves == 0 && dice_range(&dice, 0, 1);
        /* Some rows are others of the same, by a list. */
        int64_t own_count = dice_range(&dice, 0, 1) ? dice_range(&dice, 1, rows) : 0,
                own_first = dice_range(&dice, 0, rows - own_count);
        twin_t own = twin_make(own_count > 0 ? (size_t)own_count * 4 : 4);
        for (int64_t i = 0; i < own_count; i++)
            ints(&own)[i] = (int32_t)dice_range(&dice, 0, rows - 1);
        twin_send(&own);
        for (int device = 0; device <= 1; device++) {
            for (int32_t w = 0; w < (at_once ? 1 : waves); w++) {
                epx_k_combine_t args = {.units = units,
                                        .tokens = device_tokens ? -1 : tokens,
                                        .tokens_device = device_tokens ? side_of(&count, device) : NULL,
                                        .columns = columns,
                                        .width = width,
                                        .row_type = type,
                                        .out_type = out_type,
                                        .weights = side_or_null(&weights, device),
                                        .place = side_of(&place, device),
                                        .lo = w * rows,
                                        .hi = (w + 1) * rows,
                                        .rows = side_of(&row, device),
                                        .row_stride = stride,
                                        .kept = side_or_null(&kept, device),
                                        .acc = side_of(in_out ? &out : &acc, device),
                                        .out = side_of(&out, device),
                                        .first = w == 0,
                                        .last = at_once || w == waves - 1};
                if (at_once) /* the rows there are, dealt out to the waves */
                    args.waves = waves, args.acc = tokens % 2 == 0 ? args.acc : NULL;
                if (own_count > 0) {
                    args.own = side_of(&own, device), args.own_rows = side_of(&row, device);
                    args.own_first = own_first, args.own_count = own_count;
                }
                CHECK((device ? epx_cuda_combine : epx_host_combine)(&args, NULL) == EPX_OK, "%s",
                      epx_last_error());
            }
        }
        twin_same_numbers(&out, out_type, "out");
    }
}

/* Lists for n reduced rows, some of them empty; returns their entries in all. */
static int64_t make_lists(const twin_t *first, const twin_t *count, int32_t n, int64_t most, dice_t *dice)
{
    int64_t entries = 0;
    for (int32_t j = 0; j < n; j++) {
        ints(first)[j] = (int32_t)entries;
        entries += ints(count)[j] = (int32_t)dice_range(dice, 0, most);
    }
    return entries;
}

typedef struct lists {
    twin_t first, count, list, weights, row;
    int32_t n, width;
    epx_type_t type;
    int64_t stride;
} lists_t;

static lists_t some_lists(dice_t *dice)
{
    lists_t l = {.n = (int32_t)dice_range(dice, 1, gpu_small() ? 8 : 300),
                 .width = some_width(dice),
                 .type = some_type(dice)};
    int64_t rows = dice_range(dice, 1, 200), entries;
    l.stride = l.width * (int64_t)type_size(l.type);
    l.first = twin_make((size_t)l.n * 4), l.count = twin_make((size_t)l.n * 4);
    entries = make_lists(&l.first, &l.count, l.n, dice_range(dice, 0, 4) == 0 ? 70 : 8, dice);
    l.list = twin_make((size_t)entries * 4 + 4);
    l.weights = twin_make(dice_range(dice, 0, 3) != 0 ? (size_t)entries * 4 + 4 : 0);
    l.row = twin_make((size_t)(rows * l.stride));
    for (int64_t i = 0; i < entries; i++)
        ints(&l.list)[i] = (int32_t)dice_range(dice, 0, rows - 1);
    twin_fill_numbers(&l.row, l.type, dice);
    twin_fill_numbers(&l.weights, EPX_FP32, dice);
    twin_send(&l.first), twin_send(&l.count), twin_send(&l.list), twin_send(&l.weights), twin_send(&l.row);
    return l;
}

/* A token's row, if it has one, is a sum of own rows. Some of the lists stand behind others. */
static void combine_sums(void)
{
    for (dice_t dice; gpu_round(&dice, 100);) {
        lists_t l = some_lists(&dice);
        epx_type_t out_type = dice_range(&dice, 0, 1) ? l.type : EPX_FP32;
        int32_t columns = (int32_t)(dice_range(&dice, 0, 4) == 0 ? dice_range(&dice, 30, EPX_SUMS_COLUMNS_MAX)
                                                                 : dice_range(&dice, 1, 9));
        int64_t tokens = gpu_small() ? dice_range(&dice, 0, 9) : dice_range(&dice, 0, 200),
                lo = dice_range(&dice, 0, 50), on = dice_range(&dice, -5, 5);
        int device_tokens = dice_range(&dice, 0, 3) == 0, first = dice_range(&dice, 0, 1) != 0,
            last = dice_range(&dice, 0, 2) != 0, early = dice_range(&dice, 0, 1) != 0;
        int32_t units = (int32_t)dice_range(&dice, 0, 3);
        twin_t facts = twin_make(24), place = twin_make((size_t)(tokens * columns) * 4 + 4),
               acc = twin_make((size_t)(tokens * l.width) * 4 + 4),
               out = twin_make((size_t)(tokens * l.width) * type_size(out_type) + 4);
        twin_fill_numbers(&acc, EPX_FP32, &dice);
        for (int64_t t = 0; t < tokens; t++) {
            int64_t own = dice_range(&dice, -1, columns - 1);
            for (int32_t k = 0; k < columns; k++)
                ints(&place)[t * columns + k] = (int32_t)(k == own ? lo + dice_range(&dice, 0, l.n - 1)
                                                          : k % 2  ? lo + l.n
                                                                   : dice_range(&dice, -1, lo - 1));
        }
        longs(&facts)[0] = 100 + on, longs(&facts)[1] = 100, longs(&facts)[2] = tokens;
        twin_send(&facts), twin_send(&place), twin_send(&acc), twin_send(&out);
        for (int device = 0; device <= 1; device++) {
            const int64_t *of = side_of(&facts, device);
            epx_k_combine_t args = {.tokens = device_tokens ? -1 : tokens,
                                    .tokens_device = device_tokens ? of + 2 : NULL,
                                    .columns = columns,
                                    .width = l.width,
                                    .row_type = l.type,
                                    .out_type = out_type,
                                    .place = side_of(&place, device),
                                    .lo = lo,
                                    .hi = lo + l.n,
                                    .row_stride = l.stride,
                                    .acc = side_of(&acc, device),
                                    .out = side_of(&out, device),
                                    .first = first,
                                    .last = last,
                                    .units = units,
                                    .early = early};
            args.sums = (epx_k_own_sums_t){.y = side_of(&l.row, device),
                                           .first = side_of(&l.first, device),
                                           .count = side_of(&l.count, device),
                                           .list = (const int32_t *)side_of(&l.list, device) - on,
                                           .weights = side_or_null(&l.weights, device),
                                           .home_start = of,
                                           .wire_start = of + 1};
            if (args.sums.weights != NULL)
                args.sums.weights -= on;
            CHECK((device ? epx_cuda_combine : epx_host_combine)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        if (last)
            twin_same_numbers(&out, out_type, "out");
        else
            twin_same_numbers(&acc, EPX_FP32, "acc");
    }
}

static void reduce(void)
{
    for (dice_t dice; gpu_round(&dice, 60);) {
        lists_t l = some_lists(&dice);
        int device_n = dice_range(&dice, 0, 1);
        twin_t out = twin_make((size_t)(l.n * l.stride)), n = twin_make(4);
        ints(&n)[0] = l.n;
        twin_send(&out), twin_send(&n);
        for (int device = 0; device <= 1; device++) {
            epx_k_reduce_t args = {.first = side_of(&l.first, device),
                                   .count = side_of(&l.count, device),
                                   .n = device_n ? -1 : l.n,
                                   .n_device = device_n ? side_of(&n, device) : NULL,
                                   .list = side_of(&l.list, device),
                                   .weights = side_or_null(&l.weights, device),
                                   .width = l.width,
                                   .row_type = l.type,
                                   .rows = side_of(&l.row, device),
                                   .row_stride = l.stride,
                                   .out = side_of(&out, device),
                                   .out_stride = l.stride};
            CHECK((device ? epx_cuda_reduce : epx_host_reduce)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same_numbers(&out, l.type, "out");
    }
}

static void ragged_return(void)
{
    for (dice_t dice; gpu_round(&dice, 60);) {
        lists_t l = some_lists(&dice);
        int32_t runs = (int32_t)(dice_range(&dice, 0, 9) == 0 ? dice_range(&dice, 1000, 2500)
                                                              : dice_range(&dice, 1, 20)),
                used = 0;
        int with_sums = dice_range(&dice, 0, 2) == 0;
        twin_t run = twin_make((size_t)runs * sizeof(epx_run_t)), rows = twin_make((size_t)runs * 8),
               peers = twin_make(16), ahead = twin_make(16);
        /* Lists by the rows' sender: entries stand `on` further than a row's list says. */
        int by_sender = dice_range(&dice, 0, 1) != 0, without = dice_range(&dice, 0, 2) == 0,
            few = dice_range(&dice, 0, 1) != 0; /* these go another way */
        int64_t on = by_sender ? dice_range(&dice, -5, 5) : 0;
        int32_t units = (int32_t)dice_range(&dice, 0, 2); /* within a budget they are stored another way */
        longs(&ahead)[0] = on + 7;
        longs(&ahead)[1] = 7;
        twin_send(&ahead);
        twin_t out = twin_make((size_t)(l.n * l.stride)), sums = twin_make((size_t)l.n * 4);
        for (int32_t i = 0; i < runs; i++) {
            int32_t most = (int32_t)dice_range(&dice, 0, (l.n - used) < 9 ? l.n - used : 9);
            ((epx_run_t *)(void *)run.host)[i] =
                (epx_run_t){.first = used, .row = l.n - used - most, .peer = i % 2, .rows = most};
            longs(&rows)[i] = dice_range(&dice, 0, most + 2);
            used += most;
        }
        twin_send(&run), twin_send(&rows), twin_send(&out), twin_send(&sums);
        for (int device = 0; device <= 1; device++) {
            /* Sums stand at an offset from the peer's base: one that reaches from `out` to `sums`. */
            char *base = side_of(&out, device);
            ((void **)(void *)peers.host)[0] = ((void **)(void *)peers.host)[1] = base;
            if (device)
                twin_send(&peers);
            epx_k_ragged_return_t args = {.dst = side_of(&peers, device),
                                          .dst_offset = 0,
                                          .dst_stride = l.stride,
                                          .sum_offset = -1,
                                          .runs = side_of(&run, device),
                                          .rows = side_of(&rows, device),
                                          .run_count = runs,
                                          .first = side_of(&l.first, device),
                                          .count = side_of(&l.count, device),
                                          .list = (const int32_t *)side_of(&l.list, device) - on,
                                          .weights = side_or_null(&l.weights, device),
                                          .width = l.width,
                                          .row_type = l.type,
                                          .src = side_of(&l.row, device),
                                          .row_bytes = l.stride,
                                          .units = units,
                                          .without = without ? 2 : 0,
                                          .rows_most = few ? l.n : 0};
            if (args.weights != NULL)
                args.weights -= on;
            if (by_sender) {
                args.home_start = side_of(&ahead, device);
                args.wire_start = args.home_start + 1;
            }
            if (with_sums)
                args.sum_offset = (char *)side_of(&sums, device) - base;
            if (with_sums && args.sum_offset < 0) { /* the other way round, then */
                ((void **)(void *)peers.host)[0] = ((void **)(void *)peers.host)[1] = side_of(&sums, device);
                if (device)
                    twin_send(&peers);
                args.dst_offset = base - (char *)side_of(&sums, device);
                args.sum_offset = 0;
            }
            CHECK((device ? epx_cuda_ragged_return : epx_host_ragged_return)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same_numbers(&out, l.type, "out");
    }
}

static void take_dots(void)
{
    for (dice_t dice; gpu_round(&dice, 30);) {
        int64_t tokens = dice_range(&dice, 0, 400), rows = dice_range(&dice, 1, 300);
        int32_t columns = (int32_t)dice_range(&dice, 1, 9);
        int with_kept = dice_range(&dice, 0, 1), first = dice_range(&dice, 0, 1) != 0;
        twin_t place = twin_make((size_t)(tokens * columns) * 4 + 4), dots = twin_make((size_t)rows * 4);
        twin_t kept = twin_make(with_kept ? (size_t)rows : 0),
               dweight = twin_make((size_t)(tokens * columns) * 4 + 4);
        twin_fill_numbers(&dots, EPX_FP32, &dice);
        for (int64_t a = 0; a < tokens * columns; a++)
            ints(&place)[a] = (int32_t)dice_range(&dice, -1, 2 * rows);
        for (int64_t r = 0; r < rows && with_kept; r++)
            kept.host[r] = (unsigned char)dice_range(&dice, 0, 1);
        twin_send(&place), twin_send(&dots), twin_send(&kept), twin_send(&dweight);
        for (int device = 0; device <= 1; device++) {
            epx_k_take_dots_t args = {.tokens = tokens,
                                      .columns = columns,
                                      .place = side_of(&place, device),
                                      .lo = rows / 2,
                                      .hi = rows / 2 + rows,
                                      .dots = side_of(&dots, device),
                                      .kept = side_or_null(&kept, device),
                                      .dweight = side_of(&dweight, device),
                                      .first = first};
            CHECK((device ? epx_cuda_take_dots : epx_host_take_dots)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same(&dweight, "dweight");
    }
}

static void scale_dot(void)
{
    for (dice_t dice; gpu_round(&dice, 60);) {
        epx_type_t type = some_type(&dice);
        int32_t width = some_width(&dice), experts = (int32_t)dice_range(&dice, 1, 40);
        int64_t row = width * (int64_t)type_size(type), rows = 0;
        int with_index = dice_range(&dice, 0, 1) != 0, in_place = !with_index && dice_range(&dice, 0, 1);
        twin_t start = twin_make((size_t)experts * 8), count = twin_make((size_t)experts * 8);
        for (int32_t e = 0; e < experts; e++) {
            longs(&start)[e] = rows += dice_range(&dice, 0, 2);
            rows += longs(&count)[e] = dice_range(&dice, 0, gpu_small() ? 2 : 12);
        }
        int64_t sources = with_index ? dice_range(&dice, 1, 100) : rows + 1;
        twin_t index = twin_make(with_index ? (size_t)rows * 4 + 4 : 0),
               weight = twin_make((size_t)rows * 4 + 4);
        twin_t dout = twin_make((size_t)(sources * row)), y = twin_make((size_t)(rows * row) + 4);
        twin_t dy = twin_make((size_t)(rows * row) + 4), dot = twin_make((size_t)rows * 4 + 4);
        for (int64_t g = 0; g < rows && with_index; g++)
            ints(&index)[g] = (int32_t)dice_range(&dice, 0, sources - 1);
        twin_fill_numbers(&weight, EPX_FP32, &dice);
        twin_fill_numbers(&dout, type, &dice), twin_fill_numbers(&y, type, &dice);
        twin_send(&start), twin_send(&count), twin_send(&index), twin_send(&weight), twin_send(&dout),
            twin_send(&y);
        twin_send(&dy), twin_send(&dot);
        for (int device = 0; device <= 1; device++) {
            epx_k_scale_dot_t args = {.rows = {side_of(&start, device), side_of(&count, device), experts},
                                      .index = side_or_null(&index, device),
                                      .weight = side_of(&weight, device),
                                      .width = width,
                                      .row_type = type,
                                      .dout = side_of(&dout, device),
                                      .y = side_of(&y, device),
                                      .dy = side_of(in_place ? &dout : &dy, device),
                                      .dot = side_of(&dot, device)};
            CHECK((device ? epx_cuda_scale_dot : epx_host_scale_dot)(&args, NULL) == EPX_OK, "%s",
                  epx_last_error());
        }
        twin_same_numbers(in_place ? &dout : &dy, type, "dy");
        twin_same_numbers(&dot, EPX_FP32, "dot");
    }
}

const gpu_test_t gpu_sum_tests[] = {{"combine", combine},
                                    {"combine_sums", combine_sums},
                                    {"reduce", reduce},
                                    {"ragged_return", ragged_return},
                                    {"take_dots", take_dots},
                                    {"scale_dot", scale_dot},
                                    {NULL, NULL}};
