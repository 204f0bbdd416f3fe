/* From runs to what is claimed. Pure functions of the runs. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_VERDICT_H
#define EPX_AB_VERDICT_H

#include "bench/ab/result.h"

#define EPX_AB_CONFIDENCE 0.90
#define EPX_AB_LOSS_MARGIN 0.005    /* nats */
#define EPX_AB_MEMORY_MARGIN 0.01   /* of the larger one */
#define EPX_AB_TIME_MARGIN 0.01     /* of the step's time */
#define EPX_AB_BYSTANDER_LIMIT 0.01 /* of a bystander's time in the first arm */

/* Fills the arms' summaries and the list of verdicts, one for each pair of arms and quantity. After the
 * guards. */
void epx_ab_give_verdicts(epx_ab_result_t *result);

#endif
