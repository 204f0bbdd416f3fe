/*
 * What a comparison knows: arms, their runs, the guards' findings, the verdicts, the scope. Filled by
 * session/ (arms of this process), external.c and compare.c (runs of other jobs), judged by guards.c and
 * verdict.c, shown by report_*.c. Plain data. SPDX-License-Identifier: Apache-2.0
 *
 * A number that is not known is NaN, an integer that is not known is -1.
 */
#ifndef EPX_AB_RESULT_H
#define EPX_AB_RESULT_H

#include <stdint.h>

#include <epx/epx.h>

#include "bench/ab/statistics.h"

enum { EPX_AB_ARMS = 8, EPX_AB_NAME = 64, EPX_AB_TEXT = 400, EPX_AB_WAVES = 8, EPX_AB_PATH = 512 };

/* ---- runs --------------------------------------------------------------------------------------------------------- */

/* Why a run was made. */
typedef enum epx_ab_part {
    EPX_AB_PLAIN,        /* the arm as it is, one of a pair */
    EPX_AB_AGAIN,        /* the same once more: with the plain run of its round an A/A pair */
    EPX_AB_TWIN,         /* the arm without drops */
    EPX_AB_EQUAL_DROPS,  /* the arm with as much capacity as brings its drops down to the least of all arms */
    EPX_AB_EQUAL_MEMORY, /* the arm with as much capacity as the memory of the largest arm has room for */
    EPX_AB_REFERENCE,    /* no arm: no drops, nothing perturbed; what guards compare with */
    EPX_AB_PARTS
} epx_ab_part_t;

/* Assignments, summed over ranks. */
typedef struct epx_ab_counts {
    int64_t valid;  /* chosen by the routers; -1: not known */
    int64_t chance; /* dropped on purpose, at random */
    int64_t kept, spilled, dropped_sender, dropped_receiver;
} epx_ab_counts_t;

typedef struct epx_ab_step {
    int64_t step;
    int32_t discarded; /* 1: before the window that counts */
    double loss, tokens, step_ms;
    double mfu, mfu_executed; /* 0..1 */
    double exposed_ms, experts_ms, attention_ms, gradients_ms, wait_ms_max;
    int64_t peak_bytes;
    int64_t sent_bytes, received_bytes;
    double load_max_over_mean;
    epx_ab_counts_t count;
} epx_ab_step_t;

typedef struct epx_ab_run {
    int32_t arm; /* -1: the reference */
    epx_ab_part_t part;
    int32_t round;                 /* runs of one round read the same data */
    int32_t order;                 /* place in time */
    int32_t steps, steps_expected; /* discarded ones included; expected 0: not known */
    epx_ab_step_t *step;           /* [steps], owned */
    int32_t fractions; /* 1: counts were made of fractions, so that only their ratios mean anything */
    int32_t layers;
    epx_ab_counts_t *layer; /* [layers] of the counted steps, owned; NULL: not known */

    /* What guards look at. */
    uint64_t weights;            /* digest of all that was restored; 0: not known */
    epx_ab_counts_t first_layer; /* of layer 0 in the first step; valid -1 */
    uint64_t first_choices;      /* digest of layer 0's choices at the first step; 0: not known */
    int32_t places;              /* of `loads` */
    int64_t *loads;              /* [layers, ranks, experts] at the first step, owned; NULL: not known */
    char transport[EPX_AB_NAME], fabric[EPX_AB_NAME]; /* in use, "" not known; "mixed" where steps differ */
    int64_t group_bytes;          /* sent to other ranks in the window by the group's own counter; -1 */
    int64_t plan_bytes;           /* the same by the counters of its plans; -1 */
    int64_t allocations;          /* by the library in the window; -1 */
    double clock_mhz;             /* median over steps and cores */
    int64_t throttles;            /* events in the window; -1 */
    double others_cpu;            /* share of the machine that other programs used in the window, 0..1 */
    char payload[EPX_AB_TEXT];    /* "" right, or what was wrong, or "-" not checked */
    char accounting[EPX_AB_TEXT]; /* "" right, or the first wrong sum, or "-" not checked */
    char failed[EPX_AB_TEXT];     /* "" or why there is no run */
    char void_why[EPX_AB_TEXT];   /* "" or why this draw does not count */
} epx_ab_run_t;

/* ---- guards ------------------------------------------------------------------------------------------------------- */

typedef enum epx_ab_guard {
    EPX_AB_GUARD_WEIGHTS,
    EPX_AB_GUARD_ROUTING,
    EPX_AB_GUARD_TWINS,
    EPX_AB_GUARD_GAP,
    EPX_AB_GUARD_GRADIENTS,
    EPX_AB_GUARD_PAYLOAD,
    EPX_AB_GUARD_ACCOUNTING,
    EPX_AB_GUARD_BYTES,
    EPX_AB_GUARD_FALLBACK,
    EPX_AB_GUARD_CLOCKS,
    EPX_AB_GUARD_REGISTRATION,
    EPX_AB_GUARD_WINDOW,
    EPX_AB_GUARDS
} epx_ab_guard_t;

typedef enum epx_ab_state { EPX_AB_UNCHECKED, EPX_AB_PASSED, EPX_AB_VOID } epx_ab_state_t;

typedef struct epx_ab_finding {
    epx_ab_state_t state;
    char text[EPX_AB_TEXT]; /* what was seen, or why it was not looked at */
} epx_ab_finding_t;

/* ---- arms --------------------------------------------------------------------------------------------------------- */

/* Drops by the rules, for the routing of the reference's first steps. */
typedef struct epx_ab_ruled {
    int32_t ranks; /* 0: not computed, and `why` says why */
    epx_ab_counts_t count;
    int64_t by_wave[EPX_AB_WAVES]; /* of the receiver gate; later waves in the last */
    char why[EPX_AB_TEXT];
} epx_ab_ruled_t;

enum { EPX_AB_RULED = 3 };

/* The arm with another capacity. */
typedef struct epx_ab_adjusted {
    int32_t made;                          /* 1: runs of it exist; 0: `why` */
    double scale;                          /* of both capacity factors */
    double capacity_factor, sender_factor; /* as run; 0: has none */
    char why[EPX_AB_TEXT];
} epx_ab_adjusted_t;

typedef struct epx_ab_gradients {
    int32_t checked;
    double worst;
    char tensor[EPX_AB_NAME];
    int64_t dropped;
    double loss, oracle_loss;
} epx_ab_gradients_t;

typedef struct epx_ab_arm {
    char name[EPX_AB_NAME];             /* as the user wrote it: "pooled_wave:waves=4" */
    char transport[EPX_AB_PATH];        /* asked for; "" for an external arm until its runs tell */
    epx_group_config_t config;          /* of an arm of this process */
    const char *command, *folder;       /* external, --compare; or NULL */
    epx_ab_gradients_t gradients;       /* of the twin */
    epx_ab_ruled_t ruled_first;         /* of layer 0 alone, at the ranks that decide */
    epx_ab_ruled_t ruled[EPX_AB_RULED]; /* at the ranks that decided, the real ones, and the target */
    epx_ab_adjusted_t equal_drops, equal_memory;

    /* Over the plain runs that count. */
    int32_t runs;
    epx_ab_interval_t mfu, mfu_executed, loss, exposed_ms, step_ms;
    double experts_ms, attention_ms, gradients_ms;
    double bystander_share[3]; /* experts, attention, gradients against the first arm: +0.02 is 2% more */
    int32_t bystander_flag[3];
    int64_t peak_bytes;
    epx_ab_counts_t count; /* of all counted steps of all plain runs */
    double loss_gap;       /* to its twin, in the round of the twin; NaN */

    epx_ab_finding_t guard[EPX_AB_GUARDS];
    int32_t is_void;
} epx_ab_arm_t;

/* ---- verdicts ----------------------------------------------------------------------------------------------------- */

typedef enum epx_ab_quantity {
    EPX_AB_MFU_EXECUTED,
    EPX_AB_MFU,
    EPX_AB_DROPS,
    EPX_AB_LOSS,
    EPX_AB_MEMORY,
    EPX_AB_EXPOSED,
    EPX_AB_STEP_TIME,
    EPX_AB_SPEED_EQUAL_DROPS,
    EPX_AB_SPEED_EQUAL_MEMORY,
    EPX_AB_QUANTITIES
} epx_ab_quantity_t;

typedef struct epx_ab_verdict {
    int32_t a, b; /* arms */
    epx_ab_quantity_t quantity;
    int32_t given; /* 0: an arm is void or the quantity is not known; `text` says so */
    int32_t exact; /* 1: integers, compared without statistics */
    epx_ab_word_t word;
    epx_ab_interval_t interval; /* of a - b, in the quantity's unit */
    double spread, margin;
    int32_t spread_pairs;   /* A/A pairs behind spread */
    int32_t pairs_needed;   /* with INCONCLUSIVE; 0: no number decides */
    double *pair;           /* [interval.count] a - b of each pair, owned; NULL where exact */
    int32_t *pair_round;    /* [interval.count], owned */
    char text[EPX_AB_TEXT]; /* one sentence */
} epx_ab_verdict_t;

/* ---- scope -------------------------------------------------------------------------------------------------------- */

typedef struct epx_ab_library {
    char path[256], build_id[48];
} epx_ab_library_t;

typedef struct epx_ab_machine {
    char host[EPX_AB_NAME], cpu[128], kernel[128], blas[EPX_AB_NAME];
    int32_t cores;
    int64_t memory_bytes;
    double peak_flops;                            /* that MFU is a share of */
    char clock_source[128], throttle_source[128]; /* where they are read, or why they are not */
    int32_t libraries;
    epx_ab_library_t library[64]; /* [0] is the program */
} epx_ab_machine_t;

typedef struct epx_ab_scope {
    const char *preset;
    int32_t ranks, ep, replicas, virtual_ep, target_ranks;
    int32_t processes; /* that a launcher started; 1: ranks are threads */
    int64_t layers, experts, top_k, sequence, tokens_per_rank;
    char regime[EPX_AB_NAME];
    char regime_why[EPX_AB_TEXT];
    char checkpoint[EPX_AB_TEXT]; /* where the weights come from */
    uint64_t checkpoint_hash;
    int64_t checkpoint_step;
    uint64_t seed;
    int32_t pairs, steps, discard;
    double margin; /* in points of MFU */
    epx_ab_machine_t machine;
    char data[256];
    char started[40]; /* local time */
    double seconds;
} epx_ab_scope_t;

typedef struct epx_ab_result {
    epx_ab_scope_t scope;
    int32_t arms;
    epx_ab_arm_t arm[EPX_AB_ARMS];
    int32_t runs, runs_room;
    epx_ab_run_t *run; /* owned */
    int32_t verdicts;
    epx_ab_verdict_t *verdict;  /* owned; by pair of arms (a < b), then quantity */
    int32_t external;           /* 1: jobs of others */
    char void_why[EPX_AB_TEXT]; /* why the whole comparison is void; "" it is not */
    int32_t shortfalls;         /* what the verdict does not show, one sentence each */
    const char *shortfall[16];
} epx_ab_result_t;

/* A new run at the end of the list, its numbers not known, room for `steps`; valid until the next one. */
epx_ab_run_t *epx_ab_add_run(epx_ab_result_t *result, int32_t arm, epx_ab_part_t part, int32_t round,
                             int32_t steps);

/* A step of which nothing is known. */
epx_ab_step_t epx_ab_unknown_step(void);

/* Frees what the result owns. */
void epx_ab_free(epx_ab_result_t *result);

/* The run of (arm, part, round), or NULL; draws that do not count are left out unless `void_too`. */
const epx_ab_run_t *epx_ab_find_run(const epx_ab_result_t *result, int32_t arm, epx_ab_part_t part,
                                    int32_t round, int32_t void_too);

/* One past the highest round of any run. */
int32_t epx_ab_rounds(const epx_ab_result_t *result);

/* ---- numbers of a run: over the steps that count ------------------------------------------------------------------- */

typedef enum epx_ab_number {
    EPX_AB_RUN_MFU, /* 0..1: work of all steps over time of all steps, spikes included */
    EPX_AB_RUN_MFU_EXECUTED,
    EPX_AB_RUN_LOSS,    /* mean */
    EPX_AB_RUN_EXPOSED, /* ms per step, mean */
    EPX_AB_RUN_STEP,
    EPX_AB_RUN_EXPERTS,
    EPX_AB_RUN_ATTENTION,
    EPX_AB_RUN_GRADIENTS
} epx_ab_number_t;

double epx_ab_run_number(const epx_ab_run_t *run, epx_ab_number_t number);
epx_ab_counts_t epx_ab_run_counts(const epx_ab_run_t *run); /* sums; valid -1 */
void epx_ab_add_counts(epx_ab_counts_t *sum, const epx_ab_counts_t *more);

/* Sums over the runs of an arm of one part that count, and their largest peak (-1). */
epx_ab_counts_t epx_ab_part_counts(const epx_ab_result_t *result, int32_t arm, epx_ab_part_t part,
                                   int64_t *peak_p);

/* The transport that ran, else the one asked for; NULL where neither is known. */
const char *epx_ab_transport_of(const epx_ab_result_t *result, int32_t arm);

/* Dropped by gates (not by chance) over valid; NaN where not known. */
double epx_ab_drop_fraction(const epx_ab_counts_t *count);

/* ---- names -------------------------------------------------------------------------------------------------------- */
const char *epx_ab_guard_name(epx_ab_guard_t guard);   /* "routing": also the word of --inject */
const char *epx_ab_guard_checks(epx_ab_guard_t guard); /* a sentence */
const char *epx_ab_part_name(epx_ab_part_t part);
const char *epx_ab_word_name(epx_ab_word_t word);
const char *epx_ab_quantity_name(epx_ab_quantity_t quantity); /* "executed MFU" */
const char *epx_ab_quantity_key(epx_ab_quantity_t quantity);  /* "mfu_executed" */

/* The verdict on (a, b, quantity), a < b; NULL where there is none. */
const epx_ab_verdict_t *epx_ab_verdict_of(const epx_ab_result_t *result, int32_t a, int32_t b,
                                          epx_ab_quantity_t quantity);

#endif
