/* What the watchdog does with a verdict. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_ACT_H
#define EPX_RECORD_ACT_H

#include "record/view.h"

/* A rank of the job begins: what an earlier run of the same name has left does not count. */
void epx_act_begin(const char *folder, const char *job);

/* Prints the report, writes verdict.json, starts the command: once for the job and folder, by who comes
 * first. A folder that is gone is made again; where nothing can be written (*mute_p = 1: nobody is told so by
 * files, and it is called once) the first process of the job does the rest. Returns the command's process, 0:
 * there is none to wait for. */
int32_t epx_act_report(const epx_job_view_t *view, const epx_verdict_t *verdict, const char *command,
                       int prints, int is_first, int32_t *mute_p);
/* 1: it has ended, or has had its time (begun_ns: when it was started). */
int epx_act_has_ended(int32_t command, int64_t begun_ns, int64_t now_ns);
/* Others may act from here on. */
void epx_act_done(const epx_job_view_t *view);
/* What has been told of a job, by any process; 0: nothing. */
int epx_act_told(const char *folder, const char *job, epx_verdict_t *verdict_p);
/* Whether that has been done: the command of this verdict, or of an earlier one of the same hang. */
int epx_act_is_done(const epx_job_view_t *view, const epx_verdict_t *verdict);
/* The job goes on: the next verdict is a new one, and one that was found before is told no more. */
void epx_act_forget(const epx_job_view_t *view);

/* Whether the rank leaves: its waits are ended, and the group is not to be recovered in place. */
int epx_act_ends_all(epx_recorder_h recorder, const epx_verdict_t *verdict);
/* Ends the waits of one rank as its on_hang says. */
void epx_act_end(epx_recorder_h recorder, const epx_verdict_t *verdict);

#endif
