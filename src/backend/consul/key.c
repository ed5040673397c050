/* SPDX-License-Identifier: MIT
 *
 * key.c - what this client knows of each key.
 *
 * The service knows sessions, not claims: to it, two claims of one client that
 * share a session are the same, and it would grant a key to both.  So which
 * claim has a key is remembered here, and a key is worked on by one call at a
 * time.  The index at which the key was last seen is kept too: it makes the
 * next acquisition a single conditional write.  The entry of one of several
 * holders (many.c) is remembered in the same way, until nobody uses it.
 *
 * INVARIANTS
 *  (1) `holder` is set from before a write that may grant until after one that
 *      is known to have released, or until the service says otherwise.
 *  (2) A key that says CONSUL_FREE only saves a question.  If it is wrong, the
 *      condition of the write fails.
 *  (3) Token and fence say whose grant an entry is; the session does not: a
 *      move that was not answered may have taken effect.
 *  (4) What a session of ours holds for a claim that was detached is remembered
 *      until it is seen elsewhere: the session is not to be destroyed.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How many keys are remembered that nobody uses. */
#define IDLE_MAX 4096

static void key_free(struct consul_conn *cc, struct consul_key *key)
{
    hfi_link_remove(&key->link);
    hfi_map_remove(&cc->keys, &key->node);
    hfi_free(key);
}

static struct consul_key *key_new(struct consul_conn *cc, const char *key,
                                  const char *name)
{
    size_t name_len = strlen(name) + 1, key_len = strlen(key) + 1;
    char lock[CONSUL_NAME_MAX];
    struct consul_key *k = NULL;

    if (hfi_map_reserve(&cc->keys))
        k = hfi_alloc(sizeof(*k) + name_len + key_len);
    if (!k)
        return NULL;
    hfi_link_init(&k->link);
    k->node.key = memcpy(k->name, name, name_len);
    k->key = memcpy(k->name + name_len, key, key_len);
    k->joint =
        !hfi_consul_name(&cc->options, key, lock) || strcmp(lock, name) != 0;
    /* Where new keys have been the rule, guess that this is one. */
    k->seen = atomic_load(&cc->fresh) ? CONSUL_FREE : CONSUL_UNKNOWN;
    hfi_map_add(&cc->keys, &k->node);
    return k;
}

/* With the mutex held: the key, which from now on is not forgotten. */
static struct consul_key *key_get(struct consul_conn *cc, const char *key,
                                  const char *name)
{
    struct hfi_node *node = hfi_map_find(&cc->keys, name);
    struct consul_key *k;

    k = node ? hfi_container(node, struct consul_key, node)
             : key_new(cc, key, name);
    if (k && !k->users++ && !k->holder[0] && node) {
        hfi_link_remove(&k->link);
        cc->nidle--;
    }
    return k;
}

/* With the mutex held. */
static void key_put(struct consul_conn *cc, struct consul_key *k)
{
    if (--k->users || k->holder[0])
        return;
    if (k->joint) { /* No other claim will have that name. */
        key_free(cc, k);
        return;
    }
    hfi_link_append(&cc->idle, &k->link);
    if (++cc->nidle > IDLE_MAX) {
        key_free(cc, hfi_container(cc->idle.next, struct consul_key, link));
        cc->nidle--;
    }
}

/* Have an entry of the key to oneself. */
hf_status hfi_consul_name_enter(struct consul_conn *cc, const char *key,
                                const char *name, int64_t deadline,
                                struct consul_key **ret, struct hf_error *err)
{
    struct consul_key *k;
    hf_status st = HF_OK;

    pthread_mutex_lock(&cc->mu);
    k = key_get(cc, key, name);
    while (k && k->busy && hfi_left_ms(deadline))
        hfi_cond_wait(&cc->turn, &cc->mu, deadline);
    if (!k) {
        st = hfi_nomem(err);
    } else if (k->busy) {
        key_put(cc, k);
        st = hfi_fail(err, HF_UNAVAILABLE,
                      "%s: an earlier request of this client still "
                      "waits for its answer",
                      cc->base.endpoint);
    } else {
        k->busy = true;
        *ret = k;
    }
    pthread_mutex_unlock(&cc->mu);
    return st;
}

/* Have the key to oneself. */
hf_status hfi_consul_key_enter(struct consul_conn *cc, const char *key,
                               int64_t deadline, struct consul_key **ret,
                               struct hf_error *err)
{
    char name[CONSUL_NAME_MAX];

    if (!hfi_consul_name(&cc->options, key, name))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    return hfi_consul_name_enter(cc, key, name, deadline, ret, err);
}

/* The entry is as `kv` says.  Once others have joined the grant that it is, it is
 * released as one that several hold, whatever is written over it. */
void hfi_consul_key_seen(struct consul_key *k, const struct consul_kv *kv)
{
    k->index = kv->index;
    k->joined = k->joined || kv->joined;
}

void hfi_consul_key_leave(struct consul_conn *cc, struct consul_key *k)
{
    pthread_mutex_lock(&cc->mu);
    k->busy = false;
    if (k->users > 1)
        hfi_cond_wake(&cc->turn);
    key_put(cc, k);
    pthread_mutex_unlock(&cc->mu);
}

/* With the mutex held: the session that the key does not use any more, to be
 * put back without it; or NULL. */
static struct consul_session *key_unbind(struct consul_key *k)
{
    struct consul_session *s = k->session;

    hfi_link_remove(&k->link);
    k->session = NULL;
    return s;
}

/* The same; and it uses this one instead. */
static struct consul_session *key_bind(struct consul_key *k, const char *token,
                                       struct consul_session *s)
{
    struct consul_session *old = NULL;

    if (k->session != s) {
        s->base.users++;
        old = key_unbind(k);
        k->session = s;
    }
    memcpy(k->holder, token, sizeof(k->holder));
    hfi_link_remove(&k->link);
    hfi_link_append(&s->held, &k->link);
    return old;
}

/* The claim `token` has it. */
void hfi_consul_key_held(struct consul_conn *cc, struct consul_key *k,
                         const char *token, struct consul_session *s,
                         uint64_t fence)
{
    struct consul_session *old;

    pthread_mutex_lock(&cc->mu);
    old = key_bind(k, token, s);
    k->seen = CONSUL_UNKNOWN;
    k->maybe = k->leaving = k->moving = false;
    k->fence = fence;
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_session_put(cc, old);
}

/* Is the entry the grant of our claim that has the key?  If it is in another
 * session of ours, that is the one to remember.  key.c (3) */
bool hfi_consul_key_rebind(struct consul_conn *cc, struct consul_key *k,
                           const struct consul_kv *kv)
{
    struct consul_session *s, *old = NULL;

    if (!k->holder[0] || !hfi_consul_is_grant(kv, k->holder, k->fence))
        return false;
    pthread_mutex_lock(&cc->mu);
    s = hfi_consul_session_find(cc, kv->session);
    if (s && s != k->session)
        old = key_bind(k, kv->token, s);
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_session_put(cc, old);
    return true;
}

/* A write that may have granted it to `token` was not answered. */
void hfi_consul_key_maybe(struct consul_conn *cc, struct consul_key *k,
                          const char *token, struct consul_session *s)
{
    struct consul_session *old;

    pthread_mutex_lock(&cc->mu);
    old = key_bind(k, token, s);
    k->seen = CONSUL_UNKNOWN;
    k->maybe = true;
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_session_put(cc, old);
}

/* The claim that may have had the key does not, as the entry `kv` says.  If a
 * session of ours has it for another token, that claim was detached here before
 * this one tried to take it up: it is remembered.  key.c (4) */
void hfi_consul_key_settle(struct consul_conn *cc, struct consul_key *k,
                           const struct consul_kv *kv)
{
    bool is_free = hfi_consul_kv_is_free(kv);
    struct consul_session *s = NULL, *old = NULL;

    pthread_mutex_lock(&cc->mu);
    if (kv->session[0] && kv->token[0] && strcmp(kv->token, k->holder) != 0)
        s = hfi_consul_session_find(cc, kv->session);
    if (s) {
        old = key_bind(k, kv->token, s);
        k->maybe = k->leaving = k->moving = false;
        k->fence = hfi_consul_fence(kv);
        hfi_consul_key_seen(k, kv);
    }
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_session_put(cc, old);
    if (!s)
        hfi_consul_key_free(cc, k, is_free ? CONSUL_FREE : CONSUL_UNKNOWN,
                            is_free ? kv->index : 0);
}

/* No claim of ours has it. */
void hfi_consul_key_free(struct consul_conn *cc, struct consul_key *k,
                         enum consul_seen seen, uint64_t index)
{
    struct consul_session *old;

    pthread_mutex_lock(&cc->mu);
    k->seen = seen;
    k->line = CONSUL_LINE_UNKNOWN;
    k->index = index;
    k->maybe = k->leaving = k->moving = k->joined = false;
    k->fence = 0;
    k->holder[0] = '\0';
    old = key_unbind(k);
    pthread_mutex_unlock(&cc->mu);
    hfi_consul_session_put(cc, old);
}

/* Nobody else uses the conn any more. */
void hfi_consul_keys_fini(struct consul_conn *cc)
{
    struct hfi_node *node;

    while ((node = hfi_map_next(&cc->keys, NULL)))
        key_free(cc, hfi_container(node, struct consul_key, node));
    hfi_map_fini(&cc->keys);
}
