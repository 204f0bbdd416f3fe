/* What a device tells the flight recorder of the lanes of a group. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_LANE_RECORD_H
#define EPX_CORE_LANE_RECORD_H

#include "core/group_state.h"

/* The group's lanes get their words. After the group has been told to the recorder. */
void epx_lane_record_begin(epx_group_t *group);

/* A lane's call begins: kind and wave are its name, and nothing has been said of it. */
void epx_lane_record_call(epx_plan_h plan, epx_record_kind_t kind, int32_t wave, int32_t starts,
                          epx_stream_t stream);

#endif
