/* SPDX-License-Identifier: MIT
 *
 * look.c - one look at all that decides whether a claim may have a key.
 *
 * The entry of the key, those of its holders and its queue are read by one
 * transaction, so that a claim which knows nothing takes two round trips: the look
 * and the write that grants.  Where the key is likely not to exist, the look makes
 * its entry, without a lock: consul.c (2).  A claim that stands in line looks at
 * less, and has other ways to know (queue.c); permits with layout=cli do, too
 * (semaphore.c).
 *
 * INVARIANTS
 *  (1) What is seen is of one moment, at which the key had the index that the
 *      write is for.  So many.c (1) holds as if the holders were read later.
 *  (2) The key is this call's from before the look until after the write: what
 *      other calls of this client do is either in the look or comes later.
 */
#include "consul.h"

#include "base/banned.h"

struct look_names {
    char folder[CONSUL_NAME_MAX]; /* of the holders */
    char queue[CONSUL_NAME_MAX];
    char base[CONSUL_NAME_MAX]; /* of both, and with layout=cli of the key */
};

static bool look_names(const struct consul_try *t, struct look_names *ret)
{
    const struct consul_options *options = &t->cc->options;
    const char *key = t->claim->key;

    return hfi_consul_holder_name(options, key, "", ret->folder) &&
           hfi_consul_queue_entry(options, key, "", ret->queue) &&
           hfi_consul_below(options, key, "", ret->base);
}

/* The result of a transaction, as the HTTP interface shows an entry. */
static json_t *look_entry(const json_t *results, size_t i)
{
    return json_object_get(json_array_get(results, i), "KV");
}

/* With queue=fair: is it the turn of somebody else? */
static hf_status look_queue(struct consul_try *t, const char *queue,
                            const json_t *results)
{
    json_t *list;
    const char *name;
    hf_status st;
    size_t i;

    if (!t->cc->options.fair)
        return HF_OK;
    list = json_array();
    for (i = 0; i < json_array_size(results); i++) {
        name =
            json_string_value(json_object_get(look_entry(results, i), "Key"));
        if (name && !strncmp(name, queue, strlen(queue)))
            json_array_append(list, look_entry(results, i));
    }
    st = list ? hfi_consul_queue_judge(t->claim, list, t->err)
              : hfi_nomem(t->err);
    json_decref(list);
    return st;
}

/* The entry of the key, if it is among them. */
static void look_key(struct consul_try *t, const json_t *results)
{
    const char *name;
    size_t i;

    t->look.kv = (struct consul_kv){.index = 0};
    for (i = 0; i < json_array_size(results); i++) {
        name =
            json_string_value(json_object_get(look_entry(results, i), "Key"));
        if (name && !strcmp(name, t->k->name))
            hfi_consul_kv_parse(&t->look.kv, look_entry(results, i));
    }
}

/* Read all.  HF_LOST: there is no entry of the key, and nothing else is known. */
static hf_status look_read(struct consul_try *t, const struct look_names *names)
{
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    const json_t *results;
    hf_status st;

    if (t->cc->options.cli) {
        hfi_consul_op(&ops, "get-tree", names->base, NULL, NULL, 0);
    } else {
        hfi_consul_op(&ops, "get", t->k->name, NULL, NULL, 0);
        hfi_consul_op(&ops, "get-tree", names->folder, NULL, NULL, 0);
        hfi_consul_op(&ops, "get-tree", names->queue, NULL, NULL, 0);
    }
    st = hfi_consul_txn_keep(t->cc, &t->cc->calls, &ops, false, t->deadline,
                             &done, &t->look.reply, t->err);
    if (st)
        return st;
    t->look.done = true;
    if (!done.ok)
        return HF_LOST;
    hfi_consul_reply_parse(&t->look.reply);
    results = json_object_get(t->look.reply.json, "Results");
    look_key(t, results);
    if (!t->look.kv.exists)
        return HF_LOST;
    return look_queue(t, names->queue, results);
}

/* Make the entry of a key that does not exist, and look at its queue.  HF_LOST: it
 * does exist.  Without an answer it may be made late, which harms nobody. */
static hf_status look_make(struct consul_try *t, const struct look_names *names)
{
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;

    hfi_consul_expect_index(&ops, t->k->name, 0);
    hfi_consul_op(&ops, "get-tree", names->queue, NULL, NULL, 0);
    hfi_consul_op(&ops, "set", t->k->name, NULL, "", 0);
    st = hfi_consul_txn_keep(t->cc, &t->cc->calls, &ops, true, t->deadline,
                             &done, &t->look.reply, t->err);
    t->look.done = !st;
    if (st || !done.ok || !done.index)
        return hfi_consul_not_made(t, st);
    hfi_consul_collect_some(t->cc);
    t->look.made = true;
    t->look.kv = (struct consul_kv){.exists = true, .index = done.index};
    hfi_consul_reply_parse(&t->look.reply);
    return look_queue(t, names->queue,
                      json_object_get(t->look.reply.json, "Results"));
}

void hfi_consul_look_fini(struct consul_try *t)
{
    if (t->look.done)
        hfi_consul_reply_fini(&t->look.reply);
    t->look.done = t->look.made = false;
}

/* With the key to ourselves: look at all, for a claim that has no place in line.
 * HF_OK: t->look says what the key is, and it is nobody else's turn. */
hf_status hfi_consul_look(struct consul_try *t)
{
    bool make = t->k->seen == CONSUL_FREE && !t->k->index && !t->k->holder[0];
    struct look_names names;
    hf_status st = HF_LOST;
    int i;

    if (!look_names(t, &names))
        return hfi_fail(t->err, HF_INVALID, "%s: the key is too long",
                        t->cc->base.endpoint);
    for (i = 0; st == HF_LOST && i < CONSUL_ROUNDS; i++) {
        hfi_consul_look_fini(t);
        st = make ? look_make(t, &names) : look_read(t, &names);
        make = !make;
    }
    if (st == HF_LOST) /* It is made and deleted all the time. */
        st = HF_BUSY;
    if (st)
        hfi_consul_look_fini(t);
    return st;
}

/* The holders, as the look has found them; false: there was none. */
bool hfi_consul_look_many(struct consul_try *t, hf_status *st)
{
    if (!t->look.done || t->look.made)
        return false;
    t->many.reply = t->look.reply;
    t->look.done = false;
    *st = hfi_consul_many_fill(t->cc, t->claim->key, t->claim->token, &t->many,
                               t->err);
    return true;
}
