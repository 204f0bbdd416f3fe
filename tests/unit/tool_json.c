/* The programs' JSON writer. Expected texts are written by hand from RFC 8259. SPDX-License-Identifier:
 * Apache-2.0 */
#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json.h"

static char *text;
static size_t bytes;

static epx_json_t begin(int indent)
{
    free(text);
    text = NULL;
    return epx_json_begin(open_memstream(&text, &bytes), indent);
}

/* Ends the document and compares all of it. */
static void expect(epx_json_t *json, const char *expected)
{
    cr_assert_eq(epx_json_end(json), 0);
    fclose(json->out);
    cr_assert_str_eq(text, expected);
}

static void expect_text(const char *value, const char *expected)
{
    epx_json_t json = begin(0);
    epx_json_text(&json, NULL, value);
    expect(&json, expected);
}

static void expect_real(double value, const char *expected)
{
    epx_json_t json = begin(0);
    epx_json_real(&json, NULL, value);
    expect(&json, expected);
}

Test(tool_json, nests_objects_and_arrays)
{
    epx_json_t json = begin(0);
    epx_json_object(&json, NULL);
    epx_json_int(&json, "a", -9223372036854775807 - 1);
    epx_json_array(&json, "b");
    epx_json_uint(&json, NULL, 18446744073709551615u);
    epx_json_array(&json, NULL);
    epx_json_close(&json);
    epx_json_bool(&json, NULL, 1);
    epx_json_bool(&json, NULL, 0);
    epx_json_close(&json);
    epx_json_object(&json, "c");
    epx_json_close(&json);
    epx_json_null(&json, "d");
    epx_json_close(&json);
    expect(&json, "{\"a\": -9223372036854775808, \"b\": [18446744073709551615, [], true, false], \"c\": {}, "
                  "\"d\": null}\n");
}

Test(tool_json, indents_when_asked)
{
    epx_json_t json = begin(2);
    epx_json_object(&json, NULL);
    epx_json_int(&json, "a", 1);
    epx_json_array(&json, "b");
    epx_json_int(&json, NULL, 2);
    epx_json_int(&json, NULL, 3);
    epx_json_close(&json);
    epx_json_close(&json);
    expect(&json, "{\n  \"a\": 1,\n  \"b\": [\n    2,\n    3\n  ]\n}\n");
}

Test(tool_json, escapes_what_json_reserves)
{
    expect_text("", "\"\"\n");
    expect_text("say \"a\\b\"", "\"say \\\"a\\\\b\\\"\"\n");
    expect_text("\b\f\n\r\t", "\"\\b\\f\\n\\r\\t\"\n");
    expect_text("\x01\x1f\x7f", "\"\\u0001\\u001f\\u007f\"\n");
    expect_text("bfnrt/", "\"bfnrt/\"\n");
    expect_text(NULL, "null\n");
}

Test(tool_json, keeps_utf8_and_replaces_what_is_none)
{
    expect_text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"\n");
    expect_text("a\xff"
                "b",
                "\"a\\ufffdb\"\n");
    expect_text("\xe2\x82", "\"\\ufffd\\ufffd\"\n");                       /* cut short at the end */
    expect_text("\xc0\x80", "\"\\ufffd\\ufffd\"\n");                       /* overlong zero */
    expect_text("\xed\xa0\x80", "\"\\ufffd\\ufffd\\ufffd\"\n");            /* half of a surrogate pair */
    expect_text("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"\n"); /* above U+10FFFF */
}

Test(tool_json, escapes_keys_too)
{
    epx_json_t json = begin(0);
    epx_json_object(&json, NULL);
    epx_json_int(&json, "a\"b\n", 1);
    epx_json_close(&json);
    expect(&json, "{\"a\\\"b\\n\": 1}\n");
}

Test(tool_json, writes_reals_that_read_back)
{
    static const double values[] = {0.1,  1.0 / 3.0,           5e-324, 1.7976931348623157e308, 989e12,
                                    -0.0, 123456789012345680.0};
    expect_real(0.1, "0.1\n");
    expect_real(1.5, "1.5\n");
    expect_real(-0.0, "-0\n");
    expect_real(0.1 + 0.2, "0.30000000000000004\n");
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        epx_json_t json = begin(0);
        epx_json_real(&json, NULL, values[i]);
        cr_assert_eq(epx_json_end(&json), 0);
        fclose(json.out);
        cr_assert_eq(memcmp(&(double){strtod(text, NULL)}, &values[i], sizeof(double)), 0, "%s", text);
    }
}

Test(tool_json, has_no_word_for_nan_and_infinity)
{
    expect_real(NAN, "null\n");
    expect_real(INFINITY, "null\n");
    expect_real(-INFINITY, "null\n");
}

Test(tool_json, tells_wrong_use)
{
    epx_json_t json = begin(0);
    epx_json_object(&json, NULL);
    epx_json_int(&json, NULL, 1); /* no key in an object */
    epx_json_close(&json);
    cr_assert_eq(epx_json_end(&json), -1);
    fclose(json.out);
    json = begin(0);
    epx_json_array(&json, NULL);
    cr_assert_eq(epx_json_end(&json), -1, "an array was left open");
    fclose(json.out);
    json = begin(0);
    epx_json_int(&json, NULL, 1);
    epx_json_int(&json, NULL, 2); /* two documents */
    cr_assert_eq(epx_json_end(&json), -1);
    fclose(json.out);
    json = begin(0);
    epx_json_close(&json);
    cr_assert_eq(epx_json_end(&json), -1, "nothing was open");
    fclose(json.out);
    json = begin(0);
    for (int i = 0; i < EPX_JSON_DEPTH + 5; i++)
        epx_json_array(&json, NULL);
    cr_assert_eq(epx_json_end(&json), -1, "deeper than the limit");
    fclose(json.out);
}

Test(tool_json, tells_failed_writes)
{
    FILE *full = fopen("/dev/full", "w");
    cr_assert_not_null(full);
    setvbuf(full, NULL, _IONBF, 0);
    epx_json_t json = epx_json_begin(full, 0);
    epx_json_int(&json, NULL, 1);
    cr_assert_eq(epx_json_end(&json), -1);
    fclose(full);
}
