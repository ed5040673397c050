/* SPDX-License-Identifier: MIT
 *
 * native.c - the thread that serves bare clients; see native.h.
 */
#include "native.h"

#include "../bench.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define BATCH 64

struct native {
    const struct native_kind *kind;
    struct native_client **clients;
    int nclients, watches; /* watches: of all clients */
    int epoll, stop;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t cond;
    long told, wanted; /* under mu */
    int64_t told_at;
};

const struct native_kind *native_find(const char *url)
{
    static const struct native_kind *const kinds[] = {
#ifdef HAVE_ETCD
        &native_etcd,
#endif
#ifdef HAVE_REDIS
        &native_redis,
#endif
#ifdef HAVE_ZK
        &native_zk,
#endif
        NULL};
    size_t i;

    for (i = 0; kinds[i]; i++)
        if (!strncmp(url, kinds[i]->scheme, strlen(kinds[i]->scheme)))
            return kinds[i];
    return NULL;
}

void native_where(char host[256], int *port)
{
    const char *url = getenv("HF_TEST_URL");

    if (!url || sscanf(url, "%*[^:]://%255[^:]:%d", host, port) != 2)
        bench_die("no HF_TEST_URL");
}

/* The caller is the thread, which has the mutex. */
void native_told(struct native_client *client)
{
    client->all->told++;
    client->all->told_at = bench_now();
}

static void *serve(void *arg)
{
    struct native *all = arg;
    struct epoll_event events[BATCH];
    bool stop = false;
    int i, n;

    while (!stop) {
        n = epoll_wait(all->epoll, events, BATCH, -1);
        pthread_mutex_lock(&all->mu);
        for (i = 0; i < n; i++)
            if (events[i].data.ptr)
                all->kind->hear(events[i].data.ptr);
            else
                stop = true;
        if (all->told >= all->wanted)
            pthread_cond_signal(&all->cond);
        pthread_mutex_unlock(&all->mu);
    }
    return NULL;
}

static void poll_too(struct native *all, int fd, void *client)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};

    if (epoll_ctl(all->epoll, EPOLL_CTL_ADD, fd, &event))
        bench_die_errno("epoll_ctl");
}

static struct native_client *client_new(struct native *all, const char *key,
                                        int watches)
{
    struct native_client *client = bench_alloc(all->kind->size);

    *client = (struct native_client){all, {-1, -1}, watches};
    all->kind->open(client, key);
    for (int i = 0; i < 2; i++)
        if (client->fds[i] >= 0)
            poll_too(all, client->fds[i], client);
    return client;
}

struct native *native_open(const struct native_kind *kind, const char *key,
                           int clients, int watches)
{
    struct native *all = bench_alloc(sizeof(*all));

    all->kind = kind;
    all->nclients = clients;
    all->watches = clients * watches;
    all->clients = bench_alloc((size_t)clients * sizeof(*all->clients));
    all->epoll = epoll_create1(EPOLL_CLOEXEC);
    all->stop = eventfd(0, EFD_CLOEXEC);
    pthread_mutex_init(&all->mu, NULL);
    pthread_cond_init(&all->cond, NULL);
    if (all->epoll < 0 || all->stop < 0)
        bench_die_errno("epoll");
    poll_too(all, all->stop, NULL);
    for (int i = 0; i < clients; i++)
        all->clients[i] = client_new(all, key, watches);
    all->told = 0; /* The state at the beginning is no change. */
    if (pthread_create(&all->thread, NULL, serve, all))
        bench_die("no thread");
    return all;
}

int64_t native_await(struct native *all)
{
    int64_t at;

    pthread_mutex_lock(&all->mu);
    all->wanted += all->watches;
    while (all->told < all->wanted)
        pthread_cond_wait(&all->cond, &all->mu);
    at = all->told_at;
    pthread_mutex_unlock(&all->mu);
    return at;
}

void native_close(struct native *all)
{
    const uint64_t one = 1;

    if (write(all->stop, &one, sizeof(one)) != sizeof(one))
        bench_die_errno("eventfd");
    pthread_join(all->thread, NULL);
    for (int i = 0; i < all->nclients; i++) {
        all->kind->close(all->clients[i]);
        free(all->clients[i]);
    }
    close(all->epoll);
    close(all->stop);
    pthread_mutex_destroy(&all->mu);
    pthread_cond_destroy(&all->cond);
    free(all->clients);
    free(all);
}
