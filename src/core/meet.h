/*
 * What the ranks of a group do together when it opens or recovers, as operations of the flight recorder.
 * SPDX-License-Identifier: Apache-2.0
 *
 * Every meeting is an operation of its own. It is there (enqueued) before the rank begins what it does alone,
 * memory and its registration, and begins when the rank has come to the others: a rank that stays away is
 * told from one that does not get ready, and both from those who wait.
 *
 * - M1  Opening: all-gathers of the comm are recorded as "open" of it; meetings of the fabric are "open" of
 * it on a stream beside. A fabric may have several: when one has ended the next is there.
 *
 * - M2  Recovering: the meeting of survivors is "recover" wave 0 of the old group; what they build is waves 1
 * and up of a row that holds the survivors alone, so that nobody is missed who is known to be gone: memory,
 * the fabric's meetings (one, the segment's, where it has no library to meet in), the last word.
 */
#ifndef EPX_CORE_MEET_H
#define EPX_CORE_MEET_H

#include "core/group_state.h"

/* The group opens on this comm. */
void epx_meet_on_comm(epx_group_t *group, epx_comm_h comm);

/* Who is left? The wait begins; epx_meet_end ends it. */
void epx_meet_survivors(epx_group_t *group);
/* They are known: alive [ranks], as of the old group. */
void epx_meet_again(epx_group_t *group, const uint8_t *alive, const epx_bootstrap_t *bootstrap);

/* The next meeting is there, unless this rank is in one. */
void epx_meet_enter(epx_group_t *group);
/* It begins (enters it where that was not done), and waits for everybody. */
void epx_meet_wait(epx_group_t *group);
void epx_meet_end(epx_group_t *group, epx_status_t status);

/* For the fabric that is opened; NULL: nobody looks. */
const epx_fabric_meeting_t *epx_meet_watch(epx_group_t *group);

/* The group is being built: the watchdog may end its meetings from here on. */
void epx_meet_may_end(epx_group_t *group);
/* It is, or could not be. */
void epx_meet_over(epx_group_t *group);

#endif
