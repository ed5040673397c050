/* SPDX-License-Identifier: MIT
 *
 * etcd.c - a bare watch of etcd on everything below the key.
 *
 * A client is a connection with one stream, on which it asks for its watches.
 * The waiter has put its key before the holder's is deleted, so whoever keeps
 * both events knows the new holder when the deletion arrives and need not ask.
 */
#include "native.h"

#include "../bench.h"
#include "backend/etcd/etcd.h"
#include "base/env.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#define CALL_MS 30000
#define DELETED 1 /* the type of an event */

struct etcd_native {
    struct native_client base;
    struct hfi_endpoint end;
    struct hfi_h2 h2;
    struct h2_link *link;
    int begun;
};

static void heard(void *arg, const void *message, size_t len)
{
    struct etcd_native *me = arg;
    Pb__WatchResponse *said = pb__watch_response__unpack(NULL, len, message);
    size_t i;

    if (!said || said->canceled)
        bench_die("etcd has ended a watch");
    me->begun += said->created;
    for (i = 0; i < said->n_events; i++)
        if (said->events[i]->type == DELETED)
            native_told(&me->base);
    pb__watch_response__free_unpacked(said, NULL);
}

static void hear(struct native_client *client)
{
    struct etcd_native *me = (struct etcd_native *)client;

    if (hfi_h2_hear(me->link))
        bench_die("etcd has ended the stream");
}

static void watch(struct etcd_native *me, const char *key)
{
    Pb__WatchRequest ask = PB__WATCH_REQUEST__INIT;
    Pb__WatchCreateRequest create = PB__WATCH_CREATE_REQUEST__INIT;
    char first[300], last[300];
    unsigned char message[700];
    size_t len = (size_t)snprintf(first, sizeof(first), "holdfast/%s/", key);

    snprintf(last, sizeof(last), "holdfast/%s0", key);
    create.key = (ProtobufCBinaryData){len, (uint8_t *)first};
    create.range_end = (ProtobufCBinaryData){len, (uint8_t *)last};
    ask.request_case = PB__WATCH_REQUEST__REQUEST_CREATE;
    ask.create = &create;
    if (hfi_h2_send(me->link, message, pb__watch_request__pack(&ask, message)))
        bench_die("etcd takes no watch");
}

static void open_watches(struct native_client *client, const char *key)
{
    struct etcd_native *me = (struct etcd_native *)client;
    struct pollfd wait = {.events = POLLIN};
    struct hf_error err;

    me->end.alive_ms = CALL_MS;
    native_where(me->end.host, &me->end.port);
    hfi_h2_init(&me->h2, &me->end, 1);
    if (hfi_h2_open(&me->h2, ETCD_WATCH, NULL, heard, me, hfi_now() + CALL_MS,
                    &me->link, &err))
        bench_die("%s", err.text);
    client->fds[0] = wait.fd = hfi_h2_fd(me->link);
    for (int i = 0; i < client->watches; i++)
        watch(me, key);
    while (me->begun < client->watches)
        if (poll(&wait, 1, CALL_MS) == 1)
            hear(client);
}

static void close_watches(struct native_client *client)
{
    struct etcd_native *me = (struct etcd_native *)client;

    hfi_h2_close(me->link);
    hfi_h2_fini(&me->h2);
}

const struct native_kind native_etcd = {
    "etcd:",      "etcd's watch", true,         sizeof(struct etcd_native),
    open_watches, hear,           close_watches};
