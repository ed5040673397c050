/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock.
 *
 * A lock is held by each grant that a majority has: its token, with its fence or
 * with none that was confirmed yet.  Whether a grant would have a majority with
 * the nodes that do not answer is not known, and neither hf_inspect() nor
 * hf_check() may guess: a key may be left on a minority for long after its
 * grant is over, since clocks are set and releases get lost.  A listing tells
 * of such a lock.
 *   One thing is known beyond counting.  A fence is confirmed only after a
 * majority had the key for its token, so an exclusive grant is over when a node
 * has confirmed a larger one for another token, and a shared one when that was
 * exclusive.
 *   A grant has a majority before any node confirms its fence and its note.
 * Nobody should be told of half of it: where the fence of a token like ours is
 * not known yet, the nodes are asked again, a few times.  Clients that give no
 * fences (node-redlock) have tokens that look like ours.  So after a wait in
 * vain the next looks wait for nothing, for a while: a listing of their locks
 * costs one wait and not one for each.
 *   Looks at many keys, for listings and observers, ask a majority first.  Where all
 * of it show the same grant with its fence, or none, the others cannot change that:
 * no other grant has a majority, and what a majority was told, a confirmed fence or a
 * break, one of these knows.  If they differ on a key the others are asked, too.
 *   A node that has not heard of a downgrade shows the grant as an exclusive
 * one.  It is shared when no majority shows that.
 */
#include "redlock.h"

#include "backend/waiters.h"
#include "base/alloc.h"

#include "base/banned.h"

/* The pauses before a look is taken again, for a fence or for nodes that do not
 * agree: 1 ms, 2 ms, 4 ms, ...; and how long no look waits for a fence after one
 * that has waited in vain. */
#define PENDING_MAX_MS 32
#define PENDING_GAP_MS 500

/* {value, ms left, fence, its token, note, owner, since, broken, now, largest
 * exclusive fence, {readers}}; or, without readers, one text: "+WORD" or "-" for each
 * of the others, with a NUL between. */
enum {
    LOOK_TOKEN,
    LOOK_LEFT,
    LOOK_FENCE,
    LOOK_WHOSE,
    LOOK_NOTE,
    LOOK_OWNER,
    LOOK_SINCE,
    LOOK_BROKEN,
    LOOK_NOW,
    LOOK_ALONE,
    LOOK_READERS,
    LOOK_PARTS
};

/* A reader: {token, ms left, fence, note, owner, since, broken}. */
enum {
    READER_TOKEN,
    READER_LEFT,
    READER_FENCE,
    READER_NOTE,
    READER_OWNER,
    READER_SINCE,
    READER_BROKEN,
    READER_PARTS
};

/* Ask so many of the nodes that were not asked yet; how many of all have
 * answered.  Nobody waits long for some of them. */
static int inspect_ask_nodes(struct redlock_round *round,
                             const struct redis_batch *batch, int most,
                             int answered, int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    int64_t limit = redlock_limit(rl, REDLOCK_LOOK_TTL);
    bool some = most < rl->n;
    struct redlock_span span;
    int i, at, from = some ? (int)(atomic_fetch_add(&rl->turn, 1) % rl->n) : 0;

    redlock_await_majority(rl, deadline);
    span = redlock_span(rl, REDLOCK_LOOK_TTL, deadline);
    for (i = 0; i < rl->n && most > 0; i++) {
        at = (from + i) % rl->n;
        if (round->calls[at].asked ||
            !redlock_node_is_ready(&rl->nodes[at], limit))
            continue;
        redlock_ask(round, at, batch, span.end);
        most -= round->calls[at].asked;
    }
    span = redlock_span(rl, REDLOCK_LOOK_TTL, deadline);
    while ((i = redlock_hear(round, answered < rl->majority && !some
                                        ? span.late
                                        : span.end)) >= 0) {
        struct redlock_node_call *node_call = &round->calls[i];
        const redisReply *reply = redlock_reply(node_call, 0);

        if (reply && reply->type == REDIS_REPLY_ERROR)
            node_call->st =
                redis_error(&rl->nodes[i].rc, reply, &node_call->err);
        answered += !node_call->st;
    }
    return answered;
}

int redlock_inspect_ask(struct redlock_round *round,
                        const struct redis_batch *batch, int64_t deadline)
{
    return inspect_ask_nodes(round, batch, round->rl->n, 0, deadline);
}

/* What a node said of the key that was asked for as the `at`-th, or NULL. */
static const redisReply *inspect_reply(const struct redlock_round *round,
                                       int at, int node)
{
    const redisReply *reply = redlock_reply(&round->calls[node], at);

    if (reply && reply->type == REDIS_REPLY_STRING)
        return reply;
    return reply && reply->type == REDIS_REPLY_ARRAY &&
                   reply->elements == LOOK_PARTS &&
                   reply->element[LOOK_READERS]->type == REDIS_REPLY_ARRAY
               ? reply
               : NULL;
}

/* NULL: there is no such part. */
static const char *inspect_part(const redisReply *reply, int part)
{
    const char *at = reply->str;

    if (reply->type == REDIS_REPLY_ARRAY) {
        reply = reply->element[part];
        return reply->type == REDIS_REPLY_STRING ? reply->str : NULL;
    }
    for (; part > 0; part--) {
        at += strlen(at) + 1;
        if (at > reply->str + reply->len)
            return NULL;
    }
    return *at == '+' ? at + 1 : NULL;
}

static const char *inspect_text(const redisReply *reply, int part)
{
    const char *text = inspect_part(reply, part);

    return text ? text : "";
}

static int64_t inspect_number(const redisReply *reply, int part)
{
    const char *text;

    if (reply->type == REDIS_REPLY_ARRAY)
        return redlock_item(reply, (size_t)part);
    text = inspect_part(reply, part);
    return text ? strtoll(text, NULL, 10) : -1;
}

/* A grant as one node shows it. */
struct inspect_grant {
    const char *token;        /* NULL: the node shows none */
    int64_t fence;            /* that it has confirmed for the token; 0: none */
    int64_t left;             /* of its lease there */
    const redisReply *reply;  /* all that the node said */
    const redisReply *reader; /* the part about this one, if it shares */
};

/* How many grants the node shows. */
static size_t inspect_shown(const struct redlock_round *round, int at, int node)
{
    const redisReply *reply = inspect_reply(round, at, node);
    const char *token = reply ? inspect_part(reply, LOOK_TOKEN) : NULL;

    if (token && !strcmp(token, REDLOCK_SHARED))
        return reply->type == REDIS_REPLY_ARRAY
                   ? reply->element[LOOK_READERS]->elements
                   : 0;
    return token ? 1 : 0;
}

static struct inspect_grant inspect_nth(const struct redlock_round *round,
                                        int at, int node, size_t nth)
{
    const redisReply *reply = inspect_reply(round, at, node);
    struct inspect_grant grant = {.reply = reply};
    const char *token = inspect_text(reply, LOOK_TOKEN);

    if (!strcmp(token, REDLOCK_SHARED)) {
        const redisReply *one = reply->element[LOOK_READERS]->element[nth];

        if (one->type != REDIS_REPLY_ARRAY || one->elements != READER_PARTS)
            return grant;
        grant.reader = one;
        grant.token = inspect_text(one, READER_TOKEN);
        grant.fence = inspect_number(one, READER_FENCE);
        grant.left = inspect_number(one, READER_LEFT);
        return grant;
    }
    grant.token = token;
    grant.left = inspect_number(reply, LOOK_LEFT);
    if (inspect_number(reply, LOOK_FENCE) > 0 &&
        !strcmp(inspect_text(reply, LOOK_WHOSE), token))
        grant.fence = inspect_number(reply, LOOK_FENCE);
    return grant;
}

static bool inspect_same(const struct inspect_grant *a,
                         const struct inspect_grant *b)
{
    return a->token && b->token && !strcmp(a->token, b->token) &&
           (!a->fence || !b->fence || a->fence == b->fence);
}

/* Does the node have that grant?  One that has its token and no fence for it
 * voted for it and was not heard. */
static bool inspect_has(const struct redlock_round *round, int at, int node,
                        const struct inspect_grant *grant,
                        struct inspect_grant *ret)
{
    size_t i, n = inspect_shown(round, at, node);

    for (i = 0; i < n; i++) {
        *ret = inspect_nth(round, at, node, i);
        if (inspect_same(ret, grant))
            return true;
    }
    return false;
}

/* Has a node confirmed a larger fence that ends it? */
static bool inspect_is_over(const struct redlock_round *round, int at,
                            const struct inspect_grant *grant)
{
    const redisReply *reply;
    int i;

    for (i = 0; grant->fence && i < round->rl->n; i++) {
        reply = inspect_reply(round, at, i);
        if (!reply)
            continue;
        if (grant->reader ? inspect_number(reply, LOOK_ALONE) > grant->fence
                          : inspect_number(reply, LOOK_FENCE) > grant->fence &&
                                strcmp(inspect_text(reply, LOOK_WHOSE),
                                       grant->token) != 0)
            return true;
    }
    return false;
}

/* Do all that have answered show the same grant of the key, and its fence; or all
 * of them none? */
static bool inspect_agree(const struct redlock_round *round, int at)
{
    struct inspect_grant first = {.token = NULL}, grant;
    int node, known = -1;

    for (node = 0; node < round->rl->n; node++) {
        if (!round->calls[node].landed)
            continue;
        if (!inspect_reply(round, at, node) ||
            inspect_shown(round, at, node) > 1)
            return false;
        grant = (struct inspect_grant){.token = NULL};
        if (inspect_shown(round, at, node))
            grant = inspect_nth(round, at, node, 0);
        if (grant.reader || (grant.token && !grant.fence && round->rl->fenced))
            return false;
        if (known < 0)
            first = grant;
        else if (!first.token != !grant.token || first.fence != grant.fence ||
                 (first.token && strcmp(first.token, grant.token) != 0))
            return false;
        known = node;
    }
    return true;
}

/* Ask for so many keys: all nodes, or few of them if these agree. */
static int inspect_ask_few(struct redlock_round *round,
                           const struct redis_batch *batch, int keys, bool few,
                           int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    int at = 0, answered = 0;

    if (few)
        answered = inspect_ask_nodes(round, batch, rl->majority, 0, deadline);
    while (few && answered >= rl->majority && at < keys &&
           inspect_agree(round, at))
        at++;
    if (few && at == keys)
        return answered;
    return inspect_ask_nodes(round, batch, rl->n, answered, deadline);
}

/* ---- a fence that is being confirmed ------------------------------------ */

/* Has a majority the token, and none of them a fence for it? */
static bool pending_is(const struct redlock_round *round, int at,
                       const struct inspect_grant *grant)
{
    struct inspect_grant there;
    int node, nodes = 0;

    if (!grant->token || grant->fence ||
        strlen(grant->token) != HFI_TOKEN_LEN ||
        strspn(grant->token, "0123456789abcdef") != HFI_TOKEN_LEN)
        return false;
    for (node = 0; node < round->rl->n; node++) {
        if (!inspect_has(round, at, node, grant, &there))
            continue;
        if (there.fence)
            return false;
        nodes++;
    }
    return nodes >= round->rl->majority;
}

/* Is there such a token among these keys? */
static bool pending_any(const struct redlock_round *round, int keys)
{
    struct inspect_grant grant;
    int at, node;
    size_t i;

    for (at = 0; at < keys; at++)
        for (node = 0; node < round->rl->n; node++)
            for (i = 0; i < inspect_shown(round, at, node); i++) {
                grant = inspect_nth(round, at, node, i);
                if (pending_is(round, at, &grant))
                    return true;
            }
    return false;
}

static void pending_pause(struct redlock_conn *rl, int64_t until)
{
    pthread_mutex_lock(&rl->mu);
    while (hfi_left_ms(until))
        hfi_cond_wait(&rl->changed, &rl->mu, until);
    pthread_mutex_unlock(&rl->mu);
}

/* Ask for so many keys, and again while the fence of one is being confirmed; how
 * many nodes have answered the last time. */
static int inspect_ask(struct redlock_round *round, struct redlock_conn *rl,
                       const struct redis_batch *batch, int keys, bool few,
                       int64_t deadline)
{
    int64_t pause;
    int answered;

    for (pause = 1;; pause *= 2) {
        redlock_round_init(round, rl);
        answered = inspect_ask_few(round, batch, keys, few, deadline);
        if (!rl->fenced || answered < rl->majority ||
            hfi_left_ms(deadline) <= pause ||
            hfi_left_ms(atomic_load(&rl->pending_at)) ||
            !pending_any(round, keys))
            return answered;
        if (pause > PENDING_MAX_MS) {
            atomic_store(&rl->pending_at, hfi_now() + PENDING_GAP_MS);
            return answered;
        }
        redlock_round_fini(round);
        pending_pause(rl, hfi_now() + pause);
    }
}

/* ---- those that may hold it -------------------------------------------- */

struct inspect_holder {
    struct inspect_grant grant;
    int nodes; /* that have it */
};

struct inspect_holders {
    struct inspect_holder *all;
    int n;     /* that may have a majority */
    int known; /* that have one */
};

/* A grant that a node shows: note it, or its fence, if it is new. */
static void holders_note(struct inspect_holders *holders,
                         const struct inspect_grant *grant)
{
    int i;

    for (i = 0; i < holders->n; i++)
        if (inspect_same(&holders->all[i].grant, grant)) {
            if (grant->fence && !holders->all[i].grant.fence)
                holders->all[i].grant.fence = grant->fence;
            if (grant->reader)
                holders->all[i].grant.reader = grant->reader;
            return;
        }
    holders->all[holders->n++] = (struct inspect_holder){.grant = *grant};
}

/* Leave those that can have a majority, in the order of their fences: with one
 * that is known to have it before all others. */
static void holders_count(const struct redlock_round *round, int at,
                          int answered, struct inspect_holders *holders)
{
    int i, j, node, n = holders->n, silent = round->rl->n - answered;
    struct inspect_holder *all = holders->all, one;
    struct inspect_grant there;

    holders->n = 0;
    for (i = 0; i < n; i++) {
        one = all[i];
        for (node = 0; node < round->rl->n; node++)
            one.nodes += inspect_has(round, at, node, &one.grant, &there);
        if (one.nodes + silent < round->rl->majority ||
            inspect_is_over(round, at, &one.grant))
            continue;
        holders->known += one.nodes >= round->rl->majority;
        for (j = holders->n++;
             j > 0 && (one.nodes > all[j - 1].nodes ||
                       (one.nodes == all[j - 1].nodes &&
                        one.grant.fence < all[j - 1].grant.fence));
             j--)
            all[j] = all[j - 1];
        all[j] = one;
    }
}

static hf_status holders_find(const struct redlock_round *round, int at,
                              int answered, struct inspect_holders *ret,
                              struct hf_error *err)
{
    struct inspect_grant grant;
    size_t i, n = 0;
    int node;

    for (node = 0; node < round->rl->n; node++)
        n += inspect_shown(round, at, node);
    *ret = (struct inspect_holders){0};
    if (!n)
        return HF_OK;
    ret->all = hfi_alloc(n * sizeof(*ret->all));
    if (!ret->all)
        return hfi_nomem(err);
    for (node = 0; node < round->rl->n; node++)
        for (i = 0; i < inspect_shown(round, at, node); i++) {
            grant = inspect_nth(round, at, node, i);
            if (grant.token)
                holders_note(ret, &grant);
        }
    holders_count(round, at, answered, ret);
    return HF_OK;
}

/* ---- telling of them --------------------------------------------------- */

/* What a node that has confirmed the grant knows of it. */
static void inspect_add(const struct inspect_grant *grant, struct hf_info *ret)
{
    const redisReply *reply = grant->reader ? grant->reader : grant->reply;
    const char *owner =
        inspect_text(reply, grant->reader ? READER_OWNER : LOOK_OWNER);
    int64_t since =
        (inspect_number(grant->reply, LOOK_NOW) -
         inspect_number(reply, grant->reader ? READER_SINCE : LOOK_SINCE)) /
        1000;

    if (inspect_number(grant->reply, LOOK_BROKEN) == grant->fence ||
        (grant->reader && inspect_number(reply, READER_BROKEN) == 1))
        ret->broken = true;
    if (since > ret->since_ms)
        ret->since_ms = since;
    if (*owner)
        snprintf(ret->owner, sizeof(ret->owner), "%s", owner);
    snprintf(ret->note, sizeof(ret->note), "%s",
             inspect_text(reply, grant->reader ? READER_NOTE : LOOK_NOTE));
}

/* One holder.  Its lease is what a majority gives it, or as many as are known
 * to have it. */
static void inspect_describe(const struct redlock_round *round, int at,
                             const struct inspect_holder *holder, int holders,
                             struct hf_info *ret)
{
    int majority = round->rl->majority, i, j, n = 0, alone = 0;
    struct inspect_grant there;
    int64_t left[REDLOCK_MAX];

    ret->held = true;
    ret->holders = holders;
    ret->waiters = -1;
    ret->since_ms = -1;
    ret->slot = -1;
    ret->fence = (uint64_t)holder->grant.fence;
    snprintf(ret->owner, sizeof(ret->owner), "%s", holder->grant.token);
    for (i = 0; i < round->rl->n; i++) {
        if (!inspect_has(round, at, i, &holder->grant, &there))
            continue;
        for (j = n++; j > 0 && left[j - 1] < there.left; j--)
            left[j] = left[j - 1];
        left[j] = there.left;
        alone += !there.reader;
        if (there.fence)
            inspect_add(&there, ret);
    }
    ret->shared = alone < majority && alone < n;
    ret->left_ms = left[(n < majority ? n : majority) - 1];
}

/* The largest fence that any node has confirmed, for whomever. */
static uint64_t inspect_newest(const struct redlock_round *round, int at)
{
    const redisReply *reply;
    int64_t newest = 0, fence;
    int i;

    for (i = 0; i < round->rl->n; i++) {
        reply = inspect_reply(round, at, i);
        fence = reply ? inspect_number(reply, LOOK_FENCE) : 0;
        newest = fence > newest ? fence : newest;
    }
    return (uint64_t)newest;
}

static hf_status inspect_unknown(struct redlock_round *round, int answered,
                                 struct hf_error *err)
{
    redlock_too_few(round, answered, 0, err);
    return hfi_wrap(err, HF_UNAVAILABLE, "too few nodes agree on the holder");
}

/* `sure`: it must be known whether it is held. */
static hf_status inspect_read(struct redlock_round *round, int at, int answered,
                              bool sure, struct hf_info *ret,
                              struct hf_error *err)
{
    struct inspect_holders holders;
    hf_status st = holders_find(round, at, answered, &holders, err);

    if (st)
        return st;
    ret->waiters = -1;
    if (holders.n)
        inspect_describe(round, at, &holders.all[0],
                         holders.known ? holders.known : 1, ret);
    else
        ret->fence = inspect_newest(round, at);
    if (sure && holders.n && !holders.known)
        st = inspect_unknown(round, answered, err);
    hfi_free(holders.all);
    return st;
}

/* One question about several keys, and the answers. */
struct look {
    struct redlock_round round;
    struct redis_batch batch; /* which the round points to */
    int answered;
};

/* Ask all nodes, or few if these agree.  look_end() is due whatever happens. */
static hf_status look_begin(struct look *look, struct redlock_conn *rl,
                            const char *const *keys, int n, bool few,
                            int64_t deadline, struct hf_error *err)
{
    const char *argv[] = {""};
    int i;

    look->batch = (struct redis_batch){0};
    for (i = 0; i < n; i++)
        redlock_step(rl, &look->batch, 'I', keys[i], 1, argv);
    look->answered =
        inspect_ask(&look->round, rl, &look->batch, n, few, deadline);
    return look->answered < rl->majority
               ? redlock_too_few(&look->round, look->answered, 0, err)
               : HF_OK;
}

static void look_end(struct look *look)
{
    redlock_round_fini(&look->round);
    redis_batch_free(&look->batch);
}

/* True if a majority has answered, and does not agree as `sure` wants it. */
static bool look_at(struct redlock_conn *rl, const char *const *keys, int n,
                    bool sure, struct hf_info *ret, hf_status *st,
                    int64_t deadline, struct hf_error *err)
{
    struct look look;
    int i;

    *st = look_begin(&look, rl, keys, n, !sure, deadline, err);
    for (i = 0; !*st && i < n; i++)
        *st = inspect_read(&look.round, i, look.answered, sure, &ret[i], err);
    look_end(&look);
    return *st == HF_UNAVAILABLE && look.answered >= rl->majority;
}

hf_status redlock_look(struct redlock_conn *rl, const char *const *keys, int n,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *err)
{
    hf_status st;

    look_at(rl, keys, n, false, ret, &st, deadline, err);
    return st;
}

/* Nodes that do not agree may have been asked while the lock changed hands, and do
 * so a moment later. */
hf_status redlock_inspect(struct hfi_conn *conn, const char *key,
                          struct hf_info *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    const struct hf_info empty = *ret;
    int64_t pause = 1;
    hf_status st;

    while (look_at(rl, &key, 1, true, ret, &st, deadline, err) &&
           pause <= PENDING_MAX_MS && hfi_left_ms(deadline) > pause) {
        pending_pause(rl, hfi_now() + pause);
        pause *= 2;
        *ret = empty;
    }
    return st;
}

/* Nothing is told of a key of which nothing is known. */
hf_status redlock_inspect_several(struct hfi_conn *conn,
                                  const char *const *keys, int n,
                                  hf_list_fn *fn, void *arg, int64_t deadline,
                                  struct hf_error *err)
{
    struct look look;
    hf_status st = look_begin(&look, (struct redlock_conn *)conn, keys, n, true,
                              deadline, err);
    int i;

    for (i = 0; i < n && !st; i++) {
        struct hf_info info = {.size = sizeof(info),
                               .left_ms = -1,
                               .since_ms = -1,
                               .waiters = -1,
                               .slot = -1};

        st = inspect_read(&look.round, i, look.answered, true, &info, err);
        if (!st && !fn(arg, keys[i], &info))
            break;
        if (st == HF_UNAVAILABLE)
            st = HF_OK;
    }
    look_end(&look);
    return st;
}

/* Tell of each; nobody may be left out because a node did not answer. */
static hf_status holders_tell(struct redlock_round *round, int answered,
                              hf_holders_fn *fn, void *arg,
                              struct hf_error *err)
{
    struct inspect_holders holders;
    hf_status st = holders_find(round, 0, answered, &holders, err);
    bool more = true;
    int i;

    if (!st && holders.known < holders.n)
        st = inspect_unknown(round, answered, err);
    for (i = 0; !st && more && i < holders.n; i++) {
        struct hf_info info = {.size = sizeof(info)};

        inspect_describe(round, 0, &holders.all[i], holders.known, &info);
        more = fn(arg, &info);
    }
    hfi_free(holders.all);
    return st;
}

hf_status redlock_holders(struct hfi_conn *conn, const char *key,
                          hf_holders_fn *fn, void *arg, int64_t deadline,
                          struct hf_error *err)
{
    struct look look;
    hf_status st = look_begin(&look, (struct redlock_conn *)conn, &key, 1,
                              false, deadline, err);

    if (!st)
        st = holders_tell(&look.round, look.answered, fn, arg, err);
    look_end(&look);
    return st;
}

/* The line of one node; false: it said nothing of the kind. */
static bool waiters_of(const redisReply *line, struct hfi_waiters *found)
{
    struct hf_waiter *waiter;
    size_t i;

    if (!line || line->type != REDIS_REPLY_ARRAY)
        return false;
    for (i = 0; i < line->elements; i++) {
        const redisReply *one = line->element[i];

        if (one->type != REDIS_REPLY_ARRAY || one->elements != 2)
            return false;
        waiter = hfi_waiters_add(found, 0);
        if (!waiter)
            break;
        waiter->since_ms = redlock_item(one, 1);
        if (waiter->since_ms < 0)
            waiter->since_ms = 0;
        hfi_waiter_names(waiter, NULL, inspect_text(one, 0), NULL);
    }
    return true;
}

/* The line is kept by the first node that those who wait hear (wait.c, LINE):
 * the first that has one is believed.  It has tokens and no notes. */
hf_status redlock_waiters(struct hfi_conn *conn, const char *key,
                          hf_waiters_fn *fn, void *arg, int64_t deadline,
                          struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    const char *argv[] = {""};
    struct hfi_waiters found = {.n = 0};
    struct redlock_round round;
    struct redis_batch batch = {0};
    hf_status st = HF_OK;
    int i, answered;

    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, 'V', key, 1, argv);
    answered = redlock_inspect_ask(&round, &batch, deadline);
    if (answered < rl->majority)
        st = redlock_too_few(&round, answered, 0, err);
    for (i = 0; !st && i < rl->n && !found.n; i++)
        waiters_of(redlock_reply(&round.calls[i], 0), &found);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return hfi_waiters_tell(&found, st, fn, arg, err);
}
