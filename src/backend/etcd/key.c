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
 *  (2) The number that ends a name is given to another claim only when etcd has
 *      said that there is no key of that name, and nothing about it ever lacked
 *      an answer: so no request that is still under way can mean a key which
 *      has come to be another's.  What was detached and taken up by another
 *      client keeps its number.
 *  (3) A removal that had no answer may arrive at any later time.  So a claim
 *      is never granted, and a grant never renewed, under the name that it
 *      means: the claim takes another name, and the sweep removes the old key.
 *  (4) A write that had no answer may make its key at any later time.  So it is
 *      remembered until its lease is dead, and swept again once in a ttl.
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

static void key_unmap(struct etcd_conn *ec, struct etcd_key *key)
{
    if (key->node.key)
        hfi_map_remove(&ec->keys, &key->node);
    key->node.key = NULL;
}

/* One that is being swept is freed by etcd_key_swept(). */
static void key_free(struct etcd_conn *ec, struct etcd_key *key)
{
    key_unmap(ec, key);
    hfi_link_remove(&key->link);
    hfi_free(key->predecessor);
    key->predecessor = NULL;
    key->orphan = key->swept;
    if (!key->orphan)
        hfi_free(key);
}

/* Leave it to the next sweep: its claim has no more to do with it. */
static void key_abandon(struct etcd_conn *ec, struct etcd_key *key)
{
    key_unmap(ec, key);
    key->revision = 0;
    key->end = INT64_MIN / 2;
    hfi_link_remove(&key->link);
    hfi_link_append(key->lease->keys.next, &key->link); /* the first */
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
    if (key && strcmp(key->name, name) != 0) {
        key_abandon(ec, key);
        key = NULL;
    }
    if (!key)
        key = key_new(ec, token, name);
    if (!key) {
        st = HF_NOMEM;
    } else if (key->swept || key->leaving) {
        st = HF_LOST;
    } else {
        key->revision = revision;
        key->lease = lease;
        key_put_last(key, end);
    }
    pthread_mutex_unlock(&ec->mu);
    return st;
}

hf_status etcd_key_touch(struct etcd_conn *ec, const char *token, int64_t end)
{
    struct etcd_key *key;
    hf_status st = HF_OK;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && key->swept)
        st = HF_UNAVAILABLE;
    else if (key && key->leaving)
        st = HF_LOST; /* key.c (3) */
    else if (key && end > key->end)
        key_put_last(key, end);
    pthread_mutex_unlock(&ec->mu);
    return st;
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

/* With the mutex held: its claim is over.  key.c (4) */
static void key_end(struct etcd_conn *ec, struct etcd_key *key)
{
    if (key->unsure)
        key->revision = 0; /* It may be made anew. */
    else
        key_free(ec, key);
}

void etcd_key_forget(struct etcd_conn *ec, const char *token)
{
    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key)
        key_end(ec, key);
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

void etcd_key_leaving(struct etcd_conn *ec, const char *token)
{
    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key)
        key->leaving = true;
    pthread_mutex_unlock(&ec->mu);
}

void etcd_key_abandon(struct etcd_conn *ec, const char *token)
{
    struct etcd_key *key;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key)
        key_abandon(ec, key);
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

bool etcd_key_done(struct etcd_conn *ec, const char *token, const char *last,
                   bool absent)
{
    const char *number = strchr(last, '-');
    struct etcd_key *key;
    bool sure, again;

    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    sure = !key || (!key->unsure && !key->leaving && !key->swept);
    again = number && key && sure && absent && is_ours(ec, last);
    if (again) /* key.c (2) */
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
    ret->place = 0;
    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, queue_tail_of(ec, dir, len));
    if (key && key->predecessor && !key->place && key->revision &&
        !key->swept && !strncmp(key->name, dir, len) &&
        !strchr(key->name + len, '/')) {
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
        key->place = predecessor->place;
        last = strrchr(key->name, '/');
        if (key->predecessor && !key->place && last)
            memcpy(queue_tail_of(ec, key->name, (size_t)(last + 1 - key->name)),
                   key->token, sizeof(key->token));
    }
    pthread_mutex_unlock(&ec->mu);
}

void etcd_key_get_predecessor(struct etcd_conn *ec, const char *token,
                              struct etcd_predecessor *ret)
{
    struct etcd_key *key;

    ret->name[0] = '\0';
    ret->revision = 0;
    ret->place = 0;
    pthread_mutex_lock(&ec->mu);
    key = key_find(ec, token);
    if (key && key->predecessor) {
        snprintf(ret->name, sizeof(ret->name), "%s", key->predecessor);
        ret->revision = key->predecessor_revision;
        ret->place = key->place;
    }
    pthread_mutex_unlock(&ec->mu);
}

/* ---- sweeping ---------------------------------------------------------- */

/* The removal of one key, if it is still the one that lapsed.  key.c (1) */
struct sweep {
    Pb__TxnRequest txn;
    struct etcd_bears bears;
    Pb__Compare made, hangs, *compares[4];
    Pb__DeleteRangeRequest gone;
    Pb__RequestOp op, *ops[1], outer;
};

static void sweep_make(struct sweep *s, const struct etcd_lease *lease,
                       const struct etcd_key *key)
{
    pb__txn_request__init(&s->txn);
    pb__compare__init(&s->made);
    pb__compare__init(&s->hangs);
    pb__delete_range_request__init(&s->gone);
    pb__request_op__init(&s->op);
    pb__request_op__init(&s->outer);
    s->gone.key = s->hangs.key = etcd_text(key->name);
    etcd_bears(&s->bears, s->gone.key, key->token);
    etcd_compare(&s->made, s->gone.key, key->revision);
    s->hangs.target = 4;
    s->hangs.with_case = PB__COMPARE__WITH_LEASE;
    s->hangs.lease = lease->id;
    s->op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    s->op.delete_range = &s->gone;
    s->ops[0] = &s->op;
    s->compares[0] = &s->hangs;
    s->compares[1] = &s->bears.above;
    s->compares[2] = &s->bears.below;
    s->compares[3] = &s->made;
    s->txn.n_compare = key->revision ? 4 : 3;
    s->txn.compare = s->compares;
    s->txn.n_success = 1;
    s->txn.success = s->ops;
    s->outer.request_case = PB__REQUEST_OP__REQUEST_TXN;
    s->outer.txn = &s->txn;
}

/* A key whose revision is unknown gets another ttl: its claim may yet learn. */
static bool key_has_lapsed(const struct etcd_lease *lease,
                           const struct etcd_key *key, int64_t now)
{
    return now > key->end + (key->revision ? 0 : lease->ttl_ms);
}

/* Choose what the next call is to remove, in sweep_next order; how many. */
static size_t sweep_choose(struct etcd_lease *lease, struct etcd_key **ret)
{
    int64_t now = hfi_now();
    struct etcd_key *key;
    struct hfi_link *at;
    size_t n = 0;

    for (at = lease->keys.next; at != &lease->keys && n < ETCD_SWEEP_KEYS;
         at = at->next) {
        key = hfi_container(at, struct etcd_key, link);
        if (now <= key->end)
            break;
        if (key->swept || !key_has_lapsed(lease, key, now) || (key->alone && n))
            continue;
        ret[n++] = key;
        if (key->alone)
            break;
    }
    return n;
}

/* One call that removes what has lapsed; false: there is nothing or no
 * memory. */
static bool sweep_add(struct etcd_batch *batch, struct etcd_lease *lease)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    struct etcd_key *keys[ETCD_SWEEP_KEYS];
    Pb__RequestOp *ops[ETCD_SWEEP_KEYS];
    size_t i, n = sweep_choose(lease, keys);
    struct sweep *sweeps = n ? hfi_alloc(n * sizeof(*sweeps)) : NULL;

    if (!sweeps)
        return false;
    for (i = 0; i < n; i++) {
        sweep_make(&sweeps[i], lease, keys[i]);
        ops[i] = &sweeps[i].outer;
        keys[i]->swept = true;
        keys[i]->sweep = batch->nsweeps;
        keys[i]->sweep_next = batch->swept;
        batch->swept = keys[i];
    }
    txn.n_success = n;
    txn.success = ops;
    batch->sweeps[batch->nsweeps++] = etcd_add(batch, ETCD_TXN, &txn.base);
    hfi_free(sweeps);
    return true;
}

void etcd_keys_sweep(struct etcd_batch *batch, struct etcd_lease *lease)
{
    while (batch->nsweeps < ETCD_SWEEPS_MAX && sweep_add(batch, lease))
        continue;
}

/* What became of one key, whose sweep ended so.  key.c (3), (4) */
static void key_swept(struct etcd_conn *ec, struct etcd_key *key, hf_status st)
{
    key->swept = false;
    if (key->orphan || (!st && !key->unsure)) {
        key_free(ec, key);
        return;
    }
    if (st == HF_UNCERTAIN)
        key->leaving = true;
    if (!st)
        key->revision = 0;
    key->alone = st && st != HF_UNCERTAIN && st != HF_UNAVAILABLE;
    if (!st || key->alone) /* not before another ttl is over */
        key_put_last(key, hfi_now() + (key->revision ? key->lease->ttl_ms : 0));
}

void etcd_key_swept(struct etcd_conn *ec, struct etcd_batch *batch)
{
    ProtobufCMessage *answer = NULL;
    hf_status st[ETCD_SWEEPS_MAX];
    struct etcd_key *key;
    size_t i;

    for (i = 0; i < batch->nsweeps; i++) {
        st[i] = HF_UNAVAILABLE;
        if (!batch->failed)
            st[i] =
                etcd_answer(ec, batch, batch->sweeps[i],
                            &pb__combined_response__descriptor, &answer, NULL);
        etcd_free(answer);
        answer = NULL;
    }
    pthread_mutex_lock(&ec->mu);
    while ((key = batch->swept)) {
        batch->swept = key->sweep_next;
        key_swept(ec, key, st[key->sweep]);
    }
    pthread_mutex_unlock(&ec->mu);
    batch->nsweeps = 0;
}

void etcd_keys_free(struct etcd_conn *ec, struct etcd_lease *lease)
{
    while (!hfi_link_alone(&lease->keys))
        key_free(ec, hfi_container(lease->keys.next, struct etcd_key, link));
}
