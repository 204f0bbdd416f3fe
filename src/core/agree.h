/* What the ranks of a group tell each other when it opens. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_CORE_AGREE_H
#define EPX_CORE_AGREE_H

#include "core/select.h"

enum { EPX_CARD_FIELDS = 28 };

/* One rank's card. Numbers are int64, or the bits of a double. */
typedef struct epx_card {
    int32_t status, rank;
    uint64_t record_key; /* rank 0's becomes the group's in the flight recorder */
    int32_t record_rank; /* in the job */
    char text[320];      /* of an error */
    char transport[64], fabric[16], device[16], version[16];
    int64_t value[EPX_CARD_FIELDS];
} epx_card_t;

/* Fills the card of a good selection. */
void epx_card_fill(epx_card_t *card, const epx_group_config_t *config, const epx_selection_t *selection,
                   uint64_t generation);

/*
 * Gathers cards [size] and compares them. `status` with the last error's text is this rank's own state.
 * Returns the own error, EPX_ERR_PEER with another rank's text, EPX_ERR_MISMATCH naming the first field that
 * differs and both values (the same text on every rank), or EPX_OK. Collective.
 */
epx_status_t epx_agree(const epx_bootstrap_t *bootstrap, const char *group_name, epx_status_t status,
                       epx_card_t *mine, epx_card_t *cards);

#endif
