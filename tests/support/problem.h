/*
 * What a test gives to a group: a configuration and one step's inputs of all ranks. SPDX-License-Identifier:
 * Apache-2.0
 *
 * An arm is a way of carrying rows: a transport with the settings that change who is kept or how sums are
 * built. Tests are parametrised by arms x fabric x device; adding a fabric or a device is adding a row to the
 * tables of problem.c.
 */
#ifndef TESTS_PROBLEM_H
#define TESTS_PROBLEM_H

#include <stddef.h>
#include <stdint.h>

#include <criterion/parameterized.h>
#include <epx/epx.h>

#include "support/number.h"

typedef enum kind { POOLED_WAVE, RAGGED, RING } kind_t;

typedef struct arm {
    const char *name;
    const char *transport, *fabric, *device;
    kind_t kind;
    int waves; /* W or C */
    epx_overflow_t overflow;
    epx_accept_t accept;
    epx_wire_t wire;
    epx_batch_form_t batch;
    int spill;    /* X */
    int dropless; /* capacity_factor = EPX_DROPLESS */
} arm_t;

/* Every arm that this build can run, one of each transport first: arms_basic of them are the plain ones. */
extern const arm_t arms[];
extern const int arms_count, arms_basic;
/* The arm of that name; ends the test when there is none. */
const arm_t *arm_named(const char *name);

/* Parameters for Criterion: indices of arms[]. TEST_ARM in the environment picks those whose name begins so.
 */
struct criterion_test_params every_arm(void);
struct criterion_test_params basic_arms(void);

/* How a router chooses. */
typedef enum pattern {
    UNIFORM,       /* any expert; equal ids in a token happen */
    DISTINCT,      /* as a top-k gives them: K different experts */
    SKEWED,        /* experts of low number far more often */
    HOLES,         /* uniform, two thirds of the ids are -1 */
    ONE_EXPERT,    /* all to the last expert */
    ONE_RANK,      /* all to experts of rank 0 */
    OWN_RANK,      /* all to experts of the sending rank, where it has any */
    NEXT_RANK,     /* all to experts of the next rank that has any */
    SAME_IN_TOKEN, /* one expert K times */
    NOTHING,       /* -1 only */
    PATTERNS
} pattern_t;

const char *pattern_name(pattern_t pattern);

/* Values of x, y and weights: small whole numbers (every sum is exact), or any. */
typedef enum values { WHOLE, REAL } values_t;

typedef struct problem {
    arm_t arm;
    int ranks, experts, top_k, width, tokens_max;
    int columns; /* K + X */
    int splits;  /* virtual ranks of each rank; 1 */
    epx_type_t row_type, out_type, id_type;
    int aux_bytes, row_align, lanes, depth, origin, in_caller;
    size_t aligned; /* buffers of rows are aligned to this and to nothing more; 0: to their type */
    double cf, cs;
    epx_backward_t backward;
    epx_check_t check;
    int own_table;  /* owner[] is given to the group */
    int32_t *owner; /* [E] who owns what */
    values_t values;
    uint64_t seed; /* of the inputs */
    int64_t timeout_ms;
    int32_t sm_budget;
    /* one step, [ranks] each */
    int64_t *tokens;
    int64_t **ids;                    /* [T_max, columns] */
    float **weights;                  /* [T_max, columns] */
    unsigned char **x, **dout, **aux; /* [T_max, H] row type, [T_max, aux_bytes] */
} problem_t;

/* A problem of this shape, T = 0 everywhere, contiguous owners, fp32, lanes and depth 2; change fields before
 * problem_inputs. K is cut to E. */
problem_t *problem_new(const arm_t *arm, int ranks, int experts, int top_k, int width, int tokens_max);
/* The same shape again, for another step; its inputs are to be drawn. */
problem_t *problem_again(const problem_t *problem);
void problem_free(problem_t *problem);

/* Scatters the owners at random: a rank may own none. */
void problem_scatter_owners(problem_t *problem, uint64_t seed);

/* Fills one step: T of each rank (tokens [ranks], NULL: random 0..T_max), ids by pattern, weights, x, dout,
 * aux. */
void problem_inputs(problem_t *problem, pattern_t pattern, const int *tokens, uint64_t seed);

/* The configuration for epx_group_open of this problem. */
epx_group_config_t problem_config(const problem_t *problem);

/* The caller's expert: y = expert(row), element by element, rounded to the row type; the gradient of it
 * likewise. */
void problem_expert(const problem_t *problem, int expert, const void *row, void *y);
void problem_expert_backward(const problem_t *problem, int expert, const void *dy, void *dx);

size_t problem_row_bytes(const problem_t *problem);
/* What a buffer of rows of that type is aligned to. */
size_t problem_alignment(const problem_t *problem, epx_type_t type);
/* One line: arm, shape, seed. A static buffer per thread is not kept: the caller gives the text. */
const char *problem_text(const problem_t *problem, char *text, size_t bytes);

#endif
