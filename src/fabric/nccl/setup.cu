/*
 * The set-up kernel, compiled against the NCCL headers of this build; see setup.h. The only code that sees
 * NCCL's device structs. SPDX-License-Identifier: Apache-2.0
 */
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include "fabric/nccl/setup.h"

namespace
{

/* One thread for each rank; `first`: this process's rank of the first in the team. */
__global__ void read_window(ncclWindow_t window, int ranks, int first, int members, void **table)
{
    int r = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (r >= ranks)
        return;
    int member = r - first;
    table[r] = member >= 0 && member < members ? ncclGetLsaPointer(window, 0, member) : nullptr;
}

typedef ncclResult_t (*create_fn)(ncclComm_t, ncclDevCommRequirements_t const *, ncclDevComm_t *);
typedef ncclResult_t (*destroy_fn)(ncclComm_t, ncclDevComm_t const *);

/* What another patch of the same minor version writes may be longer. */
union dev_comm {
    ncclDevComm known;
    char room[8192];
};

/* Nothing is asked for: no barriers, no multimem, no network contexts. */
inline ncclDevCommRequirements_t no_requirements()
{
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
    ncclDevCommRequirements_t none = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
#else
    ncclDevCommRequirements_t none = {};
#endif
    return none;
}

int read_pointers(const nccl_api_t *api, nccl_comm_t comm, nccl_window_t window, int ranks, void **table,
                  const char **what_p)
{
    /* As with the answer, what is read may be longer than these headers know: zeros ask for nothing. */
    union {
        ncclDevCommRequirements_t known;
        char room[1024];
    } wanted;
    for (size_t i = 0; i < sizeof(wanted.room); i++)
        wanted.room[i] = 0;
    wanted.known = no_requirements();
    dev_comm device;
    ncclComm_t theirs = (ncclComm_t)comm;
    ncclResult_t result = ((create_fn)api->dev_comm_create)(theirs, &wanted.known, &device.known);
    if (result != ncclSuccess) {
        *what_p = "ncclDevCommCreate";
        return (int)result;
    }
    int first = device.known.rank - device.known.lsaRank, members = device.known.lsaSize;
    read_window<<<(ranks + 127) / 128, 128>>>((ncclWindow_t)window, ranks, first, members, table);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    ((destroy_fn)api->dev_comm_destroy)(theirs, &device.known);
    *what_p = "the set-up kernel";
    return error == cudaSuccess ? 0 : 1;
}

} // namespace

/* One for each version that the build has headers of (mk/nccl.sh). */
#ifndef EPX_NCCL_SETUP
#define EPX_NCCL_SETUP epx_nccl_setup_own
#endif
extern "C" const nccl_setup_t EPX_NCCL_SETUP = {NCCL_VERSION_CODE, read_pointers};
