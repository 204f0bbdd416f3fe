/*
 * What every program of this project does alike: exit codes, errors on stderr, memory, the end.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOOLS_PROGRAM_H
#define EPX_TOOLS_PROGRAM_H

#include <stddef.h>
#include <stdint.h>

#include <epx/status.h>

#include "tools/common/clock.h"

/* Exit codes. EPX_GO_ON is none: "nothing decided yet, go on". */
enum { EPX_GO_ON = -1, EPX_EXIT_OK = 0, EPX_EXIT_FAILED = 1, EPX_EXIT_USAGE = 2, EPX_EXIT_NO_VERDICT = 3 };

/* The name that errors begin with, "epx-perf". Called once, first; epx_command_line does it. */
void epx_tool_begin(const char *name);
const char *epx_tool_name(void);

/* Prints "program: what is wrong: what to do" on stderr and returns `code`, so that callers write
 * `return epx_tool_fail(...)`. The text has no newline. */
int epx_tool_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a call of the library that failed on this thread: `what` was tried, the library's text says
 * the rest. EPX_EXIT_USAGE for EPX_ERR_ARG, whose argument came from the command line or the environment. */
int epx_tool_fail_status(epx_status_t status, const char *what);

/* A line on stderr that is no error: "program: text". */
void epx_tool_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed memory [count, bytes], aligned to 64 bytes; ends the program with a message where there is none.
 * free() releases. */
void *epx_tool_alloc(size_t count, size_t bytes);

/* A copy of the text, or of a formatted one; free() releases. */
char *epx_tool_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Last call of main: pushes stdout out. A failed write (full disk, closed pipe) turns EPX_EXIT_OK into
 * EPX_EXIT_FAILED. */
int epx_tool_end(int code);

/* The same for programs whose codes are verdicts: `unwritten` in place of any of them. */
int epx_tool_end_as(int code, int unwritten);

#endif
