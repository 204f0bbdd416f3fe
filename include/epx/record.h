/*
 * The flight recorder: what a rank does and waits for, in a mapped file that outlives it.
 * SPDX-License-Identifier: Apache-2.0
 *
 * A recorder is a handle, one per rank (ranks may be threads). epx_group_open and the comms open one by
 * themselves (EPX_RECORD), and every call of theirs is recorded; epx_comm_recorder hands it out for marks and
 * phases. The rest of this file works without any group or transport of this library: stamps around anybody's
 * collectives or matrix products give the same files, watchdog, report and verdict.
 *
 * Threads. One thread at a time writes to a recorder: the rank's. Calls on a recorder neither lock nor
 * allocate nor call the system, except open, close, text, group and segment. A NULL recorder is fine
 * everywhere: the call does nothing and succeeds, so that programs need no second path where recording is
 * off.
 *
 * The file is described in src/record/format.h, the rules by which a verdict is found in src/record/rules.c,
 * and what to do with a report in docs/hangs.md.
 */
#ifndef EPX_RECORD_H
#define EPX_RECORD_H

#include <epx/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What to do when the job is stuck. */
typedef enum epx_on_hang {
    EPX_ON_HANG_DEFAULT = 0,
    EPX_ON_HANG_REPORT,  /* say it, touch nothing */
    EPX_ON_HANG_ABORT,   /* end every wait of this process; programs leave with the verdict's exit code */
    EPX_ON_HANG_FAILOVER /* as abort where the verdict says that the group can be recovered in place */
} epx_on_hang_t;

/* Fields marked (env) can be set by the environment, which wins; 0 or NULL means the default. */
typedef struct epx_recorder_config {
    size_t size;
    const char *folder; /* (env, EPX_RECORD) made when it is missing; NULL: a new one under /dev/shm */
    const char
        *job; /* equal on all ranks of the job, differs from other jobs that use the folder; NULL: "job" */
    const char *program;     /* shown in reports; NULL: not known */
    int32_t rank, ranks;     /* of this recorder in the job, all domains together */
    int32_t domain, domains; /* the rank's rack or EP domain, and how many there are; 0: one */
    int32_t device;          /* number of the rank's GPU, -1 or 0 where there is none */
    int64_t hang_ms;         /* (env) 0: 5000; when a wait is classified and reported */
    int64_t timeout_ms;    /* 0: 60000; when waits give up. Shown, and used for "still so at the time-out" */
    epx_on_hang_t on_hang; /* (env) 0: report */
    const char *failover;  /* (env) name of the transport to go on with */
    const char *on_hang_cmd; /* (env) run once with the folder as its last argument; NULL: none */
    int32_t no_watchdog;     /* 1: this process looks at nothing; another one may */
} epx_recorder_config_t;

#define EPX_RECORDER_CONFIG_INIT EPX_BEGUN(epx_recorder_config_t)

/*
 * Opens the file of one rank and, with the first one of a process, its watchdog thread. Not collective, waits
 * for nobody. *recorder_p is NULL and the call succeeds when EPX_RECORD=off. Errors: ARG, NO_MEMORY (the
 * folder has no room: says how much is needed).
 */
epx_status_t epx_record_open(const epx_recorder_config_t *config, epx_recorder_h *recorder_p);

/* Marks the record as ended in good order, unmaps it and clears the handle. The file stays, except in the
 * default folder, where nothing remains of ranks that ended well. */
void epx_record_close(epx_recorder_h *recorder_p);

/* The recorder of a rank's comm, opened at the first use of it; NULL: recording is off, or it could not be
 * opened (logged). Owned by the comm and its parts. */
epx_recorder_h epx_comm_recorder(epx_comm_h comm);

/* The folder of the records, where verdict.json will be too; "" for NULL. Owned by the recorder. */
const char *epx_record_folder(epx_recorder_h recorder);

/* ---- marks, phases, signs of life ------------------------------------------------------------------------------- */

/* Registers a text of at most 55 bytes ("expert gemm, layer 17"; longer ones are cut): its id, > 0. The same
 * text gives the same id. 0 where there is no recorder or no room (512 texts). Takes microseconds: register
 * first. */
int32_t epx_record_text(epx_recorder_h recorder, const char *text);

/* "From here on the rank does this." Stamped by the host when the call is made; this version stamps so with a
 * stream of `cuda` too, not in the stream's order. EPX_ERR_ARG for a text that is not registered. */
epx_status_t epx_mark(epx_recorder_h recorder, int32_t text_id, epx_stream_t stream);

/*
 * Announces what the rank is about: "init", "warm-up", "steady", "drain", or a pause of the program's own
 * ("checkpoint"). While a phase with a budget lasts nobody calls the rank stuck, and waits for it do not give
 * up; afterwards the ordinary budgets hold again. budget_ms 0: none of its own. A recorder begins in "init",
 * where budgets are 20 times longer, as they are in "warm-up"; it is "steady" after the first epx_step or
 * epx_record_step.
 */
epx_status_t epx_phase(epx_recorder_h recorder, const char *name, int64_t budget_ms);

/* A step of the program has ended. Groups of this library do it in epx_step. */
epx_status_t epx_record_step(epx_recorder_h recorder);

/* A sign of life in long work that makes no call: a rank whose marks or heartbeats move is slow, not stuck.
 */
void epx_heartbeat(epx_recorder_h recorder);

/* ---- operations of others --------------------------------------------------------------------------------------- */

/* Whose collectives are recorded. */
typedef struct epx_record_group {
    size_t size;
    const char *name;       /* equal on all its ranks, differs between groups that hold the same ranks */
    const int32_t *members; /* [ranks] ranks of the job, in the group's order; NULL: the whole job */
    int32_t ranks;
    int32_t rank;       /* mine in it */
    uint64_t signature; /* of what must be equal on all ranks (shape, type, version); 0: not given */
} epx_record_group_t;

#define EPX_RECORD_GROUP_INIT EPX_BEGUN(epx_record_group_t)

/* Registers a group: its id, > 0; 0 where there is no recorder or no room (64 groups at a time). */
int32_t epx_record_group(epx_recorder_h recorder, const epx_record_group_t *group);
void epx_record_group_end(epx_recorder_h recorder, int32_t group_id);

/* One operation of a group. */
typedef struct epx_record_op {
    size_t size;
    int32_t group_id;
    int32_t text_id;    /* its kind, "all_reduce" */
    int32_t wave;       /* or bucket, or layer: a number that must agree; 0 */
    uint64_t sequence;  /* its number in the group, equal on all ranks; 0: counted here, from 1 */
    uint64_t signature; /* hash of what must agree beyond kind and wave (count, type, root); 0 */
    int64_t bytes;
} epx_record_op_t;

#define EPX_RECORD_OP_INIT EPX_BEGUN(epx_record_op_t)

/*
 * Stamps, in this order: enqueue when the call is made, begin when it is on its way (host collectives: at
 * once; on a stream: when the caller learns of it), seen when all peers' parts are there (may be left out),
 * end. enqueue returns the handle for the others, 0 where there is no recorder. Several operations may be
 * open at a time.
 */
uint64_t epx_record_enqueue(epx_recorder_h recorder, const epx_record_op_t *op);
void epx_record_begin(epx_recorder_h recorder, uint64_t op);
void epx_record_seen(epx_recorder_h recorder, uint64_t op);
void epx_record_end(epx_recorder_h recorder, uint64_t op, epx_status_t status);

/* Whom an open operation waits for (rank of its group; -1: everybody who has not made the call), where the
 * caller knows; what each peer has been sent and has sent, as numbers that grow (0: nothing yet). */
void epx_record_waits(epx_recorder_h recorder, uint64_t op, int32_t peer);
void epx_record_sent(epx_recorder_h recorder, uint64_t op, int32_t peer, uint64_t epoch);
void epx_record_arrived(epx_recorder_h recorder, uint64_t op, int32_t peer, uint64_t epoch);
/* Of an open operation whose kernel needs all its blocks on the device at once: how many it has, and how many
 * are there, as the caller reads it from a counter of its kernel. Fewer than all for longer than the budget
 * is NOT_RESIDENT. Repeated while it changes. */
void epx_record_blocks(epx_recorder_h recorder, uint64_t op, uint64_t blocks, uint64_t arrived);

/* Memory that was registered with somebody (NULL name: "segment"). EPX_ERR_ARG when it overlaps memory that
 * this recorder has as registered with the same name: both registrations are named. */
epx_status_t epx_record_segment(epx_recorder_h recorder, const char *name, const void *memory, size_t bytes);
void epx_record_segment_end(epx_recorder_h recorder, const char *name, const void *memory);

/* ---- evidence from elsewhere ------------------------------------------------------------------------------------ */

typedef enum epx_evidence {
    EPX_EVIDENCE_LINK_ERROR = 1, /* value: errors counted; a link or device of this rank failed */
    EPX_EVIDENCE_LINK_DOWN,
    EPX_EVIDENCE_LINK_UP,
    EPX_EVIDENCE_LINK_RECOVERING, /* value: recoveries so far, still rising: a warning */
    EPX_EVIDENCE_RESOURCE_EMPTY,  /* the text names a pool that is empty while this rank waits for it */
    EPX_EVIDENCE_RESOURCE_BACK,
    EPX_EVIDENCE_DEVICE_IDLE, /* the rank's device executes nothing */
    EPX_EVIDENCE_DEVICE_BUSY  /* value: its use in percent */
} epx_evidence_t;

/* Something that was seen of this rank's links, pools or device. time_ns: of epx's clock (CLOCK_MONOTONIC),
 * 0: now. Of links: as epx_record_link with the text. */
epx_status_t epx_record_evidence(epx_recorder_h recorder, epx_evidence_t what, int32_t text_id, int64_t value,
                                 int64_t time_ns);

/* The same of a link by its name ("mlx5_0/1", at most 47 bytes), by any thread: monitors have their own. The
 * last 32 are kept. Errors: ARG for evidence that is not of a link. */
epx_status_t epx_record_link(epx_recorder_h recorder, epx_evidence_t what, const char *name, int64_t value,
                             int64_t time_ns);
/* Somebody has looked at the rank's links just now, whatever there was: reports tell "nothing seen" from "not
 * observed". Any thread. */
void epx_record_links_looked(epx_recorder_h recorder);

/* ---- verdicts --------------------------------------------------------------------------------------------------- */

typedef enum epx_verdict_kind {
    EPX_VERDICT_NONE = 0,
    EPX_VERDICT_DESYNC,
    EPX_VERDICT_HOST_ABSENT,
    EPX_VERDICT_STUCK_BEFORE_OP,
    EPX_VERDICT_STREAM_BLOCKED,
    EPX_VERDICT_NOT_RESIDENT,
    EPX_VERDICT_SIGNAL_LOST,
    EPX_VERDICT_DEADLOCK,
    EPX_VERDICT_EPOCH_SKEW,
    EPX_VERDICT_CORRUPT,
    EPX_VERDICT_RESOURCE,
    EPX_VERDICT_LINK,
    EPX_VERDICT_SLOW, /* not a hang: never reported, epx-doctor and verdicts tell it */
    EPX_VERDICT_UNKNOWN,
    EPX_VERDICTS
} epx_verdict_kind_t;

/* "SIGNAL_LOST"; static, any value allowed. */
const char *epx_verdict_name(epx_verdict_kind_t kind);

typedef enum epx_action {
    EPX_ACTION_NONE = 0,
    EPX_ACTION_RECOVER, /* recover the group in place, the same or another transport; do the step again */
    EPX_ACTION_RESTART, /* leave with 75: a foreign kernel is stuck; restart elsewhere */
    EPX_ACTION_SHRINK,  /* leave with 76, or go on without the lost host */
    EPX_ACTION_STOP,    /* leave with 77: going on would be wrong */
    EPX_ACTION_WAIT     /* leave with 78, or wait for a person */
} epx_action_t;

#define EPX_VERDICT_CYCLE 16
typedef struct epx_verdict {
    size_t size;
    epx_verdict_kind_t kind;
    epx_action_t action;
    int32_t exit_code;      /* 0 where the group can go on in place, else 75 to 78 */
    int32_t rank;           /* the culprit, in the job; -1: none was found */
    int32_t peer;           /* whom it did not reach (SIGNAL_LOST, CORRUPT), in the job; -1 */
    int32_t stuck, ranks;   /* ranks that wait, and all of them */
    char group[64], op[56]; /* the operation at the root */
    int32_t wave;
    uint64_t sequence;
    uint64_t expected, seen; /* epochs */
    char field[32];          /* DESYNC: what differs; RESOURCE: what is empty; NOT_RESIDENT: "k of n" */
    char marker[56];         /* the culprit's last one */
    double factor;           /* SLOW: its wait over the hang budget */
    int32_t cycle[EPX_VERDICT_CYCLE], cycle_count; /* DEADLOCK: ranks in order, each waits for the next */
    int64_t stuck_ns;                              /* how long the oldest wait had lasted */
    int64_t found_ns;                              /* epx's clock */
    char text[512];                                /* the evidence in one sentence */
    char failover[64]; /* the transport that EPX_ON_HANG says to go on with, where `action` is RECOVER; else
                          "" */
} epx_verdict_t;

#define EPX_VERDICT_INIT EPX_BEGUN(epx_verdict_t)

/* The job's last verdict as this process knows it (kind NONE: silence). Never blocks. */
epx_status_t epx_record_verdict(epx_recorder_h recorder, epx_verdict_t *verdict_p);

/* Forgets it, after a recovery: the watchdog may find another. */
void epx_record_verdict_clear(epx_recorder_h recorder);

/* ---- reading records, of this job or another, running or dead ---------------------------------------------------- */

typedef struct epx_records *epx_records_h;

/* What one rank does. Strings are cut where they are longer. */
typedef struct epx_rank_now {
    size_t size;
    int32_t has_record, closed, rank, domain, pid;
    char host[64];
    char life[24]; /* "runs", "sleeps", "is stopped", "has ended", "not known" */
    char phase[40];
    uint64_t steps, operations, heartbeats;
    char place[16]; /* "outside", "enqueued", "inside", "waits" */
    char op[56], group[64];
    int32_t wave, waits_for; /* rank of the job, -1 */
    uint64_t sequence;
    int64_t since_ns; /* how long it has been there */
    char marker[56];
} epx_rank_now_t;

#define EPX_RANK_NOW_INIT EPX_BEGUN(epx_rank_now_t)

/* The records in a folder, of any subset of a job's ranks; of several jobs the one that began last.
 * EPX_ERR_ARG: there is none (says what was found). May take half a second where the job runs, to see which
 * threads move. */
epx_status_t epx_records_open(const char *folder, epx_records_h *records_p);
void epx_records_close(epx_records_h *records_p);
/* Records of the same job in another folder (another host's), for ranks that are missing so far; at most 15,
 * then epx_records_update. EPX_ERR_ARG: the folder cannot be read, or there are too many. */
epx_status_t epx_records_add(epx_records_h records, const char *folder);
/* Looks again. */
void epx_records_update(epx_records_h records);
/* 1: a process of it runs on this host. */
int32_t epx_records_running(epx_records_h records);
int32_t epx_records_ranks(epx_records_h records);
epx_status_t epx_records_rank(epx_records_h records, int32_t rank, epx_rank_now_t *now_p);
/* What a rank had loaded: "epx 0.1.0, NCCL 2.28.9 (path), UCX none loaded, driver 580.95.05"; "not recorded"
 * where the record's writer was an earlier version of epx. "" for a rank without a record. */
epx_status_t epx_records_versions(epx_records_h records, int32_t rank, char *text, size_t bytes);
/* The verdict of the same rules as the watchdog's, SLOW and NONE included. */
epx_status_t epx_records_verdict(epx_records_h records, epx_verdict_t *verdict_p);
/* The watchdog's report of a verdict, or JSON; returns the bytes without the closing zero (cut to `bytes`).
 */
size_t epx_records_report(epx_records_h records, const epx_verdict_t *verdict, int32_t as_json, char *text,
                          size_t bytes);
/* All recorded operations and marks as Chrome trace events, one process per rank; write gets pieces of text.
 */
epx_status_t epx_records_trace(epx_records_h records, void (*write)(void *context, const char *text),
                               void *context);

#ifdef __cplusplus
}
#endif
#endif
