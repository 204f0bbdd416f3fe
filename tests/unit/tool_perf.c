/* What epx-perf checks the library with, checked on its own: number formats, payload, routing patterns.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

#include "bench/common/skew.h"
#include "bench/perf/rows.h"
#include "tools/common/peaks.h"

Test(tool_rows, encodes_by_round_to_nearest_even)
{
    static const struct {
        epx_type_t type;
        double value;
        uint32_t bits;
    } known[] = {
        {EPX_FP32, 1.0, 0x3f800000},   {EPX_FP32, -0.5, 0xbf000000},  {EPX_BF16, 0.0, 0x0000},
        {EPX_BF16, -0.0, 0x8000},      {EPX_BF16, 1.0, 0x3f80},       {EPX_BF16, -2.0, 0xc000},
        {EPX_BF16, 255.0, 0x437f},     {EPX_BF16, 256.0, 0x4380},     {EPX_BF16, 257.0, 0x4380},
        {EPX_BF16, 259.0, 0x4382}, /* ties to even: 256, 260 */
        {EPX_BF16, 0x1p-126, 0x0080},  {EPX_BF16, 0x1p-133, 0x0001},  {EPX_FP16, 1.0, 0x3c00},
        {EPX_FP16, -2.0, 0xc000},      {EPX_FP16, 65504.0, 0x7bff},   {EPX_FP16, 2049.0, 0x6800},
        {EPX_FP16, 2051.0, 0x6802},    {EPX_FP16, 0x1p-14, 0x0400},   {EPX_FP16, 0x1p-24, 0x0001},
        {EPX_FP16, 0x3p-25, 0x0002}, /* 1.5 units: to even */
        {EPX_FP16, 1.0 / 3.0, 0x3555}, {EPX_BF16, 1.0 / 3.0, 0x3eab},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        cr_expect_eq(epx_perf_encode(known[i].type, known[i].value), known[i].bits,
                     "%g in type %d: %04x, not %04x", known[i].value, (int)known[i].type,
                     epx_perf_encode(known[i].type, known[i].value), known[i].bits);
}

Test(tool_rows, decodes_what_it_encodes)
{
    for (uint32_t bits = 0; bits < 0x7c00; bits++) /* all finite fp16 values, and as many bf16 ones */
        for (int t = 0; t < 2; t++) {
            epx_type_t type = t ? EPX_FP16 : EPX_BF16;
            cr_assert_eq(epx_perf_encode(type, epx_perf_decode(type, bits)), bits);
            cr_assert_eq(epx_perf_encode(type, epx_perf_decode(type, bits | 0x8000)), bits | 0x8000);
        }
}

Test(tool_rows, rows_say_whose_they_are)
{
    static const epx_type_t types[] = {EPX_FP32, EPX_BF16, EPX_FP16};
    uint32_t row[16], other[16];
    for (int t = 0; t < 3; t++) {
        int32_t rank = -1;
        int64_t token = -1;
        epx_perf_x_row(row, types[t], 16, 5, 40000, 123456789);
        cr_assert_eq(epx_perf_x_whose(row, types[t], &rank, &token), 0);
        cr_assert_eq(rank, 40000);
        cr_assert_eq(token, 123456789);
        epx_perf_x_row(other, types[t], 16, 5, 40000, 123456790);
        cr_assert_neq(memcmp((char *)row + 6 * 4, (char *)other + 6 * 4, 8), 0,
                      "the rest depends on the token too");
        epx_perf_set(row, types[t], 3, epx_perf_encode(types[t], 0.5));
        cr_assert_eq(epx_perf_x_whose(row, types[t], &rank, &token), -1);
    }
}

Test(tool_rows, small_integers_stay_in_range_and_use_it)
{
    int8_t values[4096];
    for (int32_t k = 1; k <= 256; k *= 2) {
        int32_t range = epx_perf_range(k), least = 100, most = -100;
        cr_assert(range >= 1 && (k > 128 || range * k <= 128));
        epx_perf_small(values, 4096, range, EPX_PERF_TENSOR_Y, 1, 2, 3, 4);
        for (int h = 0; h < 4096; h++) {
            least = values[h] < least ? values[h] : least;
            most = values[h] > most ? values[h] : most;
        }
        cr_assert_eq(least, -range);
        cr_assert_eq(most, range);
    }
}

static const char *const patterns[] = {
    "uniform", "zipf:s=1.2", "hot:fraction=0.5,experts=2", "one-expert", "self", "peer", "empty-rank"};
enum { PATTERNS = sizeof patterns / sizeof *patterns };

static epx_skew_t pattern(const char *text)
{
    epx_skew_t skew = {0};
    char problem[256] = "";
    cr_assert_eq(epx_skew_read(&skew, text, problem, sizeof problem), 0, "%s: %s", text, problem);
    return skew;
}

Test(tool_skew, experts_belong_to_ranks_in_blocks)
{
    /* E = 7, S = 3: 3, 2, 2; E = 2, S = 4: 1, 1, 0, 0 */
    static const int32_t seven[] = {0, 0, 0, 1, 1, 2, 2};
    for (int32_t e = 0; e < 7; e++)
        cr_assert_eq(epx_owner_of(e, 3, 7), seven[e]);
    cr_assert_eq(epx_owner_of(0, 4, 2), 0);
    cr_assert_eq(epx_owner_of(1, 4, 2), 1);
    for (int32_t s = 1; s <= 20; s++)
        for (int32_t experts = 1; experts <= 50; experts++)
            for (int32_t e = 0; e < experts; e++) {
                int32_t r = epx_owner_of(e, s, experts);
                cr_assert(r >= 0 && r < s && epx_first_expert(r, s, experts) <= e &&
                          e < epx_first_expert(r + 1, s, experts));
            }
}

Test(tool_skew, choices_are_distinct_where_they_can_be)
{
    for (int p = 0; p < PATTERNS; p++) {
        epx_skew_t skew = pattern(patterns[p]);
        for (int32_t r = 0; r < 3; r++) {
            epx_skew_source_t source = epx_skew_open(&skew, r, 3, 12, 4, 9);
            for (int64_t t = 0; t < 200; t++) {
                int32_t ids[4], again[4], repeats = 0;
                epx_skew_token(&source, t, 4, ids);
                epx_skew_token(&source, t, 4, again);
                cr_assert_eq(memcmp(ids, again, sizeof ids), 0);
                for (int k = 0; k < 4; k++) {
                    cr_assert(ids[k] >= 0 && ids[k] < 12);
                    for (int before = 0; before < k; before++)
                        repeats += ids[before] == ids[k];
                }
                cr_assert_eq(repeats > 0, skew.kind == EPX_SKEW_ONE_EXPERT, "%s", patterns[p]);
            }
            epx_skew_close(&source);
        }
    }
}

/* Share of assignments per expert over many tokens of one rank. */
static void shares(const char *text, int32_t rank, int32_t experts, int32_t top_k, double *share)
{
    enum { TOKENS = 40000 };
    epx_skew_t skew = pattern(text);
    epx_skew_source_t source = epx_skew_open(&skew, rank, 4, experts, top_k, 3);
    int32_t ids[16];
    memset(share, 0, (size_t)experts * sizeof *share);
    for (int64_t t = 0; t < TOKENS; t++) {
        epx_skew_token(&source, t, top_k, ids);
        for (int32_t k = 0; k < top_k; k++)
            share[ids[k]] += 1.0 / (TOKENS * top_k);
    }
    epx_skew_close(&source);
}

/* Five standard deviations of a share p over 40,000 draws. */
static int near(double share, double p) { return fabs(share - p) < 5 * sqrt(p * (1 - p) / 40000) + 1e-12; }

Test(tool_skew, shares_follow_the_pattern)
{
    double share[16], sorted = 0;
    shares("uniform", 1, 16, 1, share);
    for (int e = 0; e < 16; e++)
        cr_assert(near(share[e], 1.0 / 16), "uniform, expert %d: %g", e, share[e]);
    shares("hot:fraction=0.6,experts=3", 1, 16, 1, share);
    for (int e = 0; e < 16; e++)
        cr_assert(near(share[e], e < 3 ? 0.2 : 0.4 / 13), "hot, expert %d: %g", e, share[e]);
    shares("zipf:s=1", 1, 4, 1, share); /* 1, 1/2, 1/3, 1/4 over 25/12, in some order */
    for (int e = 0; e < 4; e++)
        sorted = share[e] > sorted ? share[e] : sorted;
    cr_assert(near(sorted, 12.0 / 25));
    shares("peer", 3, 16, 4, share); /* the next of rank 3 is rank 0 */
    for (int e = 0; e < 16; e++)
        cr_assert(fabs(share[e] - (e < 4 ? 0.25 : 0)) < 1e-9);
    shares("empty-rank", 0, 16, 1, share);
    for (int e = 0; e < 16; e++)
        cr_assert(near(share[e], e < 12 ? 1.0 / 12 : 0));
}

/* Two of three experts with weights 1/2, 1/4, 1/4, drawn one after the other: the first expert is missing
 * only when the other two come, 2 * (1/4 * (1/4) / (3/4)) = 1/6. */
Test(tool_skew, further_choices_are_drawn_among_the_rest)
{
    double share[3];
    shares("hot:fraction=0.5,experts=1", 0, 3, 2, share);
    cr_assert(near(2 * share[0], 5.0 / 6), "%g", 2 * share[0]);
}

Test(tool_skew, an_empty_rank_has_no_tokens)
{
    epx_skew_t skew = pattern("empty-rank"), uniform = pattern("uniform");
    cr_assert_eq(epx_skew_tokens(&skew, 2, 3, 100), 0);
    cr_assert_eq(epx_skew_tokens(&skew, 1, 3, 100), 100);
    cr_assert_eq(epx_skew_tokens(&uniform, 2, 3, 100), 100);
}

Test(tool_skew, refuses_unknown_patterns)
{
    static const char *const bad[] = {"",
                                      "zip",
                                      "zipf:t=1",
                                      "zipf:s=-1",
                                      "zipf:s=abc",
                                      "hot:fraction=1.5",
                                      "hot:experts=0",
                                      "uniform:s=1",
                                      "hot:"};
    epx_skew_t skew = {.kind = EPX_SKEW_SELF};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char problem[256] = "";
        cr_assert_eq(epx_skew_read(&skew, bad[i], problem, sizeof problem), -1, "'%s' was taken", bad[i]);
        cr_assert_neq(problem[0], '\0');
        cr_assert_eq(skew.kind, EPX_SKEW_SELF);
    }
}

Test(tool_skew, text_reads_back)
{
    for (int p = 0; p < PATTERNS; p++) {
        char text[64];
        epx_skew_t skew = pattern(patterns[p]);
        epx_skew_text(&skew, text, sizeof text);
        cr_assert_str_eq(text, patterns[p]);
    }
}

Test(tool_peaks, finds_a_gpu_by_its_name)
{
    cr_assert_eq(epx_peak_of("NVIDIA H200")->flops, 989e12);
    cr_assert_eq(epx_peak_of("NVIDIA H100 80GB HBM3")->flops, 989e12);
    cr_assert_eq(epx_peak_of("NVIDIA GB200")->flops, 2.5e15);
    cr_assert_null(epx_peak_of("host"));
    cr_assert_null(epx_peak_at(100));
}
