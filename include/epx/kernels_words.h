/*
 * Kernels of a fabric whose words live in the memory of a device: post, wait and exchange of that fabric, in
 * stream order. SPDX-License-Identifier: Apache-2.0
 *
 * Every rank has one block of words at the same offsets, which all ranks can load from and store to. A word
 * has one writer (a rank) and one reader (the rank whose block it is in), and is set, never added to:
 *
 * - W1  Who sets a word at a peer has fenced for the whole system before (release); who sees it loads with
 * acquire at system scope. So everything that the writer's stream did before the post is visible to what the
 * reader's stream does behind the wait: rows, counts, lists.
 *
 * - W2  Waits are made by one block of threads that looks at words of its own block only. They end at a time
 * by the device's clock, or by the abort words, so that nothing spins for ever whatever the peers do.
 *
 * - W3  The abort words are one for each rank, 0 until that rank ends the group. Whoever gives up (time is
 * up, or the host asks for it) writes down why where the host sees it, once, and then sets its abort word at
 * all ranks. Words of a group that has ended are not set any more, and nothing is waited for. A wait that
 * gives up makes its plan dead on the device (the head alone: the report tells of routes), so that what
 * stands behind it in the stream stores nothing into what peers still read.
 *
 * - W4  Exchanges have two boxes for each sender, taken in turn by the parity of the step. A sender's word of
 * step e says that its block of e is in the box, and that it has taken the blocks of e - 1 from its own
 * boxes, since posts are behind earlier takes in its stream. Who begins step e has seen e - 1 of all ranks,
 * so all of them have taken e - 2, whose box e goes to: no other credit is needed, and no word is more than
 * one step ahead of its reader. Where there are lines, a line takes the place of the box: each of its words
 * carries four bytes and the step, so what has come says so itself, and the sender's word of the step only
 * tells those that wait whom for.
 */
#ifndef EPX_KERNELS_WORDS_H
#define EPX_KERNELS_WORDS_H

#include <epx/kernels.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An epoch, known to the host (base NULL) or resident on the device: value = (base ? *base : 0) + add. */
typedef struct epx_epoch {
    const uint64_t *base;
    uint64_t add;
} epx_epoch_t;

/*
 * Resident epochs. What a lane counts is on the device and moved on by kernels in stream order, so that a
 * graph that is replayed counts on: see transport/common.h, D1 to D5.
 */
#define EPX_LANE_CREDITS 4
typedef struct epx_lane_words {
    uint64_t routes;                   /* made on this lane, good or bad */
    uint64_t passes;                   /* that have ended, of plans that were good */
    uint64_t base;                     /* of the epochs of the pass in progress */
    uint64_t credit[EPX_LANE_CREDITS]; /* last epoch of the last pass that a peer acknowledges, by the
                                          transport's use */
    uint64_t unused;
} epx_lane_words_t;

typedef enum epx_lane_step {
    EPX_LANE_ROUTE = 0, /* the plan's head becomes `value`, routes grows by one, and head->number is that */
    EPX_LANE_BEGIN = 1, /* base becomes that of a pass of the plan; a post can do it too */
    EPX_LANE_END = 2    /* where head->valid is 1 passes grows by one, and credit[i] = base + acknowledged[i]
                           where that is not 0 */
} epx_lane_step_t;

/* Epochs of a pass begin at generation (16 bits) | passes (24) | number of the route (10) | 0 (14). */
#define EPX_EPOCH_CALL_BITS 14
#define EPX_EPOCH_ROUTE_BITS 10
#define EPX_EPOCH_PASS_BITS 24

typedef struct epx_k_lane {
    epx_lane_step_t step;
    epx_lane_words_t *words;
    epx_plan_head_t *head; /* of the plan */
    uint64_t generation;
    uint64_t acknowledged[EPX_LANE_CREDITS];
    epx_plan_head_t value;
} epx_k_lane_t;

/* Where a post begins a pass: words->base is computed, written, and the epoch is reckoned from it. words
 * NULL: it does not. */
typedef struct epx_lane_begin_of {
    epx_lane_words_t *words;
    const epx_plan_head_t *head;
    uint64_t generation;
} epx_lane_begin_of_t;

/* An abort word: (1 + the rank that is blamed, or 0) with this bit. */
#define EPX_ABORT_BIT ((uint64_t)1 << 32)

/*
 * Why a rank's device gave up, in memory that host and device see. The host sets by_host, the device all
 * else, `ended` last.
 */
typedef struct epx_word_halt {
    uint64_t by_host;  /* not 0: the abort word that waits of this rank end with, and carry to the peers */
    uint64_t ended;    /* 1: what follows is there */
    int32_t status;    /* EPX_ERR_TIMEOUT, EPX_ERR_PEER, EPX_ERR_ABORTED */
    int32_t peer;      /* who was waited for, or who ended the group */
    int32_t culprit;   /* whom that rank blames, or -1 */
    int32_t exchange;  /* 1: it was an exchange */
    uint64_t tag;      /* of the wait */
    uint64_t expected; /* epoch */
    uint64_t seen;     /* the peer's word when the wait ended */
} epx_word_halt_t;

/* The words of all ranks as one rank sees them. Offsets are in every rank's block. */
typedef struct epx_words {
    void *const *peer; /* [ranks] device: the blocks; peer[rank] is mine */
    int32_t rank, ranks;
    int64_t words;    /* [channels, ranks] by (channel, writer) */
    int64_t failures; /* [failure channels, ranks] */
    int64_t aborts;   /* [ranks] */
    int64_t steps;    /* [exchange channels, ranks] of exchanges */
    int64_t boxes;    /* [exchange channels, 2, ranks] of box_bytes */
    int64_t box_bytes;
    int64_t lines; /* [exchange channels, 2, ranks] of box_bytes / 4 words, 0 at first; 0: there are none */
    epx_word_halt_t *halt;
} epx_words_t;

/* Sets my word at one rank or all (-1). */
typedef struct epx_k_word_post {
    epx_words_t words;
    int32_t failure;      /* 1: `channel` is a row of failure words */
    int32_t failure_rows; /* > 0: the row is channel + epoch mod this */
    int32_t channel, peer;
    epx_epoch_t epoch;
    const int32_t *gate; /* device, or NULL: the word is set only if this is 1 */
    int32_t only_failed; /* 1: only if it is negative */
    epx_lane_begin_of_t begin;
    epx_progress_words_t *progress; /* `posted` is said, behind the words; NULL: nothing */
    uint32_t name;
} epx_k_word_post_t;

/* What a wait that ends well does beside. tell: copies bytes (a multiple of 8, to: memory that host and
 * device see). words: ends the pass of the plan, as EPX_LANE_END; NULL: it does not. */
typedef struct epx_word_beside {
    const void *tell_from;
    void *tell_to;
    int64_t tell_bytes;
    epx_lane_words_t *words;
    const epx_plan_head_t *head;
    uint64_t acknowledged[EPX_LANE_CREDITS];
} epx_word_beside_t;

#define EPX_WORD_WATCHES 2

/* Waits for the word of one rank or of all (-1); then what is behind it in the stream sees what they did. */
typedef struct epx_k_word_wait {
    epx_words_t words;
    int32_t channel, peer;
    int32_t at_least; /* 0: the word must be exactly the epoch; 1: or a later one */
    epx_epoch_t epoch;
    const int32_t *gate; /* device, or NULL: waits only if this is 1 */
    /* Rows of failure words: a rank's word that is exactly `epoch`, while what is awaited has not come, kills
     * the plan of `verdict` (EPX_ERR_PEER, that rank) and ends the wait. */
    int32_t watches;
    struct {
        int32_t channel, rows; /* rows > 0: the row is channel + epoch mod this */
        epx_epoch_t epoch;
    } watch[EPX_WORD_WATCHES];
    epx_k_verdict_t verdict; /* head NULL: there is no plan */
    epx_word_beside_t beside;
    int64_t timeout_ns;
    uint64_t tag; /* for halt */
    /* A wait that lasts for milliseconds says whom it waits for (`waiting`), and with seen 1, when it has
     * ended well, that the call's words are here. NULL: nothing is said. */
    epx_progress_words_t *progress;
    uint32_t name, seen;
    /* 1: only kernels of the library stand between this rank's own post of these words and the wait. So it
     * looks while the post ends, reckons the epoch from `begin` as that may do (words NULL: from `epoch`),
     * and ends behind it. */
    int32_t behind_post;
    /* With behind_post, 1: what follows may begin as soon as the wait does; it reads nothing that the post
     * writes, and itself waits for all ahead before it writes (`early` of a combine). */
    int32_t next_begins;
    epx_lane_begin_of_t begin;
} epx_k_word_wait_t;

/* One step of an exchange: block `send` [bytes] of every rank to receive [ranks, bytes] of every rank. Where
 * it ends badly every byte of `receive` is 0x80. */
typedef struct epx_k_word_exchange {
    epx_words_t words;
    int32_t channel;
    uint64_t *step;   /* device: steps made on this channel; grows by one */
    uint32_t *done;   /* device: 0 between calls */
    const void *send; /* NULL: this rank's step is bad, and its block is 0x80 in every byte */
    void *receive;
    int64_t stride; /* bytes between blocks of `receive` */
    int64_t bytes;  /* at most box_bytes */
    int64_t timeout_ns;
    uint64_t tag;
    epx_progress_words_t *progress; /* step_sent, step_seen and `waiting`; NULL: nothing is said */
    uint32_t name;
} epx_k_word_exchange_t;

/*
 * A word that the host watches, set in stream order: sequence numbers of what has begun, markers of the
 * caller's own work. Posted stores of one thread; capturable in a graph, where the value goes on by what is
 * resident on the device. `time_ns` and `word` are memory that host and device see (allocate_shared, or
 * registered with the driver: the address that the device knows). The time is the device's global timer,
 * near CLOCK_REALTIME, and is not seen later than `word`; cheapest right behind a word at a multiple of 16.
 */
typedef struct epx_k_stamp {
    int64_t *time_ns; /* NULL: not wanted */
    uint64_t *word;   /* value + (count ? *count << shift : 0) */
    epx_epoch_t value;
    uint64_t *count; /* device: grows by one at every execution, before it is used; NULL */
    int32_t shift;
    uint32_t name; /* not 0: time_ns is the second word of a pair of epx_progress_words_t */
} epx_k_stamp_t;

/* A foreign kernel for tests of hangs: it executes until `ns` have gone by or *stop is not 0. */
typedef struct epx_k_spin {
    int64_t ns;
    const uint64_t *stop; /* memory that host and device see; NULL: none */
    int32_t units;        /* > 0: so many blocks, each of which takes a multiprocessor alone */
} epx_k_spin_t;

/* Ends the group: my abort word at all ranks, whatever they wait for. */
typedef struct epx_k_word_abort {
    epx_words_t words;
    uint64_t word;
} epx_k_word_abort_t;

#ifdef __cplusplus
}
#endif
#endif
