/* Faults by rack and by job. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_TOOLS_HEALTH_LEDGER_H
#define EPX_TOOLS_HEALTH_LEDGER_H

#include <stdint.h>

typedef struct health_run {
    char job[64], rack[64];
    int32_t fault;
} health_run_t;

typedef enum health_blame { HEALTH_NOBODY = 0, HEALTH_RACK, HEALTH_JOB, HEALTH_UNCLEAR } health_blame_t;

/*
 * Whose are the faults of these runs? RACK: one rack had faults with two jobs or more, and those jobs fail
 * less than half as often elsewhere (where they must have run). JOB: one job had faults on two racks or more,
 * and those racks fail less than half as often with other jobs. UNCLEAR: neither, or both. who_p is the name,
 * valid as long as runs is.
 */
health_blame_t health_blame(const health_run_t *runs, int32_t count, const char **who_p);

#endif
