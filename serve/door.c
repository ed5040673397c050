/* SPDX-License-Identifier: MIT
 *
 * door.c - who is connected, and who has to go.
 *
 * The HTTP library closes a connection on which nothing moves.  One that sends a
 * byte now and then moves, and so does one that reads a byte now and then.
 *
 * INVARIANTS
 *  (1) A request, its body included, is whole DOOR_REQUEST_S after its connection
 *      began or the answer before it ended, or the connection is closed.
 *  (2) Beside streams, which stream.c counts, DOOR_ROOM connections stay.  For one
 *      more the oldest goes whose request is not whole, or, if there is none, the
 *      one whose answer takes longest.  Streams, DOOR_ROOM and those that are on
 *      their way out are fewer than one address may have, so whoever comes is
 *      let in.
 *
 * A connection goes by shutdown(2): the library sees its end and closes it.  A
 * descriptor is that of its connection as long as it is in the list, because the
 * library closes it after it has said that the connection is over.
 */
#include "serve.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <sys/socket.h>

#define DOOR_REQUEST_S 15
#define DOOR_ROOM      48

enum door_state { DOOR_ASKS, DOOR_READS, DOOR_STREAM, DOOR_GOES };

struct door {
    struct door *next;
    enum door_state state;
    int64_t since; /* it is in this state */
    int fd;
};

static pthread_mutex_t door_mu = PTHREAD_MUTEX_INITIALIZER;
static struct door *doors;

static void door_close(struct door *door)
{
    door->state = DOOR_GOES;
    shutdown(door->fd, SHUT_RDWR);
}

/* (2) */
static void door_make_room(void)
{
    struct door *at, *first = NULL;
    int count = 0;

    for (at = doors; at; at = at->next) {
        if (at->state == DOOR_STREAM || at->state == DOOR_GOES)
            continue;
        count++;
        if (!first || at->state < first->state ||
            (at->state == first->state && at->since < first->since))
            first = at;
    }
    if (count >= DOOR_ROOM)
        door_close(first);
}

void serve_door_begin(struct MHD_Connection *connection, void **context)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct door *door = calloc(1, sizeof(*door));

    *context = door;
    if (!door)
        return; /* The library's own limits hold. */
    *door = (struct door){.since = serve_now(), .fd = info->connect_fd};
    pthread_mutex_lock(&door_mu);
    door_make_room();
    door->next = doors;
    doors = door;
    pthread_mutex_unlock(&door_mu);
}

void serve_door_end(void **context)
{
    struct door *door = *context, **at;

    if (!door)
        return;
    pthread_mutex_lock(&door_mu);
    for (at = &doors; *at != door; at = &(*at)->next)
        ;
    *at = door->next;
    pthread_mutex_unlock(&door_mu);
    free(door);
    *context = NULL;
}

static struct door *door_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

static void door_set(struct MHD_Connection *connection, enum door_state state)
{
    struct door *door = door_of(connection);

    pthread_mutex_lock(&door_mu);
    if (door && door->state != DOOR_GOES) {
        door->state = state;
        door->since = serve_now();
    }
    pthread_mutex_unlock(&door_mu);
}

void serve_door_asks(struct MHD_Connection *connection)
{
    door_set(connection, DOOR_ASKS);
}

void serve_door_reads(struct MHD_Connection *connection, bool stream)
{
    door_set(connection, stream ? DOOR_STREAM : DOOR_READS);
}

/* It was answered; nothing else that it says counts. */
void serve_door_closes(struct MHD_Connection *connection)
{
    struct door *door = door_of(connection);

    pthread_mutex_lock(&door_mu);
    if (door)
        door_close(door);
    pthread_mutex_unlock(&door_mu);
}

void serve_door_tick(void)
{
    int64_t late = serve_now() - DOOR_REQUEST_S * INT64_C(1000);

    pthread_mutex_lock(&door_mu);
    for (struct door *at = doors; at; at = at->next)
        if (at->state == DOOR_ASKS && at->since <= late)
            door_close(at); /* (1) */
    pthread_mutex_unlock(&door_mu);
}
