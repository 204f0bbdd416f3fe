/* Ranks and their small collectives. SPDX-License-Identifier: Apache-2.0 */
#include "core/comm.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "core/config.h"
#include "core/services.h"
#include "device/registry.h"
#include "fabric/registry.h"

enum { COMM_BOX_BYTES = 16384, COMM_TIMEOUT_MS = 60000 };

struct epx_comm {
    epx_fabric_t *fabric;      /* NULL: the caller's all-gather alone */
    epx_bootstrap_t bootstrap; /* then this one */
    int32_t rank, size;
    int64_t timeout_ms;
    /* For an allreduce: [size] pointers where one address space is shared, else [size, COMM_BOX_BYTES]. */
    uint8_t *pieces;
};

static void *comm_allocate(void *context, size_t bytes, size_t alignment, int device_memory)
{
    (void)context, (void)device_memory;
    return epx_device_of_host()->allocate(bytes, alignment);
}

static void comm_release(void *context, void *memory, size_t bytes, int device_memory)
{
    (void)context, (void)device_memory;
    epx_device_of_host()->release(memory, bytes);
}

static const epx_allocator_t comm_allocator = {.allocate = comm_allocate, .release = comm_release};

static epx_fabric_config_t comm_fabric_config(const epx_bootstrap_t *bootstrap)
{
    epx_fabric_config_t config = {.name = "comm",
                                  .device = epx_device_of_host(),
                                  .exchange_channels = 1,
                                  .exchange_bytes = COMM_BOX_BYTES,
                                  .allocator = &comm_allocator,
                                  .services = epx_services()};
    if (bootstrap != NULL)
        config.bootstrap = *bootstrap;
    return config;
}

static struct epx_comm *make_comm(epx_fabric_t *fabric, const epx_bootstrap_t *bootstrap)
{
    struct epx_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return NULL;
    comm->fabric = fabric;
    comm->timeout_ms = COMM_TIMEOUT_MS;
    comm->rank = fabric != NULL ? fabric->rank : bootstrap->rank;
    comm->size = fabric != NULL ? fabric->ranks : bootstrap->size;
    if (fabric == NULL)
        comm->bootstrap = *bootstrap;
    comm->pieces = malloc((size_t)comm->size * (fabric != NULL ? sizeof(void *) : COMM_BOX_BYTES));
    if (comm->pieces == NULL) {
        free(comm);
        return NULL;
    }
    return comm;
}

epx_status_t epx_comm_threads(int32_t n, epx_comm_h *comms)
{
    if (n < 1 || comms == NULL)
        return epx_fail(EPX_ERR_ARG,
                        "epx_comm_threads: n is %d and comms is %s; give n >= 1 and room for n handles", n,
                        comms == NULL ? "NULL" : "there");
    epx_fabric_config_t config = comm_fabric_config(NULL);
    epx_fabric_t **fabrics = calloc((size_t)n, sizeof(epx_fabric_t *));
    if (fabrics == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_threads: no memory for %d ranks", n);
    epx_status_t status = epx_fabric_threads(&config, n, fabrics);
    int32_t made = 0;
    for (; status == EPX_OK && made < n; made++) {
        comms[made] = make_comm(fabrics[made], NULL);
        if (comms[made] == NULL)
            status = epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_threads: no memory for %d ranks", n);
    }
    if (status != EPX_OK) {
        for (int32_t r = 0; r < made; r++) {
            free(comms[r]->pieces);
            free(comms[r]);
            comms[r] = NULL;
        }
        for (int32_t r = 0; r < n; r++)
            epx_fabric_of_threads()->close(&fabrics[r]);
    }
    free(fabrics);
    return status;
}

epx_status_t epx_comm_world(epx_comm_h *comm_p)
{
    if (comm_p == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_comm_world: comm_p is NULL");
    int32_t size = 1;
    const char *variable = epx_config_launched(&size);
    if (variable != NULL && size == 0)
        return epx_fail(EPX_ERR_ARG, "epx_comm_world: %s is not a number of processes >= 1; mend or unset it",
                        variable);
    if (size > 1)
        return epx_fail(EPX_ERR_UNSUPPORTED,
                        "epx_comm_world: %s says %d processes, and this version joins threads only; use "
                        "epx_comm_threads, or epx_comm_from_bootstrap with your own all-gather",
                        variable, size);
    return epx_comm_threads(1, comm_p);
}

epx_status_t epx_comm_from_bootstrap(const epx_bootstrap_t *bootstrap, epx_comm_h *comm_p)
{
    if (bootstrap == NULL || comm_p == NULL || bootstrap->size_of_struct != sizeof(epx_bootstrap_t) ||
        bootstrap->allgather == NULL)
        return epx_fail(EPX_ERR_ARG,
                        "epx_comm_from_bootstrap: give a bootstrap begun with EPX_BOOTSTRAP_INIT, with its "
                        "allgather, and comm_p");
    if (bootstrap->size < 1 || bootstrap->rank < 0 || bootstrap->rank >= bootstrap->size)
        return epx_fail(EPX_ERR_ARG, "epx_comm_from_bootstrap: rank %d of %d ranks cannot be",
                        bootstrap->rank, bootstrap->size);
    /* Threads of one process get the fabric's collectives; otherwise the callback carries everything. */
    epx_fabric_config_t config = comm_fabric_config(bootstrap);
    epx_fabric_t *fabric = NULL;
    epx_status_t status = epx_fabric_of_threads()->open(&config, &fabric);
    if (status != EPX_OK && status != EPX_ERR_UNSUPPORTED)
        return status;
    struct epx_comm *comm = make_comm(fabric, bootstrap);
    if (comm == NULL) {
        epx_fabric_of_threads()->close(&fabric);
        return epx_fail(EPX_ERR_NO_MEMORY, "epx_comm_from_bootstrap: no memory for a comm of %d ranks",
                        bootstrap->size);
    }
    *comm_p = comm;
    return EPX_OK;
}

void epx_comm_destroy(epx_comm_h *comm_p)
{
    if (comm_p == NULL || *comm_p == NULL)
        return;
    struct epx_comm *comm = *comm_p;
    *comm_p = NULL;
    if (comm->fabric != NULL)
        comm->fabric->ops->close(&comm->fabric);
    free(comm->pieces);
    free(comm);
}

int32_t epx_comm_rank(epx_comm_h comm) { return comm != NULL ? comm->rank : -1; }

int32_t epx_comm_size(epx_comm_h comm) { return comm != NULL ? comm->size : -1; }

void epx_comm_set_timeout(epx_comm_h comm, int64_t timeout_ms)
{
    if (comm != NULL)
        comm->timeout_ms = timeout_ms > 0 ? timeout_ms : COMM_TIMEOUT_MS;
}

void epx_comm_abort(epx_comm_h comm)
{
    if (comm != NULL && comm->fabric != NULL)
        comm->fabric->ops->abort(comm->fabric, -1);
}

epx_status_t epx_comm_allgather(epx_comm_h comm, const void *send, void *receive, size_t bytes)
{
    if (comm == NULL || ((send == NULL || receive == NULL) && bytes > 0))
        return epx_fail(EPX_ERR_ARG, "epx_comm_allgather: comm, send and receive must be there");
    if (comm->fabric == NULL) {
        if (comm->bootstrap.allgather(comm->bootstrap.context, send, receive, bytes) != 0)
            return epx_fail(EPX_ERR_FABRIC, "epx_comm_allgather: the caller's all-gather failed on rank %d",
                            comm->rank);
        return EPX_OK;
    }
    /* An ended comm stays ended, whatever has arrived in the meantime. */
    int32_t ended_by = comm->fabric->ops->aborted(comm->fabric, NULL);
    if (ended_by >= 0)
        return epx_fail(ended_by == comm->rank ? EPX_ERR_ABORTED : EPX_ERR_PEER,
                        "comm: rank %d: rank %d ended the comm", comm->rank, ended_by);
    epx_exchange_t exchange = {
        .send = send, .receive = receive, .bytes = bytes, .timeout_ms = comm->timeout_ms};
    epx_wait_result_t result;
    epx_status_t status = comm->fabric->ops->exchange(comm->fabric, &exchange, &result, NULL);
    if (status == EPX_ERR_TIMEOUT)
        return epx_fail(status,
                        "comm: rank %d waited %" PRId64 " ms for rank %d in collective %" PRIu64
                        "; find out why rank %d did not make this call",
                        comm->rank, comm->timeout_ms, result.peer, result.expected, result.peer);
    if (status != EPX_OK)
        return epx_fail(status, "comm: rank %d: rank %d ended the comm", comm->rank, result.peer);
    return EPX_OK;
}

epx_status_t epx_comm_barrier(epx_comm_h comm)
{
    if (comm == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_comm_barrier: comm is NULL");
    uint8_t byte = 0;
    /* A fabric gathers nothing at all; the caller's all-gather may not like that and gets a byte. */
    return epx_comm_allgather(comm, &byte, comm->pieces, comm->fabric == NULL ? 1 : 0);
}

static int gather_by_comm(void *context, const void *send, void *receive, size_t bytes)
{
    return epx_comm_allgather(context, send, receive, bytes) == EPX_OK ? 0 : -1;
}

epx_bootstrap_t epx_comm_bootstrap(epx_comm_h comm)
{
    return (epx_bootstrap_t){.size_of_struct = sizeof(epx_bootstrap_t),
                             .context = comm,
                             .rank = comm->rank,
                             .size = comm->size,
                             .allgather = gather_by_comm};
}

/* ---- split ------------------------------------------------------------------------------------------------------ */

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

typedef struct split_card {
    int32_t colour, key;
} split_card_t;

/* member [size] of my colour by (key, rank); a rank without a colour is alone. Returns how many. */
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

epx_status_t epx_comm_split(epx_comm_h comm, int32_t colour, int32_t key, epx_comm_h *part_p)
{
    if (comm == NULL || part_p == NULL)
        return epx_fail(EPX_ERR_ARG, "epx_comm_split: comm and part_p must be there");
    if (comm->fabric == NULL)
        return epx_fail(EPX_ERR_UNSUPPORTED,
                        "epx_comm_split: the ranks are in several processes, which this version "
                        "cannot split; hand in one bootstrap per part");
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
    epx_fabric_config_t config = comm_fabric_config(&bootstrap);
    epx_fabric_t *fabric = NULL;
    status = epx_fabric_of_threads()->open(&config, &fabric);
    if (status != EPX_OK)
        goto free_cards;
    struct epx_comm *made = colour >= 0 ? make_comm(fabric, NULL) : NULL;
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

/* ---- allreduce -------------------------------------------------------------------------------------------------- */

enum { REDUCE_CHUNK = 1024 };

static size_t number_bytes(epx_number_t number) { return number == EPX_NUMBER_FLOAT ? 4 : 8; }

#define REDUCE_LOOP(type)                                             \
    do {                                                              \
        type *a = into;                                               \
        const type *b = from;                                         \
        for (int64_t i = 0; i < count; i++)                           \
            a[i] = reduce == EPX_SUM   ? a[i] + b[i]                  \
                   : reduce == EPX_MAX ? (b[i] > a[i] ? b[i] : a[i])  \
                                       : (b[i] < a[i] ? b[i] : a[i]); \
    } while (0)

/* into = into (reduce) from, element by element; integer sums wrap nowhere that a caller could want. */
static void reduce_values(void *into, const void *from, int64_t count, epx_number_t number,
                          epx_reduce_t reduce)
{
    if (number == EPX_NUMBER_FLOAT)
        REDUCE_LOOP(float);
    else if (number == EPX_NUMBER_DOUBLE)
        REDUCE_LOOP(double);
    else
        REDUCE_LOOP(int64_t);
}

/* One address space: rank i reduces slice i from everybody's array, in rank order, and writes it into
 * everybody's. Slice i is touched by rank i alone between the two meetings. */
static epx_status_t reduce_shared(epx_comm_h comm, uint8_t *values, int64_t count, epx_number_t number,
                                  epx_reduce_t reduce)
{
    size_t unit = number_bytes(number);
    double chunk[REDUCE_CHUNK];
    uint8_t **all = (uint8_t **)(void *)comm->pieces;
    epx_status_t status = epx_comm_allgather(comm, &values, all, sizeof(values));
    if (status == EPX_OK) {
        int64_t first = count * comm->rank / comm->size, last = count * (comm->rank + 1) / comm->size;
        for (int64_t at = first; at < last; at += REDUCE_CHUNK) {
            int64_t now = last - at < REDUCE_CHUNK ? last - at : REDUCE_CHUNK;
            size_t offset = (size_t)at * unit;
            memcpy(chunk, all[0] + offset, (size_t)now * unit);
            for (int32_t r = 1; r < comm->size; r++)
                reduce_values(chunk, all[r] + offset, now, number, reduce);
            for (int32_t r = 0; r < comm->size; r++)
                memcpy(all[r] + offset, chunk, (size_t)now * unit);
        }
        status = epx_comm_barrier(comm);
    }
    return status;
}

/* Pieces of everybody's array come here, and everybody reduces all of them in rank order. */
static epx_status_t reduce_pieces(epx_comm_h comm, uint8_t *values, int64_t count, epx_number_t number,
                                  epx_reduce_t reduce)
{
    size_t unit = number_bytes(number);
    int64_t piece = COMM_BOX_BYTES / (int64_t)unit;
    for (int64_t at = 0; at < count; at += piece) {
        int64_t now = count - at < piece ? count - at : piece;
        size_t bytes = (size_t)now * unit;
        epx_status_t status = epx_comm_allgather(comm, values + (size_t)at * unit, comm->pieces, bytes);
        if (status != EPX_OK)
            return status;
        for (int32_t r = 1; r < comm->size; r++)
            reduce_values(comm->pieces, comm->pieces + (size_t)r * bytes, now, number, reduce);
        memcpy(values + (size_t)at * unit, comm->pieces, bytes);
    }
    return EPX_OK;
}

epx_status_t epx_comm_allreduce(epx_comm_h comm, void *values, int64_t count, epx_number_t number,
                                epx_reduce_t reduce)
{
    if (comm == NULL || count < 0 || (values == NULL && count > 0) || (int)number < 0 ||
        number > EPX_NUMBER_INT64 || (int)reduce < 0 || reduce > EPX_MIN)
        return epx_fail(EPX_ERR_ARG,
                        "epx_comm_allreduce: comm and values must be there, count >= 0, number and reduce "
                        "known ones (count is %" PRId64 ", number %d, reduce %d)",
                        count, (int)number, (int)reduce);
    if (comm->size == 1)
        return EPX_OK;
    if (comm->fabric != NULL && (comm->fabric->caps & EPX_FABRIC_SHARED_ADDRESS) != 0)
        return reduce_shared(comm, values, count, number, reduce);
    return reduce_pieces(comm, values, count, number, reduce);
}
