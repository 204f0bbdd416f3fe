/* The rules: condition -> verdict. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_RECORD_RULES_H
#define EPX_RECORD_RULES_H

#include "record/scene.h"

typedef struct epx_rule {
    const char *name;
    epx_verdict_kind_t verdict;
    const char *condition;
    /* Fills what it knows of the verdict (rank, peer, field) when it holds. */
    int (*holds)(const epx_scene_t *scene, epx_verdict_t *verdict);
} epx_rule_t;

/* The first that holds is the verdict; ends with UNKNOWN, which always holds. Also the order between scenes.
 * docs/hangs.md has the same table, row for row; a test compares them. */
extern const epx_rule_t epx_rules[];
extern const int32_t epx_rules_count;

#endif
