/* The comparison of arms in this process. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_SESSION_H
#define EPX_AB_SESSION_H

#include "bench/ab/result.h"
#include "bench/ab/settings.h"

/*
 * Makes all runs and fills the result, up to guards and verdicts. Where a launcher started several processes
 * each calls it, and *is_first_p is 1 in the one that has the result. EPX_EXIT_OK, or a code after a message.
 * settings->train is finished here (length of the schedule).
 */
int epx_ab_run_session(epx_ab_settings_t *settings, epx_ab_result_t *result, int *is_first_p);

#endif
