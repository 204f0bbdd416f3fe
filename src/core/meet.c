/* Meetings of a group that opens or recovers, in the flight recorder. SPDX-License-Identifier: Apache-2.0 */
#include "core/meet.h"

#include <stdlib.h>

#include "base/fail.h"
#include "core/comm.h"

/* Beside the collectives of a comm, and beside all lanes of a group. */
enum { STREAM_OF_COMM = 1, STREAM_OF_GROUP = 0xffff };

static epx_wait_result_t *begin_wait(void *context, epx_wait_result_t *own)
{
    epx_group_t *group = context;
    epx_meet_t *meet = &group->meet;
    epx_meet_enter(group);
    if (meet->op == 0)
        return own;
    epx_recorder_begin(group->recorder, meet->op);
    epx_recorder_resume(group->recorder, meet->op); /* collectives of the comm may have been in between */
    epx_recorder_sent(group->recorder, EPX_RECORD_EVERYBODY, meet->sequence);
    return epx_recorder_wait_begin(group->recorder, -1, EPX_RECORD_EVERYBODY, meet->sequence,
                                   EPX_RECORD_EXCHANGE, own);
}

static void end_wait(void *context, epx_status_t status)
{
    epx_meet_end(context, status);
    epx_meet_enter(context);
}

static int is_over(void *context)
{
    epx_group_t *group = context;
    return atomic_load(&group->meet_over);
}

/* On the watchdog's thread. Only where the job is left: a recovery cannot be mended by another one. */
static void end_meeting(void *context, const char *reason)
{
    epx_group_t *group = context;
    epx_log(EPX_LOG_WARN, "group", "%s: rank %d meets nobody any more: %s", group->name, group->rank, reason);
    atomic_store(&group->meet_over, 1);
}

void epx_meet_may_end(epx_group_t *group)
{
    atomic_store(&group->meet_over, 0);
    group->meet_ending = epx_recorder_on_end(group->recorder, end_meeting, group, 1);
}

const epx_fabric_meeting_t *epx_meet_watch(epx_group_t *group)
{
    if (group->recorder == NULL)
        return NULL;
    group->meet.watch =
        (epx_fabric_meeting_t){.context = group, .begin = begin_wait, .end = end_wait, .is_over = is_over};
    return &group->meet.watch;
}

void epx_meet_on_comm(epx_group_t *group, epx_comm_h comm)
{
    /* Another recorder than the comm's has no row of it. */
    if (group->recorder == NULL || group->recorder != epx_comm_recorder(comm))
        return;
    group->meet.kind = EPX_RECORD_OPEN;
    group->meet.row = epx_comm_row(comm, &group->meet.sequence);
}

void epx_meet_enter(epx_group_t *group)
{
    epx_meet_t *meet = &group->meet;
    if (meet->row == 0 || meet->op != 0)
        return;
    epx_recorder_call_t call = {.group_id = meet->row,
                                .stream = meet->kind == EPX_RECORD_OPEN ? STREAM_OF_COMM : STREAM_OF_GROUP,
                                .sequence = ++meet->sequence,
                                .kind = meet->kind,
                                .wave = meet->wave++};
    meet->op = epx_recorder_enqueue(group->recorder, &call);
}

void epx_meet_wait(epx_group_t *group)
{
    epx_wait_result_t own = {.peer = -1};
    /* A comm records its all-gather itself. */
    if (group->meet.kind != EPX_RECORD_RECOVER)
        return;
    begin_wait(group, &own);
}

void epx_meet_end(epx_group_t *group, epx_status_t status)
{
    uint64_t op = group->meet.op;
    if (op == 0)
        return;
    epx_recorder_wait_end(group->recorder, -1, status == EPX_OK);
    group->meet.op = 0;
    epx_recorder_end(group->recorder, op, status);
}

void epx_meet_survivors(epx_group_t *group)
{
    if (group->recorder == NULL)
        return;
    group->meet = (epx_meet_t){.row = group->record_id,
                               .kind = EPX_RECORD_RECOVER,
                               .sequence = group->generation << 8,
                               .watch = group->meet.watch};
    epx_meet_wait(group);
}

void epx_meet_again(epx_group_t *group, const uint8_t *alive, const epx_bootstrap_t *bootstrap)
{
    epx_meet_t *meet = &group->meet;
    int32_t *members = meet->row != 0 ? malloc((size_t)group->ranks * sizeof(*members)) : NULL;
    meet->row = 0;
    if (members == NULL)
        return;
    int32_t count = 0;
    for (int32_t r = 0; r < group->ranks; r++)
        if (alive[r])
            members[count++] = group->record_members[r];
    epx_recorder_group_t row = {.name = group->name,
                                .key = (group->record_key ^ group->generation) * 0x9e3779b97f4a7c15u | 1,
                                .members = members,
                                .ranks = bootstrap->size,
                                .rank = bootstrap->rank,
                                .is_comm = 1, /* it carries no rows */
                                .generation = (uint32_t)group->generation + 1};
    meet->row = count == bootstrap->size ? epx_recorder_group_begin(group->recorder, &row) : 0;
    free(members);
    epx_meet_enter(group);
}

void epx_meet_over(epx_group_t *group)
{
    epx_recorder_forget(group->recorder, group->meet_ending);
    group->meet_ending = 0;
    epx_meet_end(group, EPX_OK);
    if (group->meet.kind == EPX_RECORD_RECOVER && group->meet.row != 0)
        epx_record_group_end(group->recorder, group->meet.row);
    group->meet = (epx_meet_t){.watch = group->meet.watch};
}
