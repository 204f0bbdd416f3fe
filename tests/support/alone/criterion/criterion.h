/*
 * As much of Criterion as the tests here use, for machines without it: the same sources, another runner
 * (alone.c). SPDX-License-Identifier: Apache-2.0
 *
 * Tests run in worker processes, many in each, one after the other: starting a GPU takes longer than most
 * tests. The names and the pasting of tokens are Criterion's; what is compiled with it sees this header in
 * its place.
 */
#ifndef TESTS_ALONE_CRITERION_H
#define TESTS_ALONE_CRITERION_H

/* Tests share processes. */
#define CRITERION_ALONE 1

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct criterion_test_params {
    void *params;
    size_t size, length;
};

typedef struct alone_options {
    void (*init)(void);
    void (*fini)(void);
    double timeout; /* seconds; 0: the runner's */
} alone_options_t;

typedef struct alone_test {
    const char *suite, *name;
    void (*run)(void);
    void (*run_with)(void *param);
    struct criterion_test_params (*params)(void); /* NULL: none */
    alone_options_t options;
    struct alone_test *next;
} alone_test_t;

typedef struct alone_suite {
    const char *name;
    alone_options_t options;
    struct alone_suite *next;
} alone_suite_t;

void alone_add(alone_test_t *test);
void alone_add_suite(alone_suite_t *suite);
/* Counts a failure of the running test; `ends` jumps out of it. */
void alone_fail(const char *file, int line, int ends, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void alone_skip(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

#define TestSuite(Name, ...)                                                    \
    __attribute__((constructor)) static void alone_suite_##Name(void)           \
    {                                                                           \
        static alone_suite_t suite = {.name = #Name, .options = {__VA_ARGS__}}; \
        alone_add_suite(&suite);                                                \
    }                                                                           \
    struct alone_semicolon

#define Test(Suite, Name, ...)                                                                       \
    static void Suite##_##Name##_test(void);                                                         \
    __attribute__((constructor)) static void Suite##_##Name##_add(void)                              \
    {                                                                                                \
        static alone_test_t test = {                                                                 \
            .suite = #Suite, .name = #Name, .run = Suite##_##Name##_test, .options = {__VA_ARGS__}}; \
        alone_add(&test);                                                                            \
    }                                                                                                \
    static void Suite##_##Name##_test(void)

#define ParameterizedTestParameters(Suite, Name) \
    static struct criterion_test_params Suite##_##Name##_params(void)

#define ParameterizedTest(Parameter, Suite, Name, ...)                                       \
    static void Suite##_##Name##_test(Parameter);                                            \
    static void Suite##_##Name##_with(void *parameter) { Suite##_##Name##_test(parameter); } \
    __attribute__((constructor)) static void Suite##_##Name##_add(void)                      \
    {                                                                                        \
        static alone_test_t test = {.suite = #Suite,                                         \
                                    .name = #Name,                                           \
                                    .run_with = Suite##_##Name##_with,                       \
                                    .params = Suite##_##Name##_params,                       \
                                    .options = {__VA_ARGS__}};                               \
        alone_add(&test);                                                                    \
    }                                                                                        \
    static void Suite##_##Name##_test(Parameter)

#define cr_malloc malloc
#define cr_make_param_array(Type, Array, Count, ...)                                       \
    (struct criterion_test_params)                                                         \
    {                                                                                      \
        .params = (void *)(size_t)(Array), .size = sizeof(Type), .length = (size_t)(Count) \
    }

/* A check that is not met says its expression, then its own words. */
#define alone_say(Ends, Ok, Text, ...)                             \
    do {                                                           \
        if (!(Ok)) {                                               \
            alone_fail(__FILE__, __LINE__, 0, "%s", Text);         \
            alone_fail(__FILE__, __LINE__, Ends, " " __VA_ARGS__); \
        }                                                          \
    } while (0)

#define cr_assert(Ok, ...) alone_say(1, Ok, #Ok, __VA_ARGS__)
#define cr_expect(Ok, ...) alone_say(0, Ok, #Ok, __VA_ARGS__)
#define cr_assert_fail(...) alone_say(1, 0, "failed", __VA_ARGS__)
#define cr_assert_not(Bad, ...) alone_say(1, !(Bad), "!" #Bad, __VA_ARGS__)
#define cr_expect_not(Bad, ...) alone_say(0, !(Bad), "!" #Bad, __VA_ARGS__)
#define cr_assert_eq(A, B, ...) alone_say(1, (A) == (B), #A " == " #B, __VA_ARGS__)
#define cr_assert_neq(A, B, ...) alone_say(1, (A) != (B), #A " != " #B, __VA_ARGS__)
#define cr_assert_lt(A, B, ...) alone_say(1, (A) < (B), #A " < " #B, __VA_ARGS__)
#define cr_assert_leq(A, B, ...) alone_say(1, (A) <= (B), #A " <= " #B, __VA_ARGS__)
#define cr_assert_gt(A, B, ...) alone_say(1, (A) > (B), #A " > " #B, __VA_ARGS__)
#define cr_assert_geq(A, B, ...) alone_say(1, (A) >= (B), #A " >= " #B, __VA_ARGS__)
#define cr_assert_null(A, ...) alone_say(1, (A) == NULL, #A " == NULL", __VA_ARGS__)
#define cr_assert_not_null(A, ...) alone_say(1, (A) != NULL, #A " != NULL", __VA_ARGS__)
#define cr_expect_not_null(A, ...) alone_say(0, (A) != NULL, #A " != NULL", __VA_ARGS__)
#define cr_assert_str_eq(A, B, ...) alone_say(1, strcmp(A, B) == 0, #A " equals " #B, __VA_ARGS__)
#define cr_assert_str_neq(A, B, ...) alone_say(1, strcmp(A, B) != 0, #A " is not " #B, __VA_ARGS__)
#define cr_assert_arr_eq(A, B, Bytes, ...) \
    alone_say(1, memcmp(A, B, Bytes) == 0, #A " equals " #B, __VA_ARGS__)
#define cr_assert_float_eq(A, B, Off, ...) \
    alone_say(1, fabs((double)((A) - (B))) <= (double)(Off), #A " is near " #B, __VA_ARGS__)
#define cr_expect_eq(A, B, ...) alone_say(0, (A) == (B), #A " == " #B, __VA_ARGS__)
#define cr_expect_neq(A, B, ...) alone_say(0, (A) != (B), #A " != " #B, __VA_ARGS__)
#define cr_expect_lt(A, B, ...) alone_say(0, (A) < (B), #A " < " #B, __VA_ARGS__)
#define cr_expect_gt(A, B, ...) alone_say(0, (A) > (B), #A " > " #B, __VA_ARGS__)
#define cr_expect_geq(A, B, ...) alone_say(0, (A) >= (B), #A " >= " #B, __VA_ARGS__)
#define cr_expect_null(A, ...) alone_say(0, (A) == NULL, #A " == NULL", __VA_ARGS__)
#define cr_expect_str_eq(A, B, ...) alone_say(0, strcmp(A, B) == 0, #A " equals " #B, __VA_ARGS__)
#define cr_expect_arr_eq(A, B, Bytes, ...) \
    alone_say(0, memcmp(A, B, Bytes) == 0, #A " equals " #B, __VA_ARGS__)
#define cr_expect_float_eq(A, B, Off, ...) \
    alone_say(0, fabs((double)((A) - (B))) <= (double)(Off), #A " is near " #B, __VA_ARGS__)
#define cr_log_info(...) ((void)(fprintf(stderr, __VA_ARGS__), fputc('\n', stderr)))
#define cr_skip_test(...) alone_skip(__VA_ARGS__)

#endif
