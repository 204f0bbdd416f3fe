/*
 * The progress line: on a terminal only, on stderr, gone when the work is done.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOOLS_TERMINAL_H
#define EPX_TOOLS_TERMINAL_H

/* Shows the text in place of the last one, at most ten times a second. One thread at a time. */
void epx_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Takes the line away; what is printed next starts at the left. Any thread. */
void epx_progress_clear(void);

#endif
