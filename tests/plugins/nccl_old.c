/* The stand-in for NCCL as it was before it gave peers' addresses to the host. SPDX-License-Identifier:
 * Apache-2.0 */
#define ncclGetPeerDevicePointer fake_hidden
#include "nccl.c"
