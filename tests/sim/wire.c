/* Messages on their way, in any order that the contract allows. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "sim/internal.h"

/* Mostly soon, sometimes after everybody has had many turns. */
static int64_t transit_ns(void)
{
    return sim_dice(8) != 0 ? (int64_t)sim_dice(1500) : (int64_t)sim_dice(60000);
}

message_t *sim_send(sim_fabric_t *from, int to, message_kind_t kind, size_t bytes)
{
    hub_t *hub = from->hub;
    message_t *message = malloc(sizeof(*message) + bytes);
    if (message == NULL)
        abort();
    *message = (message_t){.kind = kind,
                           .from = from->base.rank,
                           .to = to,
                           .ready_ns = sim_now_ns() + transit_ns(),
                           .number = ++hub->sent,
                           .bytes = bytes};
    *hub->last = message;
    hub->last = &message->next;
    return message;
}

static int overlap(const message_t *a, const message_t *b)
{
    return a->kind == DATA && b->kind == DATA && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

/* Whether `later` must not arrive before `earlier`, which is still on its way. */
static int is_behind(const message_t *later, const message_t *earlier)
{
    if (later->from != earlier->from || later->to != earlier->to)
        return 0;
    if (later->kind == RESET || earlier->kind == RESET)
        return 0;
    if (later->kind == DATA)
        return overlap(later, earlier);
    if ((sim_mutant == SIM_NO_FENCE || sim_mutant == SIM_PIECES_NO_FENCE) && earlier->kind == DATA)
        return 0;
    return 1;
}

/* Can it arrive now, but for the time? */
static int is_free(const hub_t *hub, const message_t *message)
{
    for (const message_t *m = hub->first; m != message; m = m->next)
        if (is_behind(message, m))
            return 0;
    return 1;
}

static hub_t *next_hub(const sim_fabric_t *fabric) { return fabric->base.rank == 0 ? fabric->hub : NULL; }

/* The n-th message that can arrive now; NULL: there are fewer, their number in *n_p then. */
static message_t *pick(int n, int *count_p, int64_t *next_ns_p, hub_t **hub_p)
{
    *count_p = 0;
    for (sim_fabric_t *f = sim_fabrics; f != NULL; f = f->next) {
        hub_t *hub = next_hub(f);
        for (message_t *m = hub != NULL ? hub->first : NULL; m != NULL; m = m->next) {
            if (!is_free(hub, m))
                continue;
            if (m->ready_ns > sim_now_ns()) {
                if (m->ready_ns < *next_ns_p)
                    *next_ns_p = m->ready_ns;
                continue;
            }
            if ((*count_p)++ == n) {
                *hub_p = hub;
                return m;
            }
        }
    }
    return NULL;
}

static int wire_ready(void *context, int64_t *next_ns_p)
{
    int count;
    hub_t *hub;
    (void)context;
    pick(-1, &count, next_ns_p, &hub);
    return count;
}

static void arrive(sim_fabric_t *to, message_t *message)
{
    int ranks = to->base.ranks;
    switch (message->kind) {
    case DATA:
        if (to->segment != NULL)
            memcpy((uint8_t *)to->segment + message->offset, message->data, message->bytes);
        break;
    case RESET:
    case WORD:
        to->word[message->channel * ranks + message->from] = message->value;
        to->counted[message->channel] += message->kind == WORD;
        break;
    case FAILURE: to->failure[message->channel * ranks + message->from] = message->value; break;
    case BLOCK:
        message->next = to->blocks;
        to->blocks = message;
        break;
    }
}

static uint64_t wire_deliver(void *context, int n)
{
    int count;
    int64_t next;
    hub_t *hub = NULL;
    (void)context;
    message_t *message = pick(n, &count, &next, &hub);
    uint64_t event = message->number << 8 | (uint64_t)message->kind;
    message_t **link = &hub->first;
    while (*link != message)
        link = &(*link)->next;
    *link = message->next;
    if (*link == NULL)
        hub->last = link;
    sim_fabric_t *to = hub->member[message->to];
    arrive(to, message);
    to->arrivals++;
    if (message->kind != BLOCK)
        free(message);
    return event;
}

const sim_wire_t sim_messages = {.ready = wire_ready, .deliver = wire_deliver};
