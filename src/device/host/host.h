/* Device `host`: rows live in plain memory, kernels are plain C. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_DEVICE_HOST_HOST_H
#define EPX_DEVICE_HOST_HOST_H

#include <epx/device.h>

extern const epx_device_ops_t epx_device_host;

#endif
