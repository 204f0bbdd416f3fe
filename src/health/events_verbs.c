/*
 * Asynchronous events of RDMA devices: one thread per device reads them and counts by port.
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "health/health.h"

enum { PORTS_MOST = 8 };

typedef enum event_kind { PORT_ERR, PORT_ACTIVE, PORT_CHANGE, DEVICE_FATAL, KINDS } event_kind_t;
static const char *const event_names[KINDS] = {"async_port_err", "async_port_active", "async_port_change",
                                               "async_device_fatal"};

/* A device, and the thread that alone reads its events. Counts only grow; others read them at any time. */
typedef struct reader {
    struct ibv_context *context;
    char device[40];
    int32_t ports;
    int stop_end; /* of the monitor's pipe: readable when all readers shall end */
    pthread_t thread;
    _Atomic uint64_t seen[PORTS_MOST + 1][KINDS];
} reader_t;

struct epx_health_events {
    int stop[2];
    int32_t readers;
    reader_t *reader;
};

/* Port of an event; 0: it is about the whole device, -1: about neither (a queue). */
static int32_t port_of(const struct ibv_async_event *event, event_kind_t *kind_p)
{
    switch (event->event_type) {
    case IBV_EVENT_PORT_ERR: *kind_p = PORT_ERR; return event->element.port_num;
    case IBV_EVENT_PORT_ACTIVE: *kind_p = PORT_ACTIVE; return event->element.port_num;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER: *kind_p = PORT_CHANGE; return event->element.port_num;
    case IBV_EVENT_DEVICE_FATAL: *kind_p = DEVICE_FATAL; return 0;
    default: return -1;
    }
}

static void count(reader_t *reader, const struct ibv_async_event *event)
{
    event_kind_t kind = PORT_CHANGE;
    int32_t port = port_of(event, &kind);
    int32_t first = port == 0 ? 1 : port, last = port == 0 ? reader->ports : port;
    for (int32_t p = first; port >= 0 && p <= last && p <= PORTS_MOST; p++)
        atomic_fetch_add_explicit(&reader->seen[p][kind], 1, memory_order_relaxed);
}

static void *read_events(void *argument)
{
    reader_t *reader = argument;
    struct pollfd ends[2] = {{.fd = reader->context->async_fd, .events = POLLIN},
                             {.fd = reader->stop_end, .events = POLLIN}};
    for (;;) {
        if (poll(ends, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (ends[1].revents != 0 || (ends[0].revents & (POLLERR | POLLNVAL)) != 0)
            return NULL;
        struct ibv_async_event event;
        if ((ends[0].revents & POLLIN) == 0 || ibv_get_async_event(reader->context, &event) != 0)
            continue;
        count(reader, &event);
        ibv_ack_async_event(&event);
    }
}

/* 0, or errno. */
static int start(reader_t *reader, struct ibv_device *device, int stop_end)
{
    struct ibv_device_attr attributes;
    snprintf(reader->device, sizeof(reader->device), "%.39s", ibv_get_device_name(device));
    errno = 0;
    reader->context = ibv_open_device(device);
    if (reader->context == NULL)
        return errno != 0 ? errno : ENODEV;
    int rc = ibv_query_device(reader->context, &attributes);
    reader->ports = rc == 0 ? attributes.phys_port_cnt : 0;
    reader->ports = reader->ports < PORTS_MOST ? reader->ports : PORTS_MOST;
    reader->stop_end = stop_end;
    if (rc == 0)
        rc = pthread_create(&reader->thread, NULL, read_events, reader);
    if (rc != 0)
        ibv_close_device(reader->context);
    return rc;
}

epx_health_events_t *epx_health_events_open(char *blind, size_t bytes)
{
    int32_t count = 0;
    size_t at = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    epx_health_events_t *events = calloc(1, sizeof(*events));
    if (devices == NULL || count == 0 || events == NULL || pipe(events->stop) != 0) {
        snprintf(blind, bytes, "libibverbs finds no device");
        free(events);
        if (devices != NULL)
            ibv_free_device_list(devices);
        return NULL;
    }
    events->reader = calloc((size_t)count, sizeof(*events->reader));
    for (int32_t d = 0; events->reader != NULL && d < count; d++) {
        reader_t *reader = &events->reader[events->readers];
        int code = start(reader, devices[d], events->stop[0]);
        if (code == 0)
            events->readers++;
        else if (at < bytes)
            at += (size_t)snprintf(blind + at, bytes - at, "%s%s cannot be opened (%s)", at > 0 ? "; " : "",
                                   reader->device, strerror(code));
    }
    ibv_free_device_list(devices);
    return events;
}

void epx_health_events_sample(epx_health_events_t *events, epx_health_fn fn, void *context)
{
    for (int32_t r = 0; r < events->readers; r++) {
        reader_t *reader = &events->reader[r];
        for (int32_t p = 1; p <= reader->ports; p++)
            for (int32_t k = 0; k < KINDS; k++) {
                char link[EPX_HEALTH_NAME];
                snprintf(link, sizeof(link), "%.36s/%d", reader->device, p);
                epx_health_pass(fn, context, link, event_names[k], 0,
                                atomic_load_explicit(&reader->seen[p][k], memory_order_relaxed));
            }
    }
}

void epx_health_events_close(epx_health_events_t *events)
{
    close(events->stop[1]); /* every reader's end becomes readable */
    for (int32_t r = 0; r < events->readers; r++) {
        pthread_join(events->reader[r].thread, NULL);
        ibv_close_device(events->reader[r].context);
    }
    close(events->stop[0]);
    free(events->reader);
    free(events);
}
