/* The text of --help, made from the table of options. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TOOLS_HELP_H
#define EPX_TOOLS_HELP_H

#include <stdio.h>

#include "tools/common/options.h"

void epx_help_print(const epx_program_t *program, FILE *out);

/* Prints `text` broken between words: the first line starts at column `at`, all others at `indent`; no line
 * is longer than `width`, unless a word is. Ends with a newline. */
void epx_print_wrapped(FILE *out, const char *text, int at, int indent, int width);

#endif
