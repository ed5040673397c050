/* SPDX-License-Identifier: MIT
 *
 * session.c - claims that hang on a session; see session.h for the argument.
 *
 * A session that nobody has used for some time after it must have lapsed is
 * dropped on the way to another, so a client that uses many lengths of leases
 * does not collect them.
 */
#include "session.h"

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

/* So long after it must have lapsed a session that nobody uses is forgotten. */
#define SESSION_PRUNE_MS 10000

void hfi_sessions_init(struct hfi_sessions *ss,
                       const struct hfi_session_service *service, void *conn,
                       pthread_mutex_t *mu)
{
    ss->service = service;
    ss->conn = conn;
    ss->mu = mu;
    hfi_cond_init(&ss->settled);
    hfi_link_init(&ss->all);
}

static struct hfi_session *session_of(struct hfi_link *link)
{
    return hfi_container(link, struct hfi_session, link);
}

/* ---- claims ------------------------------------------------------------ */

bool hfi_session_claim_reserve(struct hfi_sessions *ss)
{
    return hfi_map_reserve(&ss->claims);
}

void hfi_session_claim_add(struct hfi_sessions *ss,
                           struct hfi_session_claim *claim, const char *token)
{
    snprintf(claim->token, sizeof(claim->token), "%s", token);
    hfi_link_init(&claim->link);
    claim->node.key = claim->token;
    hfi_map_add(&ss->claims, &claim->node);
}

void hfi_session_claim_hang(struct hfi_session_claim *claim,
                            struct hfi_session *s)
{
    hfi_link_remove(&claim->link);
    claim->session = s;
    hfi_link_append(&s->claims, &claim->link);
}

struct hfi_session_claim *hfi_session_claim_find(const struct hfi_sessions *ss,
                                                 const char *token)
{
    struct hfi_node *node = hfi_map_find(&ss->claims, token);

    return node ? hfi_container(node, struct hfi_session_claim, node) : NULL;
}

void hfi_session_claim_remove(struct hfi_sessions *ss,
                              struct hfi_session_claim *claim)
{
    if (claim->node.key)
        hfi_map_remove(&ss->claims, &claim->node);
    claim->node.key = NULL;
    hfi_link_remove(&claim->link);
    claim->session = NULL;
}

/* session.h (2) */
static void session_empty(struct hfi_sessions *ss, struct hfi_session *s)
{
    struct hfi_session_claim *claim;

    while (!hfi_link_alone(&s->claims)) {
        claim = hfi_container(s->claims.next, struct hfi_session_claim, link);
        hfi_session_claim_remove(ss, claim);
        if (ss->service->claim_lost)
            ss->service->claim_lost(ss->conn, claim);
    }
}

/* ---- proof and death --------------------------------------------------- */

/* session.h (1) */
bool hfi_session_proven(struct hfi_session *s, const struct hfi_proof *proof,
                        int64_t sent)
{
    int64_t end = hfi_lease_proven(proof, sent, s->ttl_ms);

    if (end && HFI_MUTANT(session_from_reply))
        end = hfi_lease_deadline(hfi_now(), s->ttl_ms);
    if (end > s->proven)
        s->proven = end;
    return end != 0;
}

bool hfi_session_lasts(const struct hfi_session *s, int64_t sent,
                       int64_t ttl_ms)
{
    return s->proven >= hfi_lease_deadline(sent, ttl_ms);
}

static void session_die(struct hfi_sessions *ss, struct hfi_session *s)
{
    if (HFI_MUTANT(dead_session_kept))
        return;
    s->dead = true;
    session_empty(ss, s);
}

void hfi_session_died(struct hfi_sessions *ss, struct hfi_session *s)
{
    pthread_mutex_lock(ss->mu);
    session_die(ss, s);
    pthread_mutex_unlock(ss->mu);
}

bool hfi_sessions_lapsed(struct hfi_sessions *ss)
{
    struct hfi_link *at;

    for (at = ss->all.next; at != &ss->all; at = at->next)
        if (!session_of(at)->dead && hfi_now() <= session_of(at)->proven)
            return false;
    for (at = ss->all.next; at != &ss->all; at = at->next)
        if (session_of(at)->ttl_ms) /* One that is being made is new. */
            session_die(ss, session_of(at));
    return true;
}

void hfi_session_doubt(struct hfi_sessions *ss, struct hfi_session *s)
{
    pthread_mutex_lock(ss->mu);
    s->doubted = true;
    pthread_mutex_unlock(ss->mu);
}

struct hfi_session *hfi_session_next(const struct hfi_sessions *ss,
                                     const struct hfi_session *s)
{
    const struct hfi_link *at = s ? s->link.next : ss->all.next;

    for (; at != &ss->all; at = at->next) {
        struct hfi_session *next = session_of((struct hfi_link *)(uintptr_t)at);

        if (next->ttl_ms && !next->dead)
            return next;
    }
    return NULL;
}

/* ---- finding and making ------------------------------------------------ */

/* Those that nobody can find any more.  Without the mutex. */
static void session_free_all(struct hfi_sessions *ss, struct hfi_link *list)
{
    struct hfi_session *s;

    while (!hfi_link_alone(list)) {
        s = session_of(list->next);
        hfi_link_remove(&s->link);
        if (ss->service->drop)
            ss->service->drop(ss->conn, s);
        hfi_free(s);
    }
}

/* Take those out that have long lapsed, as nobody has used them. */
static void session_prune(struct hfi_sessions *ss, struct hfi_link *ret)
{
    struct hfi_link *at, *next;
    struct hfi_session *s;

    for (at = ss->all.next; at != &ss->all; at = next) {
        next = at->next;
        s = session_of(at);
        if (s->users || !hfi_link_alone(&s->claims) ||
            hfi_now() < hfi_after(s->proven, SESSION_PRUNE_MS))
            continue;
        hfi_link_remove(&s->link);
        hfi_link_append(ret, &s->link);
    }
}

static bool session_fits(const struct hfi_sessions *ss,
                         const struct hfi_session *s, int64_t kind)
{
    if (s->dead)
        return false;
    return ss->service->fits ? ss->service->fits(s, kind) : s->kind == kind;
}

static struct hfi_session *session_find(const struct hfi_sessions *ss,
                                        int64_t kind)
{
    struct hfi_link *at;

    for (at = ss->all.next; at != &ss->all; at = at->next)
        if (session_fits(ss, session_of(at), kind))
            return session_of(at);
    return NULL;
}

/* With the mutex held, which is let go meanwhile.  session.h (5) */
static hf_status session_make(struct hfi_sessions *ss, int64_t kind,
                              struct hfi_session **ret, int64_t deadline,
                              struct hf_error *err)
{
    struct hfi_session *s = hfi_alloc(ss->service->size);
    hf_status st;

    if (!s)
        return hfi_nomem(err);
    s->kind = kind;
    s->users = 1;
    hfi_link_init(&s->claims);
    hfi_link_append(&ss->all, &s->link);
    pthread_mutex_unlock(ss->mu);
    st = ss->service->create(ss->conn, s, deadline, err);
    pthread_mutex_lock(ss->mu);
    if (st) {
        hfi_link_remove(&s->link);
        hfi_free(s);
    } else {
        *ret = s;
    }
    hfi_cond_wake(&ss->settled);
    /* A session without claims that nobody knows lapses by itself. */
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

hf_status hfi_session_get(struct hfi_sessions *ss, int64_t kind,
                          struct hfi_session **ret, bool *fresh,
                          int64_t deadline, struct hf_error *err)
{
    struct hfi_session *s;
    struct hfi_link old;
    hf_status st = HF_OK;

    *fresh = false;
    hfi_link_init(&old);
    pthread_mutex_lock(ss->mu);
    while ((s = session_find(ss, kind)) && !s->ttl_ms && !st) {
        if (hfi_now() >= deadline)
            st = hfi_fail(err, HF_UNAVAILABLE, "no session in time");
        else
            hfi_cond_wait(&ss->settled, ss->mu, deadline);
    }
    if (!st && s) {
        s->users++;
    } else if (!st) {
        session_prune(ss, &old);
        st = session_make(ss, kind, &s, deadline, err);
        *fresh = !st;
    }
    pthread_mutex_unlock(ss->mu);
    session_free_all(ss, &old);
    if (!st)
        *ret = s;
    return st;
}

void hfi_session_put(struct hfi_sessions *ss, struct hfi_session *s)
{
    struct hfi_link old;

    hfi_link_init(&old);
    pthread_mutex_lock(ss->mu);
    s->users--;
    if (s->dead && !s->users) { /* session.h (3) */
        session_empty(ss, s);
        hfi_link_remove(&s->link);
        hfi_link_append(&old, &s->link);
    }
    pthread_mutex_unlock(ss->mu);
    session_free_all(ss, &old);
}

void hfi_sessions_close(struct hfi_sessions *ss, int64_t deadline)
{
    struct hfi_link old;
    struct hfi_session *s;

    hfi_link_init(&old);
    while (!hfi_link_alone(&ss->all)) {
        s = session_of(ss->all.next);
        if (ss->service->end && s->ttl_ms && !s->dead && !s->doubted &&
            hfi_link_alone(&s->claims)) /* session.h (4) */
            ss->service->end(ss->conn, s, deadline);
        pthread_mutex_lock(ss->mu);
        session_empty(ss, s);
        pthread_mutex_unlock(ss->mu);
        hfi_link_remove(&s->link);
        hfi_link_append(&old, &s->link);
        session_free_all(ss, &old);
    }
    hfi_map_fini(&ss->claims);
    hfi_cond_fini(&ss->settled);
}
