/*
 * Dense bf16 rates of GPUs, as their makers publish them. SPDX-License-Identifier: Apache-2.0
 */
#ifndef EPX_TOOLS_PEAKS_H
#define EPX_TOOLS_PEAKS_H

#include <stdint.h>

typedef struct epx_peak {
    const char *name; /* a part of the device's own name: "H200" is in "NVIDIA H200" */
    double flops;     /* per second, of one GPU, bf16 without sparsity */
} epx_peak_t;

/* Row `index`, NULL behind the last. */
const epx_peak_t *epx_peak_at(int32_t index);

/* The row whose name is part of `device`; NULL when none is. */
const epx_peak_t *epx_peak_of(const char *device);

#endif
