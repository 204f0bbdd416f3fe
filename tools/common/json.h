/*
 * Writes JSON (RFC 8259), a value at a time, to a stream.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Strings come out as valid UTF-8 with control characters escaped; bytes that are no UTF-8 become U+FFFD.
 * Reals are written with as many digits as bring back the same double, at most 17; NaN and infinities, which
 * JSON lacks, are null.
 *
 *     epx_json_t json = epx_json_begin(stdout, 2);
 *     epx_json_object(&json, NULL);
 *     epx_json_text(&json, "transport", "ragged");
 *     epx_json_array(&json, "sizes");
 *     epx_json_int(&json, NULL, 128);
 *     epx_json_close(&json);
 *     epx_json_close(&json);
 *     int rc = epx_json_end(&json);
 */
#ifndef EPX_TOOLS_JSON_H
#define EPX_TOOLS_JSON_H

#include <stdint.h>
#include <stdio.h>

#define EPX_JSON_DEPTH 32

typedef struct epx_json {
    FILE *out;
    int indent;     /* blanks per level; 0: all on one line */
    unsigned depth; /* open objects and arrays */
    int failed;     /* wrong use: a key outside an object, no key inside one, too deep, a close too many */
    char kind[EPX_JSON_DEPTH];       /* '{' or '[' */
    char filled[EPX_JSON_DEPTH + 1]; /* something has been written on this level */
} epx_json_t;

epx_json_t epx_json_begin(FILE *out, int indent);

/* key: the name inside an object, NULL inside an array and at the top. */
void epx_json_object(epx_json_t *json, const char *key);
void epx_json_array(epx_json_t *json, const char *key);
void epx_json_close(epx_json_t *json); /* the innermost object or array */

void epx_json_text(epx_json_t *json, const char *key, const char *text); /* NULL: null */
void epx_json_int(epx_json_t *json, const char *key, int64_t value);
void epx_json_uint(epx_json_t *json, const char *key, uint64_t value);
void epx_json_real(epx_json_t *json, const char *key, double value);
void epx_json_bool(epx_json_t *json, const char *key, int value);
void epx_json_null(epx_json_t *json, const char *key);

/* Ends the document with a newline. 0, or -1 when something was left open, used wrongly, or could not be
 * written. */
int epx_json_end(epx_json_t *json);

#endif
