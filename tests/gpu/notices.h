/* What all ranks say and want, for the layouts that decide by it. SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_NOTICES_H
#define TESTS_GPU_NOTICES_H

#include "gpu/shapes.h"

typedef struct noticed {
    int64_t stride, tokens; /* T of this rank */
    twin_t notices;         /* [S] notices with their counts */
    twin_t expert, ordinal; /* [T_max, K] of this rank */
    int dead;               /* some notice is bad */
} noticed_t;

/* Routes of all ranks, read by the host's kernel. */
noticed_t noticed_make(const shaped_t *shaped, dice_t *dice);

/* A head and a report for the verdict; the report is memory that both sides see. */
typedef struct verdict_twin {
    twin_t head, report;
} verdict_twin_t;
verdict_twin_t verdict_make(void);
epx_k_verdict_t verdict_on(const verdict_twin_t *verdict, int device);
void verdict_same(const verdict_twin_t *verdict);

#endif
