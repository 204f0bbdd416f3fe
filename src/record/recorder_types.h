/* What others give a recorder. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_RECORDER_TYPES_H
#define EPX_RECORD_RECORDER_TYPES_H

#include <epx/record.h>

#include "record/format.h"

enum { EPX_RECORDER_PATH_BYTES = 512, EPX_RECORDER_CHANNELS = 64 };

/* What a device does, as somebody outside of the job's own context sees it. */
typedef struct epx_recorder_use {
    int32_t percent;    /* of the last moments in which it executed something; -1: not known */
    int32_t milliwatts; /* 0: not known */
    int32_t megahertz;
    int32_t processes; /* that have it; 0: not known */
    int32_t own;       /* percent of this process alone; -1: not known */
} epx_recorder_use_t;

/* What epx_record_open needs when everything has been resolved. */
typedef struct epx_recorder_set_up {
    const char *folder;               /* "": memory of this process alone, for tests and simulations */
    int32_t keeps;                    /* 1: the file stays after a close in good order */
    const char *job, *program, *host; /* host NULL: this one's name */
    int32_t rank, ranks, domain, domains, device;
    int64_t hang_ms, timeout_ms;
    epx_on_hang_t on_hang;
    const char *failover, *on_hang_cmd; /* NULL: none; copied */
    /* Of the driver's core dump of the rank's GPU; pipe "" or NULL: none is wanted. Copied. */
    const char *dump_pipe, *dump_file;
    int32_t watched; /* 1: this process's watchdog looks at it */
    /* Called at the first mark in a stream where no device writes yet: may call epx_recorder_attach. NULL:
     * none. */
    void (*find_device)(epx_recorder_h recorder);
    /* What the device of that number does; 0: not known. On the watchdog's thread. NULL: nobody can say. */
    int (*use)(int32_t device, epx_recorder_use_t *use_p);
} epx_recorder_set_up_t;

/* A device whose writes go to mapped pages. mark: stores the text's id and the device's time at `words`
 * (device address, [2]) in the order of a stream. release: unmaps the pages when the recorder closes. */
typedef struct epx_recorder_device {
    void *mapped;   /* device address of the pages */
    int32_t number; /* which device */
    void *context;
    epx_status_t (*mark)(void *context, uint64_t *words, uint64_t text, epx_stream_t stream);
    void (*release)(void *context, void *pages);
} epx_recorder_device_t;

/* One rank's summary (summary.h) as it was left, NULL: it has left none. dead: its process has ended. */
typedef void (*epx_recorder_heard_fn)(void *to, int32_t rank, int dead, const void *summary, size_t bytes);

/* How summaries go round out of band. Called on the watchdog's thread; each may take tenths of a second. */
typedef struct epx_recorder_notes {
    void *context;                      /* NULL: there is no such way */
    int64_t (*asked_ns)(void *context); /* when somebody last asked for summaries; 0: nobody has */
    void (*ask)(void *context);         /* every process of the job */
    void (*put)(void *context, const void *summary, size_t bytes);
    void (*get)(void *context, epx_recorder_heard_fn heard, void *to);
    size_t most; /* bytes of a summary */
} epx_recorder_notes_t;

/* What runs when the watchdog's action is to end waits: called on the watchdog's thread, at most once per
 * verdict. */
typedef void (*epx_recorder_end_fn)(void *context, const char *reason);

/* As epx_record_group, with what only the library knows. key: equal on all ranks of the group, differs from
 * others of the job. */
typedef struct epx_recorder_group {
    const char *name, *transport, *fabric;
    uint64_t key, signature;
    const int32_t *members; /* [ranks] ranks of the job, or NULL: 0 .. ranks - 1 */
    int32_t ranks, rank, is_comm;
    uint32_t generation;
} epx_recorder_group_t;

typedef struct epx_recorder_call {
    int32_t group_id;
    uint32_t stream;
    uint64_t sequence, epoch, signature;
    epx_record_kind_t kind;
    int32_t lane, wave;
    int64_t bytes;
    uint32_t text;
} epx_recorder_call_t;

#endif
