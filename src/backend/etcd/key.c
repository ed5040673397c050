/* SPDX-License-Identifier: MIT
 *
 * key.c - the keys of this client, which hang on its leases.
 *
 * One lease for many means that a lock which nobody renews any more, because it
 * is renewed by hand or its owner is stuck, would live on with the others.  So
 * each key has an end of its own here, and whoever uses the lease next removes
 * the keys that are past theirs.  The server's expiry is for the case that the
 * whole client is gone.
 *
 * INVARIANTS
 *  (1) A key is swept only on the token, the revision and the lease that it had
 *      when it was noted; one that was made anew, or taken up by another claim
 *      of whichever client, stays.  It counts as swept when etcd has said so.
 *  (2) The number that ends a name is given to another claim only when its last
 *      one has ended with an answer, and nothing about it ever lacked one: so
 *      no request that is still under way can mean a key which has come to be
 *      another's.  What was detached is never done with here, and keeps its
 *      number.
 */
#include "etcd.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

static struct etcd_key *key_find(struct etcd_conn *ec, const char *token)
{
    struct hfi_node *node = hfi_map_find(&ec->keys, token);

    return node ? hfi_container(node, struct etcd_key, node) : NULL;
}

static void key_free(struct etcd_conn *ec, struct etcd_key *key)
{
    hfi_map_remove(&ec->keys, &key->node);
    hfi_link_remove(&key->link);
    hfi_free(key->before);
    hfi_free(key);
}

/* A new one.  With the mutex held. */
static struct etcd_key *key_new(struct etcd_conn *ec, const char *token,
                                const char *name)
{
    size_t len = strlen(name) + 1;
    struct etcd_key *key = NULL;

    if (hfi_map_reserve(&ec->keys))
        key = hfi_alloc(sizeof(*key) + len);
    if (!key)
        return NULL;
    memcpy(key->name, name, len);
    snprintf(key->token, sizeof(key->token), "%s", token);
    hfi_link_init(&key->link);
    key->node.key = key->token;
    hfi_map_add(&ec->keys, &key->node);
    return key;
}

static void key_put_last(struct etcd_key *key, int64_t end)
{
    key->end = end;
    hfi_link_remove(&key->link);
    hfi_link_append(&key->lease->keys, &key->link);
}

hf_status etcd_key_note(struct etcd_conn *ec, struct etcd_lease *lease,
                        const char *token, const char *name, int64_t revision,
                        int64_t end)
{
    struct etcd_key *key;
    hf_status st = HF_OK;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && key->swept) {
        st = HF_LOST;
    } else if (key && strcmp(key->name, name) != 0) {
        key_free(ec, key); /* It hung on a lease that is dead. */
        key = NULL;
    }
    if (!st && !key)
        key = key_new(ec, token, name);
    if (!st && !key)
        st = HF_NOMEM;
    if (!st) {
        key->revision = revision;
        key->lease = lease;
        key_put_last(key, end);
    }
    pthread_mutex_unlock(&ec->mu);
    return st;
}

bool etcd_key_touch(struct etcd_conn *ec, const char *token, int64_t end)
{
    struct etcd_key *key;
    bool ok;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    ok = !key || !key->swept;
    if (key && ok && end > key->end)
        key_put_last(key, end);
    pthread_mutex_unlock(&ec->mu);
    return ok;
}

void etcd_key_moving(struct etcd_conn *ec, const char *token, bool yes)
{
    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key)
        key->moving = yes;
    pthread_mutex_unlock(&ec->mu);
}

bool etcd_key_is_moving(struct etcd_conn *ec, const char *token)
{
    const struct etcd_key *key;
    bool yes;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    yes = key && key->moving;
    pthread_mutex_unlock(&ec->mu);
    return yes;
}

void etcd_key_forget(struct etcd_conn *ec, const char *token)
{
    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key)
        key_free(ec, key);
    pthread_mutex_unlock(&ec->mu);
}

void etcd_key_doubt(struct etcd_conn *ec, const char *token)
{
    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key)
        key->unsure = true;
    pthread_mutex_unlock(&ec->mu);
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
    struct hfi_link *at;
    char text[18];
    size_t len;

    last += last[0] == '~';
    for (at = ec->leases.next; at != &ec->leases; at = at->next) {
        snprintf(text, sizeof(text), "%" PRIx64 "-",
                 (uint64_t)hfi_container(at, struct etcd_lease, link)->id);
        len = strlen(text);
        if (!strncmp(last, text, len))
            return true;
    }
    return false;
}

bool etcd_key_done(struct etcd_conn *ec, const char *token, const char *last)
{
    const char *number = strchr(last, '-');
    struct etcd_key *key;
    bool done;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    done = number && key && !key->unsure && is_ours(ec, last);
    if (done) /* key.c (2) */
        number_put(ec, (uint32_t)strtoul(number + 1, NULL, 16));
    if (key && !key->unsure)
        key_free(ec, key);
    pthread_mutex_unlock(&ec->mu);
    return done;
}

/* Where the token of a queue's last is kept, by all of the name but its end. */
static char *tail_of(struct etcd_conn *ec, const char *name, size_t len)
{
    uint32_t hash = 2166136261u;

    while (len--)
        hash = (hash ^ (unsigned char)name[len]) * 16777619u;
    return ec->tails[hash % ETCD_TAILS];
}

void etcd_key_tail(struct etcd_conn *ec, const char *dir,
                   struct etcd_before *ret)
{
    size_t len = strlen(dir);
    struct etcd_key *key;

    ret->name[0] = '\0';
    ret->revision = 0;
    ret->place = 0;
    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, tail_of(ec, dir, len));
    if (key && key->before && !key->place && key->revision && !key->swept &&
        !strncmp(key->name, dir, len) && !strchr(key->name + len, '/')) {
        snprintf(ret->name, sizeof(ret->name), "%s", key->name);
        ret->revision = key->revision;
    }
    pthread_mutex_unlock(&ec->mu);
}

void etcd_key_set_before(struct etcd_conn *ec, const char *token,
                         const struct etcd_before *before)
{
    const char *last;

    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && (!key->before || strcmp(key->before, before->name) != 0)) {
        hfi_free(key->before);
        key->before = before->name[0] ? hfi_strdup(before->name) : NULL;
    }
    if (key) {
        key->before_revision = before->revision;
        key->place = before->place;
        last = strrchr(key->name, '/');
        if (key->before && !key->place && last)
            memcpy(tail_of(ec, key->name, (size_t)(last + 1 - key->name)),
                   key->token, sizeof(key->token));
    }
    pthread_mutex_unlock(&ec->mu);
}

void etcd_key_get_before(struct etcd_conn *ec, const char *token,
                         struct etcd_before *ret)
{
    struct etcd_key *key;

    ret->name[0] = '\0';
    ret->revision = 0;
    ret->place = 0;
    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && key->before) {
        snprintf(ret->name, sizeof(ret->name), "%s", key->before);
        ret->revision = key->before_revision;
        ret->place = key->place;
    }
    pthread_mutex_unlock(&ec->mu);
}

/* Remove the key, if it is still the one that lapsed.  key.c (1) */
static void key_sweep(struct etcd_batch *batch, struct etcd_lease *lease,
                      struct etcd_key *key)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    struct etcd_bears bears;
    Pb__Compare made = PB__COMPARE__INIT, hangs = PB__COMPARE__INIT;
    Pb__Compare *compare[] = {&hangs, &bears.above, &bears.below, &made};
    Pb__DeleteRangeRequest gone = PB__DELETE_RANGE_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};

    gone.key = hangs.key = etcd_text(key->name);
    etcd_bears(&bears, gone.key, key->token);
    etcd_compare(&made, gone.key, key->revision);
    hangs.target = 4;
    hangs.with_case = PB__COMPARE__WITH_LEASE;
    hangs.lease = lease->id;
    op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op.delete_range = &gone;
    txn.n_compare = key->revision ? 4 : 3;
    txn.compare = compare;
    txn.n_success = 1;
    txn.success = ops;
    snprintf(batch->tokens[batch->nswept], HFI_TOKEN_LEN + 1, "%s", key->token);
    batch->swept[batch->nswept++] = etcd_add(batch, ETCD_TXN, &txn.base);
    key->swept = true;
}

/* A key whose revision is unknown gets another ttl: its claim may yet learn. */
static bool key_has_lapsed(const struct etcd_lease *lease,
                           const struct etcd_key *key, int64_t now)
{
    return now > key->end + (key->revision ? 0 : lease->ttl_ms);
}

void etcd_keys_sweep(struct etcd_batch *batch, struct etcd_lease *lease)
{
    struct etcd_key *key;
    struct hfi_link *at;
    int64_t now = hfi_now();

    for (at = lease->keys.next;
         at != &lease->keys && batch->nswept < ETCD_SWEEP_MAX; at = at->next) {
        key = hfi_container(at, struct etcd_key, link);
        if (!key_has_lapsed(lease, key, now))
            return;
        if (!key->swept)
            key_sweep(batch, lease, key);
    }
}

void etcd_key_swept(struct etcd_conn *ec, const struct etcd_batch *batch)
{
    struct etcd_key *key;
    size_t i;

    pthread_mutex_lock(&ec->mu);
    for (i = 0; i < batch->nswept; i++) {
        const struct hfi_h2_call *call = &batch->calls[batch->swept[i]];

        key = key_find(ec, batch->tokens[i]);
        if (key && !batch->failed && call->st == HF_OK && !call->grpc_status)
            key_free(ec, key);
        else if (key)
            key->swept = false;
    }
    pthread_mutex_unlock(&ec->mu);
}

void etcd_keys_free(struct etcd_conn *ec, struct etcd_lease *lease)
{
    while (!hfi_link_alone(&lease->keys))
        key_free(ec, hfi_container(lease->keys.next, struct etcd_key, link));
}
