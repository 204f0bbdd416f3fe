/* Groups by number, ranks by device, plans at work by lane. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_JAX_TABLE_H
#define EPX_JAX_TABLE_H

#include <epx/epx.h>

/* The plan at work on one lane of one rank. Used by one thread at a time. */
typedef struct epx_jax_lane {
    epx_plan_h plan;
    int64_t number; /* of the route in it, written behind the bytes that a route hands out (host only) */
} epx_jax_lane_t;

/* One rank. Owned by the table, valid until its number is removed. */
typedef struct epx_jax_rank {
    int32_t ordinal, on_host, local_experts, columns, width, waves;
    int64_t plan_bytes, rows, routes;
    epx_group_h group;
    int32_t lanes;
    epx_jax_lane_t *lane; /* [lanes] */
} epx_jax_rank_t;

/* The rank of a number on a device; NULL: no such number or device. */
epx_jax_rank_t *epx_jax_table_find(int64_t number, int32_t ordinal);

#endif
