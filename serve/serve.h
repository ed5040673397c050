/* SPDX-License-Identifier: MIT
 *
 * serve.h - holdfast-serve: look at the locks of services with a browser.
 *
 *   main.c     options, start and end
 *   opts.c     the command line, and which addresses are allowed
 *   watch.c    one thread for each service: what its locks are, told to table.c
 *   table.c    every lock that was seen, in order of its last change
 *   lease.c    what is known of one lock's times
 *   json.c     a lock, an event and the figures as JSON
 *   http.c     the listener, and who answers
 *   gate.c     who may ask
 *   door.c     who is connected, and who has to go
 *   snapshot.c the table as one text, which its readers share
 *   stream.c   Server-Sent Events: the table, then each change of it
 *   metrics.c  the same as text for Prometheus
 *   act.c      details and hf_break(), in threads of their own
 *   page.html  what the browser shows
 *
 * INVARIANTS
 *  (1) It holds no lock and takes none.  It only looks, and breaks a grant if
 *      --allow-break is set and somebody asks for that grant by its fence.
 *  (2) No request of a browser waits for a service, and none makes the number of
 *      requests to a service grow, but details and breaks, of which at most
 *      SERVE_ACTS run at once for each service.
 *  (3) Keys, notes and owner ids are hostile.  They leave as JSON or as escaped
 *      label values, never as HTML.
 *  (4) A break hits what was shown.  The number of a service means another one when
 *      this program is started again with other options, and so the request says
 *      of which run it is the number, and which endpoint it had.  The table shows
 *      one of several holders and maybe the fence of another: so the page breaks
 *      one of them only as /api/holders tells it.
 *  (5) Memory is bounded: keys, events, connections and what is kept of a
 *      connection each have a limit.
 *
 * LOCKING  `mu` of the table guards the table.  It is held for arithmetic and
 * copies only.
 */
#ifndef SERVE_H
#define SERVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#include "holdfast.h"

#define SERVE_SERVICES 32
#ifndef SERVE_KEYS
#define SERVE_KEYS 200000 /* of all services; more are counted only */
#endif
#define SERVE_EVENTS   500
#define SERVE_BUCKETS  24 /* of milliseconds, in powers of two */
#define SERVE_ACTS     8
#define SERVE_PREFIXES 16
#define SERVE_HOSTS    16

struct serve_opts {
    const char *urls[SERVE_SERVICES];
    int services;
    const char *prefix;             /* of the keys that are shown; "" all */
    const char *listen;             /* "127.0.0.1:9707" */
    const char *token;              /* or NULL */
    const char *hosts[SERVE_HOSTS]; /* names in Host: beside the address */
    int nhosts;
    const char *labels[SERVE_PREFIXES]; /* keys that get a label */
    int nlabels;
    bool allow_break;
    bool loopback; /* only this machine can connect */
};

/* Fills `ret`, or says what is wrong and gives an exit status; 0 to go on. */
int serve_opts(int argc, char **argv, struct serve_opts *ret);

/* ---- table.c ------------------------------------------------------------- */

struct serve_lock {
    struct serve_lock *next, *prev; /* in order of their last change */
    struct serve_lock *chain;       /* in the hash table */
    uint64_t version;               /* of the table, at its last change */
    uint64_t id;                    /* for streams; never used again */
    uint64_t lease;                 /* serve_table.lease, at its last renewal */
    int64_t seen;                   /* when `info` was true */
    int64_t ends;    /* of the lease, as streams were told; -1 unknown */
    int64_t full;    /* the most that was seen left of it */
    int64_t whole;   /* how long it may be, while no renewal was seen */
    int64_t first;   /* when it would end, as first seen */
    bool renewed;    /* since then */
    int64_t begun;   /* when the grant was first seen, */
    bool witnessed;  /* and there was none before */
    uint64_t newest; /* the greatest fence of those who hold it together */
    int64_t waited;  /* since when somebody waits, as seen; or -1 */
    unsigned mark;   /* of the last listing that named it */
    int service;
    struct hf_info info;
    char key[];
};

enum serve_kind {
    SERVE_GRANT,
    SERVE_FREE,
    SERVE_BROKEN,
    SERVE_LAPSED, /* free, or another's, since nobody renewed it */
    SERVE_DOWN,
    SERVE_UP
};

struct serve_event {
    uint64_t version;
    int64_t wall; /* milliseconds since 1970 */
    enum serve_kind kind;
    int service;
    uint64_t fence;
    char key[HF_KEY_MAX + 1];
    char note[HF_NOTE_MAX + 1];
};

struct serve_histogram {
    uint64_t count, sum_ms, buckets[SERVE_BUCKETS];
};

struct serve_service {
    char endpoint[256];
    char error[256]; /* why it is down; "" if it is up */
    bool up;
    int64_t trip_us; /* of the last question */
    uint64_t questions;
    int64_t every_ms; /* how often everything is listed */
    int64_t lease_ms; /* of a lock that asks for none; 0 unknown */
    bool lasts;       /* no lock of it lapses */
    bool listed;      /* all was listed once */
    uint64_t handovers, grants, breaks, lapses;
    int64_t held, leases, holders, waiters;
    int64_t unknown; /* locks of which nobody knows who waits */
    size_t
        left_out[2]; /* locks that there was no room for: by the last listing,
                         * and by the one that goes on */
    struct serve_histogram hold, wait;
};

struct serve_table {
    pthread_mutex_t mu;
    struct serve_lock *first, *last;
    struct serve_lock **slots;
    size_t nslots, count;
    uint64_t version;
    uint64_t oldest; /* who has seen less must begin again */
    uint64_t lease;  /* renewals that were seen */
    uint64_t ids;    /* given out */
    struct serve_event events[SERVE_EVENTS];
    uint64_t nevents; /* ever; the last SERVE_EVENTS are there */
    struct serve_service services[SERVE_SERVICES];
    int nservices;
};

extern struct serve_table serve_table;

void serve_table_init(int services);
void serve_table_change(int service, const char *key,
                        const struct hf_info *info, unsigned mark);
void serve_table_sweep(int service, unsigned mark);
void serve_table_up(int service, bool up, const char *endpoint,
                    const char *error, int64_t trip_us);
size_t serve_table_not_shown(void);                    /* with the mutex held */
uint64_t serve_table_id(int service, const char *key); /* the same; 0: none */
int serve_table_short(int service, int64_t every, char (*keys)[HF_KEY_MAX + 1],
                      int max);
int64_t serve_now(void);
int64_t serve_wall(void);

/* ---- lease.c ------------------------------------------------------------- */

/* What clocks and roundings of a service may differ by, in ms, without news. */
#define SERVE_JITTER 1500

void serve_lease_begin(struct serve_lock *lock, const struct hf_info *info,
                       int64_t now);
bool serve_lease_is_short(const struct serve_lock *lock,
                          const struct hf_info *info, int64_t now);
int64_t serve_left(const struct serve_lock *lock, int64_t now);
int64_t serve_since(const struct serve_lock *lock, int64_t now);
int64_t serve_age(const struct serve_lock *lock, int64_t now);
int64_t serve_lease(const struct serve_lock *lock);

/* ---- watch.c ------------------------------------------------------------- */

int serve_watch_start(const struct serve_opts *opts);
void serve_watch_stop(void);
hf_client *serve_client(int service); /* NULL while there is none */

/* ---- json.c, metrics.c --------------------------------------------------- */

void serve_json_lock(FILE *out, const struct serve_lock *lock, int64_t now);
void serve_json_waiter(FILE *out, const struct hf_waiter *waiter);
void serve_json_event(FILE *out, const struct serve_event *event);
void serve_json_services(FILE *out);
void serve_metrics(FILE *out, const struct serve_opts *opts);

/* ---- snapshot.c ---------------------------------------------------------- */

struct MHD_Response;
struct MHD_Response *serve_snapshot(bool allow_break); /* NULL: no memory */

/* ---- stream.c ------------------------------------------------------------ */

struct MHD_Connection;
struct MHD_Response *serve_stream(struct MHD_Connection *connection,
                                  bool allow_break);
void serve_stream_tick(void); /* tell those who wait, if there is news */
void serve_stream_stop(void);

/* ---- act.c --------------------------------------------------------------- */

/* Answers by resuming the connection; NULL: too many at once. */
struct serve_act;
struct serve_act *serve_act_new(struct MHD_Connection *connection, int service,
                                const char *key, uint64_t fence, bool breaks);
struct MHD_Response *serve_act_answer(struct serve_act *act, unsigned *status);
void serve_act_free(struct serve_act *act);
void serve_act_stop(void); /* waits for those that are under way */

/* ---- door.c -------------------------------------------------------------- */

void serve_door_begin(struct MHD_Connection *connection, void **context);
void serve_door_end(void **context);
void serve_door_asks(struct MHD_Connection *connection);
void serve_door_reads(struct MHD_Connection *connection, bool stream);
void serve_door_closes(struct MHD_Connection *connection);
void serve_door_tick(void); /* close those whose request takes too long */

/* ---- gate.c -------------------------------------------------------------- */

/* This run of the program, which no other one is called: only here a service is
 * its place in the command line. */
extern char serve_run[33];
bool serve_run_init(void);

bool serve_gate_heads(struct MHD_Connection *connection);
bool serve_gate_host(struct MHD_Connection *connection,
                     const struct serve_opts *opts);
bool serve_gate_token(struct MHD_Connection *connection,
                      const struct serve_opts *opts);
bool serve_gate_origin(struct MHD_Connection *connection);
bool serve_gate_service(struct MHD_Connection *connection, int service,
                        bool breaks);

/* ---- http.c -------------------------------------------------------------- */

int serve_http_start(const struct serve_opts *opts);
void serve_http_stop(void);

#endif
