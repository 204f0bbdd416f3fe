/* The GPU's kernels in one table. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/table.h"

const epx_kernels_t epx_kernels_cuda = {
    .read_ids = NULL,
};
