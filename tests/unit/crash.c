/* A test whose process ends by a signal leaves its reason. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/crash.h"
#include "support/world.h"

TestSuite(crash, .init = clean_environment);

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define ALONE 0 /* sanitizers tell it themselves */
#else
#define ALONE 1
#endif

typedef enum end { BY_ABORT, BY_POINTER, BY_DEPTH } end_t;

static volatile char *volatile nowhere = (volatile char *)64;

static volatile int deep = 1 << 20;

static int deeper(volatile char *above, int left)
{
    volatile char here[4096];
    here[0] = *above;
    return left > 0 ? deeper(here, left - 1) + here[0] : here[0];
}

static void end_rank(rank_t *self)
{
    const end_t *how = self->arg;
    volatile char top = 0;
    self->at = "at its end";
    self->number = 5;
    if (self->rank == 0)
        return;
    fprintf(stderr, "its last words\n");
    if (*how == BY_ABORT)
        abort();
    if (*how == BY_POINTER)
        *nowhere = 1;
    self->number = deeper(&top, deep);
}

/* What such a process says, and what it ended by. */
static int play(end_t how, char *text, size_t bytes)
{
    int ends[2], status = 0;
    size_t used = 0;
    ssize_t got;
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 2);
        crash_tells(world_last_words);
        world_note("seed %d", 77);
        world_run(2, end_rank, &how);
        _exit(0);
    }
    close(ends[1]);
    while ((got = read(ends[0], text + used, bytes - 1 - used)) > 0)
        used += (size_t)got;
    text[used] = 0;
    close(ends[0]);
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void check(end_t how, int signal, const char *first)
{
    static char text[32768];
    const char *const words[] = {first, "seed 77\n", "rank 1: at its end 5\n", "its last words\n"};
    if (!ALONE)
        cr_skip_test("a sanitizer tells it: plain builds run this");
    cr_assert_eq(play(how, text, sizeof(text)), signal);
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        cr_expect(strstr(text, words[i]) != NULL, "no '%s' in: %s", words[i], text);
}

Test(crash, an_abort_is_told) { check(BY_ABORT, SIGABRT, "CRASH: signal 6"); }
Test(crash, a_wild_pointer_is_told) { check(BY_POINTER, SIGSEGV, "CRASH: signal 11, at 0x0000000000000040"); }
Test(crash, the_end_of_a_stack_is_told) { check(BY_DEPTH, SIGSEGV, "CRASH: signal 11"); }
