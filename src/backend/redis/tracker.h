/* SPDX-License-Identifier: MIT
 *
 * tracker.h - servers that tell when keys change; for redis: and redlock:.
 */
#ifndef HFI_BACKEND_REDIS_TRACKER_H
#define HFI_BACKEND_REDIS_TRACKER_H

#include "backend/backend.h"
#include "base/map.h"
#include "net/resp.h"
#include "net/resp_link.h"

#define TRACKER_NAME_MAX (2 * (HF_KEY_MAX + 128) + 32)

/* What is watched of a key: the lock, a hash beside it that changes when one of
 * several holders comes or goes, and what is kept of a grant, or "". */
struct tracker_names {
    char lock[TRACKER_NAME_MAX], beside[TRACKER_NAME_MAX];
    char meta[TRACKER_NAME_MAX];
};

/* The servers.  The functions are called by the tracker's own thread. */
struct tracker_servers {
    bool meta; /* a grant is written there after its lock */
    unsigned (*count)(void *arg);
    struct hfi_mux *(*mux)(void *arg, unsigned server); /* to connect with */

    /* Does it have the key?  A NULL key: any? */
    bool (*has)(void *arg, unsigned server, const char *key);

    /* Of those that have a key, so many must tell of it. */
    unsigned (*enough)(void *arg);
    void (*name)(void *arg, const char *key, struct tracker_names *ret);

    /* Another number than before: connections may be to the wrong server. */
    unsigned (*epoch)(void *arg);

    /* It has refused: MOVED, and the like. */
    void (*refused)(void *arg, unsigned server, const redisReply *);
};

struct redis_tracker;

#define TRACKER_SERVERS 256

/* What is kept of an observation: its own bytes. */
struct tracker_watch {
    struct hfi_node node; /* of a key, by the name of its lock */
    struct tracker_watch *next;
    struct hfi_observation *of;
    bool ready;                      /* it was armed: the core relies on it */
    unsigned armed[TRACKER_SERVERS]; /* `made` of the link that tells of it, */
    bool denied[TRACKER_SERVERS];    /* or would: it may not be read there */
};

/* `arg` is for the functions; prefix is that of all locks.  NULL: no memory. */
struct redis_tracker *tracker_new(struct hfi_conn *,
                                  const struct tracker_servers *, void *arg,
                                  const char *prefix);
void tracker_free(struct redis_tracker *);
void tracker_after_fork_child(struct redis_tracker *);

/* epoch() may be another. */
void tracker_stir(struct redis_tracker *);

hf_status tracker_observe(struct redis_tracker *, struct hfi_observation *,
                          int64_t deadline, struct hf_error *);
void tracker_unobserve(struct redis_tracker *, struct hfi_observation *);

#endif
