/* Rules: a rank that does not come. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_RULES_HOSTS_H
#define EPX_RECORD_RULES_HOSTS_H

#include "record/scene.h"

/* Rows of the table in rules.c. */
int epx_rule_gone(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_stopped(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_skipped(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_left(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_elsewhere(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_strays(const epx_scene_t *scene, epx_verdict_t *verdict);

/* Not yet, but the row "stopped" will hold if nothing changes: budgets may be shorter than what that takes.
 */
int epx_rule_stopped_soon(const epx_scene_t *scene);

#endif
