/*
 * Kernels are loaded before they are launched. SPDX-License-Identifier: Apache-2.0
 *
 * The driver loads a kernel at its first launch, and may wait for all that the GPU executes before it does. A
 * kernel that waits for a word of another rank may be among that: then a call that is to return at once comes
 * back when the wait ends, and a rank whose peer has died stands in it until its time is over.
 */
#ifndef EPX_KERNELS_CUDA_LOAD_H
#define EPX_KERNELS_CUDA_LOAD_H

#ifdef __cplusplus
extern "C" {
#endif

/* A file of kernels, by one of them. Static; known from the start of the program on (launch.cuh). */
typedef struct epx_cuda_file {
    const void *kernel;
    struct epx_cuda_file *next;
} epx_cuda_file_t;

void epx_cuda_file_add(epx_cuda_file_t *file);

/* Loads every kernel of every file for the current device, once. How many there are; 0: this driver or this
 * build is of before CUDA 12.5 and cannot, so each is loaded when it is launched. Any thread. */
int epx_cuda_load(void);

#ifdef __cplusplus
}
#endif
#endif
