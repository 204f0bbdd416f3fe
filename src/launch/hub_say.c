/* The hub: what goes to ranks, written when their sockets take it. SPDX-License-Identifier: Apache-2.0 */
#include "launch/hub.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

hub_bytes_t *epx_hub_bytes(const epx_frame_t *frame)
{
    hub_bytes_t *what = malloc(sizeof(*what) + sizeof(*frame) + frame->bytes);
    if (what == NULL)
        return NULL;
    what->references = 1;
    what->bytes = sizeof(*frame) + frame->bytes;
    memcpy(what->data, frame, sizeof(*frame));
    return what;
}

void epx_hub_drop_bytes(hub_bytes_t *what)
{
    if (--what->references == 0)
        free(what);
}

void epx_hub_flush(hub_connection_t *to)
{
    while (to->first != NULL && to->socket >= 0) {
        hub_out_t *out = to->first;
        ssize_t sent = send(to->socket, out->what->data + out->sent, out->what->bytes - out->sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                shutdown(to->socket, SHUT_RDWR); /* its end is then read, and told, like any other */
            return;
        }
        out->sent += (size_t)sent;
        if (out->sent < out->what->bytes)
            continue;
        to->first = out->next;
        if (to->first == NULL)
            to->last = &to->first;
        epx_hub_drop_bytes(out->what);
        free(out);
    }
}

void epx_hub_say_bytes(hub_connection_t *to, hub_bytes_t *what)
{
    hub_out_t *out = to->socket >= 0 ? malloc(sizeof(*out)) : NULL;
    if (out == NULL) {
        if (to->socket >= 0)
            shutdown(to->socket, SHUT_RDWR);
        return;
    }
    what->references++;
    *out = (hub_out_t){.what = what};
    *to->last = out;
    to->last = &out->next;
    epx_hub_flush(to);
}

void epx_hub_say(hub_connection_t *to, const epx_frame_t *frame, const void *data)
{
    hub_bytes_t *what = epx_hub_bytes(frame);
    if (what == NULL) {
        shutdown(to->socket, SHUT_RDWR);
        return;
    }
    if (frame->bytes > 0)
        memcpy(what->data + sizeof(*frame), data, frame->bytes);
    epx_hub_say_bytes(to, what);
    epx_hub_drop_bytes(what);
}

void epx_hub_say_all(struct epx_hub *hub, const epx_frame_t *frame, const void *data)
{
    for (int32_t r = 0; r < hub->size; r++)
        if (hub->rank[r].connection != NULL)
            epx_hub_say(hub->rank[r].connection, frame, data);
}
