/* Inside of the page: pieces that its files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_PAGE_H
#define EPX_AB_PAGE_H

#include <stdio.h>

#include "bench/ab/result.h"

/* HTML as it is, and formatted text escaped. */
void epx_ab_put(FILE *out, const char *html);
void epx_ab_put_text(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A word as a badge in its colour; more: " and other classes". */
void epx_ab_put_word(FILE *out, const char *word, const char *more);

/* Parts of the page. (page_arms.c) */
void epx_ab_put_verdicts(const epx_ab_result_t *result, FILE *out);
void epx_ab_put_arms(const epx_ab_result_t *result, FILE *out);
void epx_ab_put_rules(const epx_ab_result_t *result, FILE *out);
void epx_ab_put_adjusted(const epx_ab_result_t *result, FILE *out);

#endif
