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
 * Reads and validates ids. Virtual sender of a token: tokens are split in m contiguous blocks, the first T
 * mod m one token more. Columns K..columns-1 (spill) are validated but neither counted nor given ordinals.
 */
typedef struct epx_k_read_ids {
    const void *ids; /* [tokens, columns] */
    epx_type_t id_type;
    int64_t tokens;
    const int64_t *tokens_device;            /* or NULL */
    int32_t columns, top_k, experts, splits; /* columns = K + X; splits = m */
    int32_t *expert;                         /* out [tokens, columns]: expert id, or -1 */
    int32_t *ordinal; /* out [tokens, columns] or NULL: ordinal among this virtual sender's assignments (k <
                         K) to the same expert, in (token, k) order; -1 where there is none */
    int32_t *counts;  /* out [m, E]: valid assignments (k < K) of each virtual sender */
    int64_t *skipped; /* out [1]: ids of -1 among k < K */
    int64_t *bad; /* out [2]: index a = t * columns + k of the first id out of range and that id; bad[0] = -1
                     if none. With a bad id the other outputs are undefined */
} epx_k_read_ids_t;

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
    int64_t bytes; /* per row */
} epx_part_t;

#define EPX_PARTS_MAX 6

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
} epx_k_push_t;

/* The rows of a batch: for expert e the rows start[e] .. start[e] + count[e] - 1. */
typedef struct epx_k_rows {
    const int64_t *start, *count; /* [experts] */
    int32_t experts;
} epx_k_rows_t;

/* dst row g = src row index[g], for all rows g of the batch (index NULL: g itself). Any number of bytes per
 * row. */
typedef struct epx_k_gather {
    epx_k_rows_t rows;
    const int32_t *index; /* [rows] */
    const void *src;
    void *dst;
    int64_t src_stride, dst_stride, bytes;
} epx_k_gather_t;

/* ---- sums ------------------------------------------------------------------------------------------------------- */

/*
 * One wave of  acc[t] = chain over k ascending of fmaf(weight[t, k], row, acc[t]), rows of this wave only:
 * place[t, k] in lo .. hi-1 means row place - lo of `rows`; anything else is not of this wave.
 * first: acc starts at +0 (for every token), else it goes on. last: out[t] = acc[t] in out_type for every
 * token.
 */
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
    float *dot; /* [rows] */
} epx_k_scale_dot_t;

/* ---- checks ----------------------------------------------------------------------------------------------------- */

/* Fills rows with the NaN pattern: every 16-bit half is 0x7fff (a NaN in fp32, bf16 and fp16). */
typedef struct epx_k_poison {
    void *rows;
    int64_t bytes; /* in all, even */
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
struct epx_k_ring_layout;
struct epx_k_ring_block;

/* One constant table per device; every function is stream-ordered, returns EPX_OK or an error of the device.
 */
typedef struct epx_kernels {
    epx_status_t (*read_ids)(const epx_k_read_ids_t *args, epx_stream_t stream);
    epx_status_t (*push)(const epx_k_push_t *args, epx_stream_t stream);
    epx_status_t (*gather)(const epx_k_gather_t *args, epx_stream_t stream);
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
} epx_kernels_t;

#ifdef __cplusplus
}
#endif
#endif
