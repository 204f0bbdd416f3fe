/* Last words of a test whose process ends by a signal. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CRASH_H
#define TESTS_CRASH_H

#include <stddef.h>

/* From here on a signal that ends this process is told on standard error, with where the thread was; then
 * more(fd) is called, which may use what a handler may. Then the process ends by it as it would have. Nothing
 * in builds with a sanitizer, which tells more. */
void crash_tells(void (*more)(int fd));

/* A stack for that, of a thread: its own may have come to its end. */
void crash_thread_begin(void);
void crash_thread_end(void);

/* For more(): a text, and what a file holds so far. */
void crash_say(int fd, const char *text);
void crash_say_number(int fd, const char *before, long number);
void crash_say_file(int fd, int file);

/* Where standard error is, while 2 is something else; -1: 2 it is. */
void crash_stderr(int fd);

#endif
