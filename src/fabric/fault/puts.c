/* Rows on their way, where kernels store them. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include <epx/kernels_ragged.h>

#include "base/fail.h"
#include "fabric/fault/internal.h"

/* Kernels are told no context: whose call it is shows by the table of peers that they store to. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static epx_fault_t *faults;

static epx_fault_t *find(void *const *table)
{
    pthread_mutex_lock(&lock);
    epx_fault_t *fault = faults;
    while (fault != NULL && fault->table != table)
        fault = fault->next;
    pthread_mutex_unlock(&lock);
    return fault;
}

static void end_late(epx_fault_t *fault)
{
    atomic_store(&fault->closing, 1);
    while (fault->late != NULL) {
        fault_late_t *late = fault->late;
        fault->late = late->next;
        pthread_join(late->thread, NULL);
        free(late->one);
        free(late);
    }
    atomic_store(&fault->closing, 0);
}

void epx_fault_set_segment(epx_fault_t *fault, const epx_segment_t *segment)
{
    end_late(fault);
    pthread_mutex_lock(&lock);
    epx_fault_t **link = &faults;
    while (*link != NULL && *link != fault)
        link = &(*link)->next;
    if (*link != NULL)
        *link = fault->next;
    fault->table = segment != NULL ? segment->peer_ptr : NULL;
    fault->segment_bytes = segment != NULL ? segment->bytes : 0;
    if (fault->table != NULL) {
        fault->next = faults;
        faults = fault;
    }
    pthread_mutex_unlock(&lock);
}

/* ---- a kernel that stores rows at peers ------------------------------------------------------------------------- */

/* Either of the two, so that both are taken apart alike. */
typedef struct store {
    const epx_kernels_t *real;
    epx_k_push_t push;
    epx_k_ragged_return_t back;
    int32_t is_back;
    void *const *table;
    const epx_run_t *runs;
    int32_t run_count;
} store_t;

static epx_status_t run_store(const store_t *store, epx_stream_t stream)
{
    if (store->is_back) {
        epx_k_ragged_return_t args = store->back;
        args.dst = store->table;
        args.runs = store->runs;
        return store->real->ragged_return(&args, stream);
    }
    epx_k_push_t args = store->push;
    args.dst = store->table;
    args.runs = store->runs;
    return args.parts > 0 ? store->real->push(&args, stream) : EPX_OK;
}

/* The rows for one peer alone (`only`), or for all but it, into room [run_count]. */
static void choose_runs(const store_t *store, int32_t peer, int only, epx_run_t *room)
{
    for (int32_t i = 0; i < store->run_count; i++) {
        room[i] = store->runs[i];
        if ((room[i].peer == peer) != only)
            room[i].rows = 0;
    }
}

/* Leaves out the rows themselves (or all but them): what travels beside them stays. */
static void choose_parts(store_t *store, int64_t row_bytes, int rows)
{
    int32_t n = 0;
    for (int32_t i = 0; i < store->push.parts; i++)
        if ((store->push.part[i].bytes == row_bytes && store->push.part[i].kind == EPX_PART_COPY) == rows)
            store->push.part[n++] = store->push.part[i];
    store->push.parts = n;
}

/* Runs the store twice into memory of its own, over zeros and over ones: bytes that agree are those that it
 * writes. one [2 * segment_bytes]; NULL: no memory. */
static uint8_t *capture(const epx_fault_t *fault, const store_t *store, int32_t peer)
{
    size_t bytes = fault->segment_bytes, ranks = (size_t)fault->inner->ranks;
    uint8_t *one = malloc(2 * bytes + 1);
    void **table = calloc(ranks, sizeof(*table));
    if (one == NULL || table == NULL) {
        free(one);
        free(table);
        return NULL;
    }
    store_t into = *store;
    into.table = table;
    memset(one, 0, bytes);
    memset(one + bytes, 0xff, bytes);
    for (size_t i = 0; i < 2; i++) {
        table[peer] = one + i * bytes;
        run_store(&into, NULL);
    }
    free(table);
    return one;
}

static void copy_captured(uint8_t *to, const uint8_t *one, const uint8_t *other, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (one[i] == other[i])
            to[i] = one[i];
}

static void *deliver_late(void *arg)
{
    fault_late_t *late = arg;
    while (epx_clock_ns() < late->at_ns && !atomic_load(&late->fault->closing))
        epx_nap_ns(1000000);
    if (!atomic_load(&late->fault->closing))
        copy_captured(late->to, late->one, late->other, late->bytes);
    return NULL;
}

/* Holds the rows for one peer back. 0: it could not, they go as ever. */
static int hold_back(epx_fault_t *fault, const store_t *store, int32_t peer, int64_t ms)
{
    uint8_t *one = capture(fault, store, peer);
    fault_late_t *late = calloc(1, sizeof(*late));
    if (one == NULL || late == NULL)
        goto free_late;
    *late = (fault_late_t){.next = fault->late,
                           .fault = fault,
                           .at_ns = epx_clock_ns() + ms * 1000000,
                           .to = fault->table[peer],
                           .one = one,
                           .other = one + fault->segment_bytes,
                           .bytes = fault->segment_bytes};
    if (pthread_create(&late->thread, NULL, deliver_late, late) != 0)
        goto free_late;
    fault->late = late;
    return 1;
free_late:
    free(one);
    free(late);
    return 0;
}

/* Turns one bit of the rows that a peer has been sent. */
static void flip(const epx_fault_t *fault, const store_t *store, int32_t peer, int64_t bit)
{
    store_t rows = *store;
    if (!store->is_back)
        choose_parts(&rows, fault->row_bytes, 1);
    uint8_t *one = capture(fault, &rows, peer), *other = one + fault->segment_bytes, *to = fault->table[peer];
    size_t written = 0, at = 0;
    for (size_t i = 0; one != NULL && i < fault->segment_bytes; i++)
        written += one[i] == other[i];
    size_t wanted = written > 0 ? (size_t)(bit / 8) % written : 0;
    for (size_t i = 0; written > 0 && i < fault->segment_bytes; i++) {
        if (one[i] == other[i] && at++ == wanted) {
            to[i] ^= (uint8_t)(1u << (bit & 7));
            break;
        }
    }
    free(one);
}

static int has_rows(const store_t *store, int32_t peer)
{
    for (int32_t i = 0; i < store->run_count; i++)
        if (store->runs[i].peer == peer && store->runs[i].rows > 0)
            return 1;
    return 0;
}

/* One peer's rows. */
static epx_status_t put_to(epx_fault_t *fault, const store_t *store, int32_t peer, epx_stream_t stream)
{
    epx_fault_hits_t hits = epx_fault_at(fault, EPX_FAULT_PUT_PRE, peer);
    epx_status_t status = EPX_OK;
    store_t mine = *store;
    if (epx_fault_hit(&hits, EPX_FAULT_DROP) && !store->is_back)
        choose_parts(&mine, fault->row_bytes, 0);
    int held = epx_fault_hit(&hits, EPX_FAULT_REORDER) &&
               hold_back(fault, &mine, peer, hits.argument[EPX_FAULT_REORDER]);
    int left_out = epx_fault_hit(&hits, EPX_FAULT_DROP) && store->is_back;
    for (int i = 0; i <= epx_fault_hit(&hits, EPX_FAULT_DUPLICATE) && status == EPX_OK; i++)
        if (!held && !left_out)
            status = run_store(&mine, stream);
    hits = epx_fault_at(fault, EPX_FAULT_PUT_POST, peer);
    if (status == EPX_OK && epx_fault_hit(&hits, EPX_FAULT_FLIP))
        flip(fault, store, peer, hits.argument[EPX_FAULT_FLIP]);
    return status;
}

/* Peers one by one where a rule may act, else the kernel as it is. */
static epx_status_t put(const store_t *store, epx_stream_t stream)
{
    epx_fault_t *fault = find(store->table);
    if (fault == NULL ||
        (!epx_fault_may(fault, EPX_FAULT_PUT_PRE) && !epx_fault_may(fault, EPX_FAULT_PUT_POST)))
        return run_store(store, stream);
    epx_run_t *room = malloc(((size_t)store->run_count + 1) * sizeof(*room));
    if (room == NULL)
        return epx_fail(EPX_ERR_NO_MEMORY, "%s: no memory for %d runs", fault->name, store->run_count);
    epx_status_t status = EPX_OK;
    for (int32_t p = 0; p < fault->inner->ranks && status == EPX_OK; p++) {
        store_t mine = *store;
        if (!has_rows(store, p))
            continue;
        choose_runs(store, p, 1, room);
        mine.runs = room;
        status = put_to(fault, &mine, p, stream);
    }
    free(room);
    return status;
}

/* The kernels of the last fault that asked; all groups of a process have the same device. */
static const epx_kernels_t *_Atomic real_kernels;

static epx_status_t fault_push(const epx_k_push_t *args, epx_stream_t stream)
{
    epx_status_t status = EPX_OK;
    for (; args != NULL && status == EPX_OK; args = args->more) {
        store_t store = {.real = atomic_load(&real_kernels),
                         .push = *args,
                         .table = args->dst,
                         .runs = args->runs,
                         .run_count = args->run_count};
        store.push.more = NULL;
        status = put(&store, stream);
    }
    return status;
}

static epx_status_t fault_return(const epx_k_ragged_return_t *args, epx_stream_t stream)
{
    store_t store = {.real = atomic_load(&real_kernels),
                     .back = *args,
                     .is_back = 1,
                     .table = args->dst,
                     .runs = args->runs,
                     .run_count = args->run_count};
    return put(&store, stream);
}

/* Rows that befall something go by push, and sums by return. */
static const epx_flow_limits_t no_flow = {.bytes = INT64_MAX, .align = 1, .home_bytes = INT64_MAX};

static int no_sums(int64_t tokens, int32_t width, epx_type_t row_type)
{
    (void)tokens, (void)width, (void)row_type;
    return 0;
}

const epx_kernels_t *epx_fault_kernels(epx_fault_t *fault, const epx_kernels_t *kernels)
{
    atomic_store(&real_kernels, kernels);
    fault->real = kernels;
    fault->kernels = *kernels;
    fault->kernels.push = fault_push;
    fault->kernels.ragged_return = fault_return;
    fault->kernels.flow_limits = &no_flow;
    fault->kernels.sums_soon = no_sums;
    return &fault->kernels;
}
