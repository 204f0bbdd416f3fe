/*
 * The file of a recorder. SPDX-License-Identifier: Apache-2.0
 *
 * One mapped file per rank, "rank00007.epxr", little-endian, fixed-size records, one writer, no lock.
 * Everything that is read while it is written is a naturally aligned word: a reader needs no cooperation, and
 * what it finds after SIGKILL is what was stored last, since the pages belong to the file.
 *
 *   head       4,096 bytes: who this is, limits, where the tables are; then words that move
 *   groups     [groups_max] epx_record_group_row_t
 *   members    [lists_max][peers_max] int32: ranks of the job, in the group's order, where they are no
 * progression texts      [texts_max] epx_record_text_row_t; text id i is row i, row 0 is "" segments
 * [segments_max] epx_record_segment_row_t operations [ops_max], a ring: operation number n (from 1) is row n
 * mod ops_max progress   [slots_max] of progress_bytes: epx_record_progress_t, then [peers_max]
 * epx_record_peer_t events     [events_max], a ring: event number n (from 1) is row n mod events_max device
 * whole pages: epx_record_device_t, then [lanes_max] epx_record_lane_row_t
 *
 * Order of stores. F1: a row of a ring is first given number 0, then filled, then given its number (release),
 * then the head's count is raised: a reader that finds number n before and after copying a row has a whole
 * row. F2: states of an operation only grow, and a time is stored before the state that it belongs to. F3: a
 * slot of progress words belongs to the operation whose number it holds; slots of operations that have not
 * ended are not reused while others are free. F4: the last operation is at most one stale: what a rank does
 * next is stored before it is done.
 *
 * Identity. An operation is the same on all ranks when group_key, stream and sequence are equal; `signature`,
 * kind and wave must then be equal too. Operations of an epx group have one stream per lane (2 * lane, and 2
 * * lane + 1 for its routes): sequence is passes ended well << 16 | number in the pass, or the route's
 * number, so that a pass that died on some ranks alone shifts nobody's count. Comms and foreign groups have
 * stream 0 and count from 1.
 *
 * The device's pages are stored to by a device through a mapping of the same file, in the order of its
 * streams: at most three posted stores for an operation (begun, posted, seen), however it was launched. They
 * are not tied to a row of the ring, since a graph that is replayed makes none: the epoch tells the operation
 * (epx_record_call).
 */
#ifndef EPX_RECORD_FORMAT_H
#define EPX_RECORD_FORMAT_H

#include <stdint.h>

#include <epx/kernels.h>

#define EPX_RECORD_MAGIC 0x3152434552585045u /* "EPXRECR1" */
#define EPX_RECORD_SUFFIX ".epxr"
enum {
    EPX_RECORD_FORMAT = 2,
    EPX_RECORD_HEAD_BYTES = 4096,
    EPX_RECORD_EVERYBODY = -1,
    EPX_RECORD_NOBODY = -2,
    EPX_RECORD_LINKS = 32,
    EPX_RECORD_EXCHANGE = 2 /* a wait_mode, behind those of waits: 0 equal, 1 at least */
};

/* Kinds of operation. Up to DISPATCH_BACKWARD as epx_move_t plus one. */
typedef enum epx_record_kind {
    EPX_RECORD_FOREIGN = 0, /* its text says what */
    EPX_RECORD_DISPATCH,
    EPX_RECORD_COMBINE,
    EPX_RECORD_COMBINE_BACKWARD,
    EPX_RECORD_DISPATCH_BACKWARD,
    EPX_RECORD_ROUTE,
    EPX_RECORD_ALLREDUCE,
    EPX_RECORD_ALLGATHER,
    EPX_RECORD_BARRIER,
    EPX_RECORD_SPLIT,
    EPX_RECORD_OPEN, /* a group opens; collective over its comm */
    EPX_RECORD_RECOVER,
    EPX_RECORD_KINDS
} epx_record_kind_t;

/* How far an operation has come here. */
typedef enum epx_record_state {
    EPX_RECORD_ENQUEUED = 1, /* the call was made */
    EPX_RECORD_BEGUN,        /* its work is running */
    EPX_RECORD_POSTED,       /* everything that peers need of this rank has been sent */
    EPX_RECORD_SEEN,         /* everything of the peers is here */
    EPX_RECORD_ENDED         /* `status` says how */
} epx_record_state_t;

typedef enum epx_record_life {
    EPX_RECORD_OPENED = 1,
    EPX_RECORD_CLOSED /* in good order */
} epx_record_life_t;

typedef enum epx_record_phase {
    EPX_RECORD_INIT = 0,
    EPX_RECORD_WARM_UP,
    EPX_RECORD_STEADY,
    EPX_RECORD_DRAIN,
    EPX_RECORD_PAUSE /* the program's own, named */
} epx_record_phase_t;

typedef struct epx_record_head {
    uint64_t magic;
    uint32_t format, head_bytes;
    uint64_t file_bytes;
    char job[64]; /* with rank and ranks: which records belong together */
    int32_t rank, ranks, domain, domains, device;
    int32_t pid;
    uint64_t pid_space, boot; /* of the host: pids mean something to readers with the same two */
    char host[64], program[64];
    char compiled[32], loaded[32]; /* versions of this library's headers and of itself */
    /* "2.28.9 (path)" as loaded, "none loaded"; "" or a path alone in records of earlier versions */
    char nccl[128], ucx[128], driver[64];
    int64_t opened_ns,
        opened_realtime_ns; /* the same moment on both clocks: times of two hosts compare by it */
    int64_t hang_ms, timeout_ms;
    uint32_t groups_max, lists_max, peers_max, texts_max, segments_max, ops_max, slots_max, progress_bytes,
        events_max, lanes_max;
    uint64_t groups_at, members_at, texts_at, segments_at, ops_at, progress_at, events_at,
        device_at; /* from the start */
    uint32_t
        truncated_peers; /* 1: the job has more ranks than peers_max; words of higher ranks are not kept */

    /* Words that move. */
    _Alignas(64) uint32_t life; /* epx_record_life_t */
    int32_t thread;             /* tid of the thread that wrote last */
    int64_t moved_ns;           /* when the rank's own thread wrote last */
    uint64_t operations;        /* number of the last one */
    uint64_t events;            /* number of the last one */
    uint64_t ended;             /* operations that have ended */
    uint64_t heartbeats;
    int64_t heartbeat_ns;
    uint64_t marks; /* host's */
    int64_t mark_ns;
    uint32_t mark;                    /* text id */
    uint32_t texts, groups, segments; /* rows in use, at most */
    uint64_t steps;
    _Alignas(64) uint64_t watched; /* by the watchdog of this process: it lives */
    int64_t watched_ns;
    uint64_t cpu_ns;    /* of `thread`, as the watchdog saw it last */
    uint32_t life_seen; /* epx_rank_life_t of classify.h, likewise; for readers of files alone */
    uint32_t
        device_use; /* 1 + percent of the last moments in which its device executed something; 0: not known */
    uint32_t device_milliwatts, device_megahertz; /* 0: not known */
    int64_t device_seen_ns;                       /* when the watchdog asked */
    /* Both 0 in records of earlier versions. */
    uint32_t device_processes; /* that have the device; 0: not known */
    uint32_t device_own;       /* 1 + percent of this process alone; 0: not known */
    _Alignas(64) uint32_t phase;
    uint32_t phase_changes; /* odd while the phase is being changed */
    int64_t phase_ns, phase_budget_ms;
    char phase_name[40];
    _Alignas(64) uint32_t maps_device; /* 1: a device writes to its pages */
    uint32_t marked_at;    /* 1 + low bits of `operations` when a mark last went into a stream; 0: none did */
    uint64_t device_asked; /* operations of which a device was asked to tell */
    _Alignas(64) int32_t error; /* status of the last error that ended a group or plan; 0 */
    uint32_t errors;            /* odd while the text is being changed */
    int64_t error_ns;
    uint64_t error_operation;
    int64_t failed_ns; /* when an operation last ended with PEER, TIMEOUT or FABRIC */
    uint64_t failed_operation;
    char error_text[512];
    /* Link events, by whoever looks at links: one at a time. All 0 in records of earlier versions. */
    _Alignas(64) uint64_t links; /* number of the last one */
    int64_t links_looked_ns;     /* when somebody last looked; 0: nobody has */
    uint64_t links_at;
    uint32_t links_max;
    uint32_t rest_links;
} epx_record_head_t;

typedef struct epx_record_group_row {
    uint64_t
        use; /* 0: empty; else how many groups this row has held, counted over the file: rows are reused */
    uint64_t key; /* equal on all ranks of the group, differs from other groups of the job */
    uint64_t signature;
    int32_t ranks, rank;   /* mine in it */
    int32_t first, stride; /* members are first + i * stride; stride 0: they are listed */
    uint32_t open;         /* 0: it has ended; the row stays readable until it is needed */
    uint32_t is_comm;
    uint32_t list; /* of members, where stride is 0; lists_max: not kept */
    uint32_t generation;
    char name[64], transport[24], fabric[16];
    uint8_t rest[32];
} epx_record_group_row_t;

typedef struct epx_record_text_row {
    char text[64];
} epx_record_text_row_t;

typedef struct epx_record_segment_row {
    uint64_t base, bytes; /* bytes 0: empty */
    int64_t time_ns;
    char name[40];
} epx_record_segment_row_t;

typedef struct epx_record_operation {
    uint64_t number; /* F1 */
    uint64_t group_key, sequence, epoch, signature;
    uint32_t group; /* row */
    uint32_t stream;
    uint16_t kind, lane;
    int32_t wave;
    uint32_t state;  /* epx_record_state_t */
    int32_t status;  /* when ended */
    uint32_t slot;   /* of its progress words, while they hold its number */
    uint32_t text;   /* of a foreign operation's kind */
    uint32_t mark;   /* the caller's last marker when the call was made */
    uint32_t device; /* epx_record_asked_t: what a device will tell of it */
    int64_t mark_ns;
    int64_t enqueued_ns, begun_ns, posted_ns, seen_ns, ended_ns;
    int64_t bytes;
    uint64_t reserved[3];
} epx_record_operation_t;

/* What a fabric tells of a wait while it lasts: the same struct as epx_wait_result_t, filled in place. */
typedef struct epx_record_wait {
    int32_t peer; /* in the group; -1: nobody yet */
    uint64_t expected, seen, failure;
    int64_t waited_ns;
} epx_record_wait_t;

typedef struct epx_record_progress {
    uint64_t number;                 /* of the operation that these words belong to */
    uint64_t sequence;               /* device: stored when its first block begins */
    uint64_t blocks, blocks_arrived; /* device: 0 where the operation has none */
    int64_t wait_begun_ns;           /* 0: it waits for nothing now */
    int32_t waits_for;               /* as asked for: one peer, or EPX_RECORD_EVERYBODY */
    uint32_t wait_mode;              /* 0 equal, 1 at least, 2 an exchange */
    uint64_t previous;               /* epoch that the awaited words last held in good order, 0: not known */
    epx_record_wait_t wait;
    uint64_t ended;              /* device */
    uint64_t waits;              /* that have been begun */
    uint64_t sent_all, seen_all; /* epoch that was sent to, or has come from, everybody; 0 */
    uint32_t has_peers;          /* 1: the words per peer are of this operation */
    uint32_t inside;             /* 1: the rank's thread is in a call of it, its start or its finish */
    uint64_t reserved[5];
} epx_record_progress_t;

/* Per peer, in the group's order. */
typedef struct epx_record_peer {
    uint64_t sent; /* epoch that this rank has set at the peer */
    uint64_t seen; /* epoch that the peer has set here, as far as it has been looked at */
} epx_record_peer_t;

/* What a device tells of an operation. */
typedef enum epx_record_asked {
    EPX_RECORD_ASKED_BEGUN = 1,
    EPX_RECORD_ASKED_POSTED = 2,
    EPX_RECORD_ASKED_SEEN = 4,
    EPX_RECORD_ASKED_STEP = 8,  /* of a route: its exchange */
    EPX_RECORD_ASKED_GRAPH = 16 /* it was captured: replays make no row */
} epx_record_asked_t;

/* The last marker in the order of a stream, and the device's time. */
typedef struct epx_record_device {
    uint64_t mark; /* text id; 0: none */
    int64_t mark_realtime_ns;
    uint64_t rest[14];
} epx_record_device_t;

/* One lane of a group that runs on a device. The host fills the first part when the group opens. */
typedef struct epx_record_lane_row {
    uint64_t use; /* 0: empty; else as of the group's row */
    uint64_t group_key;
    uint32_t group, lane;
    uint32_t resident;   /* 1: passes and routes are counted on the device; 0: epochs are the host's */
    uint32_t drifted;    /* 1: the host may count otherwise than the device: a plan died late, or a graph is
                            replayed */
    uint64_t asked_call; /* sequence of the last operation of which the device was asked to tell */
    uint64_t asked_step; /* what step_sent will be when all of them have been made */
    uint64_t rest[2];
    epx_progress_words_t words; /* device */
} epx_record_lane_row_t;

/* Which operation of a lane an epoch is: passes that have ended, and the call's number in its pass; the
 * sequence of its row. */
static inline uint64_t epx_record_call_of(uint64_t epoch)
{
    return (epoch >> 24 & 0xffffffu) << 16 | (epoch & 0x3fffu);
}

/* Events: epx_evidence_t, and these. */
enum {
    EPX_RECORD_EVENT_MARK = 16,
    EPX_RECORD_EVENT_PHASE,
    EPX_RECORD_EVENT_STEP,
    EPX_RECORD_EVENT_GROUP_OPEN,
    EPX_RECORD_EVENT_GROUP_END,
    EPX_RECORD_EVENT_ERROR /* value: the status */
};

typedef struct epx_record_event {
    uint64_t number;
    int64_t time_ns;
    uint32_t what, text;
    int64_t value;
} epx_record_event_t;

/* An event of a link, epx_evidence_t up to LINK_RECOVERING. */
typedef struct epx_record_link_row {
    uint64_t number;
    int64_t time_ns;
    uint32_t what;
    uint32_t rest;
    int64_t value;
    char name[48]; /* "mlx5_0/1", "GPU3/nvlink2 nvlink_recoveries" */
} epx_record_link_row_t;

_Static_assert(sizeof(epx_record_link_row_t) == 80, "rows are the file's");
_Static_assert(sizeof(epx_record_head_t) <= EPX_RECORD_HEAD_BYTES, "the head has its page");
_Static_assert(sizeof(epx_record_group_row_t) == 192, "rows are the file's");
_Static_assert(sizeof(epx_record_operation_t) == 160, "rows are the file's");
_Static_assert(sizeof(epx_record_wait_t) == 40, "as epx_wait_result_t");
_Static_assert(sizeof(epx_record_progress_t) == 176, "rows are the file's");
_Static_assert(sizeof(epx_record_device_t) == 128, "pairs are at multiples of 16");
_Static_assert(sizeof(epx_record_lane_row_t) == 192, "pairs are at multiples of 16");

#endif
