/* Exit codes, errors, memory. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/program.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/common/terminal.h"

static const char *program_name = "epx";

void epx_tool_begin(const char *name) { program_name = name; }

const char *epx_tool_name(void) { return program_name; }

/* One write for the whole line, so that lines of several threads or programs do not mix. */
static void print_line(const char *format, va_list values)
{
    char line[4096];
    int head = snprintf(line, sizeof line, "%s: ", program_name);
    size_t at = head < 0 ? 0 : (size_t)head;
    int body = vsnprintf(line + at, sizeof line - at - 1, format, values);
    if (body > 0)
        at = at + (size_t)body < sizeof line - 2 ? at + (size_t)body : sizeof line - 2;
    line[at++] = '\n';
    epx_progress_clear();
    fflush(stdout);
    fwrite(line, 1, at, stderr);
}

int epx_tool_fail(int code, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    print_line(format, values);
    va_end(values);
    return code;
}

int epx_tool_fail_status(epx_status_t status, const char *what)
{
    const char *text = epx_last_error();
    if (text[0] == '\0')
        text = epx_status_text(status);
    return epx_tool_fail(status == EPX_ERR_ARG ? EPX_EXIT_USAGE : EPX_EXIT_FAILED, "%s: %s (%s)", what, text,
                         epx_status_name(status));
}

void epx_tool_note(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    print_line(format, values);
    va_end(values);
}

void *epx_tool_alloc(size_t count, size_t bytes)
{
    size_t all, padded;
    void *memory = NULL;
    if (!__builtin_mul_overflow(count, bytes, &all) && !__builtin_add_overflow(all, 63, &padded))
        memory = aligned_alloc(64, padded < 64 ? 64 : padded & ~(size_t)63);
    if (memory == NULL)
        exit(epx_tool_fail(EPX_EXIT_FAILED, "no memory for %zu x %zu bytes: choose smaller sizes", count,
                           bytes));
    memset(memory, 0, all);
    return memory;
}

char *epx_tool_text(const char *format, ...)
{
    va_list values;
    char *text = NULL;
    va_start(values, format);
    int bytes = vasprintf(&text, format, values);
    va_end(values);
    if (bytes < 0)
        exit(epx_tool_fail(EPX_EXIT_FAILED, "no memory for a text: end other programs"));
    return text;
}

int epx_tool_end(int code)
{
    epx_progress_clear();
    if (fflush(stdout) != 0 || ferror(stdout)) {
        epx_tool_fail(code, "cannot write the output: %s", strerror(errno));
        return code == EPX_EXIT_OK ? EPX_EXIT_FAILED : code;
    }
    return code;
}

int epx_tool_end_as(int code, int unwritten)
{
    epx_progress_clear();
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    return epx_tool_fail(unwritten, "cannot write the output: %s; the exit code is no verdict",
                         strerror(errno));
}
