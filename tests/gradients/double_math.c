/* The training loop's mathematics once more, in double precision. The library that this runner links with
 * holds the same functions in float; a linker takes a library's file only for names that are still missing,
 * so none of those comes in. SPDX-License-Identifier: Apache-2.0 */
#define EPX_TRAIN_DOUBLE

#include "train/host/attention.c"
#include "train/host/gemm_noopenblas.c"
#include "train/host/gemm_plain.c"
#include "train/host/gemm_x86.c"
#include "train/host/layers.c"
#include "train/host/router.c"
