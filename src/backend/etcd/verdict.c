/* SPDX-License-Identifier: MIT
 *
 * verdict.c - what a try is told: whether it holds, or who is before it, or why
 * it never will.
 *
 * A waiter watches one thing (wait.c), of which it learns that its turn may have
 * come:
 *
 *   an exclusive claim   the nearest before it
 *   a shared one         the nearest exclusive one before it, which may go or be
 *                        downgraded
 *   with permits         all of them, if it is among the first WATCH_ALL_MAX who
 *                        wait: then any of the holders may go; else the one that
 *                        must go, or be given a slot, before it is among them
 *
 * Of the first who wait one looks when a permit becomes free, and the next a
 * little later, so that one of them may be dead: wait.c (5).  Where many permits
 * become free at once, one may find that there is one for it, but more before it
 * have no slot yet than it can write (ETCD_HELP_MAX).  No permit need become free
 * any more, so it watches the one that must go, or be given a slot, before it can
 * write the others.
 *
 * The invariants are those of acquire.c and order.c.
 */
#include "try.h"

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

/* A name that is none of ours may be too long or have a NUL: "" stands for
 * it. */
static void try_copy(char *ret, size_t size, ProtobufCBinaryData from)
{
    if (from.len >= size || memchr(from.data, '\0', from.len))
        from.len = 0;
    memcpy(ret, from.data, from.len);
    ret[from.len] = '\0';
}

static void try_predecessor(struct etcd_try *t, const Pb__KeyValue *kv)
{
    try_copy(t->predecessor.name, sizeof(t->predecessor.name), kv->key);
    t->predecessor.revision = kv->create_revision;
}

/* ---- an exclusive claim without an owner id ---------------------------- */

/* How many of those before us wait, if these are all, the nearest first.  Those
 * who share at the head of the queue do not. */
static int32_t try_waiting(const Pb__RangeResponse *queue, size_t dir)
{
    size_t holders = 0;
    int32_t permits;

    while (holders + 1 < queue->n_kvs &&
           etcd_kind(queue->kvs[queue->n_kvs - 1 - holders]->key, dir,
                     &permits) == ETCD_SHARED)
        holders++;
    return (int32_t)(queue->n_kvs - 1 - (holders ? holders : 1));
}

/* Those before us, the nearest first, if we are there. */
static void try_inspect_back(struct etcd_try *t, const Pb__RangeResponse *queue)
{
    if (!queue->n_kvs || !etcd_is(queue->kvs[0]->key, t->name))
        return;
    t->inspected = true;
    t->revision = queue->kvs[0]->create_revision;
    t->fence = (uint64_t)t->revision;
    t->mine = queue->n_kvs == 1;
    if (queue->n_kvs == 1)
        return;
    try_predecessor(t, queue->kvs[1]);
    if (queue->n_kvs < ETCD_QUEUE_LIMIT)
        t->predecessor.position = try_waiting(queue, strlen(t->dir)) + 1;
}

/* Somebody joined: then it is not ours.  acquire.c (4) */
static void try_joined(struct etcd_try *t, const Pb__RangeResponse *joined)
{
    if (!joined->n_kvs)
        return;
    if (t->mine)
        try_predecessor(t, joined->kvs[0]);
    t->mine = false;
}

/* Is the key used with permits? */
static void try_used(struct etcd_try *t, const Pb__RangeResponse *used)
{
    if (!used->n_kvs)
        return;
    t->refused =
        etcd_kind(used->kvs[0]->key, strlen(t->dir), &t->in_use) == ETCD_STRANGE
            ? TRY_STRANGE
            : TRY_OTHER_USE;
}

/* ---- all others, who have read everything ------------------------------ */

/* What was read, and which of it is ours; NULL: nothing. */
struct look {
    Pb__KeyValue **kvs;
    size_t n;
    struct etcd_place *places;
    const struct etcd_place *own;
};

/* Is it the turn of this rank to have a slot?  Then t->slot is it, and t->helps
 * are those to be given one before.  order.c (2) */
static bool look_slots(struct etcd_try *t, const struct look *look,
                       uint64_t rank)
{
    struct etcd_slots slots;
    size_t i;

    if (!etcd_slots(look->places, look->n, rank, t->claim->permits, &slots))
        return false;
    if (slots.n && !t->helps)
        t->helps = hfi_alloc(ETCD_HELP_MAX * sizeof(*t->helps));
    if (slots.n && !t->helps)
        return false; /* They will do it themselves. */
    for (i = 0; i < slots.n; i++) {
        const Pb__KeyValue *kv = look->kvs[slots.of[i]];
        struct etcd_help *help = &t->helps[i];

        try_copy(help->name, sizeof(help->name), kv->key);
        help->written = kv->mod_revision;
        snprintf(help->value, sizeof(help->value), "%.*s slot=%d",
                 (int)kv->value.len, (const char *)kv->value.data,
                 (int)slots.slots[i]);
        if (!help->name[0])
            return false;
    }
    t->nhelps = slots.n;
    t->slot = slots.slot;
    return true;
}

/* May a claim that has no place be granted at once? */
static void look_admit(struct etcd_try *t, const struct look *look)
{
    size_t i;

    if (t->claim->queue)
        return;
    if (t->claim->permits) {
        t->admitted = look_slots(t, look, UINT64_MAX);
        return;
    }
    t->admitted = t->claim->shared;
    for (i = 0; i < look->n; i++)
        t->admitted = t->admitted && look->places[i].shared;
}

/* Is the key used in another way?  backend.h (13) */
static void look_use(struct etcd_try *t, const struct look *look)
{
    size_t i;

    for (i = 0; i < look->n && !look->own; i++) {
        if (look->places[i].permits == t->claim->permits)
            continue;
        t->in_use = look->places[i].permits;
        t->refused = t->in_use < 0 ? TRY_STRANGE : TRY_OTHER_USE;
    }
}

/* A holder with our owner id, or NULL.  One that was broken, or released, is to
 * come to its end. */
static const struct etcd_place *look_equal(const struct look *look, bool shared)
{
    const struct etcd_place *p;

    for (p = look->places; p < look->places + look->n; p++)
        if (p->holds && p->equal && p->shared == shared && p != look->own &&
            !p->broken && !p->kept)
            return p;
    return NULL;
}

/* Does our owner id hold?  Then we join it, if all who are there know what
 * joining is; in the other mode we would wait for ourselves. */
static void look_owner(struct etcd_try *t, const struct look *look)
{
    const struct etcd_place *holder;
    size_t i;

    if (!t->claim->owner || t->mine || t->refused)
        return;
    if (look_equal(look, !t->claim->shared)) {
        t->refused = TRY_OTHER_MODE;
        return;
    }
    holder = t->claim->shared ? NULL : look_equal(look, false);
    for (i = 0; holder && i < look->n; i++)
        if (!look->places[i].knows)
            holder = NULL;
    if (!holder)
        return;
    try_copy(t->holder, sizeof(t->holder),
             look->kvs[holder - look->places]->key);
    t->holder_revision =
        t->holder[0] ? look->kvs[holder - look->places]->create_revision : 0;
    t->holder_fence = holder->fence;
    t->holder_slot = holder->slot;
}

/* Does this one keep us waiting, and is it no permit that one may give? */
static bool look_blocks(const struct etcd_try *t, const struct look *look,
                        const struct etcd_place *p)
{
    if (p->fence >= look->own->fence)
        return false;
    if (t->claim->permits)
        return p->permits != t->claim->permits;
    return !(t->claim->shared && p->shared);
}

/* So many hear of each permit that becomes free. */
#define WATCH_ALL_MAX 16

/* Of the `waiting` before us who have no slot, the one that must go or be given
 * one before there are fewer than `max`; NULL: there are. */
static const struct etcd_place *look_far(const struct look *look,
                                         int32_t waiting, int32_t max)
{
    const struct etcd_place *p;

    for (p = look->places; p < look->places + look->n; p++)
        if (p->fence < look->own->fence && !p->holds && waiting-- == max)
            return p;
    return NULL;
}

/* Whom to wait for, and how many wait before us. */
static void look_wait(struct etcd_try *t, const struct look *look)
{
    const struct etcd_place *p, *nearest = NULL;
    int32_t waiting = 0, held = 0;

    for (p = look->places; p < look->places + look->n; p++) {
        waiting += p->fence < look->own->fence && !p->holds;
        held += p->holds && !p->joined;
        if (look_blocks(t, look, p) && (!nearest || p->fence >= nearest->fence))
            nearest = p;
    }
    t->predecessor.position = waiting + 1;
    t->predecessor.ahead = waiting;
    if (held < t->claim->permits) /* They are about to take what is free. */
        t->predecessor.ahead -= t->claim->permits - held;
    if (!nearest && t->claim->permits)
        nearest = look_far(look, waiting,
                           t->predecessor.ahead < 0 ? ETCD_HELP_MAX + 1
                                                    : WATCH_ALL_MAX);
    if (nearest)
        try_predecessor(t, look->kvs[nearest - look->places]);
    else /* any of those who hold a permit */
        snprintf(t->predecessor.name, sizeof(t->predecessor.name), "%.*sS%d.",
                 ETCD_NAME_MAX - 16, t->dir, (int)t->claim->permits);
}

/* We have a place: is it our turn? */
static void look_place(struct etcd_try *t, const struct look *look)
{
    const Pb__KeyValue *kv = look->kvs[look->own - look->places];

    t->inspected = true;
    t->revision = kv->create_revision;
    t->fence = look->own->fence;
    t->mine = look->own->holds;
    if (t->mine) {
        t->slot = look->own->slot;
        return;
    }
    if (t->claim->permits && look_slots(t, look, look->own->fence))
        t->slotting = kv->mod_revision;
    else
        look_wait(t, look);
}

static hf_status try_look(struct etcd_try *t, const Pb__RangeResponse *queue,
                          struct hf_error *err)
{
    struct look look = {.kvs = queue->kvs, .n = queue->n_kvs};
    size_t i;

    look.places =
        etcd_order(queue->kvs, queue->n_kvs, strlen(t->dir), t->claim->owner);
    if (!look.places)
        return hfi_nomem(err);
    for (i = 0; i < look.n; i++)
        if (etcd_is(look.kvs[i]->key, t->name))
            look.own = &look.places[i];
    look_use(t, &look);
    if (look.own)
        look_place(t, &look);
    else if (!t->refused)
        look_admit(t, &look);
    look_owner(t, &look);
    if (t->holder_revision) {
        t->admitted = false;
        t->slotting = 0;
        t->nhelps = 0;
    }
    hfi_free(look.places);
    return HF_OK;
}

/* Of what a reader finds that was put just now, the last that is exclusive is
 * the one to wait for; its place is told by the next look. */
static hf_status try_writers(struct etcd_try *t, const Pb__RangeResponse *range,
                             struct hf_error *err)
{
    struct etcd_place *places =
        etcd_order(range->kvs, range->n_kvs, strlen(t->dir), NULL);
    size_t i;

    if (!places)
        return hfi_nomem(err);
    for (i = 0; i < range->n_kvs; i++) {
        if (places[i].shared ||
            (!t->mine && (uint64_t)t->predecessor.revision > places[i].fence))
            continue;
        t->mine = false;
        try_predecessor(t, range->kvs[i]);
    }
    hfi_free(places);
    return HF_OK;
}

/* ---- the answer -------------------------------------------------------- */

/* The answer to one of the reads, or NULL. */
static const Pb__RangeResponse *try_range(const struct etcd_try_txn *x,
                                          const Pb__TxnResponse *answer,
                                          const Pb__RequestOp *op)
{
    Pb__RequestOp *const *ops = answer->succeeded ? x->yes : x->no;
    size_t i;

    for (i = 0; i < answer->n_responses; i++)
        if (ops[i] == op && answer->responses[i]->response_case ==
                                PB__RESPONSE_OP__RESPONSE_RANGE)
            return answer->responses[i]->range;
    return NULL;
}

/* Our key was put, and nothing was read; or nothing had changed. */
static hf_status try_done(struct etcd_try *t, bool put, bool mine)
{
    t->revision = put ? t->seen : (int64_t)t->receipt->fence;
    t->fence = (uint64_t)t->revision;
    t->mine = mine;
    return HF_OK;
}

/* Our own key, if it was read.  False: it is another's.  acquire.c (9) */
static bool try_own(struct etcd_try *t, const Pb__RangeResponse *own)
{
    struct etcd_words words;

    if (!own || own->n_kvs != 1)
        return true;
    etcd_read_value(own->kvs[0]->value, &words);
    t->foreign = strcmp(words.token, t->claim->token) != 0;
    t->broken = !t->foreign && words.broken;
    if (!t->foreign)
        t->revision = own->kvs[0]->create_revision;
    return !t->foreign;
}

/* The reads of an answer. */
static hf_status try_reads(struct etcd_try *t, const struct etcd_try_txn *x,
                           const Pb__TxnResponse *answer, struct hf_error *err)
{
    const Pb__RangeResponse *queue = try_range(x, answer, &x->inspect_op);
    const Pb__RangeResponse *joined = try_range(x, answer, &x->joined_op);
    const Pb__RangeResponse *used = try_range(x, answer, &x->used_op);

    if (queue && etcd_try_full(t))
        return try_look(t, queue, err);
    if (answer->succeeded && etcd_try_is_reader(t) && joined && used) {
        hf_status st;

        t->mine = t->inspected = true;
        st = try_writers(t, joined, err);
        return st ? st : try_writers(t, used, err);
    }
    if (queue)
        try_inspect_back(t, queue);
    if (joined)
        try_joined(t, joined);
    if (used && !t->revision)
        try_used(t, used);
    return HF_OK;
}

/* What the transaction answered. */
hf_status etcd_try_read(struct etcd_try *t, const struct etcd_try_txn *x,
                        const Pb__TxnResponse *answer, struct hf_error *err)
{
    size_t n = answer->succeeded ? x->txn.n_success : x->txn.n_failure;
    bool put = n && answer->succeeded && x->yes[0] == &x->put_op;
    bool slotted = t->slotting && put;

    if (!answer->header || answer->header->revision <= 0 ||
        answer->n_responses != n)
        return etcd_bad_reply(t->ec, err);
    t->revision = t->slotting = 0;
    t->nhelps = 0;
    t->mine = t->inspected = t->foreign = t->broken = t->admitted = false;
    t->refused = TRY_MAY;
    if (t->receipt->fence && answer->succeeded && !n)
        return try_done(t, false, false); /* The predecessor is the same. */
    t->seen = answer->header->revision;
    if (slotted || (t->at_queue_tail && put)) {
        t->slot = x->slot;
        return try_done(t, !slotted, slotted);
    }
    t->predecessor = (struct etcd_predecessor){.revision = 0};
    if (put) {
        t->revision = t->seen;
        t->mine = x->grants;
        t->slot = x->slot;
    }
    if (!try_own(t, try_range(x, answer, &x->own_op)))
        return HF_OK;
    t->fence =
        etcd_joined(t->receipt) && !HFI_MUTANT(joined_fence_is_the_revision)
            ? t->holder_fence
            : (uint64_t)t->revision;
    t->holder_revision = 0;
    return try_reads(t, x, answer, err);
}
