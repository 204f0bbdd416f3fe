/* The set-up kernels of this build. SPDX-License-Identifier: Apache-2.0 */
#include "fabric/nccl/setup.h"

extern const nccl_setup_t epx_nccl_setup_own;

const nccl_setup_t *const epx_nccl_setups[] = {&epx_nccl_setup_own};
const int epx_nccl_setup_count = 1;
