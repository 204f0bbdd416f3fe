/* Ranks of a comm that are left meet again: processes of a link, played by processes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/comm_again.h"
#include "core/comm_gather.h"
#include "launch/internal.h"
#include "support/world.h"

enum { RANKS = 4, FIRST = 2, SECOND = 3 };

TestSuite(comm_again, .init = clean_environment, .timeout = 60);

typedef struct seen {
    volatile int ready, status[2], size[2], rank[2], sum[2], took_ms[2];
    volatile uint8_t alive[2][RANKS];
} seen_t;

static int32_t free_port(void)
{
    int32_t port = 0;
    int listener = epx_launch_listen("127.0.0.1", 0, &port);
    cr_assert_geq(listener, 0);
    close(listener);
    return port;
}

/* What the comm's way finds, and a gather of those that it found. */
static epx_bootstrap_t meet(seen_t *seen, int turn, const epx_bootstrap_t *whole)
{
    uint8_t alive[RANKS] = {9, 9, 9, 9};
    epx_bootstrap_t left = *whole;
    int32_t mine = 1 << epx_comm_rank(whole->context), all[RANKS] = {0};
    epx_comm_survivors_fn survivors = epx_comm_survivors_of(whole);
    int64_t begin = now_ms();
    seen->status[turn] =
        survivors != NULL ? survivors(whole->context, 5000, alive, &left) : EPX_ERR_UNSUPPORTED;
    seen->took_ms[turn] = (int)(now_ms() - begin);
    memcpy((void *)(uintptr_t)seen->alive[turn], alive, sizeof(alive));
    if (seen->status[turn] != EPX_OK)
        return left;
    seen->size[turn] = left.size;
    seen->rank[turn] = left.rank;
    if (left.allgather(left.context, &mine, all, sizeof(mine)) == 0)
        for (int32_t r = 0; r < left.size; r++)
            seen->sum[turn] += all[r];
    return left;
}

static void be_rank(int rank, seen_t *all)
{
    seen_t *seen = &all[rank];
    epx_comm_h comm = NULL;
    char text[16];
    snprintf(text, sizeof(text), "%d", rank);
    setenv("EPX_RANK", text, 1);
    if (epx_comm_world(&comm) != EPX_OK || epx_comm_barrier(comm) != EPX_OK)
        _exit(1);
    seen->ready = 1;
    if (rank == FIRST)
        raise(SIGKILL);
    epx_bootstrap_t whole = epx_comm_bootstrap(comm);
    epx_bootstrap_t left = meet(seen, 0, &whole); /* whether the death has been heard of by now or not */
    if (rank == SECOND)
        raise(SIGKILL);
    meet(seen, 1, &left);
    epx_comm_destroy(&comm);
    _exit(0);
}

Test(comm_again, who_died_is_left_out_and_once_more)
{
#if defined(__SANITIZE_THREAD__)
    cr_skip_test("the thread sanitizer follows no threads behind a fork");
#endif
    seen_t *all = mmap(NULL, RANKS * sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char root[64];
    pid_t child[RANKS];
    cr_assert_neq((void *)all, MAP_FAILED);
    snprintf(root, sizeof(root), "127.0.0.1:%d", free_port());
    setenv("EPX_ROOT", root, 1);
    setenv("EPX_WORLD_SIZE", "4", 1);
    setenv("EPX_RECORD", "off", 1);
    setenv("EPX_TIMEOUT_MS", "20000", 1);
    for (int r = 0; r < RANKS; r++) {
        child[r] = fork();
        if (child[r] == 0)
            be_rank(r, all);
        cr_assert_gt(child[r], 0);
    }
    for (int r = 0; r < RANKS; r++) {
        int status = 0;
        cr_assert_eq(waitpid(child[r], &status, 0), child[r]);
        int is_killed = r == FIRST || r == SECOND;
        cr_expect(is_killed ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0,
                  "rank %d: %x", r, (unsigned)status);
    }
    static const uint8_t alive[2][RANKS] = {{1, 1, 0, 1}, {1, 1, 0, 9}};
    for (int r = 0; r < RANKS; r++) {
        if (r == FIRST)
            continue;
        cr_expect_eq(all[r].status[0], EPX_OK, "rank %d: %s", r,
                     epx_status_name((epx_status_t)all[r].status[0]));
        cr_expect_eq(all[r].size[0], 3);
        cr_expect_eq(all[r].rank[0], r == 3 ? 2 : r);
        cr_expect_arr_eq((const uint8_t *)(uintptr_t)all[r].alive[0], alive[0], RANKS);
        cr_expect_eq(all[r].sum[0], 1 + 2 + 8, "rank %d: %x", r, (unsigned)all[r].sum[0]);
        cr_expect_lt(all[r].took_ms[0], 4000, "rank %d met after %d ms", r, all[r].took_ms[0]);
        if (r == SECOND)
            continue;
        cr_expect_eq(all[r].status[1], EPX_OK, "rank %d: %s", r,
                     epx_status_name((epx_status_t)all[r].status[1]));
        cr_expect_eq(all[r].size[1], 2);
        cr_expect_arr_eq((const uint8_t *)(uintptr_t)all[r].alive[1], alive[1],
                         RANKS); /* of the three before */
        cr_expect_eq(all[r].sum[1], 1 + 2);
    }
    munmap(all, RANKS * sizeof(*all));
}
