/* Sockets. SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/host.h"
#include "launch/internal.h"

int epx_launch_split_address(const char *text, char *host, size_t bytes, int32_t *port_p)
{
    const char *colon = strrchr(text, ':'), *first = text, *last = colon;
    int64_t port;
    if (colon == NULL || !epx_launch_number(colon + 1, 1, 65535, &port))
        return 0;
    if (text[0] == '[') {
        first++;
        last--;
        if (last <= first || *last != ']')
            return 0;
    } else if (memchr(text, ':', (size_t)(colon - text)) != NULL) {
        return 0; /* a bare IPv6 address: which colon is the port's? */
    }
    if (last <= first || (size_t)(last - first) >= bytes)
        return 0;
    memcpy(host, first, (size_t)(last - first));
    host[last - first] = '\0';
    *port_p = (int32_t)port;
    return 1;
}

static int milliseconds_until(int64_t deadline_ns)
{
    int64_t left = (deadline_ns - epx_clock_ns() + 999999) / 1000000;
    return left < 0 ? 0 : left > 60000 ? 60000 : (int)left;
}

static void set_option(int socket, int level, int option, int value)
{
    (void)setsockopt(socket, level, option, &value, sizeof(value));
}

void epx_launch_tune(int socket)
{
    set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 2);
    set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
    set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
    set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 6000);
}

static int is_loopback(const char *host)
{
    return host != NULL &&
           (strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0);
}

static int listen_on(const struct sockaddr *address, socklen_t bytes)
{
    int listener = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return -1;
    set_option(listener, SOL_SOCKET, SO_REUSEADDR, 1);
    if (address->sa_family == AF_INET6)
        set_option(listener, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (bind(listener, address, bytes) == 0 && listen(listener, 1024) == 0)
        return listener;
    int error = errno;
    close(listener);
    errno = error;
    return -1;
}

int epx_launch_listen(const char *host, int32_t port, int32_t *port_p)
{
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int loopback = is_loopback(host), listener = -1;
    v4.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
    v6.sin6_addr = loopback ? in6addr_loopback : in6addr_any;
    /* One socket for both families, but a loopback address is of one. */
    if (!loopback || strchr(host, ':') != NULL)
        listener = listen_on((struct sockaddr *)&v6, sizeof(v6));
    if (listener < 0 && (!loopback || strchr(host, ':') == NULL) && (loopback || errno != EADDRINUSE))
        listener = listen_on((struct sockaddr *)&v4, sizeof(v4));
    if (listener < 0)
        return -1;
    struct sockaddr_storage bound;
    socklen_t bytes = sizeof(bound);
    getsockname(listener, (struct sockaddr *)&bound, &bytes);
    *port_p = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                : ((struct sockaddr_in *)&bound)->sin_port);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    return listener;
}

/* 0, or errno. */
static int finish_connect(int connection, int64_t deadline_ns)
{
    struct pollfd ready = {.fd = connection, .events = POLLOUT};
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (poll(&ready, 1, milliseconds_until(deadline_ns)) != 1)
        return ETIMEDOUT;
    getsockopt(connection, SOL_SOCKET, SO_ERROR, &error, &bytes);
    return error;
}

int epx_launch_connect(const char *host, int32_t port, int64_t deadline_ns)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[16];
    int error = EHOSTUNREACH;
    snprintf(service, sizeof(service), "%d", port);
    if (getaddrinfo(host, service, &hints, &found) != 0) {
        errno = ENOENT; /* connect never says so; EHOSTUNREACH is what a firewall answers */
        return -1;
    }
    for (struct addrinfo *at = found; at != NULL; at = at->ai_next) {
        int connection = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connection < 0)
            continue;
        error = connect(connection, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
        if (error == EINPROGRESS)
            error = finish_connect(connection, deadline_ns);
        if (error == 0) {
            freeaddrinfo(found);
            epx_launch_tune(connection);
            return connection;
        }
        close(connection);
    }
    freeaddrinfo(found);
    errno = error;
    return -1;
}

int epx_launch_send(int socket, const void *data, size_t bytes, int64_t deadline_ns)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            bytes -= (size_t)sent;
            continue;
        }
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return errno;
        struct pollfd ready = {.fd = socket, .events = POLLOUT};
        if (epx_clock_ns() >= deadline_ns)
            return ETIMEDOUT;
        poll(&ready, 1, milliseconds_until(deadline_ns));
    }
    return 0;
}

int epx_launch_receive(int socket, void *data, size_t bytes, int64_t deadline_ns)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(socket, at, bytes, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
            continue;
        }
        if (got == 0)
            return EPIPE;
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK)
            return errno;
        struct pollfd ready = {.fd = socket, .events = POLLIN};
        if (epx_clock_ns() >= deadline_ns)
            return ETIMEDOUT;
        poll(&ready, 1, milliseconds_until(deadline_ns));
    }
    return 0;
}

void epx_launch_addresses(char *text, size_t bytes)
{
    struct ifaddrs *all = NULL;
    size_t used = 0;
    text[0] = '\0';
    if (getifaddrs(&all) != 0)
        return;
    for (struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        char address[INET6_ADDRSTRLEN];
        if (at->ifa_addr == NULL)
            continue;
        if (at->ifa_addr->sa_family == AF_INET) {
            inet_ntop(AF_INET, &((struct sockaddr_in *)at->ifa_addr)->sin_addr, address, sizeof(address));
        } else if (at->ifa_addr->sa_family == AF_INET6) {
            const struct in6_addr *v6 = &((struct sockaddr_in6 *)at->ifa_addr)->sin6_addr;
            if (IN6_IS_ADDR_LINKLOCAL(v6)) /* would need an interface's name on the other host */
                continue;
            inet_ntop(AF_INET6, v6, address, sizeof(address));
        } else {
            continue;
        }
        if (is_loopback(address) || used + strlen(address) + 2 > bytes)
            continue;
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? " " : "", address);
    }
    freeifaddrs(all);
}

void epx_launch_my_card(epx_link_card_t *card)
{
    memset(card, 0, sizeof(*card));
    card->process = getpid();
    card->host = epx_host_identity();
    if (gethostname(card->name, sizeof(card->name) - 1) != 0)
        snprintf(card->name, sizeof(card->name), "unknown");
}
