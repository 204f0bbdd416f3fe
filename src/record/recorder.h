/*
 * The writer of a record: what core and the transports stamp. SPDX-License-Identifier: Apache-2.0
 *
 * Every call takes NULL for "nothing is recorded". None locks, allocates or calls the system, but for open,
 * close and the registrations. The rank's own thread writes; one thread at a time.
 */
#ifndef EPX_RECORD_RECORDER_H
#define EPX_RECORD_RECORDER_H

#include "record/recorder_types.h"

epx_status_t epx_recorder_open(const epx_recorder_set_up_t *set_up, epx_recorder_h *recorder_p);
void epx_recorder_close(epx_recorder_h *recorder_p);

/* The record's bytes, for readers in this process (a recorder in memory has no file). */
const void *epx_recorder_bytes(epx_recorder_h recorder, size_t *bytes_p);

/* The rank's domain, learned late; the first one counts. */
void epx_recorder_domain(epx_recorder_h recorder, int32_t domain);

/* The budgets of the last group that opened. */
void epx_recorder_budgets(epx_recorder_h recorder, int64_t hang_ms, int64_t timeout_ms);

/* The rank in the job; 0 for NULL. */
int32_t epx_recorder_rank(epx_recorder_h recorder);

/* ---- a device that writes ---- */

/* The pages of the file that a device may write to, for mapping; NULL: none (memory of this process alone).
 */
void *epx_recorder_device_pages(epx_recorder_h recorder, size_t *bytes_p);

/* The pages are mapped. */
void epx_recorder_attach(epx_recorder_h recorder, const epx_recorder_device_t *device);
int epx_recorder_is_attached(epx_recorder_h recorder);

/* A lane of a group that runs there: the device address of its words, NULL where there is none. Ends with the
 * group. */
epx_progress_words_t *epx_recorder_lane(epx_recorder_h recorder, int32_t group_id, int32_t lane,
                                        int32_t resident);
/* The device will tell of the current operation: EPX_RECORD_ASKED_*. step: what step_sent will be, or 0. */
void epx_recorder_asked(epx_recorder_h recorder, uint32_t what, uint64_t step);
/* The next step of the current operation's lane that will be sent. */
uint64_t epx_recorder_next_step(epx_recorder_h recorder);
/* From here on host and device may count a lane's passes differently. */
void epx_recorder_drifts(epx_recorder_h recorder, int32_t group_id, int32_t lane);

/* ---- ranks on other hosts ---- */

/* As long as the recorder is open. */
void epx_recorder_notes(epx_recorder_h recorder, const epx_recorder_notes_t *notes);

/* What runs when waits are ended: up to 64 at a time; 0: no room (the watchdog cannot end that one). Any
 * thread. */
int32_t epx_recorder_on_end(epx_recorder_h recorder, epx_recorder_end_fn fn, void *context, int32_t is_comm);
/* After it has returned the function is not running and will not be called. */
void epx_recorder_forget(epx_recorder_h recorder, int32_t handle);

/* ---- operations of epx's own groups and comms ---- */

/* As epx_record_group, with what only the library knows. Returns the id, 0: none. */
int32_t epx_recorder_group_begin(epx_recorder_h recorder, const epx_recorder_group_t *group);

/*
 * The call is made: a new operation becomes the current one. begin: its work starts; enter: at once. posted:
 * peers have got all that they need. end: it is over; the current one is none. resume: a later call of the
 * same operation (its finish) goes on with it; leave: right behind posted, that call returns while the
 * operation is still open.
 */
uint64_t epx_recorder_enqueue(epx_recorder_h recorder, const epx_recorder_call_t *call);
uint64_t epx_recorder_enter(epx_recorder_h recorder, const epx_recorder_call_t *call);
void epx_recorder_begin(epx_recorder_h recorder, uint64_t op);
void epx_recorder_posted(epx_recorder_h recorder, uint64_t op);
void epx_recorder_resume(epx_recorder_h recorder, uint64_t op);
void epx_recorder_leave(epx_recorder_h recorder);
void epx_recorder_end(epx_recorder_h recorder, uint64_t op, epx_status_t status);

/* ---- of the current operation, from below ---- */

/* My word was set at a peer (EPX_RECORD_EVERYBODY: all) to this epoch. */
void epx_recorder_sent(epx_recorder_h recorder, int32_t peer, uint64_t epoch);

/* A wait begins. Returns where the fabric is to write its result as it goes (40 bytes, as epx_wait_result_t),
 * so that a reader sees whom it waits for; `own` where nothing is recorded. mode as epx_wait_mode_t; 2: an
 * exchange. */
void *epx_recorder_wait_begin(epx_recorder_h recorder, int32_t channel, int32_t peer, uint64_t epoch,
                              int32_t mode, void *own);
/* It has ended; ok: what was waited for is here. */
void epx_recorder_wait_end(epx_recorder_h recorder, int32_t channel, int ok);

/* For how many more ms a wait that has lasted waited_ns and should give up now (timeout_ms) should go on,
 * since a rank of the job has announced a pause that is not over, or this one is still warming up with the
 * default time-out; 0: no. Takes a lock and looks at files. */
int64_t epx_recorder_patience(epx_recorder_h recorder, int64_t timeout_ms, int64_t waited_ns);

/* An error that ends a plan or a group: kept with its text. */
void epx_recorder_error(epx_recorder_h recorder, epx_status_t status, const char *text);

void epx_recorder_step(epx_recorder_h recorder);

#endif
