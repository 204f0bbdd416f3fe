/*
 * Reads a JSON document (RFC 8259) into memory. SPDX-License-Identifier: Apache-2.0
 *
 * Values are kept in one array, in the order of the text, so that the first is the whole document. Numbers
 * are doubles. Of two members with one name the first is found.
 */
#ifndef EPX_TOOLS_JSON_READ_H
#define EPX_TOOLS_JSON_READ_H

#include <stddef.h>
#include <stdint.h>

typedef enum epx_json_kind {
    EPX_JSON_NULL,
    EPX_JSON_FALSE,
    EPX_JSON_TRUE,
    EPX_JSON_NUMBER,
    EPX_JSON_TEXT,
    EPX_JSON_ARRAY,
    EPX_JSON_OBJECT
} epx_json_kind_t;

typedef struct epx_json_value {
    epx_json_kind_t kind;
    const char *key;  /* of a member, else NULL */
    const char *text; /* EPX_JSON_TEXT, in UTF-8; a zero inside it ends it for the reader */
    double number;
    int32_t values; /* how many values of the array this one is made of, itself included */
} epx_json_value_t;

typedef struct epx_json_document {
    epx_json_value_t *value; /* [count], value[0] the whole; valid until it is freed */
    int32_t count;
    char *memory;
} epx_json_document_t;

/* text [bytes] is copied. Returns 0, or -1 with "line N: what is wrong" in problem. */
int epx_json_read(const char *text, size_t bytes, epx_json_document_t *document_p, char *problem,
                  size_t problem_bytes);
void epx_json_document_free(epx_json_document_t *document);

/* The member `key` of an object, NULL when there is none or `value` is no object; value may be NULL. */
const epx_json_value_t *epx_json_member(const epx_json_value_t *value, const char *key);

/* Goes through the members of an object or the items of an array: the first, then the one behind `item`. */
const epx_json_value_t *epx_json_first(const epx_json_value_t *value);
const epx_json_value_t *epx_json_next(const epx_json_value_t *value, const epx_json_value_t *item);

/* The number or text of member `key`, or `otherwise` where it is missing or of another kind. */
double epx_json_number_of(const epx_json_value_t *value, const char *key, double otherwise);
const char *epx_json_text_of(const epx_json_value_t *value, const char *key, const char *otherwise);

#endif
