/* The mixture-of-experts layer once more, in double precision. SPDX-License-Identifier: Apache-2.0 */
#define EPX_TRAIN_DOUBLE

#include "train/moe_layer.c"
