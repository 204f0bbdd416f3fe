/* The programs' JSON reader. Expected values are read by hand from RFC 8259. SPDX-License-Identifier:
 * Apache-2.0
 */
#include <criterion/criterion.h>

#include <string.h>

#include "tools/common/json_read.h"

static epx_json_document_t document;
static char problem[256];

static int read_bytes(const char *text, size_t bytes)
{
    epx_json_document_free(&document);
    problem[0] = '\0';
    return epx_json_read(text, bytes, &document, problem, sizeof problem);
}

static int read(const char *text) { return read_bytes(text, strlen(text)); }

static void expect_problem(const char *text, const char *wanted)
{
    cr_assert_eq(read(text), -1, "%s is taken for JSON", text);
    cr_assert(strstr(problem, wanted) != NULL, "%s gives: %s", text, problem);
}

Test(tool_json_read, nests)
{
    cr_assert_eq(
        read(" {\"a\": [1, -2.5e-1, [], {}], \"b\": {\"c\": null, \"d\": true},\n\t\"e\": false} \n"), 0);
    const epx_json_value_t *all = document.value, *a = epx_json_member(all, "a"),
                           *b = epx_json_member(all, "b");
    cr_assert_eq(document.count, 10);
    cr_assert_eq(all->values, 10);
    const epx_json_value_t *item = epx_json_first(a);
    cr_assert_eq(item->number, 1);
    item = epx_json_next(a, item);
    cr_assert_eq(item->number, -0.25);
    item = epx_json_next(a, item);
    cr_assert_eq(item->kind, EPX_JSON_ARRAY);
    cr_assert_null(epx_json_first(item));
    item = epx_json_next(a, item);
    cr_assert_eq(item->kind, EPX_JSON_OBJECT);
    cr_assert_null(epx_json_next(a, item));
    cr_assert_eq(epx_json_member(b, "c")->kind, EPX_JSON_NULL);
    cr_assert_eq(epx_json_member(b, "d")->kind, EPX_JSON_TRUE);
    cr_assert_eq(epx_json_member(all, "e")->kind, EPX_JSON_FALSE);
    cr_assert_null(epx_json_member(all, "c"));
    cr_assert_null(epx_json_member(a, "c"));
    cr_assert_null(epx_json_member(NULL, "c"));
    epx_json_document_free(&document);
    cr_assert_null(document.value);
}

Test(tool_json_read, single_values)
{
    cr_assert_eq(read("0"), 0);
    cr_assert_eq(document.value->number, 0);
    cr_assert_eq(read("-0.0"), 0);
    cr_assert_eq(read("1E+2"), 0);
    cr_assert_eq(document.value->number, 100);
    cr_assert_eq(read("\"\""), 0);
    cr_assert_str_eq(document.value->text, "");
    cr_assert_eq(read("null"), 0);
}

Test(tool_json_read, texts)
{
    cr_assert_eq(read("\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0041\\u00e9\\u20ac\\ud83d\\ude00\""), 0);
    cr_assert_str_eq(document.value->text, "a\"\\/\b\f\n\r\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
    /* Halves of a pair are no characters. */
    cr_assert_eq(read("\"\\ud83dx\\ude00\\ud83d\\u0041\""), 0);
    cr_assert_str_eq(document.value->text, "\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd"
                                           "A");
}

Test(tool_json_read, lookups)
{
    cr_assert_eq(read("{\"n\": 3, \"t\": \"x\", \"n\": 4}"), 0);
    cr_assert_eq(epx_json_number_of(document.value, "n", 9), 3);
    cr_assert_eq(epx_json_number_of(document.value, "t", 9), 9);
    cr_assert_eq(epx_json_number_of(document.value, "m", 9), 9);
    cr_assert_str_eq(epx_json_text_of(document.value, "t", "y"), "x");
    cr_assert_str_eq(epx_json_text_of(document.value, "n", "y"), "y");
}

Test(tool_json_read, what_is_no_json)
{
    static const char *const texts[] = {
        "",        " ",           "{",      "[1",       "[1,]", "{\"a\":1,}", "{a: 1}",
        "[1 2]",   "{\"a\" 1}",   "01",     "-",        "1.",   ".5",         "1e",
        "+1",      "0x10",        "NaN",    "Infinity", "nul",  "'a'",        "\"a",
        "\"\\x\"", "\"\\u12g4\"", "\"\n\"", "1 2",      "[]]",  "}",          ","};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_expect_eq(read(texts[i]), -1, "'%s' is taken for JSON", texts[i]);
    cr_expect_eq(read_bytes("1\0 ", 3), -1);
    expect_problem("{\n\"a\": 1\n\"b\": 2}", "line 3: a comma");
    expect_problem("[1", "a comma or a closing bracket is missing");
    char deep[101];
    memset(deep, '[', 100);
    deep[100] = '\0';
    expect_problem(deep, "too deep");
}
