/* SPDX-License-Identifier: MIT
 *
 * net_link.h - what net.c (the loop), net_link.c (the bytes) and net_tell.c
 * (the words) share.  Everything is guarded by `mu` of the net.
 */
#ifndef NET_LINK_H
#define NET_LINK_H

#include "net.h"

#include <netdb.h>
#include <pthread.h>
#include <stdint.h>

enum { NET_PORTS = 256, NET_LINKS = 1024, NET_SCRIPTS = 64 };

/* Directions, and the side that each comes from. */
enum { NET_UP, NET_DOWN };

/* What is done to one direction. */
struct net_rule {
    int64_t delay_us, jitter_us;
    int64_t rate;  /* bytes a second; 0: as fast as they come */
    int64_t cut;   /* bytes until the end; -1: never */
    int64_t reply; /* so many answers until the one that vanishes; 0: none */
    bool slice, drop, hold;
    enum { LIE_NONE, LIE_RESET, LIE_HTTP, LIE_GRPC } lie;
    int64_t lies; /* of a hundred answers */
};

/* One direction of an HTTP/2 connection, as far as a lie needs it. */
struct net_frames {
    int64_t skip; /* bytes until the next frame; what precedes the first */
    unsigned char head[9];
    int have; /* of the head */
};

enum { NET_STREAMS = 64 };

struct net_rules {
    struct net_rule dir[2];
};

struct net_piece {
    struct net_piece *next;
    int64_t due; /* us */
    size_t len, done;
    char data[];
};

/* What has been read on one side and not yet been written on the other. */
struct net_flow {
    struct net_piece *head, *tail;
    size_t queued;
    int64_t idle_at; /* when all that is queued will have left, by its rate */
    bool ended;      /* nothing more will be read */
    bool shut;       /* the other side has been told so */
    bool hole;       /* something that was read was dropped */
};

struct net_link {
    int fds[2]; /* of the client, of the server; -1: free */
    int number, port;
    bool scripted; /* own rules, not the port's */
    struct net_rules own;
    struct net_flow flow[2];
    int last;     /* the side that spoke last */
    bool swallow; /* the answer that comes now vanishes */
    bool lied;    /* and another has been given in its place */
    struct net_frames frames[2];
    unsigned streams[NET_STREAMS]; /* that wait for their end; 0: none */
    bool finished;                 /* cut: close when what is queued has left */
};

struct net_port {
    int listener, number;
    struct addrinfo *to;
    bool refuse;
    struct net_rules rules;
};

struct net {
    pthread_mutex_t mu;
    pthread_t thread;
    int wake; /* eventfd: look again */
    bool stop;
    struct net_port ports[NET_PORTS];
    int nports;
    struct net_link links[NET_LINKS];
    int accepted;
    int top; /* no link from here on has been used */
    struct {
        int number;
        struct net_rules rules;
    } scripts[NET_SCRIPTS]; /* for connections to come */
    int nscripts;
    int64_t bytes[2], cuts, dropped;
    uint32_t chance;
};

int64_t net_now(void); /* us */
void net_rules_clear(struct net_rules *rules);

/* net_lie.c */
void net_lie_start(struct net_link *link);
void net_lie_follow(struct net_link *link, int dir, const char *data,
                    size_t len);
size_t net_lie_text(struct net_link *link, int lie, char *ret, size_t size);

/* net_link.c */
struct net_rules *net_link_rules(struct net *net, struct net_link *link);
void net_link_accept(struct net *net, int port);
void net_link_end(struct net_link *link, bool reset);
void net_link_half(struct net_link *link, int dir);
bool net_link_is_torn(struct net *net, struct net_link *link);
bool net_link_wants(struct net *net, struct net_link *link, int dir);
void net_link_read(struct net *net, struct net_link *link, int dir);
int64_t net_link_write(struct net *net, struct net_link *link, int dir,
                       int64_t now);

#endif
