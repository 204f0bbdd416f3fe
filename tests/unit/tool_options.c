/* Command lines, tables and small arithmetic of the programs. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/redirect.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/numbers.h"
#include "tools/common/command_line.h"
#include "tools/common/program.h"
#include "tools/common/table.h"

static int32_t verbose, mode, calls;
static int64_t ranks;
static double factor;
static const char *file;
static const char *const modes[] = {"uniform", "zipf", "hot", NULL};
static char called[128];

static int call(void *target, const char *value, char *problem, size_t problem_bytes)
{
    cr_assert_eq(target, (void *)called);
    if (strcmp(value, "bad") == 0) {
        snprintf(problem, problem_bytes, "'bad' is bad: say good");
        return -1;
    }
    strcat(called, value);
    calls++;
    return 0;
}

static const epx_option_t options[] = {
    {.kind = EPX_OPTION_FLAG, .letter = 'v', .name = "verbose", .help = "says more", .target = &verbose},
    {.kind = EPX_OPTION_SECTION, .help = "shape"},
    {.kind = EPX_OPTION_INT,
     .letter = 'n',
     .name = "ranks",
     .argument = "N",
     .help = "how many",
     .target = &ranks,
     .lo = 1,
     .hi = 4096},
    {.kind = EPX_OPTION_REAL,
     .name = "factor",
     .argument = "X",
     .help = "how much",
     .target = &factor,
     .lo = 0,
     .hi = 8},
    {.kind = EPX_OPTION_TEXT, .name = "file", .argument = "FILE", .help = "where", .target = &file},
    {.kind = EPX_OPTION_CHOICE,
     .name = "mode",
     .argument = "NAME",
     .help = "which",
     .target = &mode,
     .choices = modes},
    {.kind = EPX_OPTION_CALL,
     .name = "arm",
     .argument = "ARM",
     .help = "an arm",
     .target = called,
     .set = call},
    {.kind = EPX_OPTION_END},
};
static const epx_program_t program = {"epx-try", "Tries.", "FILE...", options, "notes here"};
static const epx_program_t bare = {"epx-bare", "Takes no operands.", NULL, options, NULL};

static void reset(void)
{
    verbose = mode = calls = 0;
    ranks = 4;
    factor = 1.5;
    file = NULL;
    called[0] = '\0';
    cr_redirect_stdout();
    cr_redirect_stderr();
}

/* parse(program, "word", ..., NULL) */
#define PARSE(p, ...) parse(p, NULL, (const char *[]){"epx-try", __VA_ARGS__, NULL})

static int parse(const epx_program_t *p, int *first_p, const char **argv)
{
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    return epx_command_line(p, argc, (char **)argv, first_p);
}

TestSuite(tool_options, .init = reset);

Test(tool_options, reads_every_kind)
{
    cr_assert_eq(PARSE(&program, "--verbose", "--ranks", "8", "--factor=2.25", "--file", "x y", "--mode=hot"),
                 EPX_GO_ON);
    cr_assert_eq(verbose, 1);
    cr_assert_eq(ranks, 8);
    cr_assert_eq(factor, 2.25);
    cr_assert_str_eq(file, "x y");
    cr_assert_eq(mode, 2);
}

Test(tool_options, reads_letters_and_units)
{
    cr_assert_eq(PARSE(&program, "-v", "-n", "2k"), EPX_GO_ON);
    cr_assert_eq(verbose, 1);
    cr_assert_eq(ranks, 2048);
    cr_assert_eq(PARSE(&program, "-n16"), EPX_GO_ON);
    cr_assert_eq(ranks, 16);
    verbose = 0;
    cr_assert_eq(PARSE(&program, "-vn32"), EPX_GO_ON);
    cr_assert_eq(verbose, 1);
    cr_assert_eq(ranks, 32);
    cr_assert_eq(PARSE(&program, "-vx"), EPX_EXIT_USAGE);
}

Test(tool_options, lets_the_last_win_and_calls_each_time)
{
    cr_assert_eq(PARSE(&program, "--ranks=1", "--ranks=2", "--arm", "a", "--arm=b"), EPX_GO_ON);
    cr_assert_eq(ranks, 2);
    cr_assert_eq(calls, 2);
    cr_assert_str_eq(called, "ab");
}

Test(tool_options, finds_operands_among_options)
{
    int first = 0;
    const char *argv[] = {"epx-try", "one", "--ranks", "2", "two", "--", "--three", NULL};
    cr_assert_eq(parse(&program, &first, argv), EPX_GO_ON);
    cr_assert_eq(first, 4);
    cr_assert_str_eq(argv[4], "one");
    cr_assert_str_eq(argv[5], "two");
    cr_assert_str_eq(argv[6], "--three");
    cr_assert_eq(ranks, 2);
}

Test(tool_options, refuses_bad_usage)
{
    cr_assert_eq(PARSE(&bare, "word"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--ranks"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--verbose=1"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--mode", "cold"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--arm", "bad"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--file="), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--rank", "3"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "-x"), EPX_EXIT_USAGE);
    cr_assert_eq(ranks, 4);
    cr_assert_eq(verbose, 0);
}

Test(tool_options, refuses_bad_numbers)
{
    static const char *const bad[] = {
        "", "abc", "1x", "1.5", "0", "4097", "-1", " 1", "1KK", "99999999999999999999", "9999999999G"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(PARSE(&program, "--ranks", bad[i]), EPX_EXIT_USAGE, "'%s' was taken", bad[i]);
    cr_assert_eq(PARSE(&program, "--factor", "nan"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--factor", "inf"), EPX_EXIT_USAGE);
    cr_assert_eq(PARSE(&program, "--factor", "8.5"), EPX_EXIT_USAGE);
    cr_assert_eq(factor, 1.5);
}

Test(tool_options, names_the_mistake_and_the_way_out)
{
    PARSE(&program, "--rnaks=3");
    fflush(stderr);
    cr_assert_stderr_eq_str("epx-try: --rnaks is no option: did you mean --ranks?\n");
}

Test(tool_options, names_the_bounds)
{
    PARSE(&program, "--ranks=0");
    fflush(stderr);
    cr_assert_stderr_eq_str("epx-try: --ranks: '0' is not an integer from 1 to 4096\n");
}

Test(tool_options, shows_help_with_defaults)
{
    char text[2048] = "";
    cr_assert_eq(PARSE(&program, "--help"), EPX_EXIT_OK);
    FILE *out = cr_get_redirected_stdout();
    fflush(stdout);
    size_t n = fread(text, 1, sizeof text - 1, out);
    text[n] = '\0';
    cr_assert_not_null(strstr(text, "usage: epx-try [OPTION...] FILE..."));
    cr_assert_not_null(strstr(text, "how many (4)"));
    cr_assert_not_null(strstr(text, "which (uniform)"));
    cr_assert_not_null(strstr(text, "notes here"));
    cr_assert_not_null(strstr(text, "--version"));
}

static int pair(void *context, const char *key, const char *value, char *problem, size_t problem_bytes)
{
    (void)problem, (void)problem_bytes;
    strcat(strcat(strcat(strcat(context, key), "->"), value), ";");
    return 0;
}

Test(tool_options, reads_pairs)
{
    char name[8], seen[64] = "", problem[256] = "";
    cr_assert_eq(
        epx_read_pairs("hot:fraction=0.5,experts=4", name, sizeof name, pair, seen, problem, sizeof problem),
        0);
    cr_assert_str_eq(name, "hot");
    cr_assert_str_eq(seen, "fraction->0.5;experts->4;");
    cr_assert_eq(epx_read_pairs("self", name, sizeof name, pair, seen, problem, sizeof problem), 0);
    cr_assert_str_eq(name, "self");
    static const char *const bad[] = {
        "", ":a=b", "much-too-long", "hot:", "hot:a", "hot:a=", "hot:=b", "hot:a=b,"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        problem[0] = '\0';
        cr_assert_neq(epx_read_pairs(bad[i], name, sizeof name, pair, seen, problem, sizeof problem), 0, "%s",
                      bad[i]);
        cr_assert_neq(problem[0], '\0', "%s", bad[i]);
    }
}

Test(tool_numbers, finds_the_nearest_word)
{
    static const char *const words[] = {"EPX_WAVES", "EPX_WIRE", "EPX_TRANSPORT"};
    cr_assert_str_eq(epx_nearest_word("EPX_WAVE", words, 3), "EPX_WAVES");
    cr_assert_str_eq(epx_nearest_word("EPX_TRANPSORT", words, 3), "EPX_TRANSPORT");
    cr_assert_null(epx_nearest_word("something else", words, 3));
}

Test(tool_numbers, takes_quantiles)
{
    double values[] = {4, NAN, 1, 3, 2};
    epx_sort_reals(values, 5);
    cr_assert_eq(values[0], 1);
    cr_assert_eq(values[3], 4);
    cr_assert(isnan(values[4]));
    cr_assert_eq(epx_quantile(values, 4, 0.5), 2.5);
    cr_assert_eq(epx_quantile(values, 4, 0), 1);
    cr_assert_eq(epx_quantile(values, 4, 1), 4);
    cr_assert_eq(epx_quantile(values, 1, 0.99), 1);
    cr_assert(isnan(epx_quantile(values, 0, 0.5)));
}

Test(tool_numbers, writes_units)
{
    char text[32];
    cr_assert_str_eq(epx_text_of_bytes(text, sizeof text, 512), "512 B");
    cr_assert_str_eq(epx_text_of_bytes(text, sizeof text, 999), "999 B");
    cr_assert_str_eq(epx_text_of_bytes(text, sizeof text, 1000), "1.00 kB");
    cr_assert_str_eq(epx_text_of_bytes(text, sizeof text, 3.71e9), "3.71 GB");
    cr_assert_str_eq(epx_text_of_bytes(text, sizeof text, 999.9e6), "1.00 GB");
    cr_assert_str_eq(epx_text_of_seconds(text, sizeof text, 1.6), "1.60 s");
    cr_assert_str_eq(epx_text_of_seconds(text, sizeof text, 0.0125), "12.5 ms");
    cr_assert_str_eq(epx_text_of_seconds(text, sizeof text, 372e-6), "372 us");
    cr_assert_str_eq(epx_text_of_seconds(text, sizeof text, 0), "0.00 ns");
    cr_assert_str_eq(epx_text_of_seconds(text, sizeof text, NAN), "-");
}

Test(tool_numbers, draws_the_same_numbers_again)
{
    epx_random_t a = epx_random_at(7, 3), b = epx_random_at(7, 3), c = epx_random_at(7, 4);
    int differ = 0;
    double sum = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = epx_random_next(&a);
        cr_assert_eq(x, epx_random_next(&b));
        differ += x != epx_random_next(&c);
        double unit = epx_random_unit(&a);
        cr_assert(unit >= 0 && unit < 1);
        sum += unit;
        cr_assert_lt(epx_random_below(&a, 7), 7);
        b = a;
    }
    cr_assert_geq(differ, 999);
    cr_assert(fabs(sum / 1000 - 0.5) < 0.05); /* five standard deviations */
}

Test(tool_table, aligns_columns)
{
    static const epx_column_t columns[] = {{"name", 0}, {"value", 1}, {"why", 0}};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    epx_table_t *table = epx_table_new(columns, 3);
    epx_table_cell(table, "a");
    epx_table_cell(table, "%d", 12345678);
    epx_table_cell(table, "x");
    epx_table_cell(table, "\xc3\xa9%s", "tude");
    epx_table_cell(table, "%d", 1);
    epx_table_print(table, out, 2);
    epx_table_free(table);
    fclose(out);
    cr_assert_str_eq(text, "  name      value  why\n"
                           "  a      12345678  x\n"
                           "  \xc3\xa9tude         1\n");
    free(text);
}
