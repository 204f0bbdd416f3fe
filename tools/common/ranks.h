/*
 * Runs a function once per rank, each on a thread of its own, with a comm between them.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOOLS_RANKS_H
#define EPX_TOOLS_RANKS_H

#include <epx/comm.h>

/* One rank while it runs. */
typedef struct epx_rank {
    int32_t rank, ranks;
    epx_comm_h comm;
    void *context;
    int code;  /* exit code, EPX_EXIT_OK until it fails */
    int order; /* of failing: 0 is the first rank that failed */
    char error[1024];
} epx_rank_t;

typedef int (*epx_rank_fn)(epx_rank_t *self);

/*
 * Keeps "what is wrong: what to do" for this rank and ends all waits on its comm, so that the others end too.
 * Returns `code`. The first failure in time counts; later ones of the same rank are ignored.
 */
int epx_rank_fail(epx_rank_t *self, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same for a call of the library; EPX_EXIT_OK and nothing else for EPX_OK. */
int epx_rank_check(epx_rank_t *self, epx_status_t status, const char *what);

/* The same for calls that read settings: EPX_EXIT_USAGE for EPX_ERR_ARG, as epx_tool_fail_status has it. */
int epx_rank_check_settings(epx_rank_t *self, epx_status_t status, const char *what);

/*
 * Runs fn on `ranks` threads and waits for all. Returns EPX_EXIT_OK, or, after one line about it on stderr,
 * the code of the rank that failed first; ranks that failed because of it are only counted.
 */
int epx_ranks_play(int32_t ranks, epx_rank_fn fn, void *context);

/*
 * The same, but where a launcher started this process among others it plays its one rank of theirs, on the
 * calling thread, and `ranks` is not looked at.
 */
int epx_ranks_join(int32_t ranks, epx_rank_fn fn, void *context);

#endif
