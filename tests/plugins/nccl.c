/*
 * A library with NCCL's functions for ranks that are threads of one process, over memory of whoever loads it:
 * what fabric `nccl` does with NCCL is tested with it where there is no GPU. SPDX-License-Identifier:
 * Apache-2.0
 *
 * The test sets the variables; `fake_version` is what ncclGetVersion says.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct id {
    char bytes[128];
} id_t;
typedef struct team {
    int ranks, rank, stride;
} team_t;

/* What the ranks of one communicator share. */
typedef struct meeting {
    int number, ranks, comms;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int here, round;
    void **memory;        /* [ranks] of the registration in progress */
    struct parcel **mail; /* [ranks, ranks] by sender */
    struct meeting *next;
} meeting_t;

typedef struct comm {
    meeting_t *meeting;
    int rank;
    int running, is_aborted; /* groups that are in a stream; under the meeting's mutex */
} comm_t;

typedef struct window {
    int ranks;
    void *memory[];
} window_t;

EXPORT int fake_version = 23007;
EXPORT void *(*fake_allocate)(size_t bytes, size_t alignment);
EXPORT void (*fake_release)(void *memory, size_t bytes);
EXPORT int fake_reach; /* how many ranks loads and stores reach; 0: all */
EXPORT int (*fake_enqueue)(void *stream, void (*run)(void *), const void *args, size_t bytes);
EXPORT void *(*fake_open)(const void *memory);
EXPORT int fake_no_window; /* 1: one rank alone gets no window, as from 2.28.3 */
EXPORT int fake_broken;    /* 1: communicators say that a peer is gone */
EXPORT void (*fake_comes)(
    int rank);        /* before a rank comes to the others in what is collective; NULL: nothing */
EXPORT int fake_live; /* allocations, windows and communicators that are there */

static struct {
    pthread_mutex_t mutex;
    int last;
    meeting_t *first;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Sizes of allocations: released without them. */
static struct {
    void *memory;
    size_t bytes;
} taken[4096];

static void count(int by) { __atomic_add_fetch(&fake_live, by, __ATOMIC_SEQ_CST); }

static void comes(int rank)
{
    if (fake_comes != NULL)
        fake_comes(rank);
}

static void arrive(meeting_t *m)
{
    pthread_mutex_lock(&m->mutex);
    int round = m->round;
    if (++m->here == m->ranks) {
        m->here = 0;
        m->round++;
        pthread_cond_broadcast(&m->changed);
    }
    while (m->round == round)
        pthread_cond_wait(&m->changed, &m->mutex);
    pthread_mutex_unlock(&m->mutex);
}

EXPORT int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = fake_version;
    return 0;
}

EXPORT int ncclGetUniqueId(id_t *id);
int ncclGetUniqueId(id_t *id)
{
    memset(id, 0, sizeof(*id));
    pthread_mutex_lock(&all.mutex);
    int number = ++all.last;
    pthread_mutex_unlock(&all.mutex);
    memcpy(id->bytes, &number, sizeof(number));
    return 0;
}

static meeting_t *find(int number, int ranks)
{
    pthread_mutex_lock(&all.mutex);
    meeting_t *m = all.first;
    while (m != NULL && m->number != number)
        m = m->next;
    if (m == NULL) {
        m = calloc(1, sizeof(*m));
        m->number = number;
        m->ranks = m->comms = ranks;
        m->memory = calloc((size_t)ranks, sizeof(void *));
        m->mail = calloc((size_t)ranks * (size_t)ranks, sizeof(void *));
        pthread_mutex_init(&m->mutex, NULL);
        pthread_cond_init(&m->changed, NULL);
        m->next = all.first;
        all.first = m;
    }
    pthread_mutex_unlock(&all.mutex);
    return m;
}

EXPORT int ncclCommInitRank(comm_t **comm, int ranks, id_t id, int rank);
int ncclCommInitRank(comm_t **comm, int ranks, id_t id, int rank)
{
    int number;
    memcpy(&number, id.bytes, sizeof(number));
    *comm = calloc(1, sizeof(**comm));
    (*comm)->meeting = find(number, ranks);
    (*comm)->rank = rank;
    count(1);
    comes(rank);
    arrive((*comm)->meeting);
    return 0;
}

EXPORT int ncclCommAbort(comm_t *comm);
int ncclCommAbort(comm_t *comm)
{
    meeting_t *m = comm->meeting;
    pthread_mutex_lock(&m->mutex);
    comm->is_aborted = 1;
    pthread_cond_broadcast(&m->changed);
    while (comm->running > 0)
        pthread_cond_wait(&m->changed, &m->mutex);
    /* What this rank was sending is taken by nobody any more: its memory goes. */
    for (int to = 0; m->mail != NULL && to < m->ranks; to++)
        m->mail[comm->rank * m->ranks + to] = NULL;
    pthread_mutex_unlock(&m->mutex);
    pthread_mutex_lock(&all.mutex);
    if (--m->comms == 0) {
        meeting_t **link = &all.first;
        while (*link != m)
            link = &(*link)->next;
        *link = m->next;
        free(m->memory);
        free(m->mail);
        free(m);
    }
    pthread_mutex_unlock(&all.mutex);
    free(comm);
    count(-1);
    return 0;
}

EXPORT int ncclCommDestroy(comm_t *comm);
int ncclCommDestroy(comm_t *comm) { return ncclCommAbort(comm); }

EXPORT const char *ncclGetErrorString(int result);
const char *ncclGetErrorString(int result) { return result == 0 ? "no error" : "the fake refuses"; }

EXPORT const char *ncclGetLastError(comm_t *comm);
const char *ncclGetLastError(comm_t *comm)
{
    (void)comm;
    return "";
}

EXPORT int ncclMemAlloc(void **memory, size_t bytes);
int ncclMemAlloc(void **memory, size_t bytes)
{
    *memory = fake_allocate(bytes, 4096);
    pthread_mutex_lock(&all.mutex);
    for (size_t i = 0; *memory != NULL && i < sizeof(taken) / sizeof(taken[0]); i++) {
        if (taken[i].memory != NULL)
            continue;
        taken[i].memory = *memory;
        taken[i].bytes = bytes;
        count(1);
        break;
    }
    pthread_mutex_unlock(&all.mutex);
    return *memory != NULL ? 0 : 1;
}

EXPORT int ncclMemFree(void *memory);
int ncclMemFree(void *memory)
{
    size_t bytes = 0;
    pthread_mutex_lock(&all.mutex);
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        if (taken[i].memory == memory) {
            bytes = taken[i].bytes;
            taken[i].memory = NULL;
            count(-1);
        }
    pthread_mutex_unlock(&all.mutex);
    /* Peers' mappings would keep it alive: it stays until the process ends. */
    (void)bytes;
    return 0;
}

EXPORT int ncclCommWindowRegister(comm_t *comm, void *memory, size_t bytes, window_t **window, int flags);
int ncclCommWindowRegister(comm_t *comm, void *memory, size_t bytes, window_t **window, int flags)
{
    meeting_t *m = comm->meeting;
    size_t table = (size_t)m->ranks * sizeof(void *);
    (void)bytes;
    if (flags != 1)
        return 4;
    if (fake_no_window && m->ranks == 1) {
        *window = NULL;
        return 0;
    }
    m->memory[comm->rank] = memory;
    comes(comm->rank);
    arrive(m);
    *window = calloc(1, sizeof(**window) + table);
    (*window)->ranks = m->ranks;
    memcpy((*window)->memory, m->memory, table);
    arrive(m);
    count(1);
    return 0;
}

EXPORT int ncclCommWindowDeregister(comm_t *comm, window_t *window);
int ncclCommWindowDeregister(comm_t *comm, window_t *window)
{
    (void)comm;
    free(window);
    count(-1);
    return 0;
}

EXPORT team_t ncclTeamLsa(comm_t *comm);
team_t ncclTeamLsa(comm_t *comm)
{
    int ranks = comm->meeting->ranks, reach = fake_reach > 0 ? fake_reach : ranks;
    return (team_t){.ranks = reach < ranks ? reach : ranks, .rank = comm->rank % reach, .stride = 1};
}

EXPORT int ncclGetPeerDevicePointer(window_t *window, size_t offset, int peer, void **pointer);
int ncclGetPeerDevicePointer(window_t *window, size_t offset, int peer, void **pointer)
{
    *pointer = (char *)window->memory[peer] + offset;
    return 0;
}

/* ---- sends and receives: groups run in the streams of the device of the tests ------------------------------- */

/* A send that waits to be taken, in the order of the pair. */
typedef struct parcel {
    const void *from;
    size_t bytes;
    struct comm *sender;
    int is_taken;
    struct parcel *next;
} parcel_t;

typedef struct group_op {
    int is_send, peer;
    char *memory;
    size_t bytes;
    parcel_t parcel;
} group_op_t;

enum { OPS_MAX = 8192 };

typedef struct group {
    struct comm *comm;
    void *stream;
    int count;
    group_op_t op[];
} group_t;

static _Thread_local struct {
    int depth, count;
    struct comm *comm;
    void *stream;
    group_op_t op[OPS_MAX];
} open_group;

static parcel_t **end_of(meeting_t *m, int from, int to)
{
    parcel_t **at = &m->mail[from * m->ranks + to];
    while (*at != NULL)
        at = &(*at)->next;
    return at;
}

/* With the mutex; the wait ends when the communicator is aborted. */
static int take_parcel(meeting_t *m, struct comm *comm, const group_op_t *op)
{
    parcel_t **at = &m->mail[op->peer * m->ranks + comm->rank];
    while (*at == NULL && !comm->is_aborted)
        pthread_cond_wait(&m->changed, &m->mutex);
    if (comm->is_aborted)
        return 0;
    parcel_t *parcel = *at;
    if (parcel->bytes != op->bytes) {
        fprintf(stderr, "rank %d sends %zu bytes, rank %d receives %zu\n", op->peer, parcel->bytes,
                comm->rank, op->bytes);
        abort();
    }
    memcpy(fake_open(op->memory), fake_open(parcel->from), op->bytes);
    *at = parcel->next;
    parcel->is_taken = 1;
    pthread_cond_broadcast(&m->changed);
    return 1;
}

static void run_group(void *payload)
{
    group_t *group = *(group_t **)payload;
    struct comm *comm = group->comm;
    meeting_t *m = comm->meeting;
    pthread_mutex_lock(&m->mutex);
    for (int i = 0; i < group->count && !comm->is_aborted; i++) {
        group_op_t *op = &group->op[i];
        op->parcel = (parcel_t){.from = op->memory, .bytes = op->bytes, .sender = comm};
        if (op->is_send)
            *end_of(m, comm->rank, op->peer) = &op->parcel;
    }
    pthread_cond_broadcast(&m->changed);
    for (int i = 0; i < group->count; i++)
        if (!group->op[i].is_send && !take_parcel(m, comm, &group->op[i]))
            break;
    for (int i = 0; i < group->count; i++)
        while (group->op[i].is_send && !group->op[i].parcel.is_taken && !comm->is_aborted)
            pthread_cond_wait(&m->changed, &m->mutex);
    int is_aborted = comm->is_aborted;
    comm->running--;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    if (!is_aborted)
        free(group); /* else peers may still look at what is in it */
}

EXPORT int ncclGroupStart(void);
int ncclGroupStart(void)
{
    open_group.depth++;
    return 0;
}

EXPORT int ncclGroupEnd(void);
int ncclGroupEnd(void)
{
    size_t bytes = (size_t)open_group.count * sizeof(group_op_t);
    if (open_group.depth != 1)
        return 5;
    open_group.depth = 0;
    if (open_group.count == 0)
        return 0;
    group_t *group = calloc(1, sizeof(*group) + bytes);
    group->comm = open_group.comm;
    group->stream = open_group.stream;
    group->count = open_group.count;
    memcpy(group->op, open_group.op, bytes);
    open_group.count = 0;
    pthread_mutex_lock(&group->comm->meeting->mutex);
    group->comm->running++;
    pthread_mutex_unlock(&group->comm->meeting->mutex);
    return fake_enqueue(group->stream, run_group, &group, sizeof(group)) == 0 ? 0 : 3;
}

static int add_op(int is_send, void *memory, size_t n, int type, int peer, comm_t *comm, void *stream)
{
    if (type != 0 || open_group.depth != 1 || open_group.count == OPS_MAX || peer == comm->rank ||
        (open_group.count > 0 && (open_group.comm != comm || open_group.stream != stream)))
        return 4;
    open_group.comm = comm;
    open_group.stream = stream;
    open_group.op[open_group.count++] =
        (group_op_t){.is_send = is_send, .peer = peer, .memory = memory, .bytes = n};
    return 0;
}

EXPORT int ncclSend(const void *from, size_t n, int type, int peer, comm_t *comm, void *stream);
int ncclSend(const void *from, size_t n, int type, int peer, comm_t *comm, void *stream)
{
    return add_op(1, (void *)(size_t)from, n, type, peer, comm, stream);
}

EXPORT int ncclRecv(void *to, size_t n, int type, int peer, comm_t *comm, void *stream);
int ncclRecv(void *to, size_t n, int type, int peer, comm_t *comm, void *stream)
{
    return add_op(0, to, n, type, peer, comm, stream);
}

EXPORT int ncclCommGetAsyncError(comm_t *comm, int *state);
int ncclCommGetAsyncError(comm_t *comm, int *state)
{
    (void)comm;
    *state = __atomic_load_n(&fake_broken, __ATOMIC_SEQ_CST) ? 6 : 0;
    return 0;
}

EXPORT int ncclDevCommCreate(comm_t *comm, const void *wanted, void *made);
int ncclDevCommCreate(comm_t *comm, const void *wanted, void *made)
{
    (void)comm, (void)wanted, (void)made;
    return 3;
}
EXPORT int ncclDevCommDestroy(comm_t *comm, const void *made);
int ncclDevCommDestroy(comm_t *comm, const void *made)
{
    (void)comm, (void)made;
    return 3;
}
