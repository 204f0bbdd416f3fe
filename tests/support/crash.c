/*
 * Last words of a test whose process ends by a signal. SPDX-License-Identifier: Apache-2.0
 *
 * While ranks run, what a process says is kept, to be looked at: an abort, whoever calls it, a failed
 * allocation or an error of a GPU, would take its reason with it.
 */
#include "support/crash.h"

#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TELLS 0
#else
#define TELLS 1
#endif

enum { ALTERNATE_BYTES = 64 * 1024, FRAMES = 40 };

static struct {
    void (*more)(int fd);
    atomic_int fd;
    atomic_flag told;
} state = {.fd = -1, .told = ATOMIC_FLAG_INIT};

static _Thread_local void *alternate;

void crash_stderr(int fd) { atomic_store(&state.fd, fd); }

static void put(int fd, const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t wrote = write(fd, bytes, count);
        if (wrote <= 0)
            return;
        bytes += wrote, count -= (size_t)wrote;
    }
}

void crash_say(int fd, const char *text) { put(fd, text, strlen(text)); }

void crash_say_number(int fd, const char *before, long number)
{
    char digits[24], *at = digits + sizeof(digits);
    unsigned long left = number < 0 ? 0ul - (unsigned long)number : (unsigned long)number;
    do
        *--at = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (number < 0)
        *--at = '-';
    crash_say(fd, before);
    put(fd, at, (size_t)(digits + sizeof(digits) - at));
}

void crash_say_file(int fd, int file)
{
    char bytes[512];
    ssize_t got;
    for (off_t from = 0; (got = pread(file, bytes, sizeof(bytes), from)) > 0; from += got)
        put(fd, bytes, (size_t)got);
}

static void say_address(int fd, const void *address)
{
    char digits[2 * sizeof(size_t)];
    size_t at = (size_t)address;
    for (size_t i = sizeof(digits); i-- > 0; at /= 16)
        digits[i] = "0123456789abcdef"[at % 16];
    crash_say(fd, ", at 0x");
    put(fd, digits, sizeof(digits));
}

static void on_signal(int number, siginfo_t *info, void *context)
{
    (void)context;
    void *frame[FRAMES];
    int fd = atomic_load(&state.fd) >= 0 ? atomic_load(&state.fd) : 2;
    if (!atomic_flag_test_and_set(&state.told)) {
        crash_say_number(fd, "CRASH: signal ", number);
        say_address(fd, info->si_addr);
        crash_say_number(fd, ", process ", (long)getpid());
        crash_say_number(fd, ", thread ", (long)gettid());
        crash_say(fd, "\n");
        backtrace_symbols_fd(frame, backtrace(frame, FRAMES), fd);
        if (state.more != NULL)
            state.more(fd);
    } else {
        sleep(2); /* another thread is telling, or telling has failed */
    }
    signal(number, SIG_DFL);
    raise(number);
}

void crash_tells(void (*more)(int fd))
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL};
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    void *frame[1];
    if (!TELLS)
        return;
    state.more = more;
    backtrace(frame, 1); /* what it needs is loaded now */
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        sigaction(signals[i], &action, NULL);
}

void crash_thread_begin(void)
{
    stack_t stack = {.ss_size = ALTERNATE_BYTES};
    if (!TELLS || (alternate = malloc(ALTERNATE_BYTES)) == NULL)
        return;
    stack.ss_sp = alternate;
    sigaltstack(&stack, NULL);
}

void crash_thread_end(void)
{
    stack_t none = {.ss_flags = SS_DISABLE};
    if (alternate == NULL)
        return;
    sigaltstack(&none, NULL);
    free(alternate);
    alternate = NULL;
}
