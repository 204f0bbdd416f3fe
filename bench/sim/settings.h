/* What epx-sim is asked to do. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_SIM_SETTINGS_H
#define EPX_SIM_SETTINGS_H

#include "bench/common/machine.h"
#include "bench/sim/cost.h"
#include "bench/sim/routing.h"

enum { EPX_SIM_CASES = 9, EPX_SIM_SWEEPS = 2, EPX_SIM_STEPS = 256, EPX_SIM_SETS = 16 };

/* One dimension of a sweep. */
typedef struct epx_sim_sweep {
    char name[32];
    int32_t count;
    double value[EPX_SIM_STEPS];
} epx_sim_sweep_t;

/* A transport with its rules. */
typedef struct epx_sim_case {
    const char *transport; /* "pooled_wave", "ragged", "ring" */
    const char *accept;    /* "prefix", "waterfill", "fair"; NULL: it has none */
    const char *overflow;  /* "drop", "spill", "extra_wave"; NULL: it has none */
    epx_group_config_t config;
    epx_drops_case_t rules; /* as resolved: options, environment, defaults */
} epx_sim_case_t;

/* Integers that may have been given (0: not), or else come from a preset or a file. */
typedef struct epx_sim_given {
    int64_t ranks, experts, top_k, tokens, width, model_width, expert_width, layers, sequence;
    int64_t context_parallel;
    int32_t row_type;
} epx_sim_given_t;

typedef struct epx_sim_settings {
    epx_sim_shape_t shape;
    epx_sim_given_t given;
    epx_sim_routing_t routing;
    epx_routing_file_t file; /* of a recorded routing */
    int64_t seed, seeds, spill_choices, threads;

    int32_t transport[3], transport_count; /* indices of epx_sim_transports */
    int32_t transports_given;              /* 1: by the option */
    int32_t accept[3], accept_count;       /* indices of epx_sim_accepts; count 0: as the library says */
    const char *capacity_text;
    double capacity_factor, sender_factor; /* 0: as the library says */
    int64_t waves;
    int32_t overflow, wire; /* values of the enums, 0: as the library says */

    const char *machine_name;
    const char *set[EPX_SIM_SETS];
    int32_t set_count;
    epx_machine_t machine;
    int64_t depth;
    int32_t recompute;

    int32_t json, published, counts;
    const char *html, *dump, *record;
    epx_sim_sweep_t sweep[EPX_SIM_SWEEPS];
    int32_t sweep_count;
    double answer; /* share of drops; 0: not asked */

    epx_sim_case_t cases[EPX_SIM_CASES];
    int32_t case_count;
} epx_sim_settings_t;

extern const char *const epx_sim_transports[];
extern const char *const epx_sim_accepts[];

/* Reads the command line, a recorded routing and the machine; EPX_GO_ON, or the code to exit with. */
int epx_sim_settings_read(epx_sim_settings_t *settings, int argc, char **argv);
void epx_sim_settings_free(epx_sim_settings_t *settings);

/* Makes cases from the options, the environment and the library's defaults. EPX_GO_ON or an exit code. */
int epx_sim_cases_make(epx_sim_settings_t *settings);

/* What else than the rules changes with a parameter of a sweep. */
typedef enum epx_sim_change { EPX_SIM_RULES, EPX_SIM_ROUTING, EPX_SIM_NOTHING } epx_sim_change_t;

/* Sets a parameter of a sweep by name: capacity_factor, sender_factor, capacity (both), waves, ranks, tokens,
 * sequence, alpha, sigma, depth, or a constant of the machine. 0, or -1 with the problem. */
int epx_sim_settings_set(epx_sim_settings_t *settings, const char *name, double value, char *problem,
                         size_t problem_bytes);
/* EPX_SIM_NOTHING: there is no such parameter. */
epx_sim_change_t epx_sim_settings_change(const char *name);

/* Options --sweep and --answer. target: the settings. */
int epx_sim_add_sweep(void *target, const char *value, char *problem, size_t problem_bytes);
int epx_sim_set_answer(void *target, const char *value, char *problem, size_t problem_bytes);

/* Choices per token that the cases need. */
int32_t epx_sim_columns(const epx_sim_settings_t *settings);

#endif
