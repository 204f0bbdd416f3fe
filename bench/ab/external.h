/* Arms that are other programs' jobs, run here or run before. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_EXTERNAL_H
#define EPX_AB_EXTERNAL_H

#include "bench/ab/result.h"
#include "bench/ab/settings.h"

/* Runs the commands of --arm by the schedule. EPX_EXIT_OK, or a code after a message. */
int epx_ab_run_commands(const epx_ab_settings_t *settings, epx_ab_result_t *result);

/* Reads the folders of --compare. Runs are paired in name order; neighbouring runs of a folder are its A/A
 * pairs. */
int epx_ab_read_folders(const epx_ab_settings_t *settings, epx_ab_result_t *result);

#endif
