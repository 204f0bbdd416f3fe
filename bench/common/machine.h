/*
 * A machine as the cost model sees it: a few constants, each with the place it comes from, in a JSON file.
 * SPDX-License-Identifier: Apache-2.0
 *
 *     {"format": "epx-machine 1", "name": "...", "summary": "...",
 *      "constants": {"link_bytes_per_s": {"value": 9e11, "unit": "B/s", "source": "..."}, ...}}
 *
 * Every constant of the table must be there, in the table's unit, with a source.
 */
#ifndef EPX_BENCH_MACHINE_H
#define EPX_BENCH_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#define EPX_MACHINE_FORMAT "epx-machine 1"

typedef enum epx_constant {
    EPX_PEAK_FLOPS = 0, /* of one rank: what MFU is a share of */
    EPX_GEMM_FLOPS,
    EPX_ATTENTION_FLOPS,
    EPX_MEMORY_BYTES, /* per second */
    EPX_LINK_BYTES,
    EPX_LINK_SHARE,
    EPX_OPERATION_S,
    EPX_PEER_S,
    EPX_BARRIER_S,
    EPX_OVERLAP,
    EPX_CONSTANTS
} epx_constant_t;

typedef struct epx_constant_row {
    const char *name, *unit, *meaning;
    double lo, hi; /* a value outside is no measurement */
} epx_constant_row_t;

/* The table of constants. */
const epx_constant_row_t *epx_constant_row(epx_constant_t constant);

typedef struct epx_machine {
    char name[64], summary[512];
    double value[EPX_CONSTANTS];
    char source[EPX_CONSTANTS][512];
} epx_machine_t;

/*
 * Reads the file `name`; or, where there is no such file and the name has no slash, NAME.json among the
 * machines that ship with epx (bench/machines of the source, share/epx/machines of an installation). Returns
 * 0, or -1 with "what is wrong: what to do".
 */
int epx_machine_read(const char *name, epx_machine_t *machine_p, char *problem, size_t problem_bytes);

/* Writes the file, whole or not at all. 0, or -1 with the problem. */
int epx_machine_write(const char *path, const epx_machine_t *machine, char *problem, size_t problem_bytes);

/* "name=value": another value for one constant, with "given" as its source. 0, or -1 with the problem. */
int epx_machine_set(epx_machine_t *machine, const char *text, char *problem, size_t problem_bytes);

#endif
