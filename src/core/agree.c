/* What the ranks of a group tell each other when it opens. SPDX-License-Identifier: Apache-2.0 */
#include "core/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/fail.h"

/* The compared numbers, in the order in which a difference is reported. */
static const struct field_row {
    const char *name;
    int is_real;
} fields[] = {
    {"experts (E)", 0},
    {"top_k (K)", 0},
    {"width (H)", 0},
    {"tokens_max (T_max)", 0},
    {"row_type", 0},
    {"out_type", 0},
    {"aux_bytes", 0},
    {"row_align", 0},
    {"lanes", 0},
    {"depth", 0},
    {"backward", 0},
    {"origin", 0},
    {"batch_in_caller", 0},
    {"virtual_ranks", 0},
    {"spill_choices", 0},
    {"capacity_factor", 1},
    {"sender_factor", 1},
    {"waves", 0},
    {"accept", 0},
    {"overflow", 0},
    {"wire", 0},
    {"batch", 0},
    {"check", 0},
    {"owner table (hash)", 0},
    {"ABI", 0},
    {"generation", 0},
    {"segment bytes", 0},
    {"plan bytes", 0},
};

_Static_assert(sizeof(fields) / sizeof(fields[0]) == EPX_CARD_FIELDS, "a name for each value");

static int64_t real_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Differs between owner tables; small enough to be read in a message. */
static int64_t owner_hash(const epx_owners_t *owners)
{
    uint64_t hash = 1469598103934665603u;
    for (int32_t e = 0; e < owners->experts; e++)
        hash = (hash ^ (uint64_t)owners->owner[e]) * 1099511628211u;
    return (int64_t)(hash >> 24);
}

void epx_card_fill(epx_card_t *card, const epx_group_config_t *c, const epx_selection_t *selection,
                   uint64_t generation)
{
    const epx_shape_t *s = &selection->shape;
    const int64_t values[EPX_CARD_FIELDS] = {s->experts,
                                             s->top_k,
                                             s->width,
                                             s->tokens_max,
                                             s->row_type,
                                             s->out_type,
                                             s->aux_bytes,
                                             s->row_align,
                                             s->lanes,
                                             s->depth,
                                             s->backward,
                                             s->origin,
                                             s->batch_in_caller,
                                             s->virtual_ranks,
                                             c->spill_choices,
                                             real_bits(s->capacity_factor),
                                             real_bits(s->sender_factor),
                                             s->waves,
                                             s->accept,
                                             s->overflow,
                                             s->wire,
                                             s->batch,
                                             s->check,
                                             owner_hash(&s->real),
                                             EPX_ABI,
                                             (int64_t)generation,
                                             selection->sizes.segment_bytes,
                                             selection->sizes.plan_bytes};
    memcpy(card->value, values, sizeof(values));
    snprintf(card->transport, sizeof(card->transport), "%s", selection->transport->name);
    snprintf(card->fabric, sizeof(card->fabric), "%s", selection->fabric->name);
    snprintf(card->device, sizeof(card->device), "%s", selection->device->name);
    snprintf(card->version, sizeof(card->version), "%s", epx_version());
}

static epx_status_t text_mismatch(const char *group, const char *field, int32_t r, const char *a,
                                  const char *b)
{
    return epx_fail(EPX_ERR_MISMATCH, "%s: ranks disagree on %s: rank 0 has %s, rank %d has %s", group, field,
                    a, r, b);
}

static epx_status_t number_mismatch(const char *group, int32_t field, int32_t r, int64_t a, int64_t b)
{
    char left[40], right[40];
    if (fields[field].is_real) {
        double x, y;
        memcpy(&x, &a, sizeof(x));
        memcpy(&y, &b, sizeof(y));
        snprintf(left, sizeof(left), "%g", x);
        snprintf(right, sizeof(right), "%g", y);
    } else {
        snprintf(left, sizeof(left), "%" PRId64, a);
        snprintf(right, sizeof(right), "%" PRId64, b);
    }
    return text_mismatch(group, fields[field].name, r, left, right);
}

/* The first difference, in the order of the fields, then of the ranks: the same on every rank. */
static epx_status_t compare(const epx_card_t *cards, int32_t size, const char *group)
{
    for (int32_t r = 1; r < size; r++) {
        if (strcmp(cards[r].version, cards[0].version) != 0)
            return text_mismatch(group, "the library's version", r, cards[0].version, cards[r].version);
        if (strcmp(cards[r].transport, cards[0].transport) != 0)
            return text_mismatch(group, "the transport", r, cards[0].transport, cards[r].transport);
        if (strcmp(cards[r].fabric, cards[0].fabric) != 0)
            return text_mismatch(group, "the fabric", r, cards[0].fabric, cards[r].fabric);
        if (strcmp(cards[r].device, cards[0].device) != 0)
            return text_mismatch(group, "the device", r, cards[0].device, cards[r].device);
    }
    for (int32_t field = 0; field < EPX_CARD_FIELDS; field++)
        for (int32_t r = 1; r < size; r++)
            if (cards[r].value[field] != cards[0].value[field])
                return number_mismatch(group, field, r, cards[0].value[field], cards[r].value[field]);
    return EPX_OK;
}

epx_status_t epx_agree(const epx_bootstrap_t *bootstrap, const char *group_name, epx_status_t status,
                       epx_card_t *mine, epx_card_t *cards)
{
    mine->status = status;
    mine->rank = bootstrap->rank;
    snprintf(mine->text, sizeof(mine->text), "%s", status != EPX_OK ? epx_last_error() : "");
    if (bootstrap->allgather(bootstrap->context, mine, cards, sizeof(*mine)) != 0) {
        /* The text of a comm's own error is the better one, and it is there already. */
        return status != EPX_OK ? status : EPX_ERR_PEER;
    }
    if (status != EPX_OK)
        return epx_fail(status, "%s", mine->text);
    for (int32_t r = 0; r < bootstrap->size; r++)
        if (cards[r].status != EPX_OK)
            return epx_fail(EPX_ERR_PEER, "%s: rank %d could not open the group: %s: %s", group_name, r,
                            epx_status_name((epx_status_t)cards[r].status), cards[r].text);
    return compare(cards, bootstrap->size, group_name);
}
