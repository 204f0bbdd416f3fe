/* Parts of a comm. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "core/comm_link.h"
#include "core/comm_make.h"
#include "fabric/registry.h"

/* A part of a comm meets through the whole comm's all-gather: every rank of it opens something at the same
 * time. */
typedef struct part_context {
    epx_comm_h whole;
    const int32_t *member; /* [size] ranks of the whole comm */
    int32_t size;
    uint8_t *all; /* [whole size, PART_BYTES] */
} part_context_t;

enum { PART_BYTES = 64 };

static int gather_part(void *context, const void *send, void *receive, size_t bytes)
{
    part_context_t *part = context;
    uint8_t padded[PART_BYTES] = {0};
    if (bytes > PART_BYTES)
        return -1;
    memcpy(padded, send, bytes);
    if (epx_comm_allgather(part->whole, padded, part->all, PART_BYTES) != EPX_OK)
        return -1;
    for (int32_t i = 0; i < part->size; i++)
        memcpy((uint8_t *)receive + (size_t)i * bytes, part->all + (size_t)part->member[i] * PART_BYTES,
               bytes);
    return 0;
}

/* What the ranks tell each other of the part that they want. */
typedef struct split_card {
    int32_t colour, key;
} split_card_t;

/* The ranks of one colour by (key, rank) into member [size]; a rank without a colour is alone. Their number.
 */
static int32_t choose_members(const split_card_t *cards, int32_t size, int32_t me, int32_t *member)
{
    int32_t count = 0;
    if (cards[me].colour < 0) {
        member[0] = me;
        return 1;
    }
    for (int32_t r = 0; r < size; r++) {
        if (cards[r].colour != cards[me].colour)
            continue;
        int32_t i = count++;
        for (; i > 0 && cards[member[i - 1]].key > cards[r].key; i--)
            member[i] = member[i - 1];
        member[i] = r;
    }
    return count;
}

static epx_status_t split_link(epx_comm_h comm, int32_t colour, int32_t key, epx_comm_h *part_p)
{
    size_t n = (size_t)comm->size;
    split_card_t mine = {.colour = colour, .key = key};
    split_card_t *cards = malloc(n * (sizeof(*cards) + sizeof(int32_t)));
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_split: no memory for %d ranks", comm->size);
    int32_t *member = (int32_t *)(void *)(cards + n);
    epx_status_t status = epx_comm_allgather(comm, &mine, cards, sizeof(mine));
    if (status != EPX_OK)
        goto free_cards;
    int32_t size = choose_members(cards, comm->size, comm->rank, member);
    /* The cards have been read: their room takes the ranks of the link. */
    int32_t *world = (int32_t *)(void *)cards;
    for (int32_t i = 0; i < size; i++)
        world[i] = comm->world[member[i]];
    uint64_t id = epx_comm_mix(epx_comm_mix(comm->id, ++comm->splits), (uint64_t)(uint32_t)colour);
    struct epx_comm *made = colour >= 0 ? epx_comm_of_link(comm->link, id, world, size) : NULL;
    epx_comm_part_record(comm, colour, member, made);
    if (made == NULL && colour >= 0)
        status = epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_split: no memory for a comm");
    if (status == EPX_OK)
        *part_p = made;
free_cards:
    free(cards);
    return status;
}

epx_status_t epx_comm_split(epx_comm_h comm, int32_t colour, int32_t key, epx_comm_h *part_p)
{
    if (comm == NULL || part_p == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_comm_split: comm and part_p must be there");
    if (comm->circle != NULL)
        return split_link(comm, colour, key, part_p);
    if (comm->fabric == NULL)
        return epx_fail(
            EPX_ERR_UNSUPPORTED,
            "epx_comm_split: this comm stands on the caller's own all-gather, which cannot be split; "
            "hand in one bootstrap per part");
    size_t n = (size_t)comm->size;
    split_card_t mine = {.colour = colour, .key = key};
    split_card_t *cards = malloc(n * (sizeof(*cards) + sizeof(int32_t) + PART_BYTES));
    if (cards == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_split: no memory for %d ranks", comm->size);
    int32_t *member = (int32_t *)(void *)(cards + n);
    part_context_t part = {.whole = comm, .member = member, .all = (uint8_t *)(member + n)};
    epx_status_t status = epx_comm_allgather(comm, &mine, cards, sizeof(mine));
    if (status != EPX_OK)
        goto free_cards;
    part.size = choose_members(cards, comm->size, comm->rank, member);
    epx_bootstrap_t bootstrap = {
        .size_of_struct = sizeof(bootstrap), .context = &part, .size = part.size, .allgather = gather_part};
    while (member[bootstrap.rank] != comm->rank)
        bootstrap.rank++;
    epx_fabric_config_t config = epx_comm_fabric_config(&bootstrap);
    epx_fabric_t *fabric = NULL;
    status = epx_fabric_of_threads()->open(&config, &fabric);
    if (status != EPX_OK)
        goto free_cards;
    struct epx_comm *made = colour >= 0 ? epx_comm_make(fabric, NULL) : NULL;
    epx_comm_part_record(comm, colour, member, made);
    if (made == NULL)
        epx_fabric_of_threads()->close(&fabric);
    if (made == NULL && colour >= 0)
        status = epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_split: no memory for a comm");
    if (status == EPX_OK)
        *part_p = made;
free_cards:
    free(cards);
    return status;
}
