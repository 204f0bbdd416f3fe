/* The number type of the training loop's tensors.
 *
 * Training runs in float. One test compiles the model a second time with EPX_TRAIN_DOUBLE, so that its
 * hand-written gradients can be compared with finite differences, which float is too coarse for.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TRAIN_REAL_H
#define EPX_TRAIN_REAL_H

#include <stdint.h>

#ifdef EPX_TRAIN_DOUBLE
typedef double epx_real_t;
#else
typedef float epx_real_t;
#endif

#endif
