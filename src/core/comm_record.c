/* What a comm tells the flight recorder. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm_record.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "core/config.h"
#include "core/notes.h"
#include "core/record.h"

/* More threads than this in one process record only where EPX_RECORD names a folder: it is a simulation. */
enum { THREADS_UNASKED = 256 };

/* A rank's recorder and who holds it: comms may be destroyed by another thread than the rank's. */
struct epx_comm_recorder {
    atomic_int holders;
    int32_t asked; /* 1: opening has been tried */
    int32_t rank, size;
    epx_recorder_h recorder;
    epx_link_t *link; /* by which its summaries go; NULL */
    char job[EPX_COMM_JOB_BYTES];
};

void epx_comm_record_new_job(char *job, size_t bytes)
{
    static atomic_int jobs;
    do
        snprintf(job, bytes, "%d-%d", (int)getpid(), atomic_fetch_add(&jobs, 1));
    while (epx_record_is_taken(job));
}

void epx_comm_record_begin(epx_comm_record_t *record, const char *job, int32_t rank, int32_t size)
{
    *record = (epx_comm_record_t){.key = 0x9e3779b97f4a7c15u, .rank = rank, .size = size};
    epx_comm_recorder_t *shared = calloc(1, sizeof(*shared));
    if (shared == NULL)
        return;
    shared->rank = rank;
    shared->size = size;
    snprintf(shared->job, sizeof(shared->job), "%s", job);
    atomic_store(&shared->holders, 1);
    record->shared = shared;
}

void epx_comm_record_no_part(epx_comm_record_t *whole) { whole->splits++; }

void epx_comm_record_part(epx_comm_record_t *whole, int32_t colour, const int32_t *member, int32_t rank,
                          int32_t size, epx_comm_record_t *part)
{
    whole->splits++;
    uint64_t key = (whole->key ^ whole->splits) * 1099511628211u;
    *part = (epx_comm_record_t){
        .key = (key ^ (uint64_t)(uint32_t)colour) * 0x9e3779b97f4a7c15u | 1, .rank = rank, .size = size};
    int32_t *members = malloc((size_t)size * sizeof(*members));
    if (whole->shared == NULL || members == NULL) {
        free(members);
        return;
    }
    for (int32_t i = 0; i < size; i++)
        members[i] = whole->members != NULL ? whole->members[member[i]] : member[i];
    part->members = members;
    part->shared = whole->shared;
    atomic_fetch_add(&part->shared->holders, 1);
    epx_recorder_domain(part->shared->recorder, colour);
}

void epx_comm_record_end(epx_comm_record_t *record)
{
    epx_comm_recorder_t *shared = record->shared;
    epx_fault_free(&record->fault);
    if (shared == NULL)
        return;
    epx_recorder_forget(shared->recorder, record->ending);
    epx_record_group_end(shared->recorder, record->group_id);
    if (atomic_fetch_sub(&shared->holders, 1) == 1) {
        epx_record_close(&shared->recorder);
        epx_notes_end(shared->link);
        free(shared);
    }
    free(record->members);
    *record = (epx_comm_record_t){0};
}

epx_recorder_h epx_comm_record_get(epx_comm_record_t *record)
{
    epx_comm_recorder_t *shared = record->shared;
    if (shared == NULL || shared->asked)
        return shared != NULL ? shared->recorder : NULL;
    shared->asked = 1;
    epx_recorder_config_t config = EPX_RECORDER_CONFIG_INIT;
    config.job = shared->job;
    config.rank = shared->rank;
    config.ranks = shared->size;
    if (shared->size > THREADS_UNASKED && !epx_config_record_is_asked())
        return NULL;
    /* No call fails for want of a record; a setting that cannot be is an error of the group that opens. */
    char before[512];
    snprintf(before, sizeof(before), "%.511s", epx_last_error());
    epx_settings_t settings;
    if (epx_config_record(NULL, &settings) == EPX_OK && epx_record_open(&config, &shared->recorder) != EPX_OK)
        epx_log(shared->rank == 0 ? EPX_LOG_WARN : EPX_LOG_INFO, "record", "rank %d is not recorded: %s",
                shared->rank, epx_last_error());
    epx_fail(EPX_OK, "%s", before);
    shared->link = record->link;
    epx_notes_begin(shared->recorder, shared->link);
    return shared->recorder;
}

/* ---- collectives ------------------------------------------------------------------------------------------------ */

static int32_t group_of(epx_comm_record_t *record, epx_recorder_h recorder)
{
    if (record->group_id != 0)
        return record->group_id;
    char name[32];
    snprintf(name, sizeof(name), record->members == NULL ? "world" : "comm of %d", record->size);
    epx_recorder_group_t group = {.name = name,
                                  .key = record->key,
                                  .members = record->members,
                                  .ranks = record->size,
                                  .rank = record->rank,
                                  .is_comm = 1,
                                  .generation = 1};
    record->group_id = epx_recorder_group_begin(recorder, &group);
    if (record->end != NULL)
        record->ending = epx_recorder_on_end(recorder, record->end, record->comm, 1);
    return record->group_id;
}

int32_t epx_comm_record_row(epx_comm_record_t *record, uint64_t *sequence_p)
{
    epx_recorder_h recorder = epx_comm_record_get(record);
    *sequence_p = record->sequence;
    return recorder != NULL ? group_of(record, recorder) : 0;
}

void epx_comm_record_faults(epx_comm_record_t *record, epx_fabric_t *fabric)
{
    char text[EPX_CONFIG_TEXT_BYTES], before[512];
    if (record->fault_asked)
        return;
    record->fault_asked = 1;
    if (!epx_config_fault(text, sizeof(text)))
        return;
    /* A specification that cannot be is an error of the group that opens. */
    snprintf(before, sizeof(before), "%.511s", epx_last_error());
    if (epx_fault_new(text, record->members == NULL ? "world" : "comm", record->rank, &record->fault) ==
        EPX_OK)
        epx_fault_watch(record->fault, fabric);
    epx_fail(EPX_OK, "%s", before);
}

/* EPX_FAULT, before the collective has left a trace. */
static void disturb(epx_comm_record_t *record, epx_record_kind_t kind)
{
    epx_fault_call_t call = {.op = EPX_FAULT_OP_ALLREDUCE + (int32_t)kind - EPX_RECORD_ALLREDUCE,
                             .wave = EPX_FAULT_ANY,
                             .seq = record->sequence};
    epx_fault_call(record->fault, &call);
    epx_fault_hits_t hits = epx_fault_at(record->fault, EPX_FAULT_ENQUEUE, EPX_FAULT_ANY);
    record->left_out = epx_fault_hit(&hits, EPX_FAULT_SKIP);
}

uint64_t epx_comm_op_enter(epx_comm_record_t *record, epx_record_kind_t kind, int64_t bytes)
{
    if (record->depth++ > 0)
        return 0;
    record->sequence++;
    if (record->fault != NULL && kind <= EPX_RECORD_BARRIER)
        disturb(record, kind);
    epx_recorder_h recorder = record->shared != NULL ? epx_comm_record_get(record) : NULL;
    uint64_t op = 0;
    if (recorder != NULL && !record->left_out) {
        epx_recorder_call_t call = {.group_id = group_of(record, recorder),
                                    .sequence = record->sequence,
                                    .kind = record->opens && kind == EPX_RECORD_ALLGATHER ? EPX_RECORD_OPEN
                                                                                          : kind,
                                    .bytes = bytes};
        op = epx_recorder_enqueue(recorder, &call);
    }
    if (record->fault != NULL && !record->left_out && kind <= EPX_RECORD_BARRIER)
        epx_fault_at(record->fault, EPX_FAULT_BEGIN, EPX_FAULT_ANY);
    epx_recorder_begin(recorder, op);
    return op;
}

void *epx_comm_op_wait(epx_comm_record_t *record, void *own)
{
    if (record->shared == NULL)
        return own;
    epx_recorder_sent(record->shared->recorder, EPX_RECORD_EVERYBODY, record->sequence);
    return epx_recorder_wait_begin(record->shared->recorder, -1, EPX_RECORD_EVERYBODY, record->sequence,
                                   EPX_RECORD_EXCHANGE, own);
}

void epx_comm_op_came(epx_comm_record_t *record, epx_status_t status)
{
    if (record->shared != NULL)
        epx_recorder_wait_end(record->shared->recorder, -1, status == EPX_OK);
}

epx_status_t epx_comm_op_leave(epx_comm_record_t *record, uint64_t op, epx_status_t status)
{
    if (op != 0)
        epx_recorder_end(record->shared->recorder, op, status);
    if (--record->depth == 0) {
        if (record->fault != NULL && status == EPX_OK && !record->left_out)
            epx_fault_at(record->fault, EPX_FAULT_END, EPX_FAULT_ANY);
        record->left_out = 0;
    }
    return status;
}
