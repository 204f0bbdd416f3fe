/*
 * The kernels contract: what a device computes for the transports. Plain C functions over pointers of that
 * device; kernels/host is the reference and the oracle, kernels/cuda must be bit-equal.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every pointer is device memory unless it says host. Row indices are int32 (opening refuses shapes with 2^31
 * rows or assignments), byte offsets are computed in 64 bits. Kernels read device-resident counts, so that
 * the host needs to know none. Arithmetic: sums are chains of fmaf from +0 in the stated order; types convert
 * to and from fp32 by round to nearest even; dots are 32 lanes, lane l takes h = l, l + 32, ... ascending
 * with fmaf, then a tree 16, 8, 4, 2, 1.
 */
#ifndef EPX_KERNELS_H
#define EPX_KERNELS_H

#include <epx/epx.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- routing ---------------------------------------------------------------------------------------------------- */

/*
 * What a rank says of its own part of a route. ragged and ring send it in front of their counts; a multiple
 * of 8 bytes. bad_at: index a = t * columns + k of the first id out of range, bad_id that id.
 */
#define EPX_NOTICE_GOOD (-1)   /* bad_at: nothing is wrong */
#define EPX_NOTICE_TOKENS (-2) /* bad_at: T is outside 0 .. T_max, bad_id is T */
typedef struct epx_route_notice {
    int64_t tokens; /* T */
    int64_t bad_at;
    int64_t bad_id;
} epx_route_notice_t;

/*
 * Reads and validates ids, and takes the weights. Virtual sender of a token: tokens are split in m contiguous
 * blocks, the first T mod m one token more. Columns K..columns-1 (spill) are validated but neither counted
 * nor given ordinals.
 */
typedef struct epx_k_read_ids {
    const void *ids; /* [tokens, columns] */
    epx_type_t id_type;
    int64_t tokens;
    const int64_t *tokens_device;            /* or NULL */
    int32_t tokens_max;                      /* T above it is bad: found here where only the device knows T */
    int32_t columns, top_k, experts, splits; /* columns = K + X; splits = m */
    const float *weights;                    /* [tokens, columns], or NULL */
    float *weights_copy;                     /* out [tokens, columns]: a copy, with weights */
    int32_t *expert;                         /* out [tokens, columns]: expert id, or -1 */
    int32_t *ordinal; /* out [tokens, columns] or NULL: ordinal among this virtual sender's assignments (k <
                         K) to the same expert, in (token, k) order; -1 where there is none */
    int32_t *counts;  /* out [m, E]: valid assignments (k < K) of each virtual sender */
    int64_t *skipped; /* out [1]: ids of -1 among k < K */
    epx_route_notice_t *notice; /* out. Where it says bad the other outputs are undefined, and nothing outside
                                   them is touched */
    /* Scratch of room_words words, 0 before the first call of all that are given it, and theirs from then on;
     * such calls follow each other in one stream. With epx_route_room(tokens_max * columns, E + 2) words many
     * blocks can share the work; with fewer, or none (NULL), fewer do. The host's kernels need none. */
    uint64_t *room;
    int64_t room_words;
    /* Host, copied; NULL or EPX_LANE_ROUTE (kernels_words.h) of the plan whose head `skipped` may be in: done
     * first. */
    const struct epx_k_lane *lane;
} epx_k_read_ids_t;

/* Words for n items under so many keys: a count of every key for every thousand items, within bounds. */
#define EPX_ROUTE_ROOM_MAX 32768
static inline int64_t epx_route_room(int64_t n, int64_t keys)
{
    int64_t words = 1 + (n / 1024 + 1) * keys;
    return words < EPX_ROUTE_ROOM_MAX ? words : EPX_ROUTE_ROOM_MAX;
}

/*
 * The beginning of every plan's bytes, position-independent. Kernels that decide a route write valid, tokens
 * and the counts; the rest is copied there by the host, which keeps a copy of its own in the plan's handle.
 */
#define EPX_PLAN_MAGIC 0x65707870u
typedef struct epx_plan_head {
    uint32_t magic, abi;
    uint64_t signature; /* of the shape; attach refuses bytes of another one */
    int32_t valid;      /* 1 routed, 0 not, negative: the status that made the plan dead */
    int32_t waves;
    int64_t tokens;    /* 0 in a dead plan, so that its kernels do nothing */
    uint64_t route;    /* number of the route, on its lane */
    int32_t confirmed; /* not 0: every rank's route is known to be good */
    int32_t learned;   /* not 0: what the first pass teaches (pooled_wave's kept bits) is in the bytes */
    int64_t routed, skipped, kept, spilled, dropped_sender, dropped_receiver;
    uint64_t number; /* of the route among its lane's, where epochs are resident (kernels_words.h), else 0 */
} epx_plan_head_t;

/*
 * What the device tells the host about a plan's routes: one block per plan handle in memory that both see
 * (device.h, allocate_shared), read by the host at any time. Kernels that decide a route write it: everything
 * else first, then `dead` where the route failed somewhere, then `done`; each behind a system-wide release.
 */
typedef struct epx_route_report {
    uint64_t dead;  /* number of the last route that failed, as far as this rank's device knows */
    uint64_t done;  /* number of the last route that this rank's device has decided */
    int32_t status; /* of the dead one: EPX_ERR_ROUTING or EPX_ERR_ARG (this rank's own), EPX_ERR_PEER */
    int32_t rank;   /* who failed: this rank where it did, else the lowest */
    int64_t bad_at,
        bad_id; /* of that rank's notice where it is known (this rank's own; ragged, ring), else 0 */
    int64_t routed, skipped, kept, spilled, dropped_sender,
        dropped_receiver; /* as in the head, of a route that is done */
} epx_route_report_t;

/*
 * What a kernel that decides a route gets. Good: head->valid = 1. Failed: head->valid = the status,
 * head->tokens = 0, and every output is such that no kernel of the plan moves or writes a row.
 */
typedef struct epx_k_verdict {
    epx_plan_head_t *head;
    epx_route_report_t *report; /* NULL: nobody is told */
    uint64_t route;             /* its number, for the report */
} epx_k_verdict_t;

/* ---- moving rows ------------------------------------------------------------------------------------------------ */

/* Consecutive entries of a list that go to consecutive rows of one peer. */
typedef struct epx_run {
    int64_t first; /* first entry */
    int64_t row;   /* first destination row */
    int32_t peer;
    int32_t rows;
} epx_run_t;

typedef enum epx_part_kind {
    EPX_PART_COPY = 0,   /* bytes from src */
    EPX_PART_ORIGIN = 1, /* an epx_origin_t made from the entry: {rank, index / columns, index % columns} */
    EPX_PART_CHECKSUM =
        2 /* 4 bytes: the checksum (as epx_k_checksum) of the `bytes` bytes of the source row */
} epx_part_kind_t;

/* What travels for an entry: entry i has source index s = index ? index[i] : i, and the part's source row is
 * s / divide. */
typedef struct epx_part {
    epx_part_kind_t kind;
    const void *src;
    int64_t src_stride; /* bytes from row to row */
    int32_t divide;     /* >= 1 */
    int64_t dst_offset; /* bytes from the peer's base to row 0 */
    int64_t dst_stride;
    int64_t bytes;  /* per row */
    int32_t placed; /* EPX_PART_COPY: 1: what stays at this rank goes to the push's `own` places instead */
} epx_part_t;

#define EPX_PARTS_MAX 6

/*
 * How far the calls of a lane have come on a device, in memory that host and device see: the flight
 * recorder's. Kernels write it in passing, in the order of their stream, one posted store of 16 bytes each,
 * also when a graph is replayed. A pair is a call's epoch (of an exchange: its step), and when and which:
 *     time (of the device's clock, near CLOCK_REALTIME: ns / 1024) << EPX_PROGRESS_NAME_BITS | name
 * Each pair is at a multiple of 16.
 */
#define EPX_PROGRESS_TIME_SHIFT 10
#define EPX_PROGRESS_NAME_BITS 13
#define EPX_PROGRESS_AT_LEAST ((uint64_t)1 << 32)
typedef struct epx_progress_words {
    uint64_t begun[2], posted[2], seen[2];
    uint64_t step_sent[2], step_seen[2];
    /* Of a wait that lasts: expected, seen, 1 + the peer with EPX_PROGRESS_AT_LEAST, since when and which (0:
     * none). */
    uint64_t waiting[4];
    uint64_t unused[2];
} epx_progress_words_t;

/* Which call a store is of: kind as in the flight recorder (1 dispatch .. 4 dispatch_backward, 5 route). */
static inline uint32_t epx_progress_name(uint32_t kind, int32_t wave)
{
    return (kind & 7u) << 10 | (wave < 1023 ? (uint32_t)wave : 1023u);
}

/* A call's first kernel says that it has begun, when its own first block does. */
struct epx_lane_words;
typedef struct epx_k_begun {
    uint64_t *word;                    /* [2]; NULL: nothing is said */
    uint64_t add;                      /* the epoch; where epochs are resident, beyond the base of the pass */
    const struct epx_lane_words *lane; /* device: where epochs are resident; else NULL */
    const epx_plan_head_t *head;       /* device, with lane */
    uint64_t generation;
    uint32_t name;
} epx_k_begun_t;

/*
 * Rows of a batch that entries have at the rank that pushes them: entry i those at list[x], x in first[i] +
 * shift .. first[i] + shift + count[i] - 1, with shift = *start - *base. No two entries have the same one.
 */
typedef struct epx_k_places {
    void *dst; /* row 0 */
    int64_t stride;
    const int32_t *first, *count; /* by entry */
    const int32_t *list;
    const int64_t *start, *base; /* [1] */
} epx_k_places_t;

#define EPX_TURNS 4 /* words of a counter from which a kernel's blocks draw what they do next */

/* Copies the entries of `runs` to the peers. Entries with a negative index are skipped (their destination is
 * untouched). */
typedef struct epx_k_push {
    void *const *dst;     /* [S] base of each peer */
    const int32_t *index; /* or NULL */
    const epx_run_t *runs;
    int32_t run_count;              /* how many runs may be non-empty (empty ones have rows 0) */
    epx_part_t part[EPX_PARTS_MAX]; /* host array, copied */
    int32_t parts;
    int32_t rank, columns; /* for EPX_PART_ORIGIN */
    int32_t units;         /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
    const int32_t *gate;   /* or NULL: nothing is copied unless this is 1 when the kernel runs */
    const struct epx_k_push *more; /* host, copied: another push made with this one, in no order; NULL */
    /* Or NULL: EPX_TURNS words of this push alone among those made together, 0 before the first call
     * that is given them and left 0 by each; such calls follow each other. A few multiprocessors (`units`)
     * then send and keep side by side, as fast as the link is; the host's kernels need none. */
    uint64_t *turns;
    epx_k_places_t own; /* where parts that are `placed` go in runs to `rank`, which is not negative then */
    /*
     * Or NULL: by what entries are copies of, [*order_tokens, columns]: order[a] - order_base is the entry
     * whose index is a, where that is one of these runs' (anything else: a is not among them); runs begin in
     * ascending order then, and no part is placed. A hint by which a row that many entries want (its part's
     * divide is `columns`) is read once; nothing else changes.
     */
    const int32_t *order;
    const int64_t *order_tokens;
    int64_t order_base;
    epx_k_begun_t begun;
} epx_k_push_t;

/* The rows of a batch: for expert e the rows start[e] .. start[e] + count[e] - 1. */
typedef struct epx_k_rows {
    const int64_t *start, *count; /* [experts] */
    int32_t experts;
} epx_k_rows_t;

/*
 * dst row g = src row index[g], for all rows g of the batch (index NULL: g itself). Any number of bytes per
 * row. With own: an index s in own_first .. own_first + own_count - 1 means row own[s - own_first] /
 * own_divide of own_src.
 */
typedef struct epx_k_gather {
    epx_k_rows_t rows;
    const int32_t *index; /* [rows] */
    const void *src;
    void *dst;
    int64_t src_stride, dst_stride, bytes;
    const int32_t *own;  /* or NULL; with index only */
    const void *own_src; /* rows src_stride apart */
    int32_t own_first, own_count, own_divide;
    int32_t units; /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
} epx_k_gather_t;

/*
 * Rows to several places each, so that what is expanded is read once: for every row g of `rows`, with x in
 * first[g] .. first[g] + count[g] - 1: row list[x] of dst = row g of src. Places are distinct; entries of
 * the rows of one expert stand behind each other: first[g + 1] = first[g] + count[g].
 */
typedef struct epx_k_scatter {
    epx_k_rows_t rows;
    const int32_t *first, *count; /* by row g */
    const int32_t *list;
    const void *src;
    void *dst;
    int64_t src_stride, dst_stride, bytes;
    int32_t without; /* 1 + an expert whose rows are left out; 0: none */
    int32_t units;   /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
    /* Or NULL: EPX_TURNS words, as those of a push. Rows differ in the number of their places; drawn one by
     * one they keep all multiprocessors busy until the end. */
    uint64_t *turns;
} epx_k_scatter_t;

/* ---- sums ------------------------------------------------------------------------------------------------------- */

/*
 * One wave of  acc[t] = chain over k ascending of fmaf(weight[t, k], row, acc[t]), rows of this wave only:
 * place[t, k] in lo .. hi-1 means row place - lo of `rows`; anything else is not of this wave.
 * first: acc starts at +0 (for every token), else it goes on. last: out[t] = acc[t] in out_type for every
 * token; what acc itself holds afterwards is not promised (unless it equals out).
 *
 * waves > 1: all waves at once. lo .. hi - 1 are that many blocks of equal size, one wave each, and the chain
 * goes over waves ascending, then k. Where a call is the first and the last acc may be NULL.
 *
 * own: row r in own_first .. own_first + own_count - 1 (counted from lo, as those of `rows`) is row
 * own[r - own_first] of own_rows instead. Entries of rows that are not kept may be anything.
 *
 * sums: no row is in memory; all are sums of a rank's own rows, made where they are added. At most one row
 * for each token, among at most EPX_SUMS_COLUMNS_MAX columns; no waves, weights, kept, own.
 */
#define EPX_SUMS_COLUMNS_MAX 32
/* Row r, counted from lo, is row_type(chain over x of fmaf(weights[x], y[list[x]], sum)), x in j .. j +
 * count[r] - 1, where j = first[r] + *home_start - *wire_start (as in epx_k_ragged_return_t). */
typedef struct epx_k_own_sums {
    const void *y; /* row_stride apart; NULL: rows are in memory */
    const int32_t *first, *count, *list;
    const float *weights; /* parallel to list; NULL: 1 */
    const int64_t *home_start, *wire_start;
} epx_k_own_sums_t;

typedef struct epx_k_combine {
    int64_t tokens;
    const int64_t *tokens_device; /* or NULL */
    int32_t columns, width;
    epx_type_t row_type, out_type;
    const float *weights; /* [tokens, columns]; NULL: 1 for every one */
    const int32_t *place; /* [tokens, columns] */
    int64_t lo, hi;
    const void *rows; /* row_stride bytes apart */
    int64_t row_stride;
    const uint8_t *kept; /* or NULL: rows with kept[row] == 0 are skipped */
    float *acc;          /* [tokens, width]; may equal out when out_type is EPX_FP32 */
    void *out;
    int32_t first, last;
    int32_t waves;        /* 0 or 1: one */
    const int32_t *own;   /* or NULL */
    const void *own_rows; /* row_stride apart */
    int64_t own_first, own_count;
    epx_k_own_sums_t sums;
    /* With sums, 1: directly ahead in the stream is a wait that lets what follows begin with it (next_begins
     * of epx_k_word_wait_t), and all that is read here, acc excepted, was there before its post. Sums are
     * made while it ends; behind it tokens_device is read again, and acc and out are touched. */
    int32_t early;
    int32_t units; /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
} epx_k_combine_t;

/* Pre-reduction: out row j = row_type(chain over i of fmaf(weight[i], rows[list[i]], sum)), i in first[j] ..
 * first[j] + count[j] - 1. */
typedef struct epx_k_reduce {
    const int32_t *first, *count; /* [n] */
    int32_t n;
    const int32_t *n_device; /* or NULL */
    const int32_t *list;
    const float *weights; /* parallel to list; NULL: 1 */
    int32_t width;
    epx_type_t row_type;
    const void *rows;
    int64_t row_stride;
    void *out;
    int64_t out_stride;
    int32_t units; /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
} epx_k_reduce_t;

/* dweight[t, k] = dots[place - lo] for the assignments of this wave (as in combine); first: all others become
 * 0 before. */
typedef struct epx_k_take_dots {
    int64_t tokens;
    const int64_t *tokens_device;
    int32_t columns;
    const int32_t *place;
    int64_t lo, hi;
    const float *dots;
    const uint8_t *kept; /* or NULL */
    float *dweight;      /* [tokens, columns] */
    int32_t first;
    int32_t units; /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
} epx_k_take_dots_t;

/* For every row g of the batch, with s = index ? index[g] : g:  dy[g] = row_type(weight[g] * dout[s]),
 * dot[g] = dot(dout[s], y[g]). dy may equal dout only where index is NULL. */
typedef struct epx_k_scale_dot {
    epx_k_rows_t rows;
    const int32_t *index;
    const float *weight; /* [rows] */
    int32_t width;
    epx_type_t row_type;
    const void *dout, *y;
    void *dy;
    float *dot;    /* [rows] */
    int32_t units; /* multiprocessors that the grid may fill; 0: all (other devices: no meaning) */
} epx_k_scale_dot_t;

/* ---- checks ----------------------------------------------------------------------------------------------------- */

/* Fills rows with the NaN pattern: every 16-bit half is 0x7fff (a NaN in fp32, bf16 and fp16). Other areas
 * are filled too (a byte for each row, say): they begin anywhere, and byte i is 0xff where i is even, else
 * 0x7f. */
typedef struct epx_k_poison {
    void *rows;
    int64_t bytes; /* in all */
} epx_k_poison_t;

/* bad[0] = the first row g of the batch (experts ascending) whose bytes are all pattern, or -1; bad[1] = its
 * expert. */
typedef struct epx_k_find_poison {
    epx_k_rows_t rows;
    const int32_t *index; /* or NULL */
    const void *src;
    int64_t stride, bytes; /* bytes: even */
    int64_t *bad;          /* [2] */
} epx_k_find_poison_t;

/* sum[i] = a 32-bit checksum of row i (FNV-1a over its bytes). */
typedef struct epx_k_checksum {
    const void *src;
    int64_t stride, bytes, n;
    uint32_t *sum;
} epx_k_checksum_t;

/* bad[0] = the first row g of the batch (experts ascending) whose checksum is not sum[g], or -1; bad[1] = its
 * expert. */
typedef struct epx_k_verify {
    epx_k_rows_t rows;
    const int32_t *index; /* or NULL */
    const void *src;
    int64_t stride, bytes;
    const uint32_t *sum; /* [rows], as EPX_PART_CHECKSUM writes them */
    int64_t *bad;        /* [2] */
} epx_k_verify_t;

/* Routing of each transport; the argument structs are in kernels_pooled_wave.h, kernels_ragged.h and
 * kernels_ring.h. */
struct epx_k_pooled_gate1;
struct epx_k_pooled_gate2;
struct epx_k_pooled_extra;
struct epx_k_pooled_pack;
struct epx_k_ragged_layout;
struct epx_k_ragged_return;
struct epx_k_ragged_flow;
struct epx_k_ragged_home;
struct epx_k_ring_layout;
struct epx_k_ring_block;
/* Words of a fabric in device memory: kernels_words.h. */
struct epx_k_word_post;
struct epx_k_word_wait;
struct epx_k_word_exchange;
struct epx_k_word_abort;
struct epx_k_stamp;
struct epx_k_lane;
struct epx_k_spin;

/* When ragged_flow and ragged_home may be called, and are faster than one pass after the other. */
typedef struct epx_flow_limits {
    int64_t bytes;      /* from so many on that a rank's tokens have in a wave */
    int64_t align;      /* rows are multiples of so many bytes, at multiples of them */
    int64_t home_bytes; /* as bytes, on the way home */
    int32_t home_apart; /* 1: there only where each rank has a device of its own: who looks for words holds
                           this one while another rank would send them */
} epx_flow_limits_t;

/* One constant table per device; every function is stream-ordered, returns EPX_OK or an error of the device.
 */
typedef struct epx_kernels {
    epx_status_t (*read_ids)(const epx_k_read_ids_t *args, epx_stream_t stream);
    epx_status_t (*push)(const epx_k_push_t *args, epx_stream_t stream);
    epx_status_t (*gather)(const epx_k_gather_t *args, epx_stream_t stream);
    epx_status_t (*scatter)(const epx_k_scatter_t *args, epx_stream_t stream);
    epx_status_t (*combine)(const epx_k_combine_t *args, epx_stream_t stream);
    epx_status_t (*reduce)(const epx_k_reduce_t *args, epx_stream_t stream);
    epx_status_t (*take_dots)(const epx_k_take_dots_t *args, epx_stream_t stream);
    epx_status_t (*scale_dot)(const epx_k_scale_dot_t *args, epx_stream_t stream);
    epx_status_t (*poison)(const epx_k_poison_t *args, epx_stream_t stream);
    epx_status_t (*find_poison)(const epx_k_find_poison_t *args, epx_stream_t stream);
    epx_status_t (*checksum)(const epx_k_checksum_t *args, epx_stream_t stream);
    epx_status_t (*verify)(const epx_k_verify_t *args, epx_stream_t stream);
    epx_status_t (*pooled_gate1)(const struct epx_k_pooled_gate1 *args, epx_stream_t stream);
    epx_status_t (*pooled_gate2)(const struct epx_k_pooled_gate2 *args, epx_stream_t stream);
    epx_status_t (*pooled_extra)(const struct epx_k_pooled_extra *args, epx_stream_t stream);
    epx_status_t (*pooled_pack)(const struct epx_k_pooled_pack *args, epx_stream_t stream);
    epx_status_t (*ragged_layout)(const struct epx_k_ragged_layout *args, epx_stream_t stream);
    epx_status_t (*ragged_return)(const struct epx_k_ragged_return *args, epx_stream_t stream);
    epx_status_t (*ring_layout)(const struct epx_k_ring_layout *args, epx_stream_t stream);
    epx_status_t (*ring_block)(const struct epx_k_ring_block *args, epx_stream_t stream);
    epx_status_t (*word_post)(const struct epx_k_word_post *args, epx_stream_t stream);
    epx_status_t (*word_wait)(const struct epx_k_word_wait *args, epx_stream_t stream);
    epx_status_t (*word_exchange)(const struct epx_k_word_exchange *args, epx_stream_t stream);
    epx_status_t (*word_abort)(const struct epx_k_word_abort *args, epx_stream_t stream);
    epx_status_t (*stamp)(const struct epx_k_stamp *args, epx_stream_t stream);
    epx_status_t (*lane)(const struct epx_k_lane *args, epx_stream_t stream);
    epx_status_t (*spin)(const struct epx_k_spin *args, epx_stream_t stream);
    epx_status_t (*ragged_flow)(const struct epx_k_ragged_flow *args, epx_stream_t stream);
    const epx_flow_limits_t *flow_limits;
    epx_status_t (*ragged_home)(const struct epx_k_ragged_home *args, epx_stream_t stream);
    /* A host call, of no stream: 1 where a combine of so many tokens is done sooner by `sums` than by sums
     * that go to memory first, else 0. */
    int (*sums_soon)(int64_t tokens, int32_t width, epx_type_t row_type);
} epx_kernels_t;

#ifdef __cplusplus
}
#endif
#endif
