/* How fast this machine multiplies matrices: what MFU is a share of on the host. SPDX-License-Identifier:
 * Apache-2.0 */
#ifndef EPX_TRAIN_PEAK_H
#define EPX_TRAIN_PEAK_H

#include <epx/comm.h>

/* Floating-point operations per second of products of 384 x 384 matrices, all ranks at once, summed over
 * ranks: the best of several short windows. Takes about a third of a second. Collective. */
int epx_peak_measure(epx_comm_h world, double *flops_p);

#endif
