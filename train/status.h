/* From the library's statuses to this program's codes. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_STATUS_H
#define EPX_TRAIN_STATUS_H

#include <epx/comm.h>

/* EPX_TRAIN_OK, or EPX_TRAIN_FAILED with the library's sentence. What another rank has caused is marked as a
 * consequence (fail.h). */
int epx_train_status(epx_status_t status);

/* The same, and EPX_TRAIN_USAGE for EPX_ERR_ARG, of calls that read settings: those that the library refuses
 * are the user's, of the command line or the environment. */
int epx_train_setting_status(epx_status_t status);

/* 1: a status of this thread has said that going on would be wrong (CORRUPT, MISMATCH). */
int epx_train_must_stop(void);

/* 1: the last status of this thread says that a peer is gone, or a way to it. */
int epx_train_lost_peer(void);

/* The worst code of all ranks, so that all go on or none does. A rank that was well itself fails as a
 * consequence. Collective. */
int epx_train_agree(epx_comm_h world, int code);

#endif
