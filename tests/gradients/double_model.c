/* The model once more, in double precision. SPDX-License-Identifier: Apache-2.0 */
#define EPX_TRAIN_DOUBLE

#include "train/arena.c"
#include "train/attention_layer.c"
#include "train/exchange_dense.c"
#include "train/model.c"
#include "train/params.c"
