/*
 * Command lines, by a table of options. SPDX-License-Identifier: Apache-2.0
 *
 * --name VALUE, --name=VALUE, -l VALUE -lVALUE (letters of flags may share a dash); `--` ends the options. A
 * later option wins. --help and --version belong to every program and need no row. Names are never
 * abbreviated: a script must not change its meaning when an option is added.
 */
#ifndef EPX_TOOLS_COMMAND_LINE_H
#define EPX_TOOLS_COMMAND_LINE_H

#include "tools/common/options.h"

/*
 * Reads argv into the targets and calls epx_tool_begin. Returns EPX_GO_ON, or the code to exit with: 0 after
 * --help and --version, EPX_EXIT_USAGE after an error, which has been printed. Operands are moved to the end
 * of argv, in order; *first_operand_p (may be NULL) is the index of the first.
 */
int epx_command_line(const epx_program_t *program, int argc, char **argv, int *first_operand_p);

/* The nearest of `count` words to `word`, by edits; NULL when none is near. For "did you mean". */
const char *epx_nearest_word(const char *word, const char *const *words, size_t count);

/* Reads an integer with an optional K, M or G; 0, or -1 where it is none or does not fit. */
int epx_read_int(const char *text, int64_t *value_p);
int epx_read_real(const char *text, double *value_p);

/* Splits "name:key=value,key=value" for options of that form: calls pair for each key. Returns 0, or the
 * first non-zero value of `pair`; -1 with a problem for a malformed text. `name` [name_bytes] gets what
 * stands before the colon. */
typedef int (*epx_pair_fn)(void *context, const char *key, const char *value, char *problem,
                           size_t problem_bytes);
int epx_read_pairs(const char *text, char *name, size_t name_bytes, epx_pair_fn pair, void *context,
                   char *problem, size_t problem_bytes);

#endif
