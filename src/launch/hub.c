/* The hub: connections, greetings, the end. SPDX-License-Identifier: Apache-2.0 */
#include "launch/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fail.h"

enum { GREETING_MS = 5000, STRANGERS_MAX = 64, LAST_WORDS_MS = 1000 };

static void close_connection(hub_connection_t *connection)
{
    if (connection->socket >= 0)
        close(connection->socket);
    connection->socket = -1;
}

/* ---- coming and going --------------------------------------------------------------------------------------- */

static void refuse(hub_connection_t *to, epx_status_t status, const char *text)
{
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC,
                         .kind = FRAME_REFUSED,
                         .bytes = (uint32_t)strlen(text) + 1,
                         .place = (int32_t)status};
    epx_hub_say(to, &frame, text);
    to->is_refused = 1;
    to->deadline_ns = epx_clock_ns() + (int64_t)LAST_WORDS_MS * 1000000;
}

static void welcome_all(struct epx_hub *hub)
{
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC,
                         .kind = FRAME_WELCOME,
                         .bytes = (uint32_t)((size_t)hub->size * sizeof(epx_link_card_t)),
                         .size = hub->size};
    hub->has_welcomed = 1;
    epx_hub_say_all(hub, &frame, hub->card);
}

/* Somebody has said who he is. */
static void greet(struct epx_hub *hub, hub_connection_t *from)
{
    frame_hello_t hello;
    char text[EPX_HUB_TEXT_BYTES];
    memcpy(&hello, from->data, sizeof(hello));
    hello.card.name[sizeof(hello.card.name) - 1] = '\0';
    if (hello.key != hub->key) { /* another job's: no word to it, its own hub may be on the next port */
        close_connection(from);
        return;
    }
    if (hello.size != hub->size || hello.rank < 0 || hello.rank >= hub->size) {
        snprintf(
            text, sizeof(text),
            "rank %d of %d (process %lld on %s) came to a job of %d ranks: make the launcher's variables "
            "agree",
            hello.rank, hello.size, (long long)hello.card.process, hello.card.name, hub->size);
        refuse(from, EPX_ERR_ARG, text);
        return;
    }
    if (hub->has_given_up) {
        refuse(from, EPX_ERR_TIMEOUT, "the other ranks have given up waiting: start the job again");
        return;
    }
    hub_rank_t *rank = &hub->rank[hello.rank];
    if (rank->connection != NULL || hub->has_welcomed) {
        const epx_link_card_t *card = &hub->card[hello.rank];
        snprintf(
            text, sizeof(text),
            "rank %d is there already, as process %lld on %s; process %lld on %s must have another rank, or "
            "the root another port",
            hello.rank, (long long)card->process, card->name, (long long)hello.card.process, hello.card.name);
        refuse(from, EPX_ERR_ARG, text);
        return;
    }
    rank->connection = from;
    from->rank = hello.rank;
    hub->card[hello.rank] = hello.card;
    if (++hub->joined == hub->size)
        welcome_all(hub);
}

/* "1, 4-6" of those who have not come. */
static void list_missing(const struct epx_hub *hub, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int32_t r = 0; r < hub->size && used + 32 < bytes; r++) {
        int32_t last = r;
        if (hub->rank[r].connection != NULL)
            continue;
        while (last + 1 < hub->size && hub->rank[last + 1].connection == NULL)
            last++;
        used += (size_t)snprintf(text + used, bytes - used, used > 0 ? ", %d" : "%d", r);
        if (last > r)
            used += (size_t)snprintf(text + used, bytes - used, "-%d", last);
        r = last;
    }
}

static void give_up(struct epx_hub *hub)
{
    char missing[256], text[EPX_HUB_TEXT_BYTES];
    int32_t count = hub->size - hub->joined;
    list_missing(hub, missing, sizeof(missing));
    snprintf(text, sizeof(text),
             "%d of %d ranks did not come: rank%s %s; find out why %s did not start or did not get here",
             count, hub->size, count == 1 ? "" : "s", missing, count == 1 ? "it" : "they");
    hub->has_given_up = 1;
    for (hub_connection_t *at = hub->connections; at != NULL; at = at->next)
        if (at->rank >= 0 && at->socket >= 0)
            refuse(at, EPX_ERR_TIMEOUT, text);
}

/* A connection has ended. */
static void part_with(struct epx_hub *hub, hub_connection_t *from)
{
    close_connection(from);
    if (from->rank < 0 || hub->rank[from->rank].connection != from)
        return;
    hub_rank_t *rank = &hub->rank[from->rank];
    rank->connection = NULL;
    if (!hub->has_welcomed) { /* it may come again */
        hub->joined--;
        return;
    }
    if (rank->state == EPX_LINK_LEFT)
        return;
    rank->state = EPX_LINK_DEAD;
    epx_frame_t frame = {.magic = EPX_FRAME_MAGIC, .kind = FRAME_DEAD, .place = from->rank};
    epx_hub_say_all(hub, &frame, NULL);
}

static void accept_one(struct epx_hub *hub)
{
    int32_t strangers = 0;
    hub_connection_t *oldest = NULL;
    int socket = accept4(hub->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
        return;
    for (hub_connection_t *at = hub->connections; at != NULL; at = at->next) {
        if (at->rank >= 0 || at->socket < 0)
            continue;
        strangers++;
        if (oldest == NULL || at->deadline_ns < oldest->deadline_ns)
            oldest = at;
    }
    if (strangers >= STRANGERS_MAX + hub->size)
        close_connection(oldest);
    hub_connection_t *made = calloc(1, sizeof(*made));
    if (made == NULL) {
        close(socket);
        return;
    }
    epx_launch_tune(socket);
    made->socket = socket;
    made->rank = -1;
    made->deadline_ns = epx_clock_ns() + (int64_t)GREETING_MS * 1000000;
    made->last = &made->first;
    made->next = hub->connections;
    hub->connections = made;
}

/* ---- reading ------------------------------------------------------------------------------------------------ */

static int is_sane(const hub_connection_t *from)
{
    const epx_frame_t *frame = &from->frame;
    if (frame->magic != EPX_FRAME_MAGIC)
        return 0;
    if (from->rank < 0)
        return frame->kind == FRAME_HELLO && frame->bytes == sizeof(frame_hello_t);
    return frame->kind != FRAME_HELLO && frame->bytes <= EPX_FRAME_DATA_MAX;
}

/* Reads on; 1: a whole frame is there, 0: nothing more now, -1: the end. */
static int read_on(hub_connection_t *from)
{
    for (;;) {
        size_t head = sizeof(from->frame);
        uint8_t *to =
            from->got < head ? (uint8_t *)&from->frame + from->got : from->data + (from->got - head);
        size_t want = from->got < head ? head - from->got : head + from->frame.bytes - from->got;
        if (want > 0) {
            ssize_t got = recv(from->socket, to, want, MSG_DONTWAIT);
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
                return 0;
            if (got <= 0)
                return -1;
            from->got += (size_t)got;
        }
        if (from->got == head && from->data == NULL) {
            if (!is_sane(from))
                return -1;
            if (from->frame.bytes > 0 && (from->data = malloc(from->frame.bytes)) == NULL)
                return -1;
        }
        if (from->got >= head && from->got == head + from->frame.bytes)
            return 1;
    }
}

static void listen_to(struct epx_hub *hub, hub_connection_t *from)
{
    int got;
    while (from->socket >= 0 && (got = read_on(from)) != 0) {
        if (got < 0) {
            part_with(hub, from);
            return;
        }
        if (from->is_refused)
            ; /* whatever it says */
        else if (from->rank < 0)
            greet(hub, from);
        else
            epx_hub_handle(hub, from, &from->frame, &from->data);
        free(from->data);
        from->data = NULL;
        from->got = 0;
    }
}

/* ---- the thread --------------------------------------------------------------------------------------------- */

static void free_connection(hub_connection_t *connection)
{
    close_connection(connection);
    while (connection->first != NULL) {
        hub_out_t *out = connection->first;
        connection->first = out->next;
        epx_hub_drop_bytes(out->what);
        free(out);
    }
    free(connection->data);
    free(connection);
}

static void sweep(struct epx_hub *hub, int64_t now_ns)
{
    for (hub_connection_t **at = &hub->connections; *at != NULL;) {
        hub_connection_t *connection = *at;
        int is_late = (connection->rank < 0 || connection->is_refused) && now_ns >= connection->deadline_ns;
        if (connection->socket >= 0 && is_late)
            part_with(hub, connection);
        if (connection->socket >= 0) {
            at = &connection->next;
            continue;
        }
        *at = connection->next;
        free_connection(connection);
    }
}

static int32_t connections_of(const struct epx_hub *hub)
{
    int32_t count = 0;
    for (const hub_connection_t *at = hub->connections; at != NULL; at = at->next)
        count++;
    return count;
}

static void look_at(struct epx_hub *hub, const struct pollfd *polled)
{
    if (polled[0].revents != 0) {
        char bytes[64];
        while (read(hub->wake[0], bytes, sizeof(bytes)) > 0)
            continue;
    }
    int32_t i = 2;
    for (hub_connection_t *at = hub->connections; at != NULL; at = at->next, i++) {
        if (at->socket < 0)
            continue;
        if ((polled[i].revents & POLLOUT) != 0)
            epx_hub_flush(at);
        if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0)
            listen_to(hub, at);
    }
    if (polled[1].revents != 0) /* last: it changes the list */
        accept_one(hub);
}

/* Whether everybody who matters has gone. */
static int is_over(const struct epx_hub *hub, int64_t now_ns, int64_t *stop_ns)
{
    int linger = atomic_load(&hub->linger_ms);
    if (linger < 0)
        return 0;
    if (*stop_ns == 0)
        *stop_ns = now_ns + (int64_t)linger * 1000000;
    if (now_ns >= *stop_ns)
        return 1;
    for (const hub_connection_t *at = hub->connections; at != NULL; at = at->next)
        if (at->rank >= 0)
            return 0;
    return 1;
}

static void *run_hub(void *argument)
{
    struct epx_hub *hub = argument;
    struct pollfd *polled = NULL;
    int32_t room = 0;
    int64_t stop_ns = 0;
    for (;;) {
        int64_t now_ns = epx_clock_ns();
        if (!hub->has_welcomed && !hub->has_given_up && now_ns >= hub->deadline_ns)
            give_up(hub);
        sweep(hub, now_ns);
        if (is_over(hub, now_ns, &stop_ns))
            break;
        int32_t count = 2 + connections_of(hub);
        if (count > room) {
            struct pollfd *more = realloc(polled, (size_t)(count + 16) * sizeof(*polled));
            if (more == NULL)
                break;
            polled = more;
            room = count + 16;
        }
        polled[0] = (struct pollfd){.fd = hub->wake[0], .events = POLLIN};
        polled[1] = (struct pollfd){.fd = hub->listener, .events = POLLIN};
        int32_t i = 2;
        for (hub_connection_t *at = hub->connections; at != NULL; at = at->next)
            polled[i++] = (struct pollfd){.fd = at->socket,
                                          .events = (short)(POLLIN | (at->first != NULL ? POLLOUT : 0))};
        if (poll(polled, (nfds_t)count, 100) > 0)
            look_at(hub, polled);
    }
    free(polled);
    return NULL;
}

/* ---- life --------------------------------------------------------------------------------------------------- */

static void free_hub(struct epx_hub *hub)
{
    while (hub->connections != NULL) {
        hub_connection_t *next = hub->connections->next;
        free_connection(hub->connections);
        hub->connections = next;
    }
    epx_hub_free_collectives(hub);
    for (int32_t r = 0; hub->rank != NULL && r < hub->size; r++)
        free(hub->rank[r].note);
    close(hub->listener);
    if (hub->wake[0] >= 0) {
        close(hub->wake[0]);
        close(hub->wake[1]);
    }
    free(hub->rank);
    free(hub->card);
    free(hub);
}

/* The program's signals are not for this thread. */
int epx_launch_start_thread(pthread_t *thread, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0;
}

epx_hub_t *epx_hub_start(int listener, const epx_launch_t *launch, int64_t timeout_ms)
{
    struct epx_hub *hub = calloc(1, sizeof(*hub));
    if (hub == NULL) {
        close(listener);
        return NULL;
    }
    *hub = (struct epx_hub){.listener = listener,
                            .wake = {-1, -1},
                            .key = launch->key,
                            .size = launch->size,
                            .deadline_ns = epx_clock_ns() + timeout_ms * 1000000,
                            .linger_ms = -1};
    hub->rank = calloc((size_t)launch->size, sizeof(*hub->rank));
    hub->card = calloc((size_t)launch->size, sizeof(*hub->card));
    if (hub->rank == NULL || hub->card == NULL || pipe2(hub->wake, O_CLOEXEC | O_NONBLOCK) != 0 ||
        !epx_launch_start_thread(&hub->thread, run_hub, hub)) {
        free_hub(hub);
        return NULL;
    }
    return hub;
}

void epx_hub_stop(epx_hub_t **hub_p, int64_t linger_ms)
{
    if (*hub_p == NULL)
        return;
    struct epx_hub *hub = *hub_p;
    *hub_p = NULL;
    atomic_store(&hub->linger_ms, (int)linger_ms);
    (void)!write(hub->wake[1], "", 1);
    pthread_join(hub->thread, NULL);
    free_hub(hub);
}
