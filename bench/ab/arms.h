/*
 * Arms as the user writes them. SPDX-License-Identifier: Apache-2.0
 *
 *     pooled_wave:waves=3:sender_factor=1.15,ragged,ring
 *
 * Between commas, arms; between colons, a transport (or the path of a plug-in) and its settings, named as the
 * variables are without EPX_ and in small letters.
 */
#ifndef EPX_AB_ARMS_H
#define EPX_AB_ARMS_H

#include <stddef.h>

#include "bench/ab/result.h"

/* Reads a list into arms [EPX_AB_ARMS] from *count_p on. Twins of one name get "#2", "#3". Returns 0, or -1
 * with a problem. */
int epx_ab_read_arms(const char *text, epx_ab_arm_t *arms, int32_t *count_p, char *problem,
                     size_t problem_bytes);

/* Adds "NAME=command" as an arm. The same returns. */
int epx_ab_read_command(const char *text, epx_ab_arm_t *arms, int32_t *count_p, char *problem,
                        size_t problem_bytes);

/* EPX_GO_ON, or EPX_EXIT_USAGE after a message, when the environment has a setting that would win over an
 * arm's. */
int epx_ab_check_environment(const epx_ab_arm_t *arms, int32_t count);

/* The arm's settings without drops. */
epx_group_config_t epx_ab_dropless(const epx_group_config_t *config);

/* The capacities that an arm has, its defaults included; 0 where a capacity has no meaning. EPX_DROPLESS
 * stays. */
double epx_ab_capacity_of(const epx_group_config_t *config);

/* The same settings with both capacities times `scale`. */
epx_group_config_t epx_ab_scaled(const epx_group_config_t *config, double scale);

#endif
