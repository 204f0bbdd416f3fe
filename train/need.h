/* What a run needs and whether it is there. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_NEED_H
#define EPX_TRAIN_NEED_H

#include "config.h"

/* Refuses a run whose models cannot be held here before anything is taken. launched: processes that a
 * launcher started; 1: all ranks are of this one. EPX_TRAIN_USAGE for a number of ranks that cannot be,
 * EPX_TRAIN_FAILED with both sizes where memory is short. */
int epx_need_check(const epx_train_config_t *config, int64_t launched);

#endif
