/*
 * The transport contract, for plug-in authors. A plug-in exports one symbol,
 *     const epx_transport_ops_t *epx_transport_plugin(void);
 * and links against nothing: everything that it needs arrives in tables. See docs/writing-a-transport.md.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TRANSPORT_H
#define EPX_TRANSPORT_H

#include <epx/fabric.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One number for transport.h, fabric.h, device.h and kernels.h together. */
#define EPX_ABI 1
#define EPX_TRANSPORT_SYMBOL "epx_transport_plugin"

/* Who owns which experts, for n owners. */
typedef struct epx_owners {
    int32_t ranks, experts;
    const int32_t *owner; /* [E] */
    const int32_t *local; /* [E] ordinal of e among its owner's experts, ascending */
    const int32_t *first; /* [ranks + 1] */
    const int32_t
        *expert; /* [E] expert ids of rank r, ascending: expert[first[r]] .. expert[first[r + 1] - 1] */
} epx_owners_t;

/*
 * Everything static about a group; equal on all ranks but for `rank`. The accept rules see `virtual_ranks` N
 * = m * S ranks: real rank r plays virtual ranks r*m .. r*m + m-1, its tokens split in m contiguous blocks
 * (the first T mod m one more), its experts likewise. m = 1 unless asked for. Tables are host memory.
 */
typedef struct epx_shape {
    int32_t rank, ranks;                                /* real: who moves rows */
    int32_t virtual_ranks, splits;                      /* N and m */
    int32_t experts, top_k, columns, width, tokens_max; /* columns = K + X */
    int32_t virtual_tokens_max;                         /* ceil(tokens_max / m) */
    epx_type_t row_type, out_type;
    int64_t row_bytes; /* width * bytes of the row type */
    int32_t aux_bytes, row_align, lanes, depth;
    epx_backward_t backward;
    int32_t origin, batch_in_caller;
    double capacity_factor, sender_factor;
    int32_t dropless;
    int32_t waves; /* W or C as configured; ring ignores it */
    epx_accept_t accept;
    epx_overflow_t overflow;
    epx_wire_t wire; /* AUTO, ASSIGNMENT or RANK */
    epx_batch_form_t batch;
    epx_check_t check;
    int64_t timeout_ms;
    epx_owners_t real, virt; /* of S real and of N virtual ranks */
    int32_t sm_budget;       /* for the kernels' `units`; ranks may differ */
} epx_shape_t;

/* What a transport needs, a pure function of the shape and the fabric's capabilities. Equal on all ranks. */
typedef struct epx_sizes {
    int64_t segment_bytes; /* symmetric, reachable by peers; staging included where there is no LOADSTORE */
    int64_t staging_bytes; /* how much of segment_bytes that is: what kernels write for post to send */
    int64_t scratch_bytes; /* device memory of this rank alone */
    int64_t batch_bytes;   /* device: areas that batches land in when the caller gives none */
    int64_t state_bytes;   /* host: the transport's own struct */
    int64_t plan_bytes;    /* device: a plan, epx_plan_head_t first */
    int64_t plan_state_bytes; /* host: a plan's handle part */
    int64_t report_bytes;     /* host memory that the device sees: what stands behind a plan's report, the
                                 transport's own */
    int64_t exchange_bytes;   /* largest exchange block */
    int32_t channels;         /* rows of words */
    int32_t failure_channels; /* rows of failure words, 0: none */
    int32_t waves;            /* waves of a pass, 0: each route decides */
    int32_t learns;    /* 1: a plan's head begins unconfirmed and not learned, and the transport marks it */
    int32_t ids_first; /* 1: a route that is not known to be bad begins with epx_route_read_ids */
    int64_t batch_rows_max;
    epx_wire_t wire; /* as resolved */
} epx_sizes_t;

/* One lane; host-resident. Every start call takes an epoch, every route a number; see transport/common.h. */
typedef struct epx_lane {
    int32_t index;
    uint64_t epoch;          /* last used; upper 16 bits: generation */
    uint64_t base;           /* of the pass's epochs */
    uint64_t passes;         /* that have ended well */
    int32_t ended;           /* 1: the pass's last wait ends it on the device */
    int32_t begins;          /* 1: a pass has begun, and no call of it has told the device's words yet */
    int32_t routes;          /* 1: likewise a route, which the kernel that reads its ids tells them */
    int32_t adjoins;         /* 1: the finish that is being made follows its start in the stream at once */
    epx_lane_words_t *words; /* device, where epochs are resident (EPX_FABRIC_CAPTURABLE); else NULL */
    uint64_t acknowledged[EPX_LANE_CREDITS]; /* of this pass, less base: for words->credit */
    epx_progress_words_t *progress;          /* the address for kernels; NULL: nothing is recorded there */
    uint32_t name;                           /* of the call that is being made, for progress */
    int32_t unsaid;                          /* 1: no kernel of it says yet that it has begun */
} epx_lane_t;

/* A plan as a transport sees it. Byte and wait counters are of all passes since the route. */
typedef struct epx_plan_base {
    void *bytes; /* [plan_bytes] device */
    void *state; /* [plan_state_bytes] host, zeroed at creation, and when other bytes are loaded */
    epx_lane_t *lane;
    int32_t waves; /* set by route with extra_wave */
    /*
     * The host's copy of the head. The library writes it, and the bytes' head from it, before and after a
     * route. valid 1 means: not known to have failed. tokens is T, or T_max where the device alone knows T.
     * Counts are not kept here.
     */
    epx_plan_head_t head;
    epx_route_report_t
        *report;      /* memory that host and device see; report_bytes of the transport's own behind it */
    int32_t attached; /* 1: the bytes were routed through another handle */
    int64_t sent_bytes, received_bytes, sent_meta_bytes, received_meta_bytes, wait_ns;
    int64_t wait_longest_ns;
    int32_t wait_peer;
    void *combine_out; /* in a combine's start: its out, where the finish follows at once; else NULL */
} epx_plan_base_t;

/* What open gets. Tables and memory outlive the transport. */
typedef struct epx_transport_env {
    const epx_shape_t *shape;
    const epx_sizes_t *sizes;
    epx_fabric_t *fabric;
    const epx_device_ops_t *device;
    const epx_kernels_t *kernels;
    const epx_services_t *services;
    const char *group_name;
    epx_segment_t segment;
    void *scratch, *batch;
    epx_recorder_h recorder; /* the library's own */
} epx_transport_env_t;

typedef struct epx_transport epx_transport_t;

typedef struct epx_transport_ops {
    uint32_t abi;
    uint32_t ops_bytes; /* sizeof(epx_transport_ops_t) */
    const char *name;   /* also the prefix of its variables, in capitals */
    const char *summary;
    /* A score > 0 when it can run this shape on a fabric with these capabilities; else 0 and the reason.
     * Settings without meaning for it are refused here. */
    int (*probe)(const epx_shape_t *shape, uint32_t fabric_caps, char *reason, size_t reason_bytes);
    /* EPX_ERR_NO_MEMORY or ARG for shapes that cannot be (2^31 rows), with the text set through
     * services->fail. */
    epx_status_t (*query)(const epx_shape_t *shape, uint32_t fabric_caps, const epx_services_t *services,
                          epx_sizes_t *sizes_p);
    /* `memory` [state_bytes] zeroed becomes the transport. It allocates nothing. */
    epx_status_t (*open)(const epx_transport_env_t *env, void *memory, epx_transport_t **transport_p);
    void (*close)(epx_transport_t *transport);
    /*
     * Arguments have been checked by the library: tokens in 0..T_max (where the host knows T), wave in order,
     * pass state, pointers. `publish` != EPX_OK: this rank's call is bad (the library has found an argument
     * error); the transport only tells the peers, waits for nobody, and returns that status. Ids are read
     * here. The host looks at no device memory: where the device's memory is the host's (host_access) a bad
     * id is an error of the route itself; elsewhere kernels decide, and plan->report tells later. A data call
     * that finds its plan dead sets plan->head.valid to the status.
     */
    epx_status_t (*route)(epx_transport_t *transport, epx_plan_base_t *plan, const epx_routing_t *routing,
                          epx_status_t publish, epx_stream_t stream);
    epx_status_t (*dispatch_start)(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *x,
                                   const epx_batch_t *batch, epx_stream_t);
    epx_status_t (*dispatch_finish)(epx_transport_t *, epx_plan_base_t *, int32_t wave, epx_batch_t *batch,
                                    epx_stream_t);
    epx_status_t (*combine_start)(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *y,
                                  epx_stream_t);
    epx_status_t (*combine_finish)(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *out,
                                   epx_stream_t);
    epx_status_t (*combine_backward_start)(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                           const void *dout, epx_stream_t);
    epx_status_t (*combine_backward_finish)(epx_transport_t *, epx_plan_base_t *, int32_t wave, const void *y,
                                            epx_batch_t *dy, epx_stream_t);
    epx_status_t (*dispatch_backward_start)(epx_transport_t *, epx_plan_base_t *, int32_t wave,
                                            const void *dx_rows, epx_stream_t);
    epx_status_t (*dispatch_backward_finish)(epx_transport_t *, epx_plan_base_t *, int32_t wave, void *dx,
                                             float *dweight, epx_stream_t);
    /* Brings the plan's byte counters up to date with the calls that have been made, as far as the report
     * tells what only the device knows. Never blocks. Called before the counters are shown, and before a
     * route ends their routing. */
    void (*account)(epx_transport_t *, epx_plan_base_t *);
    /* Human-readable state, one line each, for reports. */
    void (*dump)(epx_transport_t *, void (*line)(void *context, const char *text), void *context);
} epx_transport_ops_t;

/* The public part of an open transport; implementations embed it as their first member. */
struct epx_transport {
    const epx_transport_ops_t *ops;
    epx_transport_env_t env;
};

typedef const epx_transport_ops_t *(*epx_transport_plugin_fn)(void);

#ifdef __cplusplus
}
#endif
#endif
