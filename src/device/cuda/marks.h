/* Ranges in profilers' time lines. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_DEVICE_CUDA_MARKS_H
#define EPX_DEVICE_CUDA_MARKS_H

#include <stdint.h>

/* As mark_begin and mark_end of epx/device.h. Without NVTX's headers they do nothing. */
void epx_cuda_mark_begin(const char *what, int64_t number);
void epx_cuda_mark_end(void);

#endif
