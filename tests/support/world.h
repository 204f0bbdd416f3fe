/*
 * Runs S ranks as threads, in bounded time, and collects what they find. SPDX-License-Identifier: Apache-2.0
 *
 * A rank must not use Criterion's assertions, which jump; it says expect(...) and goes on. world_run fails
 * the test after all ranks have ended, and ends the test's process with a report of who was where when they
 * do not.
 */
#ifndef TESTS_WORLD_H
#define TESTS_WORLD_H

#include <stdint.h>

#include <epx/comm.h>
#include <epx/epx.h>

typedef struct world world_t;

typedef struct rank {
    world_t *world;
    int rank, ranks;
    epx_comm_h comm;
    void *arg;
    const char *volatile at; /* the call that it makes now, for the report of a hang */
    volatile int number;     /* and its wave or step */
} rank_t;

typedef void (*rank_fn)(rank_t *self);

/* Ranks 0 .. ranks-1 each run fn on a thread of their own. arg is shared. Returns when all have ended. */
void world_run(int ranks, rank_fn fn, void *arg);

/* How long the next world_run may take; 60 s unless said otherwise. Sanitizers get five times as much. */
void world_limit_s(int seconds);

/* 1: every rank is a process of its own; what it changes outside of the test's argument is its own. */
int ranks_are_processes(void);

/* Forgets everything of an earlier test of this process. */
void world_reset(void);

/* Warnings in the log are no failures from here on. Else each is one. */
void world_may_warn(void);

/* What to print beside failures, a seed for example. Kept until the next call. */
void world_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Every thread of the world arrives here before any leaves (not one of epx's barriers). */
void world_meet(rank_t *self);

void sleep_ms(int ms);
int64_t now_ms(void);

/* Counts a failure unless ok. Returns ok. self may be NULL outside a rank. */
int expect(rank_t *self, int ok, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A call's status: what was called, what came, what was wanted, and the library's own text. Then waits until
 * the device is through with what the call left in this rank's stream. */
int expect_status(rank_t *self, const char *call, epx_status_t got, epx_status_t wanted);
/* The same, and waits for nothing. */
int expect_came(rank_t *self, const char *call, epx_status_t got, epx_status_t wanted);
/* The library's last error names all of the words; NULL ends the list. */
int expect_text(rank_t *self, const char *call, ...);

/* Failures of this process so far (also outside of world_run). */
int failures(void);
/* For a single thread: fails the Criterion test when expect() has counted anything. world_run calls it. */
void settle(void);

/* Takes all EPX_ variables out of the environment. Every test starts with it. */
void clean_environment(void);

/* What this process writes to standard error, from begin to end; the text is the caller's to free. */
void capture_begin(void);
char *capture_end(void);

/* For crash_tells(): who was where, and what was captured. */
void world_last_words(int fd);

#endif
