/* What a quantity is made of. SPDX-License-Identifier: Apache-2.0 */
#include "bench/ab/measure.h"

epx_ab_measure_t epx_ab_measure_of(epx_ab_quantity_t quantity)
{
    switch (quantity) {
    case EPX_AB_MFU: return (epx_ab_measure_t){EPX_AB_RUN_MFU, 100, "points", 2, EPX_AB_PLAIN};
    case EPX_AB_LOSS: return (epx_ab_measure_t){EPX_AB_RUN_LOSS, 1, "nats", 4, EPX_AB_PLAIN};
    case EPX_AB_EXPOSED: return (epx_ab_measure_t){EPX_AB_RUN_EXPOSED, 1, "ms per step", 2, EPX_AB_PLAIN};
    case EPX_AB_STEP_TIME: return (epx_ab_measure_t){EPX_AB_RUN_STEP, 1, "ms per step", 2, EPX_AB_PLAIN};
    case EPX_AB_SPEED_EQUAL_DROPS:
        return (epx_ab_measure_t){EPX_AB_RUN_MFU, 100, "points", 2, EPX_AB_EQUAL_DROPS};
    case EPX_AB_SPEED_EQUAL_MEMORY:
        return (epx_ab_measure_t){EPX_AB_RUN_MFU, 100, "points", 2, EPX_AB_EQUAL_MEMORY};
    default: return (epx_ab_measure_t){EPX_AB_RUN_MFU_EXECUTED, 100, "points", 2, EPX_AB_PLAIN};
    }
}
