/* The kernels of the guarded device. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GUARDED_KERNELS_H
#define TESTS_GUARDED_KERNELS_H

#include <epx/device.h>

extern const epx_kernels_t guarded_kernels;

#endif
