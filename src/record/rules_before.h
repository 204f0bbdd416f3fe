/* Rules: a call that was made and cannot begin. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_RULES_BEFORE_H
#define EPX_RECORD_RULES_BEFORE_H

#include "record/scene.h"

/* Rows of the table in rules.c. */
int epx_rule_busy(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_idle(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_blocks(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_empty(const epx_scene_t *scene, epx_verdict_t *verdict);

#endif
