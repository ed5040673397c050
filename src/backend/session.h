/* SPDX-License-Identifier: MIT
 *
 * session.h - claims that hang on a session: what services have in common whose
 * grants last as long as a session of the client (a lease of etcd, a session of
 * ZooKeeper or of Consul).
 *
 * A client has one session for all locks of about the same ttl, so that one
 * message renews all of them.  A service puts a struct hfi_session first in its
 * own, a struct hfi_session_claim first in what it keeps of a claim, and says
 * in a struct hfi_session_service how a session is made and ended.  What a
 * request looks like, and which answer proves what, is the service's affair.
 *
 * LOCKING  The service's mutex, sessions->mu, guards everything here.  It is
 * let go while create(), end() and drop() run; claim_lost() may not block.
 *
 * INVARIANTS
 *  (1) A session is believed for what was proven of it: for its own ttl, from
 *      before the request was sent, by an answer that speaks for that session
 *      (base/lease.h (4)).  Only hfi_session_proven() writes `proven`.
 *  (2) A session that is dead is never found again, and no claim is kept on it:
 *      each is taken off its list and the service is told of it.
 *  (3) A session is freed by its last user, once it is dead, and not before.
 *  (4) A session is ended at close only if nothing hangs on it, or may yet come
 *      to hang on it, that somebody else counts on: what was detached stays,
 *      also where a request without an answer may have put it there.  What is
 *      known here counts before what the service says: its answer may be older
 *      than what another server of it has confirmed.
 *  (5) A session is made once: those who want the same one wait for it.
 */
#ifndef HFI_BACKEND_SESSION_H
#define HFI_BACKEND_SESSION_H

#include "backend/backend.h"
#include "base/env.h"
#include "base/list.h"
#include "base/map.h"

struct hfi_session {
    struct hfi_link link;   /* in sessions->all */
    struct hfi_link claims; /* of struct hfi_session_claim */
    int64_t kind;           /* what was asked for; see hfi_session_get() */
    int64_t ttl_ms;         /* kept so long after a proof; 0: being made */
    int64_t proven;         /* it may be relied on until then */
    unsigned users;         /* calls that look at it */
    bool dead;              /* the service said so */
    bool doubted;           /* session.h (4) */
};

/* What hangs on a session, found by its token. */
struct hfi_session_claim {
    struct hfi_node node; /* in sessions->claims; without a key: it is not */
    struct hfi_link link; /* in session->claims, or alone */
    struct hfi_session *session; /* NULL once that is dead */
    char token[HFI_TOKEN_LEN + 1];
};

struct hfi_session_service {
    size_t size; /* of its session, which begins with a struct hfi_session */

    /* Make the session.  Without the mutex, which is taken to set ttl_ms and
     * to say what that proves (hfi_session_proven). */
    hf_status (*create)(void *conn, struct hfi_session *, int64_t deadline,
                        struct hf_error *);

    /* Optional.  May it serve what was asked for?  NULL: if `kind` is equal. */
    bool (*fits)(const struct hfi_session *, int64_t kind);

    /* Optional.  The session is dead, and this claim was on it.  The claim is
     * in no list and in no table any more: free it, or tell its holder. */
    void (*claim_lost)(void *conn, struct hfi_session_claim *);

    /* Optional.  At close: end it in the service, by then.  Nobody uses it, and
     * (4) allows it as far as this client knows.  Without the mutex. */
    void (*end)(void *conn, struct hfi_session *, int64_t deadline);

    /* Optional.  Let go of what is not freed with the session itself.  Without
     * the mutex. */
    void (*drop)(void *conn, struct hfi_session *);
};

struct hfi_sessions {
    const struct hfi_session_service *service;
    void *conn;
    pthread_mutex_t *mu;
    struct hfi_cond settled; /* a session was made, or could not be */
    struct hfi_link all;     /* of struct hfi_session */
    struct hfi_map claims;   /* of struct hfi_session_claim */
};

void hfi_sessions_init(struct hfi_sessions *,
                       const struct hfi_session_service *, void *conn,
                       pthread_mutex_t *mu);

/* End the sessions as (4) allows, and free everything.  Nobody calls any
 * more. */
void hfi_sessions_close(struct hfi_sessions *, int64_t deadline);

/* ---- sessions ---------------------------------------------------------- */

/* A living session of that kind, to be put back; *fresh: it was made just now.
 * A request to make one that had no answer is HF_UNAVAILABLE: a session that
 * nobody knows lapses by itself.  Without the mutex. */
hf_status hfi_session_get(struct hfi_sessions *, int64_t kind,
                          struct hfi_session **ret, bool *fresh,
                          int64_t deadline, struct hf_error *);
void hfi_session_put(struct hfi_sessions *, struct hfi_session *);

/* Are there living ones?  Walk over them, with the mutex held: the one after
 * this, or the first after NULL. */
struct hfi_session *hfi_session_next(const struct hfi_sessions *,
                                     const struct hfi_session *);

/* An answer proves that the service keeps the session: take it for what it
 * proves of `ttl_ms`, and say whether it proves anything.  (1)  With the mutex
 * held. */
bool hfi_session_proven(struct hfi_session *, const struct hfi_proof *,
                        int64_t sent);

/* Does what was proven of it carry a lease of `ttl_ms` that begins at `sent`?
 * Both have the margin of their own length: the session is the longer one, and
 * clocks run apart by more while it lasts.  With the mutex held. */
bool hfi_session_lasts(const struct hfi_session *, int64_t sent,
                       int64_t ttl_ms);

/* The service has said that it is dead.  (2)  Without the mutex. */
void hfi_session_died(struct hfi_sessions *, struct hfi_session *);

/* Have all sessions lapsed, as far as was proven?  Then they are dead.  With
 * the mutex held. */
bool hfi_sessions_lapsed(struct hfi_sessions *);

/* A request without an answer may yet hang a claim on it that is not ours to
 * end.  (4)  Without the mutex. */
void hfi_session_doubt(struct hfi_sessions *, struct hfi_session *);

/* ---- claims, with the mutex held --------------------------------------- */

/* Room for one more; false: no memory. */
bool hfi_session_claim_reserve(struct hfi_sessions *);
/* A new one, which has a token; and where it hangs, from now on. */
void hfi_session_claim_add(struct hfi_sessions *, struct hfi_session_claim *,
                           const char *token);
void hfi_session_claim_hang(struct hfi_session_claim *, struct hfi_session *);
struct hfi_session_claim *hfi_session_claim_find(const struct hfi_sessions *,
                                                 const char *token);
/* Out of every list; what it is part of may be freed. */
void hfi_session_claim_remove(struct hfi_sessions *,
                              struct hfi_session_claim *);

#endif
