/* Reading JSON. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/json_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/json.h"
#include "tools/common/program.h"

typedef struct reader {
    char *at, *end;
    int32_t line;
    epx_json_document_t document;
    int32_t room;
    int32_t open[EPX_JSON_DEPTH]; /* arrays and objects that are not closed yet */
    int32_t depth;
    const char *problem;
} reader_t;

static int fail(reader_t *reader, const char *problem)
{
    if (reader->problem == NULL)
        reader->problem = problem;
    return -1;
}

static void skip_blanks(reader_t *reader)
{
    for (; reader->at < reader->end && strchr(" \t\r\n", *reader->at) != NULL && *reader->at; reader->at++)
        reader->line += *reader->at == '\n';
}

static int next_is(reader_t *reader, char wanted)
{
    skip_blanks(reader);
    if (reader->at == reader->end || *reader->at != wanted)
        return 0;
    reader->at++;
    return 1;
}

static epx_json_value_t *add(reader_t *reader, epx_json_kind_t kind, const char *key)
{
    epx_json_document_t *document = &reader->document;
    if (document->count == reader->room) {
        reader->room = reader->room > 0 ? 2 * reader->room : 64;
        document->value = realloc(document->value, (size_t)reader->room * sizeof *document->value);
        if (document->value == NULL)
            exit(epx_tool_fail(EPX_EXIT_FAILED, "no memory for a JSON document: end other programs"));
    }
    epx_json_value_t *value = &document->value[document->count++];
    *value = (epx_json_value_t){.kind = kind, .key = key, .values = 1};
    return value;
}

/* ---- texts -------------------------------------------------------------------------------------------------------- */

static int read_hex(reader_t *reader, uint32_t *code_p)
{
    uint32_t code = 0;
    for (int i = 0; i < 4; i++, reader->at++) {
        static const char digits[] = "0123456789abcdef";
        char letter = reader->at < reader->end ? *reader->at : '\0';
        const char *digit =
            letter ? strchr(digits, letter >= 'A' && letter <= 'F' ? letter + 32 : letter) : NULL;
        if (digit == NULL)
            return fail(reader, "\\u is not followed by four hexadecimal digits");
        code = code * 16 + (uint32_t)(digit - digits);
    }
    *code_p = code;
    return 0;
}

/* Behind "\u": one code point, of two escapes where it is a pair. Alone, half of a pair is U+FFFD. */
static int read_code(reader_t *reader, uint32_t *code_p)
{
    uint32_t low;
    if (read_hex(reader, code_p) != 0)
        return -1;
    if (*code_p < 0xd800 || *code_p > 0xdfff)
        return 0;
    if (*code_p < 0xdc00 && reader->end - reader->at >= 6 && memcmp(reader->at, "\\u", 2) == 0) {
        reader->at += 2;
        if (read_hex(reader, &low) != 0)
            return -1;
        if (low >= 0xdc00 && low <= 0xdfff) {
            *code_p = 0x10000 + ((*code_p - 0xd800) << 10) + (low - 0xdc00);
            return 0;
        }
        reader->at -= 6; /* another character: read it on its own */
    }
    *code_p = 0xfffd;
    return 0;
}

static char *write_utf8(char *to, uint32_t code)
{
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    *to++ = (char)(lead[more] | code >> 6 * more);
    while (more-- > 0)
        *to++ = (char)(0x80 | (code >> 6 * more & 0x3f));
    return to;
}

static int read_escape(reader_t *reader, char **to)
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char letter = reader->at < reader->end ? *reader->at++ : '\0';
    const char *found = letter ? strchr(letters, letter) : NULL;
    uint32_t code;
    if (found != NULL) {
        *(*to)++ = values[found - letters];
        return 0;
    }
    if (letter != 'u')
        return fail(reader, "a text has an escape that JSON does not know");
    if (read_code(reader, &code) != 0)
        return -1;
    *to = write_utf8(*to, code);
    return 0;
}

/* Behind the opening quote; written over the source, which is never shorter. */
static int read_text(reader_t *reader, const char **text_p)
{
    char *text = reader->at, *to = text;
    for (;;) {
        if (reader->at == reader->end || (unsigned char)*reader->at < 0x20)
            return fail(reader, "a text does not end on its line");
        char letter = *reader->at++;
        if (letter == '"')
            break;
        if (letter != '\\')
            *to++ = letter;
        else if (read_escape(reader, &to) != 0)
            return -1;
    }
    *to = '\0';
    *text_p = text;
    return 0;
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

static size_t digits(const char *at) { return strspn(at, "0123456789"); }

/* strtod takes more than JSON has (hexadecimal, infinities, leading zeros), so the form is looked at first.
 */
static int read_number(reader_t *reader, const char *key)
{
    const char *at = reader->at + (*reader->at == '-');
    size_t whole = digits(at);
    if (whole == 0 || (whole > 1 && *at == '0'))
        return fail(reader, "here is no value");
    at += whole;
    if (*at == '.') {
        if (digits(at + 1) == 0)
            return fail(reader, "a number ends in its point");
        at += 1 + digits(at + 1);
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '+' || at[1] == '-');
        if (digits(at) == 0)
            return fail(reader, "a number has no digits in its exponent");
        at += digits(at);
    }
    add(reader, EPX_JSON_NUMBER, key)->number = strtod(reader->at, NULL);
    reader->at += at - reader->at;
    return 0;
}

static int read_word(reader_t *reader, const char *key)
{
    static const struct {
        const char *word;
        epx_json_kind_t kind;
    } words[] = {{"null", EPX_JSON_NULL}, {"false", EPX_JSON_FALSE}, {"true", EPX_JSON_TRUE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i].word);
        if ((size_t)(reader->end - reader->at) >= length && memcmp(reader->at, words[i].word, length) == 0) {
            reader->at += length;
            add(reader, words[i].kind, key);
            return 0;
        }
    }
    return read_number(reader, key);
}

/* A value up to where another begins inside it: arrays and objects are only opened. */
static int read_value(reader_t *reader, const char *key)
{
    skip_blanks(reader);
    if (reader->at == reader->end)
        return fail(reader, "the document ends too early");
    char letter = *reader->at;
    if (letter == '"') {
        const char *text;
        reader->at++;
        if (read_text(reader, &text) != 0)
            return -1;
        add(reader, EPX_JSON_TEXT, key)->text = text;
        return 0;
    }
    if (letter != '{' && letter != '[')
        return read_word(reader, key);
    if (reader->depth == EPX_JSON_DEPTH)
        return fail(reader, "values are nested too deep");
    reader->at++;
    reader->open[reader->depth++] = reader->document.count;
    add(reader, letter == '{' ? EPX_JSON_OBJECT : EPX_JSON_ARRAY, key);
    return 0;
}

static int read_member(reader_t *reader)
{
    const char *key = NULL;
    if (reader->document.value[reader->open[reader->depth - 1]].kind == EPX_JSON_OBJECT) {
        if (!next_is(reader, '"'))
            return fail(reader, "a member has no name in quotes");
        if (read_text(reader, &key) != 0)
            return -1;
        if (!next_is(reader, ':'))
            return fail(reader, "a name is not followed by a colon");
    }
    return read_value(reader, key);
}

/* Reads until everything that was opened is closed. */
static int read_all(reader_t *reader)
{
    if (read_value(reader, NULL) != 0)
        return -1;
    while (reader->depth > 0) {
        int32_t open = reader->open[reader->depth - 1];
        int empty = reader->document.count == open + 1;
        char close = reader->document.value[open].kind == EPX_JSON_OBJECT ? '}' : ']';
        if (next_is(reader, close)) {
            reader->document.value[open].values = reader->document.count - open;
            reader->depth--;
            continue;
        }
        if (!empty && !next_is(reader, ','))
            return fail(reader, "a comma or a closing bracket is missing");
        if (read_member(reader) != 0)
            return -1;
    }
    skip_blanks(reader);
    return reader->at == reader->end ? 0 : fail(reader, "something stands behind the document");
}

int epx_json_read(const char *text, size_t bytes, epx_json_document_t *document_p, char *problem,
                  size_t problem_bytes)
{
    char *memory = epx_tool_alloc(bytes + 1, 1);
    memcpy(memory, text, bytes);
    reader_t reader = {.at = memory, .end = memory + bytes, .line = 1, .document = {.memory = memory}};
    if (read_all(&reader) != 0) {
        snprintf(problem, problem_bytes, "line %d: %s", reader.line, reader.problem);
        epx_json_document_free(&reader.document);
        return -1;
    }
    *document_p = reader.document;
    return 0;
}

void epx_json_document_free(epx_json_document_t *document)
{
    free(document->value);
    free(document->memory);
    *document = (epx_json_document_t){0};
}

/* ---- looking things up -------------------------------------------------------------------------------------------- */

const epx_json_value_t *epx_json_first(const epx_json_value_t *value)
{
    return value != NULL && value->values > 1 ? value + 1 : NULL;
}

const epx_json_value_t *epx_json_next(const epx_json_value_t *value, const epx_json_value_t *item)
{
    const epx_json_value_t *next = item + item->values;
    return next < value + value->values ? next : NULL;
}

const epx_json_value_t *epx_json_member(const epx_json_value_t *value, const char *key)
{
    if (value == NULL || value->kind != EPX_JSON_OBJECT)
        return NULL;
    for (const epx_json_value_t *item = epx_json_first(value); item != NULL;
         item = epx_json_next(value, item))
        if (strcmp(item->key, key) == 0)
            return item;
    return NULL;
}

double epx_json_number_of(const epx_json_value_t *value, const char *key, double otherwise)
{
    const epx_json_value_t *member = epx_json_member(value, key);
    return member != NULL && member->kind == EPX_JSON_NUMBER ? member->number : otherwise;
}

const char *epx_json_text_of(const epx_json_value_t *value, const char *key, const char *otherwise)
{
    const epx_json_value_t *member = epx_json_member(value, key);
    return member != NULL && member->kind == EPX_JSON_TEXT ? member->text : otherwise;
}
