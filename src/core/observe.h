/* SPDX-License-Identifier: MIT
 *
 * observe.h - the structs of observation: who points to whom.
 *
 *   hf_client   -- observed: one for each key or prefix that is observed here
 *   hfi_observed-- observers: the callers' handles, any number
 *               -- keys: what is known of each key (one, unless it is a prefix)
 *               -- changes: the same, in the order in which they changed last
 *   hf_observer -- place: up to where in `changes` its caller has been told
 *
 * The client's mutex guards all of it.  Included by core.h.
 */
#ifndef HFI_OBSERVE_H
#define HFI_OBSERVE_H

#include "backend/backend.h"
#include "base/heap.h"
#include "base/list.h"
#include "base/map.h"

/* Workers that look for observers at a time, at most. */
#define HFI_INSPECTORS 4

/* Something that hf_next_event() will tell; see events.c. */
struct hfi_notice {
    struct hfi_link link; /* in client->notices, or alone */
    unsigned pending;     /* bits 1 << enum hf_event_type */
    bool quiet;           /* the thread that raises it takes it, too */
};

/* What is known of one key. */
struct hfi_seen {
    struct hfi_node node;  /* in observed->keys */
    struct hfi_link link;  /* in observed->changes; alone: never told */
    struct hfi_link dirty; /* in observed->dirty, to be looked at; or alone */
    struct hf_info info;
    uint64_t fence;    /* the greatest that was told */
    uint64_t change;   /* which change of the observation was its last */
    uint64_t round;    /* the last listing that showed it */
    uint64_t pinned;   /* the last clearance that had to leave it */
    int64_t at;        /* when `info` was read */
    int64_t old_since; /* answers have been old; 0: the last was not */
    int64_t old_at;    /* the last that was */
    int64_t pause_ms;  /* before the next look, where a lease seems over */
    bool known;        /* `info` has been read */
    bool asked;        /* it was asked for, and there is no answer yet */
    char key[];
};

struct hfi_observed {
    struct hfi_node node;        /* in client->observed */
    struct hfi_observation base; /* what the backend knows of it */
    struct hfi_timer timer;      /* when to look again */
    struct hfi_link ready;       /* in client->observing, for a worker */
    struct hfi_link observers;   /* of struct hf_observer */
    struct hfi_map keys;         /* of struct hfi_seen */
    struct hfi_link changes, dirty;
    uint64_t change;     /* changes so far */
    uint64_t round;      /* whole looks that have begun */
    uint64_t clearance;  /* see observed_clear() */
    size_t clear_at;     /* keys that are known by then */
    uint64_t first;      /* the greatest fence of the first listing */
    uint64_t since;      /* free keys from this fence on are looked at;
                          * UINT64_MAX: none.  listed.c (3) */
    int64_t began;       /* the last look */
    int64_t lapses;      /* by then a lease that was seen is over */
    int failures;        /* looks in a row without an answer */
    int idle;            /* looks in a row that had nothing to tell */
    struct hf_error why; /* why there was no answer to the last question */
    bool armed;          /* observe() said HF_OK: unobserve() is due */
    bool polled;         /* observe() said HF_UNSUPPORTED */
    bool busy;           /* a worker is at it */
    bool all;            /* all of it is to be looked at */
    bool early;    /* the last word of the service may have come too early */
    int64_t own[]; /* base.own, then the name */
};

/* A listing of a prefix that is observed; see listed.c. */
struct hfi_listing {
    struct hf_client *client;
    struct hfi_observed *observed;
    hf_list_fn *fn; /* of the caller who lists; NULL: a worker */
    void *arg;
    int64_t deadline; /* of that caller */
    struct hf_error *err;
    hf_status st;
    uint64_t newest; /* the greatest fence so far */
    bool whole;      /* nothing was left out so far */
    bool stopped;    /* the caller wants no more */
};

struct hf_observer {
    struct hf_client *client;
    struct hfi_observed *observed; /* NULL once the client is closed */
    struct hfi_link link;          /* in observed->observers */
    struct hfi_link *place;        /* the last change that was taken; or the
                                    * head of observed->changes */
    struct hfi_notice notice;
    uint64_t from;  /* it waits for this whole look; 0 once that is over */
    uint64_t since; /* changes before it began */
    bool heard;     /* it is yet to be told whether the service answers */
    void *user;
};

#endif
