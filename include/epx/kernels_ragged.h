/*
 * Kernels of the transport `ragged`: the layout that a route computes, and the sums that go home on the rank
 * wire. SPDX-License-Identifier: Apache-2.0
 *
 * Every pointer is device memory unless it says host. Symbols: S real ranks, N = m * S virtual ones, E
 * experts, K choices, C chunks (waves), A_max = T_max * K, q = c * S + d the pair of wave c and rank d.
 *
 * Two row spaces. A *place* is a row of the receiver's batch. A *return row* is a row of the sender's return
 * area, counted from its beginning and ordered by (wave, owner, expert, (token, k)); the return rows of a
 * pair q are one region. On the rank wire the wire rows of a sender stand in the receiver's slot from `base`
 * on, the sum of what earlier senders have accepted there (so nobody needs to know how many wire rows the
 * others have), and their partial sums come home to the beginning of the region.
 */
#ifndef EPX_KERNELS_RAGGED_H
#define EPX_KERNELS_RAGGED_H

#include <epx/transport.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Experts in the order of a pass; static, a function of the shape. The struct is host memory, its tables are
 * the device's. */
typedef struct epx_ragged_order {
    int32_t chunks;        /* C */
    const int32_t *expert; /* [E] by (wave, real owner, id) */
    const int32_t *first;  /* [C * S + 1] first entry of pair q */
    const int32_t *wave;   /* [E] of each expert id */
    const int32_t *at;     /* [E] entry of each expert id */
} epx_ragged_order_t;

/* What a wave moves between this rank and others (its own rows left out). */
typedef struct epx_ragged_wave {
    int64_t sent_rows;       /* rows that travel to the experts: assignments, or (token, rank) pairs */
    int64_t sent_places;     /* assignments behind them */
    int64_t received_places; /* likewise for this rank's experts */
} epx_ragged_wave_t;

/*
 * Everything about a routing that is decided by the counts: runs for push, places, batches. All outputs are
 * in the plan's bytes but for `scratch`. Entries of runs that are empty have rows 0. L = largest number of
 * experts on a rank.
 */
typedef struct epx_k_ragged_layout {
    /* in */
    const epx_shape_t
        *shape; /* host; the tables of real and virt are device memory, copied there once at open */
    const epx_ragged_order_t *order; /* host; its tables likewise */
    int32_t local_experts_max;       /* L */
    int32_t rank_wire;
    const void *notices; /* [S] epx_route_notice_t of every rank, each followed by its counts, int32 [m, E] */
    int64_t notice_stride;           /* bytes, a multiple of 8 */
    const int32_t *expert, *ordinal; /* [tokens, K] as read_ids gives them; T is that of this rank's notice */
    const float *weights;            /* [tokens, K] */
    /* scratch */
    int32_t *counts;    /* [N, E] */
    int32_t *accepted;  /* [N, E] */
    int64_t *scratch;   /* [max(N, 2 * S) + 2 * E] */
    int32_t *first_row; /* [m, E] return row of the first assignment of (virtual sender, expert) */
    int32_t *last_token, *list_end; /* [C * S] each, rank wire */
    int64_t *base;                  /* [C * S] my base at rank d, rank wire */
    uint64_t *room;                 /* as that of read_ids, which may be given the same; keys: 2 * C * S */
    int64_t room_words;
    /*
     * out. Of the head: valid, tokens, routed, kept, dropped_sender. A notice that says bad makes the plan
     * dead on every rank: then wave, start, count, home_start, home_count, wire_start, wire_room are 0, and
     * all runs have rows 0 but head_runs, which are as ever (so that every receiver learns of 0 wire rows);
     * all else is undefined.
     */
    epx_k_verdict_t verdict;
    epx_ragged_wave_t *wave_report; /* [C] beside the report: what `wave` holds; NULL: not wanted */
    epx_ragged_wave_t *wave;        /* [C] */
    int32_t *place;                 /* [tokens, K] wave * A_max + return row, or -1 */
    int32_t *send;                  /* [A_max] return row -> a = t * K + k */
    epx_run_t *send_runs;           /* [E] in order of `order`: first = return row, row = place */
    epx_run_t *return_runs; /* [L * S] by (local expert in order of `order`, sender): first = place, row =
                               return row */
    int64_t *start,
        *count; /* [C, L] batch of each wave, by local expert; starts ascend, also of empty ones */
    int64_t *home_start,
        *home_count; /* [C * S] return rows that come home: first of the region and how many */
    /* rank wire only */
    int32_t *wire_token;              /* [A_max] region + i -> token of the i-th wire row of the pair */
    int32_t *wire_first, *wire_count; /* [A_max] likewise: its entries in the receiver's list */
    int32_t *list_place;              /* [A_max] region + j -> place of entry j, by (token, k) */
    float *list_weight;               /* [A_max] likewise */
    int32_t *wire_row;                /* [tokens, K] receiver's wire row of an assignment that is kept */
    int32_t
        *home; /* [tokens, K] wave * A_max + return row of each wire row, (wave, rank) ascending, then -1 */
    epx_run_t *wire_runs; /* [C * S] wire rows of each pair */
    epx_run_t *list_runs; /* [C * S] list entries of each pair */
    epx_run_t *head_runs; /* [C * S] entry q of home_count to row `rank` of the receiver's head */
    epx_run_t *back_runs; /* [C * S] by (wave, sender): first = base, row = return row, rows = most */
    int64_t *wire_start,
        *wire_room; /* [C * S] by (wave, sender): base, and list entries (most wire rows) there */
} epx_k_ragged_layout_t;

/*
 * For each run i and r below min(rows[i], run.rows), with j = run.first + r: row run.row + r of run.peer
 * becomes row_type(chain over x of fmaf(weight[x], src[list[x]], sum)),  x in first[j] .. first[j] + count[j]
 * - 1.
 */
typedef struct epx_k_ragged_return {
    void *const *dst; /* [S] base of each peer */
    int64_t dst_offset, dst_stride;
    int64_t sum_offset; /* where the rows' 32-bit checksums go, or -1 */
    const epx_run_t *runs;
    const int64_t *rows; /* [run_count] */
    int32_t run_count;
    const int32_t *first, *count, *list;
    const float *weights; /* parallel to list; NULL: 1 */
    int32_t width;
    epx_type_t row_type;
    const void *src; /* row_bytes apart */
    int64_t row_bytes;
    int32_t units;     /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
    int32_t without;   /* 1 + the peer whose runs are left out; 0: none */
    int64_t rows_most; /* of all runs together at most: few go another way; 0: not known */
    /* NULL, or first, count, list and weights are those of the rows' sender (wire_first and so on of
     * epx_k_ragged_layout_t): j = run.row + r, and x goes on by *home_start - *wire_start. */
    const int64_t *home_start, *wire_start;
    epx_k_begun_t begun; /* said by its first block; word NULL: nothing is said */
} epx_k_ragged_return_t;

/*
 * Rank wire, expanded batches: a dispatch whose rows travel in parts, and are expanded while the rest
 * travels, without any kernel that waits for a peer. `ragged_flow` is called twice: at the start, and with
 * `here` behind the wait for the whole of the peers' rows. Work comes in units, which are taken from counters
 * by whoever has nothing to do:
 *
 * - F1  A unit is taken once: counters only grow, and a unit is its taker's who has drawn its number. They
 * are 0 when a start's kernel begins (a kernel ahead of it in the stream clears them).
 * - F2  Part p of what I send is rows n * p / PARTS .. n * (p + 1) / PARTS - 1 of every run. Who has taken
 * some of its units counts them as done when what they store is performed, behind a fence of the system; who
 * counts the last one sets my word p at all other ranks to the epoch of the call. A part that is empty has no
 * word.
 * - F3  At the start rows of part p are used only when all other ranks' words of parts 0 .. p are the epoch
 * of this call (acquire). Lists, counts and the head were stored by kernels ahead of the sender's, so they
 * are there too. Epochs are never used twice on a slot, so what is left of words there says nothing.
 * - F4  Nobody waits for a word. The start ends when all is sent, what stays is placed, and the next part is
 * not here; what is left is the second call's, from the same counters. So both kernels end whatever the peers
 * do, and the wait between them, its time and the abort words stay what they are without parts.
 * - F5  Words of parts say nothing of the group: they are not looked at by waits. A group that has ended may
 * still set them, in slots that recovery frees; the next epochs are of another generation.
 *
 * Rows are as epx_flow_limits_t says. ranks <= EPX_FLOW_RANKS_MAX.
 */
#define EPX_FLOW_PARTS 16
#define EPX_FLOW_RANKS_MAX 32
#define EPX_FLOW_PLACES_MAX 32 /* of a row */
/* Counters of one call: units taken of what is sent and of what is used, and of what is sent done, by part;
 * units of own rows taken. In chunks of 64 bytes. */
typedef struct epx_flow_counters {
    uint32_t sent[EPX_FLOW_PARTS], used[EPX_FLOW_PARTS], done[EPX_FLOW_PARTS];
    uint32_t own[16];
} epx_flow_counters_t;

typedef struct epx_k_ragged_flow {
    void *const *dst; /* [ranks] base of each rank */
    int32_t rank, ranks;
    int64_t rows, words; /* offsets from a base: rows of a slot; uint64 [PARTS, ranks] by (part, sender) */
    int64_t row_bytes;
    const epx_run_t *runs; /* [ranks] run i to rank i */
    const int32_t *index;  /* of x, by entry of the runs */
    const void *x;
    epx_k_places_t own; /* where my own rows go: the batch, which those of others go to too */
    /* What comes: of rank s the rows start[s] .. start[s] + count[s] - 1 of src, row g to list[first[g]] ...
     */
    const int64_t *start, *count; /* [ranks]; count is written by the senders */
    const int32_t *first, *places, *list;
    const void *src;
    epx_flow_counters_t *counters;
    const int32_t *gate; /* or NULL: nothing is done unless this is 1 */
    epx_k_begun_t call;  /* whose epoch it is; a word to say that it has begun, or NULL */
    int32_t here;        /* 0: the start; 1: all rows of others are here */
} epx_k_ragged_flow_t;

/*
 * Rank wire: a combine of one wave whose last sums are made while the rest travels. Called twice as
 * `ragged_flow` is: at the start, and with `here` behind the wait for the whole of the peers' sums.
 *
 * - H1  A row is cut into (row_bytes - 1) / EPX_HOME_PIECE + 1 pieces of equally many grains of 128 bytes,
 * but for the last one. Unit u is piece u % pieces of row u / pieces: of the rows that one rank has for
 * another, and of the tokens of a rank. Unit u belongs to stream u % streams, in round u / streams (tokens:
 * user_streams). All ranks have the same streams, whatever their devices are.
 * - H2  Word w of a sender at every rank, itself too, is epoch << 16 | rounds: of its stream w so many rounds
 * are there, of its rows for all ranks; their bytes were performed before it, behind a fence of the system.
 * Words only grow in a call. Rounds are less than EPX_HOME_ROUNDS_MAX. Epochs lose their generation by that:
 * the words are 0 when a group opens its memory.
 * - H3  At the start a unit of a token is added up when the words tell (acquire) of every piece of return
 * rows that it needs; behind the wait all are there.
 * - H4  A token's sum over this rank's own rows is made where it is used, from y, is rounded to the row type
 * as those of others are, and is stored nowhere. The chain goes by ranks as ever.
 * - H5  The start looks for words until what this rank sends is told, and some microseconds longer: it ends
 * whatever the peers do, and the wait behind it, its time and the abort words stay what they are. It leaves
 * in used[v] how many rounds of token stream v it has added up; the second call goes on there. (Its
 * epoch is another one where the pass has been counted meanwhile.)
 *
 * Words say nothing of the group (F5). out [tokens, width] row type. Rows, sums and out are as
 * epx_flow_limits_t says; ranks <= EPX_FLOW_RANKS_MAX, columns <= EPX_FLOW_PLACES_MAX.
 */
#define EPX_HOME_PIECE 3584
#define EPX_HOME_STREAMS 440 /* of what a rank sends, at most, and by the library */
#define EPX_HOME_USERS 1104  /* of its tokens, likewise */
#define EPX_HOME_ROUNDS_MAX 65536
typedef struct epx_k_ragged_home {
    void *const *dst; /* [ranks] base of each rank */
    int32_t rank, ranks;
    int64_t returns, words; /* offsets from a base: return rows; uint64 [ranks, EPX_HOME_STREAMS] by sender */
    int32_t streams, user_streams; /* <= EPX_HOME_STREAMS, <= EPX_HOME_USERS */
    int32_t *used;                 /* [user_streams] of this rank */
    int64_t row_bytes;
    int32_t width, columns; /* columns: of home */
    epx_type_t row_type;
    const void *y; /* row_bytes apart */
    void *out;     /* likewise */
    /* What others wait for, as of epx_k_ragged_return_t: min(rows[i], run.rows) rows to rank i. */
    const epx_run_t *runs;
    const int64_t *rows; /* [ranks] */
    const int32_t *first, *count, *list;
    const float *weights;
    /* What comes, and what stays, as of epx_k_ragged_layout_t: by return row, and of this rank's own ones the
     * lists, which begin at own_base - home_start[rank] of these. */
    const int64_t *home_start, *home_count; /* [ranks] */
    const int64_t *own_base;                /* wire_start[rank] */
    const int32_t *own_first, *own_count, *own_list;
    const float *own_weights;
    const int32_t *home;   /* [tokens, columns] return rows, ascending, then -1 */
    const int64_t *tokens; /* device */
    const int32_t *gate;   /* or NULL: nothing is done unless this is 1 */
    epx_k_begun_t call;    /* whose epoch it is; a word to say that it has begun, or NULL */
    int32_t here;          /* 0: the start; 1: all sums of others are here */
} epx_k_ragged_home_t;

#ifdef __cplusplus
}
#endif
#endif
