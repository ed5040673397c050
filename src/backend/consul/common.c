/* SPDX-License-Identifier: MIT
 *
 * common.c - one session that has the key locked for all who hold it.
 *
 * Other programs know a lock by one thing only: its entry is locked by a session.
 * `consul lock` looks at the entry and locks it in two requests, the second on no
 * other condition than that no session has it.  So the Flags of a key that several
 * hold (many.c (3)) keep out who looks after they came in, and not who has looked
 * before.  Therefore the key K is locked too, as long as anybody holds it: by a
 * common session, which carries nothing but keys, and which every holder renews
 * beside its own.
 *
 *   come in    K unchanged, as many.c has it   lock K (from another: unlock, lock)
 *   renew      PUT session/renew of the common session too; the transaction that
 *              checks the entries checks that it has K
 *   leave      nothing; the last one unlocks K with what makes it a free lock
 *   alone      K unchanged, all have left      unlock K, lock K
 *
 *   The value of K says how long the common session lasts without a renewal
 *   (`common`, in ms).
 *
 * INVARIANTS
 *  (1) Whoever comes in locks K with a common session of its own client, made or
 *      renewed shortly before, whose ttl is at least its own and at least that of
 *      the one before.  So no holder has a longer ttl than the common session.
 *  (2) A holder learns at each renewal which session has K, and renews that at the
 *      next.  These are a third of a ttl apart, so the common session lasts as
 *      long as any of the holders, whoever made it and whoever has died.
 *  (3) A common session is not a proof of anything, and no grant depends on it:
 *      who holds is said by the holders' own entries.  In what is read of K it is
 *      not a holder (kv.c), and whoever takes K alone unlocks it first.
 *  (4) A holder that finds K not locked (an operator has ended the common session,
 *      or its node has left) locks it again.  One that finds K taken as a plain
 *      lock, or deleted, has lost its own.
 *  (5) At close a common session is destroyed if no key is known to be locked by
 *      it; others may count on it.  Else it lapses.
 *
 * LIMITS  Between the end of a common session that was not due, (4), and the next
 *   renewal of a holder K is not locked.  Who looked at K before the first holder
 *   came in, and whose request arrives in this time, gets it; the holders are told
 *   at that renewal.  A common session has no lock-delay, which would close this
 *   gap: nobody could share K then, and the entries of the holders have one.  The same
 *   holds for an exclusive lock that others have joined, when the first dies:
 *   reenter.c, LIMITS.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

/* So many keys are looked at when the client closes; with more, the session
 * lapses. */
#define KEPT_MAX 64

/* A key that a common session of ours may have locked. */
struct common_kept {
    struct hfi_node node; /* in consul_session.kept, by its name */
    char name[];
};

/* ---- which keys it has locked -------------------------------------------- */

static void kept_remove(struct consul_session *s, const char *name)
{
    struct hfi_node *node = hfi_map_find(&s->kept, name);

    if (!node)
        return;
    hfi_map_remove(&s->kept, node);
    hfi_free(hfi_container(node, struct common_kept, node));
}

/* With the mutex held.  What cannot be remembered must not be ended. */
static void kept_add(struct consul_session *s, const char *name)
{
    size_t len = strlen(name) + 1;
    struct common_kept *kept = NULL;

    if (s->base.doubted || hfi_map_find(&s->kept, name))
        return;
    if (s->kept.len < KEPT_MAX && hfi_map_reserve(&s->kept))
        kept = hfi_alloc(sizeof(*kept) + len);
    if (!kept) {
        s->base.doubted = true;
        return;
    }
    kept->node.key = memcpy(kept->name, name, len);
    hfi_map_add(&s->kept, &kept->node);
}

void hfi_consul_common_fini(struct consul_session *s)
{
    struct hfi_node *node;

    while ((node = hfi_map_next(&s->kept, NULL)))
        kept_remove(s, node->key);
    hfi_map_fini(&s->kept);
}

/* Is a key locked by it, or may one be?  At close: common.c (5). */
bool hfi_consul_common_is_needed(struct consul_conn *cc,
                                 const struct consul_session *s,
                                 int64_t deadline)
{
    struct hfi_node *node = NULL;
    struct consul_kv kv;

    while ((node = hfi_map_next(&s->kept, node)))
        if (hfi_consul_read(cc, &cc->calls, node->key, true, deadline, &kv,
                            NULL) ||
            !strcmp(kv.common, s->id))
            return true;
    return false;
}

/* The key, whose entry is `name`, is not locked by this session any more. */
void hfi_consul_common_freed(struct consul_conn *cc, const char *session,
                             const char *name)
{
    struct consul_session *s;

    pthread_mutex_lock(&cc->mu);
    s = hfi_consul_session_find(cc, session);
    if (s && s->common)
        kept_remove(s, name);
    pthread_mutex_unlock(&cc->mu);
}

/* ---- locking the key ------------------------------------------------------ */

/* A session to lock K with, for holders of this ttl and those of before. */
hf_status hfi_consul_common_get(struct consul_conn *cc, int64_t ttl_ms,
                                int64_t before_ms, int64_t deadline,
                                struct consul_session **ret,
                                struct hf_error *err)
{
    return hfi_consul_session_common(
        cc, ttl_ms > before_ms ? ttl_ms : before_ms, deadline, ret, err);
}

/* Lock the entry of the key with `to`, as `from` has it or ("") nobody; `kv` says
 * which Flags it has. */
void hfi_consul_common_ops(struct consul_ops *ops, const struct consul_kv *kv,
                           const char *name, const char *from,
                           const struct consul_session *to, const char *value)
{
    if (from[0] && strcmp(from, to->id) != 0)
        hfi_consul_op_as(ops, kv, "unlock", name, from, value);
    hfi_consul_op_as(ops, kv, "lock", name, to->id, value);
}

/* The key is about to be locked with `s`: remember that before it is known. */
void hfi_consul_common_locks(struct consul_conn *cc, struct consul_session *s,
                             const char *name)
{
    pthread_mutex_lock(&cc->mu);
    kept_add(s, name);
    pthread_mutex_unlock(&cc->mu);
}

/* The holder's own entry remembers by which session the key is locked; ms: its
 * ttl, 0 if it is not a common one. */
void hfi_consul_common_set(struct consul_key *joint, const char *session,
                           int64_t ms)
{
    snprintf(joint->locked_by, sizeof(joint->locked_by), "%s", session);
    joint->common_ms = ms;
}

/* The same as the entry of the key says. */
void hfi_consul_common_seen(struct consul_key *joint,
                            const struct consul_kv *key)
{
    if (key->common[0] && !key->common_ms) /* The next renewal sees to it. */
        hfi_consul_common_set(joint, "", 0);
    else if (key->common[0])
        hfi_consul_common_set(joint, key->common, key->common_ms);
    else
        hfi_consul_common_set(joint, key->session, 0);
}

/* What the holder's own entry remembers of that. */
struct consul_common hfi_consul_common_of(struct consul_conn *cc,
                                          const struct hfi_claim *claim)
{
    struct consul_common ret = {.joint = false};
    char name[CONSUL_NAME_MAX];
    const struct consul_key *k;

    if (!hfi_consul_claim_name(cc, claim, name))
        return ret;
    pthread_mutex_lock(&cc->mu);
    k = hfi_consul_renew_key(cc, name, claim);
    if (k && k->joint) {
        ret.joint = true;
        ret.ms = k->common_ms;
        memcpy(ret.locked_by, k->locked_by, sizeof(ret.locked_by));
    }
    pthread_mutex_unlock(&cc->mu);
    return ret;
}

/* ---- renewing ------------------------------------------------------------- */

/* What a renewal finds of the key. */
struct tending {
    struct consul_conn *cc;
    const struct hfi_claim *claim;
    int64_t ttl_ms;
    char name[CONSUL_NAME_MAX];  /* of the key */
    char joint[CONSUL_NAME_MAX]; /* of the holder */
    hf_loss reason;
    int64_t deadline;
    struct hf_error *err;
};

static hf_status tend_lost(struct tending *t, hf_loss reason)
{
    t->reason = reason;
    return hfi_fail(t->err, HF_LOST, "%s: another program has the key",
                    t->cc->base.endpoint);
}

static void tend_learn(struct tending *t, const char *session, int64_t ms)
{
    struct hfi_node *node;

    pthread_mutex_lock(&t->cc->mu);
    node = hfi_map_find(&t->cc->keys, t->joint);
    if (node)
        hfi_consul_common_set(hfi_container(node, struct consul_key, node),
                              session, ms);
    pthread_mutex_unlock(&t->cc->mu);
}

/* Lock it, if it is as `kv` says.  HF_LOST: it was not.  HF_BUSY: a lock-delay
 * holds, for everybody. */
static hf_status tend_lock(struct tending *t, const struct consul_kv *kv)
{
    struct consul_ops ops = {.len = 0};
    char value[CONSUL_VALUE_MAX];
    struct consul_kv now = *kv;
    struct consul_session *s;
    struct consul_done done;
    hf_status st = hfi_consul_common_get(t->cc, t->ttl_ms, kv->common_ms,
                                         t->deadline, &s, t->err);

    if (st)
        return st;
    now.common_ms = s->ttl_ms;
    hfi_consul_expect_index(&ops, t->name, kv->index);
    if (kv->semaphore) {
        st = hfi_consul_semaphore_common(t->cc, t->name, kv, s, t->deadline,
                                         &ops, t->err);
    } else {
        hfi_consul_many_again(value, &now);
        hfi_consul_common_ops(&ops, kv, t->name, kv->common, s, value);
    }
    hfi_consul_common_locks(t->cc, s, t->name);
    if (!st)
        st = hfi_consul_txn(t->cc, &t->cc->renewals, &ops, true, t->deadline,
                            &done, t->err);
    else
        hfi_consul_ops_fini(&ops);
    if (!st && done.ok) {
        hfi_consul_session_sure(t->cc, s, done.sent, done.agent);
        tend_learn(t, s->id, s->ttl_ms);
    } else if (!st) {
        if (done.bad_session)
            hfi_consul_session_dead(t->cc, s);
        st = done.delayed ? HF_BUSY : HF_LOST;
    }
    hfi_consul_session_put(t->cc, s);
    return st;
}

/* Nobody else renews for the bearer of a handle. */
static void tend_renew(struct tending *t, const struct consul_kv *kv)
{
    struct consul_session s = {.common = true, .ttl_ms = kv->common_ms};

    if (!t->claim->bearer)
        return;
    memcpy(s.id, kv->common, sizeof(s.id));
    hfi_consul_session_prove(t->cc, &t->cc->calls, &s, t->deadline, NULL);
}

/* One look; HF_LOST: it has changed meanwhile, or (t->reason) the key is lost. */
static hf_status tend_step(struct tending *t)
{
    struct consul_kv kv;
    hf_status st = hfi_consul_read(t->cc, &t->cc->renewals, t->name, true,
                                   t->deadline, &kv, t->err);

    if (st)
        return st;
    if (!kv.exists)
        return tend_lost(t, HF_LOSS_DELETED);
    if (!kv.many && !kv.foreign)
        return tend_lost(t, HF_LOSS_STOLEN);
    if (kv.foreign && !kv.semaphore) /* An operator has written into it. */
        return HF_OK;
    if (!kv.session[0] && (!kv.common[0] || kv.common_ms < t->ttl_ms))
        return tend_lock(t, &kv);
    tend_learn(t, kv.common[0] ? kv.common : kv.session,
               kv.common[0] ? kv.common_ms : 0);
    if (kv.common[0])
        tend_renew(t, &kv);
    return HF_OK;
}

/* The claim, one of several holders, has renewed its own: see that the key is
 * locked for it.  HF_LOST: somebody else has it, *reason says how.  What fails
 * otherwise is done by the next renewal. */
hf_status hfi_consul_common_tend(struct consul_conn *cc,
                                 const struct hfi_claim *claim, int64_t ttl_ms,
                                 int64_t deadline, hf_loss *reason,
                                 struct hf_error *err)
{
    struct tending t = {.cc = cc,
                        .claim = claim,
                        .ttl_ms = ttl_ms,
                        .reason = HF_LOSS_NONE,
                        .deadline = deadline,
                        .err = err};
    hf_status st = HF_LOST;
    int i;

    if (!hfi_consul_name(&cc->options, claim->key, t.name) ||
        !hfi_consul_holder_name(&cc->options, claim->key, claim->token,
                                t.joint))
        return HF_OK;
    for (i = 0; st == HF_LOST && !t.reason && i < CONSUL_ROUNDS; i++)
        st = tend_step(&t);
    if (!t.reason)
        return HF_OK;
    *reason = t.reason;
    return st;
}
