/*
 * Set-up kernels: reading the peers' addresses out of a window. SPDX-License-Identifier: Apache-2.0
 *
 * NCCL keeps them in structs of its device API whose layout changes from version to version, and before 2.30
 * it hands them to kernels only. So one small object is compiled against the headers of each minor version
 * that the build has, and is used with a loaded library of that minor version alone.
 */
#ifndef EPX_FABRIC_NCCL_SETUP_H
#define EPX_FABRIC_NCCL_SETUP_H

#include "fabric/nccl/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nccl_setup {
    int version; /* of the headers that it was compiled with */
    /* Writes into table [ranks] (device) the address of every rank's part of the window that loads and stores
     * reach, NULL for the others, and waits for it. Collective. 0, or an error of NCCL or CUDA with its text.
     */
    int (*read_pointers)(const nccl_api_t *api, nccl_comm_t comm, nccl_window_t window, int ranks,
                         void **table, const char **what_p);
} nccl_setup_t;

extern const nccl_setup_t *const epx_nccl_setups[];
extern const int epx_nccl_setup_count;

/* The one for a loaded version, or NULL. */
const nccl_setup_t *epx_nccl_setup_for(int version);

#ifdef __cplusplus
}
#endif
#endif
