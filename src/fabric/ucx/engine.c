/* UCX in this process: one context, one worker, one thread. SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "base/network.h"
#include "fabric/ucx/internal.h"

enum { TICK_MS = 100, STOOD_MS = 1000, POLLED_MAX = 1024, PROGRESS_MAX = 256, PROGRESS_SOME = 4 };

static struct {
    pthread_mutex_t life; /* taking and releasing */
    pthread_mutex_t lock; /* of the worker and of all that it changes */
    int32_t references;
    ucp_context_h context;
    ucp_worker_h worker, mapping;
    pthread_t thread;
    int event, wake;
    int stop; /* under the lock */
    ucx_fabric_t *fabrics;
    pid_t process;        /* whose it is: a forked child begins anew */
    uint64_t removals;    /* of fabrics from the list */
    int knows_transports; /* under life */
    atomic_int can_share, has_puts;
    atomic_llong looked_ns;           /* when the thread looked up last */
    atomic_llong stood_ns, ran_on_ns; /* the last time that it stood still, and when it ran on */
} engine = {.life = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER};

void epx_ucx_lock(void) { pthread_mutex_lock(&engine.lock); }

void epx_ucx_unlock(void) { pthread_mutex_unlock(&engine.lock); }

ucp_context_h epx_ucx_context(void) { return engine.context; }

ucp_worker_h epx_ucx_worker(void) { return engine.worker; }

ucp_worker_h epx_ucx_mapping_worker(void) { return engine.mapping; }

static void ring_own_bells(void)
{
    for (ucx_fabric_t *fabric = engine.fabrics; fabric != NULL; fabric = fabric->next)
        if (!fabric->is_closing)
            epx_bell_ring_shared(epx_ucx_bell(fabric));
}

static int progress(int most)
{
    int did = 0;
    for (int i = 0; i < most && ucp_worker_progress(engine.worker) != 0; i++)
        did = 1;
    if (did)
        ring_own_bells();
    return did;
}

int epx_ucx_progress(void) { return progress(PROGRESS_MAX); }

int epx_ucx_progress_some(void) { return progress(PROGRESS_SOME); }

void epx_ucx_help(void)
{
    if (pthread_mutex_trylock(&engine.lock) != 0)
        return;
    (void)epx_ucx_progress();
    epx_ucx_unlock();
}

/* ---- the thread --------------------------------------------------------------------------------------------- */

static void wake_thread(void)
{
    uint64_t one = 1;
    (void)!write(engine.wake, &one, sizeof(one));
}

static int has_closed(const ucx_fabric_t *fabric, int32_t p)
{
    return atomic_load_explicit(epx_ucx_word(fabric, fabric->layout.closed) + p, memory_order_acquire) != 0;
}

void epx_ucx_bury(ucx_peer_t *peer)
{
    ucx_fabric_t *fabric = peer->fabric;
    if (has_closed(fabric, peer->rank) || atomic_exchange(&peer->is_dead, 1))
        return;
    atomic_store(&fabric->any_dead, 1);
    epx_bell_ring_shared(epx_ucx_bell(fabric));
}

/* Near processes that have ended. */
static void watch_processes(const struct pollfd *polled, ucx_peer_t *const *whose, int count)
{
    for (int i = 0; i < count; i++)
        if ((polled[i].revents & POLLIN) != 0)
            epx_ucx_bury(whose[i]);
    for (ucx_fabric_t *fabric = engine.fabrics; fabric != NULL; fabric = fabric->next)
        for (int32_t p = 0; p < fabric->base.ranks; p++) {
            ucx_peer_t *peer = &fabric->peer[p];
            if (peer->is_near && peer->pidfd < 0 && p != fabric->base.rank &&
                kill((pid_t)peer->process, 0) != 0 && errno == ESRCH)
                epx_ucx_bury(peer);
        }
}

/* U5 */
static int is_quiet(const ucx_fabric_t *fabric)
{
    if (fabric->in_flight > 0)
        return 0;
    for (int32_t p = 0; p < fabric->base.ranks; p++) {
        const ucx_peer_t *peer = &fabric->peer[p];
        if (p != fabric->base.rank && !peer->is_near && !peer->has_failed && !atomic_load(&peer->is_dead) &&
            !has_closed(fabric, p))
            return 0;
    }
    return 1;
}

/* Takes a fabric from the list and frees it. */
static void remove_fabric(ucx_fabric_t **at)
{
    ucx_fabric_t *fabric = *at;
    *at = fabric->next;
    engine.removals++;
    fabric->release(fabric);
}

static void bury_fabrics(void)
{
    for (ucx_fabric_t **at = &engine.fabrics; *at != NULL;) {
        if ((*at)->is_closing && is_quiet(*at))
            remove_fabric(at);
        else
            at = &(*at)->next;
    }
}

static int list_processes(struct pollfd *polled, ucx_peer_t **whose)
{
    int count = 0;
    for (ucx_fabric_t *fabric = engine.fabrics; fabric != NULL; fabric = fabric->next)
        for (int32_t p = 0; p < fabric->base.ranks && count < POLLED_MAX; p++) {
            ucx_peer_t *peer = &fabric->peer[p];
            if (!peer->is_near || peer->pidfd < 0 || fabric->is_closing || atomic_load(&peer->is_dead) ||
                has_closed(fabric, p))
                continue;
            whose[count] = peer;
            polled[count++] = (struct pollfd){.fd = peer->pidfd, .events = POLLIN};
        }
    return count;
}

/* The thread looks up every TICK_MS at least: a longer silence is that of a process that was stopped. */
static void note_standstill(void)
{
    int64_t now_ns = epx_clock_ns(), silent_ns = now_ns - atomic_load(&engine.looked_ns);
    if (silent_ns >= (int64_t)STOOD_MS * 1000000) {
        atomic_store(&engine.stood_ns, silent_ns);
        atomic_store(&engine.ran_on_ns, now_ns);
    }
    atomic_store(&engine.looked_ns, now_ns);
}

int epx_ucx_stood_still(int64_t for_ms, int64_t within_ms)
{
    int64_t now_ns = epx_clock_ns(), silent_ns = now_ns - atomic_load(&engine.looked_ns);
    int64_t stood_ns = atomic_load(&engine.stood_ns), ran_on_ns = atomic_load(&engine.ran_on_ns);
    int64_t least_ns = (for_ms > STOOD_MS ? for_ms : STOOD_MS) * 1000000;
    if (silent_ns >= least_ns) /* other threads may run on before it does */
        return 1;
    return stood_ns >= least_ns && now_ns - ran_on_ns < within_ms * 1000000;
}

static void *run_engine(void *nothing)
{
    static struct pollfd polled[POLLED_MAX + 2];
    static ucx_peer_t *whose[POLLED_MAX];
    epx_ucx_lock();
    while (!engine.stop) {
        note_standstill();
        (void)epx_ucx_progress();
        bury_fabrics();
        if (ucp_worker_arm(engine.worker) != UCS_OK) { /* there is more to do */
            epx_ucx_unlock();
            sched_yield();
            epx_ucx_lock();
            continue;
        }
        int count = list_processes(polled + 2, whose);
        uint64_t removals = engine.removals;
        polled[0] = (struct pollfd){.fd = engine.event, .events = POLLIN};
        polled[1] = (struct pollfd){.fd = engine.wake, .events = POLLIN};
        epx_ucx_unlock();
        int ready = poll(polled, (nfds_t)(count + 2), TICK_MS);
        uint64_t wakes;
        if (ready > 0 && (polled[1].revents & POLLIN) != 0)
            (void)!read(engine.wake, &wakes, sizeof(wakes));
        epx_ucx_lock();
        /* Where a fabric has gone meanwhile, its peers have too; the others are asked again at once. */
        watch_processes(polled + 2, whose, ready > 0 && removals == engine.removals ? count : 0);
    }
    epx_ucx_unlock();
    return nothing;
}

void epx_ucx_engine_add(ucx_fabric_t *fabric)
{
    fabric->next = engine.fabrics;
    engine.fabrics = fabric;
    wake_thread();
}

void epx_ucx_engine_drop(ucx_fabric_t *fabric)
{
    ucx_fabric_t **at = &engine.fabrics;
    while (*at != NULL && *at != fabric)
        at = &(*at)->next;
    if (*at != NULL)
        remove_fabric(at);
    else
        fabric->release(fabric);
}

void epx_ucx_engine_close(ucx_fabric_t *fabric)
{
    ucx_fabric_t **at = &engine.fabrics;
    fabric->is_closing = 1;
    while (*at != fabric)
        at = &(*at)->next;
    if (is_quiet(fabric))
        remove_fabric(at);
    else
        wake_thread();
}

/* ---- life --------------------------------------------------------------------------------------------------- */

static int start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&engine.looked_ns, epx_clock_ns());
    int rc = pthread_create(&engine.thread, NULL, run_engine, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0;
}

/* A process that ends while fabrics still wait for far peers: the thread must not run into UCX's own end. */
static void stop_at_exit(void)
{
    if (engine.process != getpid() || engine.worker == NULL)
        return;
    epx_ucx_lock();
    engine.stop = 1;
    wake_thread();
    epx_ucx_unlock();
    pthread_join(engine.thread, NULL);
    engine.worker = NULL;
}

/* UCX's names of a device: its ports that are up, and its interface for TCP. "": it has none. */
static void name_devices(const char *device, const char *interface, char *text, size_t bytes)
{
    int used = 0;
    text[0] = '\0';
    for (int port = 1; port <= 2; port++) {
        char path[2 * EPX_NETWORK_NAME], state[32] = "";
        snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/%d/state", device, port);
        FILE *file = fopen(path, "r");
        if (file == NULL)
            continue;
        if (fgets(state, sizeof(state), file) != NULL && strstr(state, "ACTIVE") != NULL)
            used += snprintf(text + used, bytes - (size_t)used, "%s%s:%d", used > 0 ? "," : "", device, port);
        fclose(file);
    }
    if (interface[0] != '\0')
        snprintf(text + used, bytes - (size_t)used, "%s%s", used > 0 ? "," : "", interface);
}

/* Whether UCX's configuration says this: there is no question for it, but it prints it. */
static int says(const ucp_config_t *config, const char *words)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file == NULL)
        return 0;
    ucp_config_print(config, file, NULL, UCS_CONFIG_PRINT_CONFIG);
    fclose(file);
    int found = text != NULL && strstr(text, words) != NULL;
    free(text);
    return found;
}

/* The NIC that the plan has given to this process (epx_pin_rank), unless somebody has said which. */
static void choose_devices(ucp_config_t *config)
{
    char device[EPX_NETWORK_NAME], interface[EPX_NETWORK_NAME], names[4 * EPX_NETWORK_NAME];
    if (!epx_network_preferred(device, interface) || !says(config, "UCX_NET_DEVICES=all\n"))
        return;
    name_devices(device, interface, names, sizeof(names));
    if (names[0] != '\0' && ucp_config_modify(config, "NET_DEVICES", names) == UCS_OK)
        epx_log(EPX_LOG_INFO, "ucx", "uses %s, the nearest NIC; UCX_NET_DEVICES names another", names);
}

/* UCX 1.13 ends the process where it gets no descriptor for a socket or a segment. */
#define FEWEST_FILES 64
#define FEWEST_FREE 40

/* Descriptors that this process has open; all that it may have where there is none left to look with. */
static int64_t open_files(int64_t most)
{
    int64_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL)
        return errno == EMFILE ? most : 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count - 3; /* itself and its parent are no descriptors, and the folder's own is closed */
}

static epx_status_t check_files(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return EPX_OK;
    int64_t most = (int64_t)limit.rlim_cur, taken = open_files(most);
    if (most < FEWEST_FILES)
        return epx_fail(EPX_ERR_FABRIC,
                        "this process may open %d files, and UCX needs %d and some for each peer: raise it "
                        "with ulimit -n",
                        (int)most, FEWEST_FILES);
    if (most - taken < FEWEST_FREE)
        return epx_fail(
            EPX_ERR_FABRIC,
            "this process may open %" PRId64 " files and has %" PRId64
            " open, and UCX needs %d more and some for each peer: close some, or raise it with ulimit -n",
            most, taken, FEWEST_FREE);
    return EPX_OK;
}

static epx_status_t make_context(ucp_context_h *context_p)
{
    ucp_config_t *config = NULL;
    ucs_status_t rc = ucp_config_read(NULL, NULL, &config);
    if (rc != UCS_OK)
        return epx_fail(EPX_ERR_FABRIC, "UCX cannot read its configuration (%s)", ucs_status_string(rc));
    /* A peer whose host is gone says nothing: it is asked, and more often than UCX would (20 s). */
    if (says(config, "UCX_KEEPALIVE_INTERVAL=20"))
        (void)ucp_config_modify(config, "KEEPALIVE_INTERVAL", "1s");
    choose_devices(config);
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                           .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    rc = ucp_init(&params, config, context_p);
    ucp_config_release(config);
    if (rc != UCS_OK)
        return epx_fail(EPX_ERR_FABRIC, "UCX does not start (%s): see what UCX_TLS and UCX_NET_DEVICES say",
                        ucs_status_string(rc));
    return EPX_OK;
}

/* UCX tells which transports it may use by printing them only. With the lock of life. */
static void learn_transports(ucp_context_h context)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    if (file != NULL) {
        ucp_context_print_info(context, file);
        fclose(file);
    }
    atomic_store_explicit(&engine.can_share,
                          text != NULL && (strstr(text, " sysv/") != NULL || strstr(text, " posix/") != NULL),
                          memory_order_release);
    atomic_store_explicit(&engine.has_puts,
                          text != NULL && (strstr(text, " rc_") != NULL || strstr(text, " dc_") != NULL),
                          memory_order_release);
    engine.knows_transports = text != NULL;
    free(text);
}

static epx_status_t start(ucp_am_recv_callback_t receive)
{
    epx_status_t status = check_files();
    if (status == EPX_OK)
        status = make_context(&engine.context);
    if (status != EPX_OK)
        return status;
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    engine.event = engine.wake = -1;
    engine.stop = 0;
    engine.fabrics = NULL;
    ucs_status_t rc = ucp_worker_create(engine.context, &params, &engine.worker);
    if (rc != UCS_OK)
        goto no_worker;
    /* A worker takes queues and pinned memory of a network card: no second one where nothing maps. */
    learn_transports(engine.context);
    engine.mapping = NULL;
    if (atomic_load_explicit(&engine.can_share, memory_order_acquire))
        rc = ucp_worker_create(engine.context, &params, &engine.mapping);
    if (rc != UCS_OK)
        goto no_mapping;
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB, .id = 0, .cb = receive};
    rc = ucp_worker_set_am_recv_handler(engine.worker, &handler);
    if (rc == UCS_OK)
        rc = ucp_worker_get_efd(engine.worker, &engine.event);
    if (rc != UCS_OK)
        goto no_thread;
    engine.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine.wake >= 0 && start_thread())
        return EPX_OK;
    rc = UCS_ERR_NO_RESOURCE;
    if (engine.wake >= 0)
        close(engine.wake);
no_thread:
    if (engine.mapping != NULL)
        ucp_worker_destroy(engine.mapping);
no_mapping:
    ucp_worker_destroy(engine.worker);
    engine.worker = NULL;
no_worker:
    ucp_cleanup(engine.context);
    return epx_fail(
        EPX_ERR_FABRIC,
        "UCX has no worker with events (%s): see what UCX_TLS says; shared memory needs room in /dev/shm "
        "(a container's --shm-size), UCX_TLS=tcp does without",
        ucs_status_string(rc));
}

/*
 * The engine stays for the life of the process once it has begun: connections of one fabric serve the next,
 * and fabrics that were closed may still wait for far peers.
 */
epx_status_t epx_ucx_engine_take(ucp_am_recv_callback_t receive)
{
    static int has_exit;
    epx_status_t status = EPX_OK;
    pthread_mutex_lock(&engine.life);
    if (engine.process != 0 && engine.process != getpid())
        status = epx_fail(EPX_ERR_FABRIC, "UCX was used before this process was forked: fork first");
    else if (engine.worker == NULL)
        status = start(receive);
    if (status == EPX_OK) {
        engine.references++;
        engine.process = getpid();
        if (!has_exit)
            has_exit = atexit(stop_at_exit) == 0;
    }
    pthread_mutex_unlock(&engine.life);
    return status;
}

void epx_ucx_engine_release(void)
{
    pthread_mutex_lock(&engine.life);
    engine.references--;
    pthread_mutex_unlock(&engine.life);
}

/* This may be asked before the first group opens, and before ranks have found their places: the context that
 * stays is not made for it. */
static void know_transports(void)
{
    ucp_context_h context = NULL;
    pthread_mutex_lock(&engine.life);
    if (!engine.knows_transports && check_files() == EPX_OK && make_context(&context) == EPX_OK) {
        learn_transports(context);
        ucp_cleanup(context);
    }
    pthread_mutex_unlock(&engine.life);
}

int epx_ucx_can_share(void)
{
    know_transports();
    return atomic_load_explicit(&engine.can_share, memory_order_acquire);
}

int epx_ucx_has_puts(void) { return atomic_load_explicit(&engine.has_puts, memory_order_acquire); }

ucx_fabric_t *epx_ucx_find(uint64_t token)
{
    ucx_fabric_t *fabric = engine.fabrics;
    while (fabric != NULL && (uint64_t)(uintptr_t)fabric != token)
        fabric = fabric->next;
    return fabric;
}
