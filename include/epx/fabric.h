/*
 * The fabric contract: how bytes and words move between the ranks of a group. For plug-in and fabric authors.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Words. A fabric keeps `channels` rows of S 64-bit words on every rank; word (channel, p) on rank r is
 * written by rank p alone (post) and read by rank r alone (wait). A word is set to an epoch, never added to,
 * and epochs only grow. A second set of rows, the failure words, is written by post_failure and watched by
 * waits. A wait that ends with EPX_OK has acquire order: everything that the peer wrote before the post is
 * visible.
 *
 * Blocking. wait, exchange and the collective set-up calls are the only ones that block; every wait is
 * bounded.
 */
#ifndef EPX_FABRIC_H
#define EPX_FABRIC_H

#include <epx/comm.h>
#include <epx/device.h>
#include <epx/kernels_words.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct epx_fabric epx_fabric_t;

/* Capability bits. */
enum {
    EPX_FABRIC_LOADSTORE = 1u << 0, /* peer_ptr of every peer can be loaded from and stored to by kernels */
    EPX_FABRIC_DEVICE_SIZES = 1u << 1,    /* sizes may be known on the device only */
    EPX_FABRIC_BOUNDED_WAIT = 1u << 2,    /* waits end by themselves */
    EPX_FABRIC_CAPTURABLE = 1u << 3,      /* post and wait may be captured in a CUDA graph */
    EPX_FABRIC_ONE_SIDED_WORDS = 1u << 4, /* failure words exist */
    EPX_FABRIC_SHARED_ADDRESS = 1u << 5,  /* all ranks are threads of one process */
    EPX_FABRIC_LATE_ERRORS = 1u << 7, /* wait and exchange return before they have happened: the device waits,
                                         in stream order, and `late` tells how it ended */
    EPX_FABRIC_READS_SOURCES = 1u << 8, /* posts may have a source */
    EPX_FABRIC_HOST_ACCESS =
        1u << 6 /* rows are in memory that the host's own code can load and store: of the device, added
                   by the library where it hands capabilities to transports */
};

#define EPX_ALL_PEERS (-1)

/* Memory of equal size on every rank. */
typedef struct epx_segment {
    void *base; /* mine */
    size_t bytes;
    void *const *peer_ptr; /* [S], device-readable table: each rank's base as this rank's kernels see it; NULL
                              without LOADSTORE. peer_ptr[rank] == base */
} epx_segment_t;

/*
 * One piece that post sends or receives on a fabric without LOADSTORE. What transports promise, and fabrics
 * may build on:
 *
 * - For each pair of ranks, sender and receiver list the same pieces in the posts of one channel and epoch,
 * in one order, with the same bytes: the n-th that p sends to me is the n-th that I receive from p. No piece
 * is empty, and none is of the rank itself.
 *
 * - When a rank posts, what the peers send it by that epoch may land at once, whether it has posted its own
 *   receives or not: nobody reads there.
 *
 * - What a rank sends is left alone from the post until the receiver is known to have it, by a later word of
 *   the receiver. A fabric need not copy it, and its waits need not see its own sends through.
 *
 * - The lists themselves are read during the call only.
 *
 * What fabrics promise: a word is seen after the pieces of its post; the pieces of a rank's later posts to a
 * peer land behind those of its earlier ones (a pass that was given up may have left some on their way).
 */
typedef struct epx_piece {
    int32_t peer;
    int64_t local, remote; /* byte offsets in my segment and in the peer's (of a receive: 0) */
    int64_t bytes;
} epx_piece_t;

/*
 * Rows that a post sends and that are not in the segment: they stand for `bytes` bytes of mine from `local`
 * on, which hold whole pieces of the post. A fabric with READS_SOURCES reads them here, message by message,
 * just before it sends them, so that they come from a near cache and not from memory. Memory that it has no
 * message for may be where they stand for (that of `local`): it is the post's, like what is sent from the
 * segment.
 */
typedef struct epx_piece_source {
    int64_t local, bytes;
    int64_t unit; /* bytes of a row */
    /* Writes what belongs to bytes local .. local + bytes - 1 of my segment to `to`: whole rows of one piece,
     * ascending from call to call. During the post only, on its thread. */
    epx_status_t (*read)(struct epx_piece_source *source, int64_t local, int64_t bytes, void *to);
} epx_piece_source_t;

typedef struct epx_post {
    int32_t channel;
    epx_epoch_t epoch;
    int32_t peer;                 /* whose word is set: one rank, or EPX_ALL_PEERS (myself included) */
    const epx_segment_t *segment; /* with pieces */
    const epx_piece_t *sends, *receives;
    int32_t send_count, receive_count; /* 0 where kernels have stored the rows. Words are set all the same */
    /* Where errors come late. gate (device): the word is set only if it is 1 then, or with only_failed,
     * negative; NULL: always. failure_rows > 0: it is a failure word, in row channel + epoch mod this. */
    const int32_t *gate;
    int32_t only_failed, failure_rows;
    epx_lane_begin_of_t begin; /* where epochs are resident: this post begins a pass */
    /* Where kernels post: they say so (kernels_words.h). Others ignore it. */
    epx_progress_words_t *progress;
    uint32_t name;
    epx_piece_source_t *source; /* or NULL, always without READS_SOURCES */
} epx_post_t;

typedef enum epx_wait_mode {
    EPX_WAIT_EQUAL = 0,   /* the word must reach exactly this epoch */
    EPX_WAIT_AT_LEAST = 1 /* credit: this epoch or a later one */
} epx_wait_mode_t;

/* Asked when a wait's time is over and what it waits for has not come: for how many more ms it should go on
 * (a pause was announced, say); 0: it gives up now. May take a lock, never waits. A fabric that does not ask
 * gives up. */
typedef struct epx_patience {
    void *context;
    int64_t (*more_ms)(void *context, int64_t timeout_ms, int64_t waited_ns);
} epx_patience_t;

/* A row of failure words, and the value in it that counts. */
typedef struct epx_watch {
    int32_t channel;
    epx_epoch_t epoch;
    int32_t rows; /* > 0, where errors come late: the row is channel + epoch mod this */
} epx_watch_t;

typedef struct epx_wait {
    int32_t channel;
    epx_epoch_t epoch;
    int32_t peer; /* one rank, or EPX_ALL_PEERS */
    epx_wait_mode_t mode;
    /* Failure words that end the wait while the awaited word has not been seen: EPX_ERR_PEER naming the
     * lowest rank whose word is exactly `epoch`, of the first watch that has one. The awaited word is read
     * again after them: data that arrived wins. */
    epx_watch_t watch[2];
    int32_t watches;
    int64_t timeout_ms;
    /* Where errors come late. gate (device): waits only if it is 1 then. verdict: the plan that a watch
     * kills. tag: of the caller, handed back by `late`. */
    const int32_t *gate;
    epx_k_verdict_t verdict;
    epx_word_beside_t beside;
    uint64_t tag;
    const epx_patience_t *patience; /* or NULL */
    epx_progress_words_t *progress; /* as in epx_k_word_wait_t */
    uint32_t name, last_word;       /* last_word: `seen` is said */
    int32_t behind_post;            /* as in epx_k_word_wait_t, with begin */
    int32_t next_begins;            /* likewise */
    epx_lane_begin_of_t begin;
} epx_wait_t;

/* What a wait saw; filled on success and on error. While it lasts peer, expected and seen are kept current as
 * well as the fabric can: the flight recorder reads them from outside. */
typedef struct epx_wait_result {
    int32_t peer;      /* the last that was waited for, or the culprit; -1: nobody was waited for */
    uint64_t expected; /* epoch */
    uint64_t seen;     /* the peer's word when the wait ended */
    uint64_t failure;  /* the failure word that ended it, or 0 */
    int64_t waited_ns;
} epx_wait_result_t;

/*
 * All-gather of small blocks. Every exchange channel has a sequence of its own, kept by the fabric. on_host:
 * the blocks are host memory and have arrived when it returns; else they are device memory, in stream order.
 * All ranks alike.
 */
typedef struct epx_exchange {
    int32_t channel;
    int32_t on_host;
    const void *send; /* [bytes]; NULL: publish that this rank's step failed, and return at once. Where errors
                         come late it takes part all the same, and its block is 0x80 in every byte */
    void *receive;    /* [S, bytes] */
    size_t bytes;     /* equal on all ranks, at most exchange_bytes of the configuration */
    int64_t timeout_ms;
    uint64_t tag;                   /* as in epx_wait_t */
    const epx_patience_t *patience; /* or NULL */
    epx_progress_words_t *progress; /* as in epx_post_t */
    uint32_t name;
} epx_exchange_t;

/* Services for plug-ins, fabrics and transports. */
typedef struct epx_services {
    /* Sets this thread's last error to the formatted text and returns `status`. */
    epx_status_t (*fail)(epx_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
    /* level: 0 error, 1 warn, 2 info, 3 debug, 4 trace. */
    void (*log)(int level, const char *tag, const char *format, ...) __attribute__((format(printf, 3, 4)));
    int64_t (*clock_ns)(void);  /* monotonic */
    void (*nap_ns)(int64_t ns); /* sleeps about so long */
} epx_services_t;

/* Who looks at a rank from outside while it meets the others in open or segment_open, other than over the
 * bootstrap; as often on all ranks, in the same order. begin: it comes to them; whom it waits for goes where
 * that returns, as it goes (own: nobody looks), peer stays -1 where nobody knows. end: that wait is over.
 * is_over: 1 when the job is being left; such a wait, and one over the bootstrap of `survivors`, asks several
 * times a second and then ends with EPX_ERR_ABORTED. On the rank's thread. */
typedef struct epx_fabric_meeting {
    void *context;
    epx_wait_result_t *(*begin)(void *context, epx_wait_result_t *own);
    void (*end)(void *context, epx_status_t status);
    int (*is_over)(void *context);
} epx_fabric_meeting_t;

typedef struct epx_fabric_config {
    const char *name;          /* of the group, for messages */
    epx_bootstrap_t bootstrap; /* rank, size and the way to meet */
    const epx_device_ops_t *device;
    int32_t channels, failure_channels, exchange_channels;
    size_t exchange_bytes; /* largest block of an exchange */
    int32_t segments_max;  /* how many segments will be opened, at most */
    uint32_t caps; /* what transports have been told to count on; opening fails where they cannot be had */
    const epx_allocator_t *allocator; /* never NULL; outlives the fabric */
    const epx_services_t *services;
    /* For a fabric that has no way of its own to find out who is left: the ranks of the bootstrap that still
     * live meet within timeout_ms. alive_p [size] as of the function below; *bootstrap_p is theirs, and lives
     * as long as the one above. context: of the bootstrap. NULL: all ranks must be there to go on. */
    epx_status_t (*survivors)(void *context, int64_t timeout_ms, uint8_t *alive_p,
                              epx_bootstrap_t *bootstrap_p);
    const epx_fabric_meeting_t *meeting; /* NULL: nobody looks; outlives the fabric */
} epx_fabric_config_t;

/* One constant table per fabric. */
typedef struct epx_fabric_ops {
    const char *name;
    uint32_t caps;
    /* A score > 0 when it can carry this device here, else 0 and the reason. Not collective. */
    int (*probe)(const epx_device_ops_t *device, char *reason, size_t reason_bytes);
    /* Bytes of host memory that open will request from the allocator on every rank (ranks, channels, ... of
     * config), and of device memory. Pure. */
    int64_t (*memory)(const epx_fabric_config_t *config, int32_t ranks, int64_t *device_bytes_p);
    /* Collective over the bootstrap. On an error on any rank every rank gets one. */
    epx_status_t (*open)(const epx_fabric_config_t *config, epx_fabric_t **fabric_p);
    /* Waits for nobody: what peers may still touch is released by the last one. */
    void (*close)(epx_fabric_t **fabric_p);
    /* Memory for a segment, of a fabric that registers no other; NULL when there is none. It is the fabric's
     * from the beginning, released when the fabric is closed. No function here: it comes from the allocator.
     */
    void *(*segment_allocate)(epx_fabric_t *fabric, size_t bytes);
    /* Collective. `memory` [bytes] becomes the fabric's: it is released through the allocator when no peer
     * can touch it any more, also after an error. It may be NULL on a rank that could not get it: all ranks
     * then fail, naming that rank. */
    epx_status_t (*segment_open)(epx_fabric_t *fabric, void *memory, size_t bytes, epx_segment_t *segment_p);
    epx_status_t (*post)(epx_fabric_t *fabric, const epx_post_t *post, epx_stream_t stream);
    epx_status_t (*wait)(epx_fabric_t *fabric, const epx_wait_t *wait, epx_wait_result_t *result_p,
                         epx_stream_t stream);
    epx_status_t (*post_failure)(epx_fabric_t *fabric, int32_t failure_channel, epx_epoch_t epoch,
                                 epx_stream_t stream);
    /* EPX_ERR_PEER naming the rank that published a failure; TIMEOUT naming the rank waited for. */
    epx_status_t (*exchange)(epx_fabric_t *fabric, const epx_exchange_t *exchange,
                             epx_wait_result_t *result_p, epx_stream_t stream);
    /* Ends every wait of every rank: here EPX_ERR_ABORTED, on peers EPX_ERR_PEER naming this rank. Any
     * thread. culprit: the rank that this one blames, or -1. */
    void (*abort)(epx_fabric_t *fabric, int32_t culprit);
    /* The rank that aborted first, or -1; *culprit_p (may be NULL) whom it blames. Never blocks. */
    int32_t (*aborted)(epx_fabric_t *fabric, int32_t *culprit_p);
    /* The first wait or exchange that has ended badly on the device by now, as wait would have returned it,
     * with its tag; EPX_OK: none. Never blocks. NULL without LATE_ERRORS. */
    epx_status_t (*late)(epx_fabric_t *fabric, epx_wait_result_t *result_p, uint64_t *tag_p);
    /* Survivors meet: alive_p [size] bytes becomes 1 for every rank that called with this generation before
     * the time-out; equal on all of them. A rank that comes too late gets EPX_ERR_PEER. Works on a broken or
     * aborted fabric. */
    epx_status_t (*survivors)(epx_fabric_t *fabric, int64_t timeout_ms, uint8_t *alive_p,
                              epx_bootstrap_t *bootstrap_p);
    /* Capabilities among ranks that are all on one host (1) or may be on several (0). Not collective; equal
     * on all ranks. NULL: caps, wherever they are. */
    uint32_t (*caps_among)(int32_t one_host);
    /* Capabilities among ranks that loads and stores do not reach, where it can be told to carry those
     * (EPX_NCCL_PATH): it opens so when caps of the configuration lack LOADSTORE. 0: it cannot. */
    uint32_t caps_apart;
} epx_fabric_ops_t;

/* The public part of an open fabric; implementations embed it as their first member. */
struct epx_fabric {
    const epx_fabric_ops_t *ops;
    int32_t rank, ranks;
    uint32_t caps;
    int64_t message_bytes; /* handed to post for other ranks so far; counted by the library */
};

#ifdef __cplusplus
}
#endif
#endif
