/* Rules: what is broken outside of the calls. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_RULES_LINKS_H
#define EPX_RECORD_RULES_LINKS_H

#include "record/scene.h"

/* Rows of the table in rules.c. */
int epx_rule_corrupt(const epx_scene_t *scene, epx_verdict_t *verdict);
int epx_rule_link(const epx_scene_t *scene, epx_verdict_t *verdict);

#endif
