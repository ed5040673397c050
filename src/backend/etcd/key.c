/* SPDX-License-Identifier: MIT
 *
 * key.c - the keys of this client, which hang on its leases.
 *
 * One lease for many means that a lock which nobody renews any more would live
 * on with the others.  The core releases each claim that has ended and sweeps
 * what was left (core/sweep.c); here is what is known of each key until then.
 *
 * INVARIANTS
 *  (1) The number that ends a name is given to another claim only when etcd has
 *      said that there is no key of that name, and nothing about it ever lacked
 *      an answer: so no request that is still under way can mean a key which
 *      has come to be another's.  What was detached and taken up by another
 *      client keeps its number.
 *  (2) A removal that had no answer may arrive at any later time.  So a claim
 *      is never granted, and a grant never renewed, under the name that it
 *      means: the claim takes another name, and the core releases what it has
 *      left under the old one (hfi_left()).
 *  (3) A write that had no answer may make its key at any later time, as long
 *      as its lease lives.  So release() says until then that something may be
 *      left (backend.h, `registered`), and the core asks again.
 */
#include "etcd.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

static struct etcd_key *key_of(struct hfi_session_claim *claim)
{
    return (struct etcd_key *)claim;
}

static struct etcd_key *key_find(struct etcd_conn *ec, const char *token)
{
    return key_of(hfi_session_claim_find(&ec->leases, token));
}

void etcd_key_lost(void *conn, struct hfi_session_claim *claim)
{
    (void)conn;
    hfi_free(key_of(claim)->predecessor);
    hfi_free(claim);
}

static void key_free(struct etcd_conn *ec, struct etcd_key *key)
{
    hfi_session_claim_remove(&ec->leases, &key->claim);
    etcd_key_lost(ec, &key->claim);
}

/* A new one.  With the mutex held. */
static struct etcd_key *key_new(struct etcd_conn *ec, const char *token,
                                const char *name)
{
    size_t len = strlen(name) + 1;
    struct etcd_key *key = NULL;

    if (hfi_session_claim_reserve(&ec->leases))
        key = hfi_alloc(sizeof(*key) + len);
    if (!key)
        return NULL;
    memcpy(key->name, name, len);
    hfi_session_claim_add(&ec->leases, &key->claim, token);
    return key;
}

hf_status etcd_key_note(struct etcd_conn *ec, struct etcd_lease *lease,
                        const char *token, const char *name, int64_t revision)
{
    struct etcd_key *key;
    hf_status st = HF_OK;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && strcmp(key->name, name) != 0) {
        key_free(ec, key);
        key = NULL;
    }
    if (!key)
        key = key_new(ec, token, name);
    if (!key) {
        st = HF_NOMEM;
    } else if (key->leaving) {
        st = HF_LOST;
    } else if (lease->session.dead) {
        key_free(ec, key); /* backend/session.h (2) */
    } else {
        key->revision = revision;
        if (key->claim.session != &lease->session)
            hfi_session_claim_hang(&key->claim, &lease->session);
    }
    pthread_mutex_unlock(&ec->mu);
    return st;
}

/* What is remembered of a key, to be changed; NULL: nothing. */
static struct etcd_key *key_lock(struct etcd_conn *ec, const char *token)
{
    pthread_mutex_lock(&ec->mu);
    return key_find(ec, token);
}

void etcd_key_moving(struct etcd_conn *ec, const char *token, bool yes)
{
    struct etcd_key *key = key_lock(ec, token);

    if (key)
        key->moving = yes;
    pthread_mutex_unlock(&ec->mu);
}

bool etcd_key_is_moving(struct etcd_conn *ec, const char *token)
{
    const struct etcd_key *key = key_lock(ec, token);
    bool yes = key && key->moving;

    pthread_mutex_unlock(&ec->mu);
    return yes;
}

int64_t etcd_key_lease(struct etcd_conn *ec, const char *token)
{
    const struct etcd_key *key = key_lock(ec, token);
    int64_t id = 0;

    if (key)
        id = ((const struct etcd_lease *)key->claim.session)->id;
    pthread_mutex_unlock(&ec->mu);
    return id;
}

bool etcd_key_forget(struct etcd_conn *ec, const char *token)
{
    struct etcd_key *key = key_lock(ec, token);

    if (key)
        key_free(ec, key);
    pthread_mutex_unlock(&ec->mu);
    return key != NULL;
}

void etcd_key_doubt(struct etcd_conn *ec, const char *token)
{
    struct etcd_key *key = key_lock(ec, token);

    if (key)
        key->unsure = true;
    pthread_mutex_unlock(&ec->mu);
}

bool etcd_key_is_known(struct etcd_conn *ec, const char *token)
{
    const struct etcd_key *key = key_lock(ec, token);

    pthread_mutex_unlock(&ec->mu);
    return key != NULL;
}

bool etcd_key_is_leaving(struct etcd_conn *ec, const char *token)
{
    const struct etcd_key *key = key_lock(ec, token);
    bool yes = key && key->leaving;

    pthread_mutex_unlock(&ec->mu);
    return yes;
}

/* With the mutex held.  One that there is no room for is not used again. */
static void number_put(struct etcd_conn *ec, uint32_t number)
{
    size_t room = ec->numbers_room ? 2 * ec->numbers_room : 16;
    uint32_t *grown;

    if (ec->nnumbers == ec->numbers_room) {
        grown = hfi_realloc(ec->numbers, room * sizeof(*grown));
        if (!grown)
            return;
        ec->numbers = grown;
        ec->numbers_room = room;
    }
    ec->numbers[ec->nnumbers++] = number;
}

/* The one that was used last comes first: so few names are ever used. */
uint32_t etcd_number(struct etcd_conn *ec)
{
    uint32_t number;

    pthread_mutex_lock(&ec->mu);
    number = ec->nnumbers ? ec->numbers[--ec->nnumbers] : ec->number++;
    pthread_mutex_unlock(&ec->mu);
    return number;
}

/* Does the name end with a lease of ours?  Others count their own numbers. */
static bool is_ours(struct etcd_conn *ec, const char *last)
{
    struct hfi_session *s = NULL;
    char text[18];

    last = etcd_last_lease(last);
    while ((s = hfi_session_next(&ec->leases, s))) {
        snprintf(text, sizeof(text), "%" PRIx64 "-",
                 (uint64_t)((struct etcd_lease *)s)->id);
        if (!strncmp(last, text, strlen(text)))
            return true;
    }
    return false;
}

/* Does its name end so?  A claim may have left another name behind. */
static bool key_ends(const struct etcd_key *key, const char *last)
{
    const char *end = strrchr(key->name, '/');

    return end && !strcmp(end + 1, last);
}

void etcd_key_leaving(struct etcd_conn *ec, const char *token, const char *last)
{
    struct etcd_key *key = key_lock(ec, token);

    if (key && key_ends(key, last))
        key->leaving = true;
    pthread_mutex_unlock(&ec->mu);
}

bool etcd_key_done(struct etcd_conn *ec, const char *token, const char *last,
                   bool absent)
{
    const char *number = strchr(last, '-');
    struct etcd_key *key = key_lock(ec, token);
    bool sure, again;

    if (key && !key_ends(key, last))
        key = NULL;
    sure = !key || (!key->unsure && !key->leaving);
    again = number && key && sure && absent && is_ours(ec, last);
    if (again) /* key.c (1) */
        number_put(ec, (uint32_t)strtoul(number + 1, NULL, 16));
    if (key && sure)
        key_free(ec, key);
    pthread_mutex_unlock(&ec->mu);
    return sure;
}

/* Where the token of a queue's last is kept, by all of the name but its end. */
static char *queue_tail_of(struct etcd_conn *ec, const char *name, size_t len)
{
    uint32_t hash = 2166136261u;

    while (len--)
        hash = (hash ^ (unsigned char)name[len]) * 16777619u;
    return ec->queue_tails[hash % ETCD_QUEUE_TAILS];
}

void etcd_key_queue_tail(struct etcd_conn *ec, const char *dir,
                         struct etcd_predecessor *ret)
{
    size_t len = strlen(dir);
    struct etcd_key *key;

    ret->name[0] = '\0';
    ret->revision = 0;
    ret->position = ret->ahead = 0;
    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, queue_tail_of(ec, dir, len));
    if (key && key->predecessor && !key->position && key->revision &&
        !strncmp(key->name, dir, len) && !strchr(key->name + len, '/')) {
        snprintf(ret->name, sizeof(ret->name), "%s", key->name);
        ret->revision = key->revision;
    }
    pthread_mutex_unlock(&ec->mu);
}

void etcd_key_set_predecessor(struct etcd_conn *ec, const char *token,
                              const struct etcd_predecessor *predecessor)
{
    const char *last;

    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && (!key->predecessor ||
                strcmp(key->predecessor, predecessor->name) != 0)) {
        hfi_free(key->predecessor);
        key->predecessor =
            predecessor->name[0] ? hfi_strdup(predecessor->name) : NULL;
    }
    if (key) {
        key->predecessor_revision = predecessor->revision;
        key->position = predecessor->position;
        last = strrchr(key->name, '/');
        if (key->predecessor && !key->position && last)
            memcpy(queue_tail_of(ec, key->name, (size_t)(last + 1 - key->name)),
                   key->claim.token, sizeof(key->claim.token));
    }
    pthread_mutex_unlock(&ec->mu);
}

void etcd_key_get_predecessor(struct etcd_conn *ec, const char *token,
                              struct etcd_predecessor *ret)
{
    struct etcd_key *key;

    ret->name[0] = '\0';
    ret->revision = 0;
    ret->position = ret->ahead = 0;
    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && key->predecessor) {
        snprintf(ret->name, sizeof(ret->name), "%s", key->predecessor);
        ret->revision = key->predecessor_revision;
        ret->position = key->position;
    }
    pthread_mutex_unlock(&ec->mu);
}
