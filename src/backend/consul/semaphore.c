/* SPDX-License-Identifier: MIT
 *
 * semaphore.c - permits with layout=cli, as `consul lock -n N` has them.
 *
 * ON THE WIRE  The format is that of Consul's Go library (api/semaphore.go):
 *
 *   K/SESSION  a contender, locked by its session, whose keys go with it
 *   K/.lock    {"Limit":N,"Holders":{"SESSION":true,...}}; locked by a common
 *              session while holders of ours are there (common.c), which others
 *              do not mind, and whose ttl is in "CommonMs" if they leave it
 *
 *   Who is in Holders has a permit for as long as anything below K is locked by
 *   its session; others count it no more, and drop it when they write.  Whoever
 *   goes in writes K/.lock on the condition that it is as it was read.
 *
 *   A session is one permit there, so each permit of ours has a session that
 *   carries nothing else.  Beside its contender it has the entry of a holder as
 *   in many.c, K/.holdfast-holders/TOKEN, locked by the same session: it has the
 *   token, the fence, the note and the slot, and is renewed, marked and released
 *   as any other.
 *
 *   go in    K/.lock as it was    lock K/.lock, lock both entries
 *   move     all as they were     set K/.lock, lock both with another session
 *   leave    the entry unchanged  unlock it, delete the contender
 *   tidy     nobody is left       delete K/.lock
 *
 * INVARIANTS
 *  (1) A permit lasts as long as its session has an entry below K locked.  The
 *      service ends a session no earlier than the holder itself gives up
 *      (session.c (4)), and that frees the permit in the eyes of all programs.
 *  (2) Holders and the entries that are locked are read at one moment, and the
 *      write is conditional on K/.lock at that moment.  Whoever comes in changes
 *      it.  So there are never more than N.
 *  (3) A write without an answer names a session that carries this permit only.
 *      Once that is destroyed the write cannot come any more, whatever K/.lock
 *      is then; so here "there is no K/.lock" is a condition that will do.
 *  (4) Slots differ among the holders that are ours.  Those of other programs
 *      have none, and take none: there are at most N of all.
 *
 * LIMITS  Other programs know no queue, and take a permit when there is one.  A
 *   lock-delay is not heeded, as they do not either.  `consul lock -n 1` is no
 *   semaphore but a plain lock, and refuses a key in use with one permit.
 */
#include "consul.h"

#include "base/banned.h"

/* What a contender of ours says to whoever looks at it. */
#define CONTENDER "holdfast"

bool hfi_consul_is_semaphore(const struct consul_conn *cc,
                             const struct hfi_claim *claim)
{
    return cc->options.cli && claim->permits;
}

/* What changes when one of several holders leaves; ret has CONSUL_NAME_MAX. */
bool hfi_consul_among_name(const struct consul_conn *cc,
                           const struct hfi_claim *claim, char *ret)
{
    return hfi_consul_is_semaphore(cc, claim)
               ? hfi_consul_below(&cc->options, claim->key, "", ret)
               : hfi_consul_holder_name(&cc->options, claim->key, "", ret);
}

/* ---- who holds ----------------------------------------------------------- */

/* One of a list of entries, or of results of a transaction. */
static const json_t *list_entry(const json_t *list, size_t i)
{
    const json_t *entry = json_array_get(list, i);
    const json_t *inner = json_object_get(entry, "KV");

    return inner ? inner : entry;
}

static const char *entry_text(const json_t *entry, const char *name)
{
    const char *text = json_string_value(json_object_get(entry, name));

    return text ? text : "";
}

static bool many_has(const struct consul_many *many, const char *session)
{
    size_t i;

    for (i = 0; i < many->n; i++)
        if (!strcmp(many->holders[i].session, session))
            return true;
    return false;
}

/* Add the holder of another program, if anything below `base` is locked by its
 * session.  There is room: each has an entry of its own in the list. */
static void collect_foreign(struct consul_many *many, const json_t *list,
                            const char *base, const char *session)
{
    size_t i, len = strlen(base);
    struct consul_holder *h;
    const json_t *entry;
    struct consul_kv kv;

    if (!hfi_consul_is_id(session) || many_has(many, session))
        return;
    for (i = 0; i < json_array_size(list); i++) {
        entry = list_entry(list, i);
        if (strncmp(entry_text(entry, "Key"), base, len) != 0 ||
            strcmp(entry_text(entry, "Session"), session) != 0)
            continue;
        hfi_consul_kv_parse(&kv, entry);
        h = &many->holders[many->n++];
        *h = (struct consul_holder){.entry = entry,
                                    .name = entry_text(entry, "Key"),
                                    .index = kv.index,
                                    .slot = -1,
                                    .foreign = true};
        memcpy(h->session, session, CONSUL_ID_LEN + 1);
        many->live++;
        return;
    }
}

/* `many` has those who are ours: add the others, of all that is below `base`,
 * and what K/.lock says. */
void hfi_consul_semaphore_collect(struct consul_many *many, const json_t *list,
                                  const char *base)
{
    size_t i, len = strlen(base);
    const json_t *entry, *lock = NULL;
    json_t *json, *holders;
    void *at;

    for (i = 0; i < json_array_size(list); i++) {
        entry = list_entry(list, i);
        if (!strncmp(entry_text(entry, "Key"), base, len) &&
            !strcmp(entry_text(entry, "Key") + len, ".lock"))
            lock = entry;
    }
    if (!lock)
        return;
    hfi_consul_kv_parse(&many->lock, lock);
    if (!many->lock.semaphore)
        return;
    json = hfi_consul_kv_json(lock);
    holders = json_object_get(json, "Holders");
    for (at = json_object_iter(holders); at;
         at = json_object_iter_next(holders, at))
        collect_foreign(many, list, base, json_object_iter_key(at));
    json_decref(json);
}

/* ---- going in ------------------------------------------------------------ */

/* Another claim, one without permits, finds the semaphore `kv`.  HF_LOST: nobody
 * uses it, or (t->again) it has changed. */
hf_status hfi_consul_semaphore_judge(struct consul_try *t,
                                     const struct consul_kv *kv)
{
    hf_status st;

    hfi_consul_many_fini(&t->many);
    st = hfi_consul_many_read(t->cc, t->claim->key, t->k->name, kv->index,
                              t->claim->token, t->deadline, &t->many, t->err);
    t->again = st == HF_LOST;
    if (st)
        return st;
    if (t->many.live)
        return hfi_fail_use(t->err, t->claim, kv->permits);
    return HF_LOST;
}

/* May this claim go in?  HF_OK: as far as was seen. */
static hf_status semaphore_look(struct consul_try *t)
{
    const struct hfi_claim *claim = t->claim;
    const struct consul_kv *kv = &t->many.lock;
    struct consul_key *k = t->k;
    hf_status st =
        hfi_consul_many_read(t->cc, claim->key, k->name, 0, claim->token,
                             t->deadline, &t->many, t->err);

    if (st)
        return st;
    if (k->holder[0] && k->maybe && kv->index == k->expected_index)
        return HF_BUSY; /* Its try may still come: nothing has barred it. */
    if (kv->session[0])
        return hfi_fail_use(t->err, claim, 0);
    if (kv->foreign && !kv->semaphore)
        return hfi_fail(t->err, HF_PROTOCOL,
                        "%s: there is something at this key that is no lock",
                        t->cc->base.endpoint);
    if (t->many.live && kv->permits != claim->permits)
        return hfi_fail_use(t->err, claim, kv->permits);
    if (t->many.live >= (size_t)claim->permits)
        return hfi_consul_join_wait(t);
    t->slot = hfi_consul_join_slot(&t->many);
    memcpy(t->locked_by, kv->common, sizeof(t->locked_by));
    t->common_ms = kv->common_ms;
    if (!k->holder[0])
        hfi_consul_key_free(t->cc, k, CONSUL_UNKNOWN, kv->index);
    k->index = kv->index;
    return HF_OK;
}

/* A try of this claim had no answer: is it in already?  HF_LOST: it is not, and
 * the next goes by the same session, so that the first cannot count too. */
static hf_status semaphore_again(struct consul_try *t)
{
    if (!t->joint->holder[0])
        return HF_LOST;
    if (!t->s) {
        pthread_mutex_lock(&t->cc->mu);
        t->s = t->joint->session;
        t->s->base.users++;
        pthread_mutex_unlock(&t->cc->mu);
    }
    return hfi_consul_join_again(t);
}

/* A session for this permit.  If the one of a try without an answer is dead, so
 * is that try. */
static hf_status semaphore_session(struct consul_try *t)
{
    const struct consul_session *old = t->s;
    hf_status st = hfi_consul_session_own(t->cc, t->claim->ttl_ms, t->deadline,
                                          &t->s, t->err);

    if (t->s != old && t->joint->holder[0])
        hfi_consul_key_free(t->cc, t->joint, CONSUL_UNKNOWN, 0);
    return st;
}

/* With the key and the claim's own entry to ourselves. */
hf_status hfi_consul_semaphore_try(struct consul_try *t)
{
    hf_status st = HF_LOST;
    int i;

    t->joint->permit = true;
    for (i = 0; st == HF_LOST && i < CONSUL_ROUNDS; i++) {
        st = semaphore_again(t);
        if (st != HF_LOST)
            return st;
        st = semaphore_look(t);
        if (!st)
            st = semaphore_session(t);
        if (!st)
            st = hfi_consul_join(t);
        hfi_consul_many_fini(&t->many);
    }
    if (st == HF_LOST) { /* So many want it that others come in all the time. */
        t->busy->left_ms = 1;
        st = HF_BUSY;
    }
    return st;
}

/* What K/.lock says once all these hold and `session` too, to be freed; NULL: no
 * memory. */
static char *semaphore_value(const struct consul_many *many, int32_t limit,
                             const char *session, int64_t common_ms)
{
    json_t *holders = json_object(), *lock;
    char *text = NULL;
    size_t i;

    for (i = 0; i < many->n; i++)
        if (many->holders[i].session[0])
            json_object_set_new(holders, many->holders[i].session, json_true());
    json_object_set_new(holders, session, json_true());
    lock = json_pack("{s:i,s:o,s:I}", "Limit", (int)limit, "Holders", holders,
                     CONSUL_SEMAPHORE_MS, (json_int_t)common_ms);
    if (lock)
        text = json_dumps(lock, JSON_COMPACT);
    json_decref(lock);
    return text;
}

static const struct consul_kv semaphore = {.semaphore = true};

/* The key, whose entry `kv` was read just now, is locked with `s` from now on, and
 * says what it said.  HF_LOST: it has changed. */
hf_status hfi_consul_semaphore_common(struct consul_conn *cc, const char *name,
                                      const struct consul_kv *kv,
                                      const struct consul_session *s,
                                      int64_t deadline, struct consul_ops *ops,
                                      struct hf_error *err)
{
    char path[3 * CONSUL_NAME_MAX], *text = NULL;
    struct consul_request rq = {.method = "GET", .path = path};
    struct consul_reply reply;
    struct consul_kv now;
    json_t *json = NULL;
    hf_status st;

    hfi_consul_path(path, sizeof(path), name, "?consistent");
    st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);
    if (st)
        return st;
    if (hfi_consul_kv_read(&now, &reply) && now.index == kv->index)
        json = hfi_consul_kv_json(json_array_get(reply.json, 0));
    hfi_consul_reply_fini(&reply);
    if (json && !json_object_set_new(json, CONSUL_SEMAPHORE_MS,
                                     json_integer(s->ttl_ms)))
        text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (!text)
        return HF_LOST;
    hfi_consul_common_ops(ops, &semaphore, name, kv->common, s, text);
    free(text);
    return HF_OK;
}

void hfi_consul_semaphore_ops(struct consul_try *t,
                              const struct consul_session *common,
                              struct consul_ops *ops)
{
    char value[CONSUL_VALUE_MAX], contender[CONSUL_NAME_MAX];
    char *lock =
        semaphore_value(&t->many, t->claim->permits, t->s->id, common->ttl_ms);

    ops->bad = !lock || !hfi_consul_below(&t->cc->options, t->claim->key,
                                          t->s->id, contender);
    if (!ops->bad) {
        hfi_consul_expect_index(ops, t->k->name, t->k->index);
        hfi_consul_many_prune(&t->many, ops, NULL);
        if (t->queue_entry[0])
            hfi_consul_op(ops, "delete", t->queue_entry, NULL, NULL, 0);
        hfi_consul_common_ops(ops, &semaphore, t->k->name, t->locked_by, common,
                              lock);
        hfi_consul_op_semaphore(ops, "lock", contender, t->s->id, CONTENDER);
        hfi_consul_value(value, t->claim, 0, t->slot);
        hfi_consul_op(ops, "lock", t->joint->name, t->s->id, value, 0);
    }
    free(lock);
}

/* ---- moving and leaving -------------------------------------------------- */

/* The names of K/.lock and of a contender beside the entry of a holder. */
static bool names_beside(const char *name, const char *part, char *ret)
{
    const char *end = strrchr(name, '/');

    while (end && end > name && *--end != '/') /* .holdfast-holders */
        ;
    return end && end > name &&
           snprintf(ret, CONSUL_NAME_MAX, "%.*s/%s", (int)(end - name), name,
                    part) < CONSUL_NAME_MAX;
}

/* `to` instead of `from` in what K/.lock says; NULL: it is no semaphore, or
 * there is no memory. */
static char *swap_value(const json_t *entry, const char *from, const char *to)
{
    json_t *json = hfi_consul_kv_json(entry);
    json_t *holders = json_object_get(json, "Holders");
    char *text = NULL;

    if (json_is_object(holders)) {
        json_object_del(holders, from);
        if (!json_object_set_new(holders, to, json_true()))
            text = json_dumps(json, JSON_COMPACT);
    }
    json_decref(json);
    return text;
}

/* Add what gives the permit whose holder has the entry `name` to another
 * session.  The caller locks that entry. */
hf_status hfi_consul_semaphore_swap(struct consul_conn *cc, const char *name,
                                    const char *from, const char *to,
                                    int64_t deadline, struct consul_ops *ops,
                                    struct hf_error *err)
{
    char lock[CONSUL_NAME_MAX], was[CONSUL_NAME_MAX], is[CONSUL_NAME_MAX];
    char path[3 * CONSUL_NAME_MAX], *value;
    struct consul_request rq = {.method = "GET", .path = path};
    struct consul_reply reply;
    struct consul_kv kv;
    hf_status st;

    if (!names_beside(name, ".lock", lock) || !names_beside(name, from, was) ||
        !names_beside(name, to, is))
        return hfi_fail(err, HF_INVALID, "%s: the key is too long",
                        cc->base.endpoint);
    hfi_consul_path(path, sizeof(path), lock, "?consistent");
    st = hfi_consul_call(cc, &cc->calls, &rq, deadline, &reply, err);
    if (st)
        return st;
    value = hfi_consul_kv_read(&kv, &reply) && kv.semaphore
                ? swap_value(json_array_get(reply.json, 0), from, to)
                : NULL;
    hfi_consul_reply_fini(&reply);
    if (!value)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: the semaphore is gone",
                        cc->base.endpoint);
    hfi_consul_expect_index(ops, lock, kv.index);
    hfi_consul_op_semaphore(ops, "set", lock, NULL, value);
    hfi_consul_op(ops, "delete", was, NULL, NULL, 0);
    hfi_consul_op_semaphore(ops, "lock", is, to, CONTENDER);
    free(value);
    return HF_OK;
}

/* One has left, and `many` were there after that: delete what those left who are
 * gone, and K/.lock if nobody uses it any more, as `consul lock` does.  If that
 * fails, the next who goes in does it. */
void hfi_consul_semaphore_tidy(struct consul_conn *cc, const char *key,
                               const struct consul_many *many, int64_t deadline)
{
    char name[CONSUL_NAME_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;

    if (!hfi_consul_name(&cc->options, key, name))
        return;
    hfi_consul_many_prune(many, &ops, NULL);
    if (!many->live && many->lock.semaphore)
        hfi_consul_op(&ops, "delete-cas", name, NULL, NULL, many->lock.index);
    if (ops.len &&
        !hfi_consul_txn(cc, &cc->calls, &ops, true, deadline, &done, NULL) &&
        done.ok && !many->live)
        hfi_consul_common_freed(cc, many->lock.common, name);
}
