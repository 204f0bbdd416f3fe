/*
 * Which wire: the choice of EPX_WIRE=auto. SPDX-License-Identifier: Apache-2.0
 *
 * Predicted time of one token's way to the experts and back, counted in rows that pass through this rank's
 * memory:
 *
 *   assignment = 2 K L              every row crosses the link twice
 *   rank       = 2 D L + 3 K + D    D rows cross; expansion reads and writes K, partial sums read K, write D
 *
 * L is what a row on the link costs against a row through memory: 1 between threads of one process (the link
 * is the memory), 8 where peers' memory can be loaded and stored (NVLink against HBM), 64 on networks;
 * weighted by the share of rows that leave the rank. D is the expected number of different (rank, wave) pairs
 * of K choices with an even router. At 64 ranks and K = 8 the rank wire saves 5% of the rows, which pays for
 * its expansion on no link.
 */
#include <math.h>

#include "ragged/internal.h"

static double link_cost(const epx_shape_t *shape, uint32_t fabric_caps)
{
    double leaves = (double)(shape->ranks - 1) / shape->ranks;
    if (fabric_caps & EPX_FABRIC_SHARED_ADDRESS)
        return 1;
    return 1 - leaves + leaves * (fabric_caps & EPX_FABRIC_LOADSTORE ? 8 : 64);
}

epx_ragged_times_t epx_ragged_predict(const epx_shape_t *shape, uint32_t fabric_caps)
{
    double pairs = (double)shape->ranks * epx_ragged_chunks(shape), k = shape->top_k;
    epx_ragged_times_t times = {.link_cost = link_cost(shape, fabric_caps)};
    times.wire_rows = pairs * (1 - pow(1 - 1 / pairs, k));
    times.assignment = 2 * k * times.link_cost;
    times.rank = 2 * times.wire_rows * times.link_cost + 3 * k + times.wire_rows;
    return times;
}

epx_wire_t epx_ragged_wire(const epx_shape_t *shape, uint32_t fabric_caps)
{
    if (shape->wire == EPX_WIRE_ASSIGNMENT || shape->wire == EPX_WIRE_RANK)
        return shape->wire;
    if (shape->batch == EPX_BATCH_INDEXED) /* exists on one wire alone */
        return EPX_WIRE_RANK;
    epx_ragged_times_t times = epx_ragged_predict(shape, fabric_caps);
    return times.rank < times.assignment ? EPX_WIRE_RANK : EPX_WIRE_ASSIGNMENT;
}
