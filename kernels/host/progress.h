/* Progress words, as kernels on a device write them. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_KERNELS_HOST_PROGRESS_H
#define EPX_KERNELS_HOST_PROGRESS_H

#include <epx/kernels.h>

/* The second word of a pair: now, and the name. */
uint64_t epx_host_progress_time(uint32_t name);

/* A pair; a reader that finds the new value finds its time too. */
void epx_host_progress(uint64_t *pair, uint64_t value, uint32_t name);

/* What a call's first kernel says; nothing where it is not asked to. */
void epx_host_begun(const epx_k_begun_t *begun);

#endif
