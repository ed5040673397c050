/* SPDX-License-Identifier: MIT
 *
 * h2peer.h - a server that speaks HTTP/2 as badly as it is told to.
 *
 * It knows frames and nothing else: it does not even decode what it is asked.
 * Real servers show that the client speaks well; this one shows that it listens
 * well.
 */
#ifndef H2PEER_H
#define H2PEER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum h2peer_mode {
    H2_ANSWERS,        /* as it should */
    H2_REFUSES,        /* RST_STREAM: it was not looked at */
    H2_RESETS,         /* RST_STREAM, in the middle */
    H2_GOES_UNASKED,   /* GOAWAY, and the request was not looked at */
    H2_GOES_ANSWERING, /* GOAWAY, and then the answer */
    H2_SILENT,         /* takes the request and says nothing */
    H2_NO_GREETING,    /* does not even greet */
    H2_CUTS,           /* closes in the middle of its answer */
    H2_NO_STATUS,      /* an answer without a verdict */
    H2_NO_LEADER,      /* the verdict of a member without a leader */
    H2_TOO_LARGE,      /* an answer without end */
    H2_NONSENSE,       /* bytes that are no frames */
    H2_TINY_WINDOW,    /* takes seven bytes at a time */
    H2_ONE_STREAM,     /* takes one request at a time */
    H2_BEHIND          /* an answer of a raft term long ago */
};

#define H2PEER_LINKS 64

struct h2peer {
    int listener, port;
    pthread_t thread;
    struct h2peer_link { /* each connection has a thread of its own */
        struct h2peer *peer;
        pthread_t thread;
        int fd;
    } served[H2PEER_LINKS];
    atomic_int mode;    /* enum h2peer_mode; of what comes from now on */
    atomic_int links;   /* connections so far */
    atomic_int asked;   /* requests that came whole */
    atomic_size_t body; /* bytes of the last request */
    atomic_bool stop;
};

void h2peer_start(struct h2peer *, enum h2peer_mode);
void h2peer_stop(struct h2peer *);

#endif
