/* The link: meeting, leaving, notes. SPDX-License-Identifier: Apache-2.0 */
#include "launch/link.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/fail.h"

enum { LINGER_MS = 5000, SPOILT_LINGER_MS = 300, PUT_MS = 200, TRY_MS = 2000, PAUSE_MS = 50 };

/* ---- meeting ------------------------------------------------------------------------------------------------ */

/* Where rank 0 may be; hosts are words of `hosts`. */
typedef struct place {
    char hosts[EPX_LAUNCH_TEXT_BYTES];
    int32_t port, ports;
} place_t;

/* Rank 0 listens. *port_p: where. */
static epx_status_t listen_for_all(const epx_launch_t *launch, int *listener_p, int32_t *port_p)
{
    int32_t ports = launch->uses_pmix ? 1 : launch->root_ports;
    const char *host = launch->uses_pmix ? "" : launch->root_host;
    int error = 0;
    for (int32_t i = 0; i < ports; i++) {
        *listener_p = epx_launch_listen(host, launch->uses_pmix ? 0 : launch->root_port + i, port_p);
        if (*listener_p >= 0)
            return EPX_OK;
        error = errno;
    }
    if (launch->uses_pmix)
        return epx_fail(EPX_ERR_FABRIC, "rank 0 cannot listen on any port (%s)", strerror(error));
    return epx_fail(EPX_ERR_FABRIC,
                    "rank 0 cannot listen on port%s %d%s%.0d (%s): free it or name another in %s",
                    ports > 1 ? "s" : "", launch->root_port, ports > 1 ? " to " : "",
                    ports > 1 ? launch->root_port + ports - 1 : 0, strerror(error), launch->root_from);
}

static epx_status_t send_hello(const epx_launch_t *launch, int socket, int64_t deadline_ns)
{
    struct {
        epx_frame_t frame;
        frame_hello_t hello;
    } all;
    memset(&all, 0, sizeof(all));
    all.frame = (epx_frame_t){.magic = EPX_FRAME_MAGIC, .kind = FRAME_HELLO, .bytes = sizeof(frame_hello_t)};
    all.hello = (frame_hello_t){.key = launch->key, .rank = launch->rank, .size = launch->size};
    epx_launch_my_card(&all.hello.card);
    return epx_launch_send(socket, &all, sizeof(all), deadline_ns) == 0 ? EPX_OK : EPX_ERR_PEER;
}

/* Reads WELCOME or REFUSED. *again_p: it was no hub of ours, try on. */
static epx_status_t await_welcome(const epx_launch_t *launch, int socket, epx_link_card_t *cards,
                                  int64_t deadline_ns, int *again_p)
{
    epx_frame_t frame;
    char text[EPX_HUB_TEXT_BYTES];
    size_t all = (size_t)launch->size * sizeof(*cards);
    int error = epx_launch_receive(socket, &frame, sizeof(frame), deadline_ns);
    *again_p = 0;
    if (error == ETIMEDOUT)
        return epx_fail(EPX_ERR_TIMEOUT, "rank 0 holds the meeting and has not answered in time");
    if (error != 0 || frame.magic != EPX_FRAME_MAGIC) {
        *again_p = 1;
        return EPX_ERR_PEER;
    }
    if (frame.kind == FRAME_WELCOME && frame.bytes == all &&
        epx_launch_receive(socket, cards, all, deadline_ns) == 0)
        return EPX_OK;
    if (frame.kind == FRAME_REFUSED && frame.bytes <= sizeof(text) &&
        epx_launch_receive(socket, text, frame.bytes, deadline_ns) == 0) {
        text[sizeof(text) - 1] = '\0';
        return epx_fail((epx_status_t)frame.place, "%s", text);
    }
    *again_p = 1;
    return EPX_ERR_PEER;
}

/* One round over all places. */
static epx_status_t try_places(const epx_launch_t *launch, const place_t *place, epx_link_card_t *cards,
                               int64_t deadline_ns, int *socket_p, int *error_p)
{
    char hosts[EPX_LAUNCH_TEXT_BYTES], *rest = NULL;
    snprintf(hosts, sizeof(hosts), "%s", place->hosts);
    for (char *host = strtok_r(hosts, " ", &rest); host != NULL; host = strtok_r(NULL, " ", &rest)) {
        for (int32_t i = 0; i < place->ports; i++) {
            int64_t until_ns = epx_clock_ns() + (int64_t)TRY_MS * 1000000;
            int again = 1;
            int socket =
                epx_launch_connect(host, place->port + i, until_ns < deadline_ns ? until_ns : deadline_ns);
            if (socket < 0) {
                *error_p = errno;
                continue;
            }
            /* The hub gives up at the deadline and says who is missing: a little more time for its word. */
            epx_status_t status = send_hello(launch, socket, deadline_ns);
            if (status == EPX_OK)
                status = await_welcome(launch, socket, cards, deadline_ns + 2000000000, &again);
            if (status == EPX_OK) {
                *socket_p = socket;
                return EPX_OK;
            }
            close(socket);
            *error_p = ECONNRESET;
            if (!again)
                return status;
        }
    }
    return EPX_ERR_PEER;
}

static epx_status_t join(const epx_launch_t *launch, const place_t *place, epx_link_card_t *cards,
                         int64_t timeout_ms, int *socket_p)
{
    int64_t deadline_ns = epx_clock_ns() + timeout_ms * 1000000;
    int error = 0;
    *socket_p = -1;
    for (;;) {
        epx_status_t status = try_places(launch, place, cards, deadline_ns, socket_p, &error);
        if (*socket_p >= 0 || (status != EPX_ERR_PEER && status != EPX_OK))
            return status;
        if (epx_clock_ns() >= deadline_ns)
            break;
        epx_nap_ns((int64_t)PAUSE_MS * 1000000);
    }
    return epx_fail(
        EPX_ERR_TIMEOUT,
        "rank %d did not reach rank 0 at %s port %d%s within %lld ms (%s): see that rank 0 started, "
        "that %s%s, and that no firewall stands between",
        launch->rank, place->hosts, place->port, place->ports > 1 ? " and behind" : "", (long long)timeout_ms,
        error == ENOENT ? "no such host" : strerror(error),
        launch->uses_pmix ? "its addresses can be reached from here" : launch->root_from,
        launch->uses_pmix ? "" : " says where it is");
}

/* Rank 0 starts the hub, and every rank learns where it is. */
static epx_status_t find_place(const epx_launch_t *launch, int32_t meeting, int64_t timeout_ms,
                               epx_hub_t **hub_p, place_t *place)
{
    char text[EPX_LAUNCH_TEXT_BYTES] = "";
    int listener = -1;
    epx_status_t status = EPX_OK;
    *place = (place_t){.port = launch->root_port, .ports = launch->root_ports};
    snprintf(place->hosts, sizeof(place->hosts), "%s", launch->root_host);
    if (launch->rank == 0) {
        int32_t port = 0;
        status = listen_for_all(launch, &listener, &port);
        if (status == EPX_OK) {
            *hub_p = epx_hub_start(listener, launch, timeout_ms);
            if (*hub_p == NULL)
                status = epx_fail(EPX_ERR_NO_MEMORY, "rank 0 has no memory or no thread for the hub");
            char addresses[EPX_LAUNCH_TEXT_BYTES - 32];
            epx_launch_addresses(addresses, sizeof(addresses));
            snprintf(text, sizeof(text), "%d 127.0.0.1 %s", port, addresses);
        }
    }
    if (launch->uses_pmix && launch->size > 1) {
        epx_status_t told = epx_pmix_tell(launch, meeting, text, timeout_ms);
        status = status != EPX_OK ? status : told;
    }
    if (status != EPX_OK || (!launch->uses_pmix && launch->rank != 0))
        return status;
    /* "port host host ..." */
    char *blank = strchr(text, ' ');
    if (blank == NULL)
        return epx_fail(EPX_ERR_PEER, "rank 0 could not say where it listens");
    place->port = atoi(text);
    place->ports = 1;
    snprintf(place->hosts, sizeof(place->hosts), "%s", launch->rank == 0 ? "127.0.0.1 ::1" : blank + 1);
    return EPX_OK;
}

/* ---- life --------------------------------------------------------------------------------------------------- */

static epx_link_t *make_link(const epx_launch_t *launch)
{
    epx_link_t *link = calloc(1, sizeof(*link));
    if (link == NULL)
        return NULL;
    link->rank = launch->rank;
    link->size = launch->size;
    link->socket = -1;
    link->card = calloc((size_t)launch->size, sizeof(*link->card));
    link->state = calloc((size_t)launch->size, sizeof(*link->state));
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&link->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&link->mutex, NULL);
    pthread_mutex_init(&link->writing, NULL);
    return link;
}

static void free_link(epx_link_t *link)
{
    if (link->socket >= 0)
        close(link->socket);
    pthread_cond_destroy(&link->changed);
    pthread_mutex_destroy(&link->mutex);
    pthread_mutex_destroy(&link->writing);
    free(link->card);
    free(link->state);
    free(link);
}

epx_status_t epx_link_open(const epx_launch_t *launch, int64_t timeout_ms, epx_link_t **link_p)
{
    static atomic_int meetings; /* of this process; every rank counts alike */
    place_t place;
    epx_link_t *link = make_link(launch);
    if (link == NULL || link->card == NULL || link->state == NULL) {
        if (link != NULL)
            free_link(link);
        return epx_fail(EPX_ERR_NO_MEMORY, "no memory to join %d ranks", launch->size);
    }
    epx_status_t status = find_place(launch, atomic_fetch_add(&meetings, 1), timeout_ms, &link->hub, &place);
    if (status == EPX_OK)
        status = join(launch, &place, link->card, timeout_ms, &link->socket);
    if (status == EPX_OK && !epx_launch_start_thread(&link->thread, epx_link_run, link))
        status = epx_fail(EPX_ERR_NO_MEMORY, "rank %d has no thread for its link", launch->rank);
    if (status != EPX_OK) {
        if (link->socket >= 0)
            close(link->socket);
        link->socket = -1;
        epx_hub_stop(&link->hub, 1000);
        epx_pmix_end();
        free_link(link);
        return status;
    }
    *link_p = link;
    return EPX_OK;
}

void epx_link_close(epx_link_t **link_p)
{
    if (*link_p == NULL)
        return;
    epx_link_t *link = *link_p;
    *link_p = NULL;
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC, .kind = FRAME_LEFT};
    (void)epx_link_write(link, &frame, NULL, epx_clock_ns() + (int64_t)PUT_MS * 1000000);
    shutdown(link->socket, SHUT_WR); /* the hub ends it when it has read all */
    /* What the hub still says is read until it closes; a hub that does not is left alone. */
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 500000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    if (pthread_timedjoin_np(link->thread, NULL, &until) != 0) {
        shutdown(link->socket, SHUT_RDWR);
        pthread_join(link->thread, NULL);
    }
    epx_hub_stop(&link->hub, link->is_spoilt || link->deaths > 0 ? SPOILT_LINGER_MS : LINGER_MS);
    epx_pmix_end();
    free_link(link);
}

int32_t epx_link_rank(const epx_link_t *link) { return link->rank; }

int32_t epx_link_size(const epx_link_t *link) { return link->size; }

const epx_link_card_t *epx_link_cards(const epx_link_t *link) { return link->card; }

epx_link_state_t epx_link_state(epx_link_t *link, int32_t rank)
{
    pthread_mutex_lock(&link->mutex);
    epx_link_state_t state = link->state[rank];
    pthread_mutex_unlock(&link->mutex);
    return state;
}

/* ---- notes -------------------------------------------------------------------------------------------------- */

epx_status_t epx_link_put(epx_link_t *link, const void *note, size_t bytes)
{
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC, .kind = FRAME_PUT, .bytes = (uint32_t)bytes};
    if (bytes > EPX_LINK_NOTE_BYTES || (note == NULL && bytes > 0))
        return epx_fail(EPX_ERR_ARG, "a note of %zu bytes; at most %d", bytes, EPX_LINK_NOTE_BYTES);
    return epx_link_write(link, &frame, note, epx_clock_ns() + (int64_t)PUT_MS * 1000000);
}

static void deadline_to_timespec(int64_t deadline_ns, struct timespec *time)
{
    *time = (struct timespec){.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
}

epx_status_t epx_link_get(epx_link_t *link, int64_t timeout_ms, epx_link_note_fn fn, void *context)
{
    int64_t deadline_ns = epx_clock_ns() + timeout_ms * 1000000;
    struct timespec until;
    link_call_t call = {.kind = FRAME_GET, .fn = fn, .context = context};
    deadline_to_timespec(deadline_ns, &until);
    pthread_mutex_lock(&link->mutex);
    call.circle = ++link->gets;
    pthread_mutex_unlock(&link->mutex);
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC, .kind = FRAME_GET, .circle = call.circle};
    epx_link_begin(link, &call);
    epx_status_t status = epx_link_write(link, &frame, NULL, deadline_ns);
    pthread_mutex_lock(&link->mutex);
    while (status == EPX_OK && !call.done && !link->is_down)
        if (pthread_cond_timedwait(&link->changed, &link->mutex, &until) != 0)
            break;
    if (status == EPX_OK && !call.done)
        status = link->is_down ? EPX_ERR_PEER : EPX_ERR_TIMEOUT;
    pthread_mutex_unlock(&link->mutex);
    epx_link_end(link, &call);
    if (status != EPX_OK)
        return epx_fail(status, "rank 0, which keeps the notes, %s",
                        status == EPX_ERR_TIMEOUT ? "does not answer" : "is gone");
    return EPX_OK;
}

void epx_link_on_call(epx_link_t *link, epx_link_call_fn fn, void *context)
{
    pthread_mutex_lock(&link->mutex);
    link->on_call = fn;
    link->on_call_context = context;
    pthread_mutex_unlock(&link->mutex);
}

epx_status_t epx_link_call(epx_link_t *link, uint64_t word)
{
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC, .kind = FRAME_CALL, .sequence = word};
    return epx_link_write(link, &frame, NULL, epx_clock_ns() + (int64_t)PUT_MS * 1000000);
}
