/* AdamW. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <tgmath.h>

#include "../math.h"

__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"))) void
epx_math_adamw(const epx_adamw_t *step, int64_t count, const epx_real_t *restrict gradient,
               epx_real_t *restrict parameter, epx_real_t *restrict mean, epx_real_t *restrict square)
{
    const epx_adamw_t by = *step; /* a copy that no store into the arrays can change */
    for (int64_t i = 0; i < count; i++) {
        epx_real_t slope = gradient[i] * by.scale;
        epx_real_t first = mean[i] + (1 - by.beta1) * (slope - mean[i]);
        epx_real_t second = square[i] + (1 - by.beta2) * (slope * slope - square[i]);
        epx_real_t move = first * by.correction1 / (sqrt(second * by.correction2) + by.epsilon);
        parameter[i] -= by.rate * (move + by.decay * parameter[i]);
        mean[i] = first;
        square[i] = second;
    }
}
