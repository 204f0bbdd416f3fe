/* Writes JSON. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

epx_json_t epx_json_begin(FILE *out, int indent) { return (epx_json_t){.out = out, .indent = indent}; }

/* Length of the UTF-8 sequence at `at`, or 0 when it is none (overlong forms and surrogates are none). */
static size_t utf8_length(const unsigned char *at)
{
    static const struct {
        unsigned char lead, mask;
        uint32_t least;
    } forms[] = {{0x00, 0x80, 0}, {0xc0, 0xe0, 0x80}, {0xe0, 0xf0, 0x800}, {0xf0, 0xf8, 0x10000}};
    for (size_t more = 0; more < 4; more++) {
        if ((at[0] & forms[more].mask) != forms[more].lead)
            continue;
        uint32_t code = at[0] & (unsigned char)~forms[more].mask;
        for (size_t i = 1; i <= more; i++) {
            if ((at[i] & 0xc0) != 0x80)
                return 0; /* the closing zero byte ends up here too */
            code = code << 6 | (at[i] & 0x3f);
        }
        int surrogate = code >= 0xd800 && code <= 0xdfff;
        return code < forms[more].least || code > 0x10ffff || surrogate ? 0 : more + 1;
    }
    return 0;
}

static void write_string(FILE *out, const char *text)
{
    static const char escapes[] =
        "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: character, letter after the backslash */
    const unsigned char *at = (const unsigned char *)text;
    fputc('"', out);
    while (*at != '\0') {
        size_t length = utf8_length(at), e = 0;
        while (escapes[e] != '\0' && (unsigned char)escapes[e] != *at)
            e += 2;
        if (escapes[e] != '\0')
            fprintf(out, "\\%c", escapes[e + 1]);
        else if (*at < 0x20 || *at == 0x7f)
            fprintf(out, "\\u%04x", *at);
        else if (length == 0)
            fputs("\\ufffd", out);
        else
            fwrite(at, 1, length, out);
        at += length == 0 ? 1 : length;
    }
    fputc('"', out);
}

static void new_line(epx_json_t *json)
{
    if (json->indent > 0)
        fprintf(json->out, "\n%*s", json->indent * (int)json->depth, "");
}

/* What stands before a value: comma, line, key. Returns 0 when the value may follow. */
static int lead_in(epx_json_t *json, const char *key)
{
    int inside_object = json->depth > 0 && json->kind[json->depth - 1] == '{';
    if (inside_object != (key != NULL) || (json->depth == 0 && json->filled[0])) {
        json->failed = 1;
        return -1;
    }
    if (json->filled[json->depth])
        fputs(json->indent > 0 ? "," : ", ", json->out);
    if (json->depth > 0)
        new_line(json);
    json->filled[json->depth] = 1;
    if (key != NULL) {
        write_string(json->out, key);
        fputs(": ", json->out);
    }
    return 0;
}

static void open_level(epx_json_t *json, const char *key, char kind)
{
    if (json->depth == EPX_JSON_DEPTH) {
        json->failed = 1;
        return;
    }
    if (lead_in(json, key) != 0)
        return;
    fputc(kind, json->out);
    json->kind[json->depth++] = kind;
    json->filled[json->depth] = 0;
}

void epx_json_object(epx_json_t *json, const char *key) { open_level(json, key, '{'); }

void epx_json_array(epx_json_t *json, const char *key) { open_level(json, key, '['); }

void epx_json_close(epx_json_t *json)
{
    if (json->depth == 0) {
        json->failed = 1;
        return;
    }
    int filled = json->filled[json->depth--];
    if (filled)
        new_line(json);
    fputc(json->kind[json->depth] == '{' ? '}' : ']', json->out);
}

void epx_json_text(epx_json_t *json, const char *key, const char *text)
{
    if (text == NULL)
        epx_json_null(json, key);
    else if (lead_in(json, key) == 0)
        write_string(json->out, text);
}

void epx_json_int(epx_json_t *json, const char *key, int64_t value)
{
    if (lead_in(json, key) == 0)
        fprintf(json->out, "%" PRId64, value);
}

void epx_json_uint(epx_json_t *json, const char *key, uint64_t value)
{
    if (lead_in(json, key) == 0)
        fprintf(json->out, "%" PRIu64, value);
}

void epx_json_real(epx_json_t *json, const char *key, double value)
{
    char text[32] = "null";
    for (int digits = 15; isfinite(value) && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (memcmp(&(double){strtod(text, NULL)}, &value, sizeof value) == 0)
            break;
    }
    if (lead_in(json, key) == 0)
        fputs(text, json->out);
}

void epx_json_bool(epx_json_t *json, const char *key, int value)
{
    if (lead_in(json, key) == 0)
        fputs(value ? "true" : "false", json->out);
}

void epx_json_null(epx_json_t *json, const char *key)
{
    if (lead_in(json, key) == 0)
        fputs("null", json->out);
}

int epx_json_end(epx_json_t *json)
{
    fputc('\n', json->out);
    return json->failed || json->depth != 0 || !json->filled[0] || ferror(json->out) ? -1 : 0;
}
