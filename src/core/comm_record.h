/*
 * What a comm tells the flight recorder. SPDX-License-Identifier: Apache-2.0
 *
 * A comm that begins a job (threads, the launcher's world, a caller's all-gather) brings a recorder for its
 * rank, opened at the first collective or group; its parts share it. The last of them closes it.
 */
#ifndef EPX_CORE_COMM_RECORD_H
#define EPX_CORE_COMM_RECORD_H

#include <epx/comm.h>

#include "fabric/fault/fault.h"
#include "launch/launch.h"
#include "record/recorder.h"

typedef struct epx_comm_recorder epx_comm_recorder_t;

/* Part of every comm; zeroed: nothing is recorded. */
typedef struct epx_comm_record {
    epx_comm_recorder_t *shared;
    uint64_t key;      /* equal on the comm's ranks, differs between comms of a job */
    uint64_t sequence; /* collectives made */
    uint64_t splits;
    int32_t group_id, depth; /* depth: of nested collectives; the outermost one is recorded */
    int32_t rank, size;
    int32_t *members;        /* [size] ranks of the job, NULL: all of them */
    epx_recorder_end_fn end; /* how its waits are ended from outside */
    void *comm;
    epx_link_t *link; /* the job's, by which its summaries go; NULL: none */
    int32_t ending;
    epx_fault_t *fault; /* NULL: nothing is disturbed, or nobody has asked yet */
    int32_t fault_asked;
    int32_t left_out; /* 1: EPX_FAULT leaves the collective that has been entered out */
    int32_t opens;    /* 1: a group opens on it: that is what its all-gathers are recorded as */
} epx_comm_record_t;

enum { EPX_COMM_JOB_BYTES = 48 };

/* The first comm of a job: rank of size. job: equal on all its ranks, differs between jobs of a host; a name
 * for a folder. Without memory nothing is recorded. */
void epx_comm_record_begin(epx_comm_record_t *record, const char *job, int32_t rank, int32_t size);

/* A name for a job that begins in this process. */
void epx_comm_record_new_job(char *job, size_t bytes);

/* A part of `whole`: member [size] ranks of the whole, mine is `rank` of them. Every rank of the whole calls
 * it, or epx_comm_record_no_part, once for each split. */
void epx_comm_record_part(epx_comm_record_t *whole, int32_t colour, const int32_t *member, int32_t rank,
                          int32_t size, epx_comm_record_t *part);
void epx_comm_record_no_part(epx_comm_record_t *whole);

/* The comm goes. */
void epx_comm_record_end(epx_comm_record_t *record);

/* The recorder, opened now if it has not been; NULL: none. */
epx_recorder_h epx_comm_record_get(epx_comm_record_t *record);

/* What EPX_FAULT disturbs of this comm; fabric: of ranks that are threads, else NULL. */
void epx_comm_record_faults(epx_comm_record_t *record, epx_fabric_t *fabric);

/* The comm's row in the record, 0: none; *sequence_p: collectives made. */
int32_t epx_comm_record_row(epx_comm_record_t *record, uint64_t *sequence_p);

/* Brackets around a collective, which is not to be made where `left_out` is 1 behind enter. Returns status.
 */
uint64_t epx_comm_op_enter(epx_comm_record_t *record, epx_record_kind_t kind, int64_t bytes);
/* Where the fabric's wait result goes meanwhile; own where nothing is recorded. */
void *epx_comm_op_wait(epx_comm_record_t *record, void *own);
void epx_comm_op_came(epx_comm_record_t *record, epx_status_t status);
epx_status_t epx_comm_op_leave(epx_comm_record_t *record, uint64_t op, epx_status_t status);

#endif
