/* SPDX-License-Identifier: MIT
 *
 * net.c - a network that misbehaves on demand: ports and the loop; see net.h.
 *
 * One thread carries everything, and it holds the mutex except while it sleeps.
 * So a command takes effect between two bytes, and when net_tell() has returned
 * no byte is treated as before.  A connection that a command ended meanwhile is
 * known by its number: descriptors are given out again.
 */
#include "net_link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int64_t net_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* What the loop sleeps on: a port, or one direction of a connection. */
struct net_watch {
    struct pollfd fds[1 + NET_PORTS + 2 * NET_LINKS];
    struct {
        int link, number, dir; /* link -1: a port */
    } of[1 + NET_PORTS + 2 * NET_LINKS];
    nfds_t n;
};

static void watch_add(struct net_watch *watch, int fd, int link, int number,
                      int dir)
{
    watch->fds[watch->n] = (struct pollfd){.fd = fd, .events = POLLIN};
    watch->of[watch->n].link = link;
    watch->of[watch->n].number = number;
    watch->of[watch->n].dir = dir;
    watch->n++;
}

/* Send what is due and list what to wait for; returns until when. */
static int64_t net_prepare(struct net *net, struct net_watch *watch)
{
    int64_t now = net_now(), until = INT64_MAX, due;

    watch->n = 0;
    watch_add(watch, net->wake, -1, -1, 0);
    for (int i = 0; i < net->nports; i++)
        watch_add(watch, net->ports[i].listener, -1, i, 0);
    for (int i = 0; i < net->top; i++) {
        struct net_link *link = &net->links[i];

        for (int dir = 0; dir < 2 && link->fds[0] >= 0; dir++) {
            due = net_link_write(net, link, dir, now);
            until = due < until ? due : until;
        }
        for (int dir = 0; dir < 2; dir++)
            if (net_link_wants(net, link, dir))
                watch_add(watch, link->fds[dir], i, link->number, dir);
    }
    return until;
}

/* Serve what poll() reported. */
static void net_serve(struct net *net, const struct net_watch *watch)
{
    uint64_t count;

    if (watch->fds[0].revents && read(net->wake, &count, sizeof(count)) < 0)
        return; /* was read already */
    for (nfds_t i = 1; i < watch->n; i++) {
        int at = watch->of[i].link, dir = watch->of[i].dir;

        if (!watch->fds[i].revents)
            continue;
        if (at < 0)
            net_link_accept(net, watch->of[i].number);
        else if (net->links[at].fds[0] >= 0 &&
                 net->links[at].number == watch->of[i].number &&
                 net_link_wants(net, &net->links[at], dir))
            net_link_read(net, &net->links[at], dir);
    }
}

static void *net_run(void *arg)
{
    struct net *net = arg;
    struct net_watch *watch = malloc(sizeof(*watch));
    struct timespec ts;
    int64_t left;

    pthread_mutex_lock(&net->mu);
    while (watch && !net->stop) {
        left = net_prepare(net, watch);
        left = left == INT64_MAX ? 1000000 : left - net_now();
        left = left < 0 ? 0 : left;
        ts = (struct timespec){.tv_sec = left / 1000000,
                               .tv_nsec = left % 1000000 * 1000};
        pthread_mutex_unlock(&net->mu);
        if (ppoll(watch->fds, watch->n, &ts, NULL) <= 0)
            for (nfds_t i = 0; i < watch->n; i++)
                watch->fds[i].revents = 0;
        pthread_mutex_lock(&net->mu);
        net_serve(net, watch);
    }
    pthread_mutex_unlock(&net->mu);
    free(watch);
    return NULL;
}

struct net *net_new(void)
{
    struct net *net = calloc(1, sizeof(*net));

    if (!net)
        return NULL;
    net->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    net->chance = (uint32_t)net_now();
    for (int i = 0; i < NET_LINKS; i++)
        net->links[i].fds[0] = net->links[i].fds[1] = -1;
    pthread_mutex_init(&net->mu, NULL);
    if (net->wake < 0 || pthread_create(&net->thread, NULL, net_run, net)) {
        if (net->wake >= 0)
            close(net->wake);
        pthread_mutex_destroy(&net->mu);
        free(net);
        return NULL;
    }
    return net;
}

static void net_poke(struct net *net)
{
    uint64_t one = 1;

    if (write(net->wake, &one, sizeof(one)) < 0)
        return; /* it is full of pokes */
}

void net_free(struct net *net)
{
    if (!net)
        return;
    pthread_mutex_lock(&net->mu);
    net->stop = true;
    pthread_mutex_unlock(&net->mu);
    net_poke(net);
    pthread_join(net->thread, NULL);
    for (int i = 0; i < NET_LINKS; i++)
        if (net->links[i].fds[0] >= 0)
            net_link_end(&net->links[i], true);
    for (int i = 0; i < net->nports; i++) {
        close(net->ports[i].listener);
        freeaddrinfo(net->ports[i].to);
    }
    close(net->wake);
    pthread_mutex_destroy(&net->mu);
    free(net);
}

static int net_listen(int *number)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd >= 0 && (bind(fd, (struct sockaddr *)&at, len) || listen(fd, 64) ||
                    getsockname(fd, (struct sockaddr *)&at, &len))) {
        close(fd);
        return -1;
    }
    *number = ntohs(at.sin_port);
    return fd;
}

int net_port(struct net *net, const char *host, const char *service)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *to = NULL;
    struct net_port port = {.listener = -1};
    bool full;

    if (getaddrinfo(host, service, &hints, &to) != 0)
        return -1;
    port.to = to;
    port.listener = net_listen(&port.number);
    net_rules_clear(&port.rules);
    pthread_mutex_lock(&net->mu);
    full = net->nports == NET_PORTS;
    if (port.listener >= 0 && !full)
        net->ports[net->nports++] = port;
    pthread_mutex_unlock(&net->mu);
    if (port.listener >= 0 && !full) {
        net_poke(net);
        return port.number;
    }
    if (port.listener >= 0)
        close(port.listener);
    freeaddrinfo(to);
    return -1;
}
