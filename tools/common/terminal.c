/* The progress line. SPDX-License-Identifier: Apache-2.0 */
#include "tools/common/terminal.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/common/clock.h"

static atomic_int shown;
static int64_t last_ns;

/* A longer line would wrap, and could not be taken back. */
static int columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 20)
        return 79;
    return size.ws_col - 1;
}

void epx_progress(const char *format, ...)
{
    char text[512];
    int64_t now = epx_now_ns();
    va_list values;
    if (!isatty(STDERR_FILENO) || (atomic_load(&shown) && now - last_ns < 100000000))
        return;
    last_ns = now;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    atomic_store(&shown, 1);
    fprintf(stderr, "\r\033[K%.*s", columns(), text);
    fflush(stderr);
}

void epx_progress_clear(void)
{
    if (atomic_exchange(&shown, 0)) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}
