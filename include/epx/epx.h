/*
 * epx: expert-parallel exchange. The public API: group, plan, batch, dispatch, combine.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Symbols used in comments:
 *   S ranks of the group      T tokens of this rank in this step, 0..T_max   H row width in elements
 *   E experts of the layer    El experts that this rank owns                 K experts chosen per token
 *   W waves of a pass         [a, b] a row-major array
 *
 * Device memory means memory of the group's device: plain memory for `host`, GPU memory for `cuda`.
 * "Collective" means: every rank of the group makes the call, and all calls of a group (over all its lanes,
 * start and finish calls included) are made in the same order on all ranks. Unless a comment says otherwise a
 * call is not thread-safe for one group, and safe for different groups. Structs that the caller fills begin
 * with their size and have an EPX_*_INIT value; a larger struct than the library knows is accepted if its
 * unknown tail is zero.
 */
#ifndef EPX_EPX_H
#define EPX_EPX_H

#include <stddef.h>
#include <stdint.h>

#include <epx/status.h>

/*
 * What an EPX_*_INIT value is: all zero but for the size, which every such struct has in front. C++ warns of
 * initialisers that leave members out, and has had designated ones since C++20 only, so there it is a value.
 */
#ifdef __cplusplus
extern "C++" { /* also where a C++ program includes this within extern "C" */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
template <class T> constexpr T epx_begun() { return T{sizeof(T)}; }
#pragma GCC diagnostic pop
}
#define EPX_BEGUN(type) epx_begun<type>()
#else
#define EPX_BEGUN(type)      \
    {                        \
        .size = sizeof(type) \
    }
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define EPX_VERSION_MAJOR 0
#define EPX_VERSION_MINOR 1
#define EPX_VERSION_PATCH 0

typedef struct epx_comm *epx_comm_h;
typedef struct epx_group *epx_group_h;
typedef struct epx_plan *epx_plan_h;
typedef struct epx_recorder *epx_recorder_h;

/* A stream of the group's device: NULL for `host` (all calls are synchronous there), a cudaStream_t for
 * `cuda`. */
typedef void *epx_stream_t;

typedef enum epx_type {
    EPX_TYPE_DEFAULT = 0,
    EPX_FP32 = 1,
    EPX_BF16 = 2,
    EPX_FP16 = 3,
    EPX_INT32 = 4,
    EPX_INT64 = 5
} epx_type_t;

/* Who is kept when a receiver is full (ragged, ring). */
typedef enum epx_accept {
    EPX_ACCEPT_DEFAULT = 0,
    EPX_ACCEPT_PREFIX,
    EPX_ACCEPT_WATERFILL,
    EPX_ACCEPT_FAIR
} epx_accept_t;

/* What pooled_wave does with what its sender gate refuses. */
typedef enum epx_overflow {
    EPX_OVERFLOW_DEFAULT = 0,
    EPX_OVERFLOW_DROP,
    EPX_OVERFLOW_SPILL,
    EPX_OVERFLOW_EXTRA_WAVE
} epx_overflow_t;

/* ragged: one row per (token, k), or one per (token, destination rank) with expansion on arrival. */
typedef enum epx_wire { EPX_WIRE_DEFAULT = 0, EPX_WIRE_AUTO, EPX_WIRE_ASSIGNMENT, EPX_WIRE_RANK } epx_wire_t;

/* How a batch is handed over: every row in its place, or (rank wire) rows once and an index. */
typedef enum epx_batch_form { EPX_BATCH_DEFAULT = 0, EPX_BATCH_EXPANDED, EPX_BATCH_INDEXED } epx_batch_form_t;

/* Whether the backward calls will be made: not at all, with the forward slots, or beside a re-dispatch of x.
 */
typedef enum epx_backward {
    EPX_BACKWARD_DEFAULT = 0, /* kept */
    EPX_BACKWARD_NONE,
    EPX_BACKWARD_KEPT,
    EPX_BACKWARD_RECOMPUTE
} epx_backward_t;

typedef enum epx_check { EPX_CHECK_DEFAULT = 0, EPX_CHECK_OFF, EPX_CHECK_CANARY, EPX_CHECK_FULL } epx_check_t;

/* capacity_factor: everything fits, nothing is dropped. */
#define EPX_DROPLESS (-1.0)

/*
 * Where the library's memory of one group comes from. `device_memory` is 1 for payload that lives on the
 * group's device, 0 for host memory of the library itself. allocate returns NULL when there is none
 * (alignment a power of two). Called on the thread that opens, creates a plan, recovers or closes; never on
 * the data path.
 */
typedef struct epx_allocator {
    void *context;
    void *(*allocate)(void *context, size_t bytes, size_t alignment, int device_memory);
    void (*release)(void *context, void *memory, size_t bytes, int device_memory);
} epx_allocator_t;

/*
 * What a group is. Fields marked (env) can be set by the environment, which wins; 0 or NULL means the
 * default. All ranks must agree on everything except allocator, recorder, name, hang_ms, timeout_ms.
 */
typedef struct epx_group_config {
    size_t size;
    const char *name;     /* shown in messages; NULL: "group" */
    int32_t ranks;        /* used by epx_group_memory; at open 0 or the size of the comm */
    int32_t experts;      /* E >= 1, any; may be less than S */
    int32_t top_k;        /* K, 1..E */
    int32_t width;        /* H >= 1, any */
    int32_t tokens_max;   /* T_max >= 1 */
    epx_type_t row_type;  /* EPX_FP32 (default), EPX_BF16, EPX_FP16 */
    epx_type_t out_type;  /* of out and dx: the row type (default) or EPX_FP32 */
    const int32_t *owner; /* [E] host, rank that owns each expert, copied; NULL: contiguous blocks, the first
                             E mod S ranks one more */
    int32_t aux_bytes;    /* bytes that travel beside each row, 0..64 */
    int32_t row_align;    /* rows of an expert start at a multiple of it; 0: 1 */
    int32_t lanes;        /* 0: 2 */
    int32_t depth;        /* waves in flight per lane; 0: 2 */
    epx_backward_t backward;
    int32_t origin;          /* 1: batches tell each row's (rank, token, k) */
    int32_t batch_in_caller; /* 1: every batch lands in the caller's memory (into_rows); the library keeps no
                                area */
    int32_t virtual_ranks; /* accept rules decide as if the group had so many ranks (a multiple of S); 0: S */
    int32_t spill_choices; /* X, extra ranked choices with EPX_OVERFLOW_SPILL */
    const char *transport; /* (env) "auto", "pooled_wave", "ragged", "ring", or a path to a plug-in;
                              "failover:NAME" wins over the environment, for epx_group_recover */
    const char *fabric;    /* (env) "auto", "local", "ucx", "nccl" */
    const char *device;    /* (env) "auto", "host", "cuda" */
    double capacity_factor;  /* (env) cf > 0, or EPX_DROPLESS; 0: 1.15 */
    double sender_factor;    /* (env) cs > 0; 0: 1.15 (pooled_wave) */
    int32_t waves;           /* (env) 0: 3 (pooled_wave), 2 chunks (ragged); no meaning for ring */
    epx_accept_t accept;     /* (env) ragged, ring */
    epx_overflow_t overflow; /* (env) pooled_wave */
    epx_wire_t wire;         /* (env) ragged */
    epx_batch_form_t batch;  /* (env) ragged with the rank wire */
    epx_check_t check;       /* (env) */
    int64_t hang_ms;         /* (env) of the recorder that opens with the group's comm: see record.h */
    int64_t timeout_ms;      /* (env) 0: 60000; when a wait gives up */
    const epx_allocator_t *allocator; /* copied; NULL: the device's own */
    epx_recorder_h recorder;          /* whose operations the group's are; NULL: the comm's own (record.h) */
    /*
     * (env) cuda: multiprocessors that kernels which move or add up rows may fill, so that the caller's
     * computation has the others; 0: all. Ranks may differ, and ranks that share a GPU take theirs each. Of
     * the passes in one stream no more are held at any time: the next such kernel does not begin, nor stand
     * waiting, before the blocks of the last one have ended. Beside them are single blocks (a post, a wait, a
     * stamp: one each) and, for some microseconds, kernels that move no rows: those of a route, and a cluster
     * of up to 16 blocks in which ring and pooled_wave number the rows of a wave. Passes in several streams
     * take a budget each.
     */
    int32_t sm_budget;
} epx_group_config_t;

#define EPX_GROUP_CONFIG_INIT EPX_BEGUN(epx_group_config_t)

/* Bytes of one group on one rank, by item. Equal on all ranks of a group. */
#define EPX_MEMORY_ITEMS 16
typedef struct epx_memory {
    size_t size;
    int32_t items;
    struct {
        char name[32];
        int64_t bytes;
        int32_t device_memory; /* 1: on the group's device */
    } item[EPX_MEMORY_ITEMS];
    int64_t total_bytes;       /* exactly what opening requests from the allocator */
    int64_t device_bytes;      /* the part of it on the device */
    int64_t plan_bytes;        /* device memory of one plan (not part of the total) */
    int64_t plan_handle_bytes; /* host memory of one plan's handle (not part of the total) */
} epx_memory_t;

#define EPX_MEMORY_INIT EPX_BEGUN(epx_memory_t)

/* What a group became. Strings are owned by the group. */
typedef struct epx_group_info {
    size_t size;
    int32_t rank, ranks, experts, top_k, width, tokens_max;
    int32_t local_experts; /* El of this rank */
    const int32_t
        *local_expert_ids;  /* [El] host, ascending expert ids; valid until the group closes or recovers */
    int64_t batch_rows_max; /* rows of a batch and of y, whatever the wave */
    int32_t waves;          /* waves of a pass; 0 where each route decides (extra_wave) */
    int32_t lanes, depth, virtual_ranks;
    const char *transport, *fabric, *device;
    uint64_t generation;           /* 1 at open, one more with every recovery */
    int64_t exchange_bytes_remote; /* payload sent to other ranks since open: proof of the path taken */
    epx_wire_t wire;               /* as resolved */
    const int32_t *owner;          /* [E] host, rank that owns each expert; valid like local_expert_ids */
    /* The same payload by the path that it took: stored into other ranks' memory by kernels, or handed to the
     * fabric as messages (these with what goes beside rows). Counted where bytes move; one of the two is 0.
     */
    int64_t stored_bytes_remote, message_bytes_remote;
    const char *path; /* in words: "stores in one process", "stores through NCCL windows", ... */
} epx_group_info_t;

#define EPX_GROUP_INFO_INIT EPX_BEGUN(epx_group_info_t)

/* Version of the loaded library, "0.1.0". */
const char *epx_version(void);

/*
 * Makes the calling thread use number `index` of the device ("host", "cuda"), as cudaSetDevice does: what a
 * group opened on this thread uses from then on. For programs that do not link the CUDA runtime themselves.
 * Errors: ARG (no such device or number), UNSUPPORTED (the reason).
 */
epx_status_t epx_device_use(const char *device, int32_t index);

/*
 * Opens a group on all ranks of `comm` (collective over comm). Agrees on the whole shape; a difference is
 * EPX_ERR_MISMATCH on every rank, naming the field and both values. Outputs are written on success only.
 * Errors: ARG, UNSUPPORTED (with every candidate's reason), NO_MEMORY (with the size by item), MISMATCH, PEER
 * (another rank failed). The comm must outlive the group.
 */
epx_status_t epx_group_open(epx_comm_h comm, const epx_group_config_t *config, epx_group_h *group_p);

/* Closes a group; clears the handle; plans that still exist become handles of nothing and may be destroyed
 * later. Not collective in effect: it waits for nobody (peers may still read this rank's memory: it is freed
 * when the last rank of the group has closed). NULL and a cleared handle are fine. */
void epx_group_close(epx_group_h *group_p);

/* The bytes that opening would request for config->ranks ranks, before anything is allocated. Not collective,
 * pure. */
epx_status_t epx_group_memory(const epx_group_config_t *config, epx_memory_t *memory_p);

/* Fills *info. Not collective. */
epx_status_t epx_group_info(epx_group_h group, epx_group_info_t *info_p);

/* EPX_OK while the group is usable, else the sticky error. Never blocks, not collective. Where a GPU finds
 * out by itself that a route is bad (fabric nccl), the error of one that no call has returned is told here,
 * until the plan is routed after it is known: look after a step's synchronisation. */
epx_status_t epx_group_check(epx_group_h group);

/* Makes every wait of the group end, here with EPX_ERR_ABORTED and on peers with EPX_ERR_PEER naming this
 * rank. `reason` (may be NULL) goes to this rank's log. Any thread may call it. */
void epx_group_abort(epx_group_h group, const char *reason);

/*
 * Makes a failed group usable again, in place. Called by every surviving rank (collective over the survivors;
 * a rank that does not arrive within the time-out counts as lost). config NULL: as before; otherwise a new
 * configuration, possibly another transport. All ranks alive: same ranks and ownership. Ranks lost: ranks are
 * renumbered in order, a caller's owner table is dropped and experts are owned in contiguous blocks again
 * (epx_group_info tells). Plans of the group are closed by it: their calls return EPX_ERR_ABORTED. Segments
 * are new, the generation is one more.
 */
epx_status_t epx_group_recover(epx_group_h group, const epx_group_config_t *config);

/* Cuts steps for EPX_STATS: writes one JSON line with the sums since the last cut. Not collective. */
epx_status_t epx_step(epx_group_h group);

/* Cuts without a line: what has passed since the last cut belongs to no step, as a validation between two
 * training steps, and counts in none. Call epx_step first where a step has just ended. Not collective. */
epx_status_t epx_step_discard(epx_group_h group);

/* ---- plans ------------------------------------------------------------------------------------------------------ */

/* Device bytes that a plan of this group takes; 0 for a NULL group. A multiple of 256. */
size_t epx_plan_bytes(epx_group_h group);

/*
 * A plan on lane 0..lanes-1. `memory` [epx_plan_bytes] device memory of the caller, 256-byte aligned, kept
 * until the plan is destroyed, or NULL: the library allocates. Not collective, but the calls made on the plan
 * are.
 */
epx_status_t epx_plan_create(epx_group_h group, int32_t lane, void *memory, epx_plan_h *plan_p);

/* As create, over bytes that a plan of an equal group has routed (a copy at any address). */
epx_status_t epx_plan_attach(epx_group_h group, int32_t lane, void *memory, epx_plan_h *plan_p);

/*
 * Copies of a plan, for frameworks whose arrays have no fixed address. save: writes the plan's bytes to
 * `copy` [epx_plan_bytes], device memory of any alignment; a pooled_wave plan is whole after its first pass's
 * last dispatch. load: the plan becomes the one of `copy`, as attach would make it, without a new handle;
 * reads the copy's head, so it synchronises `stream` on `cuda`. Both in stream order, not collective. Errors:
 * ARG (no good route; bytes of another shape, rank or transport; a pass in flight), ABORTED.
 */
epx_status_t epx_plan_save(epx_plan_h plan, void *copy, epx_stream_t stream);
epx_status_t epx_plan_load(epx_plan_h plan, const void *copy, epx_stream_t stream);

/*
 * As load, of a copy that the caller knows: epx_plan_save of this group wrote it behind a whole first pass of
 * a route of `tokens` tokens. Where errors of routes come late (see epx_group_check) nothing of it is looked
 * at and nothing is waited for: the calls of a copy whose route had failed return EPX_OK and move nothing.
 * Elsewhere it is epx_plan_load.
 */
epx_status_t epx_plan_load_whole(epx_plan_h plan, const void *copy, int64_t tokens, epx_stream_t stream);

/* Destroys; clears the handle; any order, with work in flight too. */
void epx_plan_destroy(epx_plan_h *plan_p);

/* Waves of a pass: constant from creation on; with extra_wave 0 until a route has succeeded, then that
 * route's number. Negative status for a bad handle. */
int32_t epx_plan_waves(epx_plan_h plan);

/* The plan's memory, as given at create or allocated. */
void *epx_plan_memory(epx_plan_h plan);

/* One routing decision of one rank. */
typedef struct epx_routing {
    size_t size;
    int64_t tokens;               /* T, 0..T_max; ignored when tokens_device is given */
    const int64_t *tokens_device; /* device scalar, or NULL */
    const void *ids;              /* device [T, K + X] expert ids, -1 for none; X > 0 only with spill */
    epx_type_t id_type;           /* EPX_INT32 (default) or EPX_INT64 */
    const float *weights;         /* device [T, K + X] fp32 */
    epx_type_t weight_type;       /* EPX_FP32 (default); anything else is EPX_ERR_ARG */
} epx_routing_t;

#define EPX_ROUTING_INIT EPX_BEGUN(epx_routing_t)

/*
 * Decides who goes where and who is dropped. Collective. ids and weights are read before it returns (host) or
 * in stream order (cuda) and may change afterwards. An id outside -1..E-1: EPX_ERR_ROUTING naming rank,
 * token, k, id on this rank, EPX_ERR_PEER naming this rank on the others (ragged, ring: from their route;
 * pooled_wave: from their first dispatch). The plan is dead until its next route, the group stays usable.
 * Capturable with `cuda` where the fabric says so.
 */
epx_status_t epx_plan_route(epx_plan_h plan, const epx_routing_t *routing, epx_stream_t stream);

/* Of the last routing, once, whatever the number of passes; this rank's share. 64-bit counts of assignments
 * or bytes. */
typedef struct epx_plan_stats {
    size_t size;
    int64_t routed;                     /* valid assignments of this rank */
    int64_t skipped;                    /* ids of -1 */
    int64_t kept;                       /* at the receiver: assignments accepted for this rank's experts */
    int64_t spilled;                    /* at the sender: took another choice, whatever comes of it there */
    int64_t dropped_sender;             /* refused at the sender (ragged, ring: all drops) */
    int64_t dropped_receiver;           /* refused by this rank's receiver gate (pooled_wave) */
    int64_t sent_bytes, received_bytes; /* remote payload of all passes since the route */
    int64_t sent_meta_bytes, received_meta_bytes; /* remote metadata likewise */
    int64_t wait_ns;                              /* time waited since the route */
    int32_t wait_peer;                            /* the peer waited for most, -1: none */
    int64_t tokens;                               /* T */
} epx_plan_stats_t;

#define EPX_PLAN_STATS_INIT EPX_BEGUN(epx_plan_stats_t)

/* kept and dropped_receiver are complete after the first pass's last dispatch. Not collective; synchronises
 * `stream`. */
epx_status_t epx_plan_stats(epx_plan_h plan, epx_plan_stats_t *stats_p, epx_stream_t stream);

/* The counts of the last routing as an array on the device: routed, skipped, kept, spilled, dropped_sender,
 * dropped_receiver. */
#define EPX_PLAN_COUNTS 6

/*
 * Writes them to counts [EPX_PLAN_COUNTS], device memory, in stream order and without any wait: what
 * epx_plan_stats says of them, for programs that keep such numbers on the device. Complete as there. Not
 * collective. Errors: ARG (no good route), ABORTED.
 */
epx_status_t epx_plan_counts(epx_plan_h plan, int64_t *counts, epx_stream_t stream);

/* ---- batches and the data calls --------------------------------------------------------------------------------- */

/* Where a row of a batch came from. */
typedef struct epx_origin {
    int32_t rank, token, k;
} epx_origin_t;

/*
 * Rows that arrived for this rank's experts in one wave, grouped by expert (local experts ascending). Valid
 * until the wave's combine (or dispatch_backward) has run in stream order. Rows outside the counted ones are
 * never read or promised. into_* may be NULL: the library's own memory. What a start is given of it is the
 * wave's from then on (the first rows may be put there at once); the finish says where the batch lies, and a
 * start may leave it open (NULL, but with batch_in_caller).
 */
typedef struct epx_batch {
    size_t size;
    /* in */
    void *into_rows;     /* device [rows_max, H] of the caller */
    int64_t *into_start; /* device [El] */
    int64_t *into_count; /* device [El] */
    const void *aux;     /* device [T, aux_bytes] that travels with the rows of this rank, or NULL: zeros */
    /* out */
    void *rows; /* device [rows_max, H], row type; indexed: rows as they came (rank wire: each once;
                   pooled_wave: the slabs, gaps too), of which only those that row_index names are promised */
    const int64_t *expert_start; /* device [El] first row (indexed: place) of each local expert */
    const int64_t *expert_count; /* device [El] */
    int32_t local_experts;       /* El */
    int64_t rows_max;            /* batch_rows_max */
    const int32_t
        *row_index; /* indexed only: device [rows_max], place in the grouped order -> row of `rows` */
    const epx_origin_t *origin; /* device [rows_max] when the group asked for it, else NULL */
    const void *row_aux;        /* device [rows_max, aux_bytes], NULL when aux_bytes is 0 */
} epx_batch_t;

#define EPX_BATCH_INIT EPX_BEGUN(epx_batch_t)

/*
 * Sends x [T, H] (device, row type) to the experts of wave `wave` and waits for the rows of this rank's
 * experts. Collective; waves ascending; at most `depth` waves in flight on a lane. x stays unchanged until
 * the finish. start makes what peers need and waits for nobody's data; finish waits. The plain call is both
 * in turn.
 */
epx_status_t epx_dispatch(epx_plan_h plan, int32_t wave, const void *x, epx_batch_t *batch,
                          epx_stream_t stream);
epx_status_t epx_dispatch_start(epx_plan_h plan, int32_t wave, const void *x, const epx_batch_t *batch,
                                epx_stream_t stream);
epx_status_t epx_dispatch_finish(epx_plan_h plan, int32_t wave, epx_batch_t *batch, epx_stream_t stream);

/*
 * Sends y [rows_max, H] (device, row type, in the batch's grouped order, unweighted) home and adds into the
 * sum out[t] = sum over kept k of weight[t, k] * y[row(t, k)]. out [T, H] (out type) is written after the
 * last wave; where the out type is fp32 it holds partial sums between waves. The caller clears nothing. y and
 * out stay unchanged and untouched until the finish.
 */
epx_status_t epx_combine(epx_plan_h plan, int32_t wave, const void *y, void *out, epx_stream_t stream);
epx_status_t epx_combine_start(epx_plan_h plan, int32_t wave, const void *y, epx_stream_t stream);
epx_status_t epx_combine_finish(epx_plan_h plan, int32_t wave, void *out, epx_stream_t stream);

/*
 * Sends dout [T, H] (device, row type) to the experts. dy gets rows dy[row] = weight[t, k] * dout[t], rounded
 * once, in the same places as the forward batch of this wave. y is this wave's unweighted expert output, kept
 * or recomputed, needed for the weights' gradients. Needs backward != NONE.
 */
epx_status_t epx_combine_backward(epx_plan_h plan, int32_t wave, const void *dout, const void *y,
                                  epx_batch_t *dy, epx_stream_t stream);
epx_status_t epx_combine_backward_start(epx_plan_h plan, int32_t wave, const void *dout, epx_stream_t stream);
epx_status_t epx_combine_backward_finish(epx_plan_h plan, int32_t wave, const void *y, epx_batch_t *dy,
                                         epx_stream_t stream);

/*
 * Sends dx_rows [rows_max, H] home: dx[t] = sum over kept k of dx_rows[row(t, k)], [T, H] of the out type,
 * and dweight[t, k] = dot(dout[t], y[row(t, k)]) [T, K + X] fp32, 0 where dropped; both complete after the
 * last wave; dweight may be NULL. dx_rows stays unchanged until the finish.
 */
epx_status_t epx_dispatch_backward(epx_plan_h plan, int32_t wave, const void *dx_rows, void *dx,
                                   float *dweight, epx_stream_t stream);
epx_status_t epx_dispatch_backward_start(epx_plan_h plan, int32_t wave, const void *dx_rows,
                                         epx_stream_t stream);
epx_status_t epx_dispatch_backward_finish(epx_plan_h plan, int32_t wave, void *dx, float *dweight,
                                          epx_stream_t stream);

/* With EPX_CHECK=canary or full: fills y [rows_max, H] with the NaN pattern before the caller's computation,
 * so that combine can tell a row that the computation left out (EPX_ERR_CORRUPT). Does nothing otherwise. */
epx_status_t epx_check_poison(epx_plan_h plan, int32_t wave, void *y, epx_stream_t stream);

/* Copies a batch's counts to host arrays [El]; synchronises the stream. Nothing on the data path needs it. */
epx_status_t epx_batch_counts(epx_plan_h plan, const epx_batch_t *batch, int64_t *start, int64_t *count,
                              epx_stream_t stream);

#ifdef __cplusplus
}
#endif
#endif
