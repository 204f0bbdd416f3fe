/* What epx-ab is asked to do. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_SETTINGS_H
#define EPX_AB_SETTINGS_H

#include "bench/ab/result.h"
#include "train/config.h"

typedef struct epx_ab_settings {
    epx_train_config_t train; /* the preset with what was said about the model, data, ranks */
    int32_t processes;        /* that a launcher started; 1: ranks are threads */
    int64_t ranks, ep, replicas, virtual_ep, target_ranks;
    epx_ab_arm_t arm[EPX_AB_ARMS];
    int32_t arms;
    int32_t internal, external; /* arms given with --arms, with --arm */
    int32_t compare;            /* operands are folders */
    char **folder;              /* [folders] operands */
    int32_t folders;
    int64_t pairs, steps, discard, seed, train_steps;
    double margin; /* points of MFU */
    const char *preset, *restore, *checkpoint, *json, *html, *regime;
    int32_t no_adjust; /* 1: no runs at equal drops and equal memory */
    int64_t timeout_s; /* of an external command */
    /* For tests: what to perturb in the last arm, so that the guard that watches it is seen to fire; -1:
     * nothing. */
    int32_t inject;
} epx_ab_settings_t;

/* Reads the command line; EPX_GO_ON, or the code to exit with. */
int epx_ab_settings_read(epx_ab_settings_t *settings, int argc, char **argv);

#endif
