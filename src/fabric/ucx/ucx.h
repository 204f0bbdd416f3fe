/* Fabric `ucx`: ranks are processes, on one host or many. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_FABRIC_UCX_UCX_H
#define EPX_FABRIC_UCX_UCX_H

#include <epx/fabric.h>

extern const epx_fabric_ops_t epx_fabric_ucx;

#endif
