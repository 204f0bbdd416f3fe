/* Rules: calls that do not fit together, and signals. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_RULES_CALLS_H
#define EPX_RECORD_RULES_CALLS_H

#include "record/scene.h"

/* Rows of the table in rules.c. */
int epx_rule_differs(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_order(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_circle(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_skewed(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_lost(const epx_scene_t *scene, epx_verdict_t *verdict);

#endif
