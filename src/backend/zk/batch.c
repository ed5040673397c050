/* SPDX-License-Identifier: MIT
 *
 * batch.c - requests that go out together and are waited for together.
 *
 * Only the library's asynchronous calls are used: its synchronous ones wait
 * without a limit.  A batch is a few requests in a row; the server answers
 * them in order, so the last answer shows what the ones before have done, for
 * the price of one round trip.  The caller reads them itself, or sleeps until
 * its deadline while somebody else reads (io.c).
 *
 * INVARIANTS
 *  (1) A batch is freed by whoever is later: the caller that leaves it or its
 *      last answer.  Answers that the library drops when a handle is closed
 *      count as given (zk_batches_drop()).
 *  (2) What an answer brings is copied in the callback, since it belongs to the
 *      library, and is looked at only once all answers are there.
 *  (3) Callbacks do not wait, close or call anything synchronous.  They find
 *      the mutex held, or else the handle being closed and nobody waiting.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

struct zk_batch *zk_batch_new(struct zk_session *ses, size_t room)
{
    struct zk_batch *reqs =
        hfi_alloc(sizeof(*reqs) + room * sizeof(struct zk_op));

    if (!reqs)
        return NULL;
    reqs->ses = ses;
    reqs->room = room;
    hfi_cond_init(&reqs->cond);
    hfi_link_init(&reqs->link);
    return reqs;
}

/* With the mutex held. */
static void batch_free(struct zk_batch *reqs)
{
    size_t i;
    int j;

    hfi_link_remove(&reqs->link);
    for (i = 0; i < reqs->n; i++) {
        for (j = 0; j < reqs->ops[i].names.count; j++)
            hfi_free(reqs->ops[i].names.data[j]);
        hfi_free(reqs->ops[i].names.data);
        hfi_free(reqs->ops[i].path);
        hfi_free(reqs->ops[i].text);
    }
    hfi_cond_fini(&reqs->cond);
    hfi_free(reqs);
}

void zk_batch_end(struct zk_batch *reqs)
{
    struct zk_conn *zc;

    if (!reqs)
        return;
    zc = reqs->ses->conn;
    pthread_mutex_lock(&zc->mu);
    if (reqs->pending)
        reqs->left = true; /* batch.c (1) */
    else
        batch_free(reqs);
    pthread_mutex_unlock(&zc->mu);
}

/* The handle is closed: nothing more will be answered; with the mutex held. */
void zk_batches_drop(struct zk_session *ses)
{
    while (!hfi_link_alone(&ses->batches))
        batch_free(hfi_container(ses->batches.next, struct zk_batch, link));
}

hf_status zk_batch_wait(struct zk_batch *reqs, int64_t deadline)
{
    struct zk_session *ses = reqs->ses;
    pthread_mutex_t *mu = &ses->conn->mu;
    bool done;

    pthread_mutex_lock(mu);
    while (reqs->pending && hfi_left_ms(deadline)) {
        if (!ses->reading && ses->state == ZK_UP) {
            zk_read(ses, &reqs->pending, deadline);
            continue;
        }
        reqs->waits = true;
        hfi_cond_wait(&reqs->cond, mu, deadline);
        reqs->waits = false;
    }
    done = !reqs->pending;
    zk_pass(ses); /* io.c (3) */
    pthread_mutex_unlock(mu);
    return done ? HF_OK : HF_UNCERTAIN;
}

/* ---- answers ----------------------------------------------------------- */

/* The server has answered, and for some requests it has asked others first. */
static void op_proves(struct zk_session *ses, const struct zk_op *op)
{
    if (op->leads)
        zk_touch_passed(ses, op->sent_at);
    if (op->wrote && op->sent_at > ses->proven_at)
        ses->proven_at = op->sent_at;
    zk_touched(ses, op->sent_at);
}

static void op_done(struct zk_op *op, int rc)
{
    struct zk_batch *reqs = op->batch;

    if (reqs->ses->shut)
        return;
    op->rc = rc;
    if (rc == ZOK || rc == ZNONODE || rc == ZNODEEXISTS)
        op_proves(reqs->ses, op);
    reqs->ses->pending--;
    if (--reqs->pending)
        return;
    if (reqs->left)
        batch_free(reqs);
    else
        hfi_cond_wake(&reqs->cond);
}

static struct zk_op *op_of(const void *data)
{
    return (struct zk_op *)(uintptr_t)data;
}

static bool op_text(struct zk_op *op, const char *text, int len)
{
    if (len < 0)
        return true;
    op->text = hfi_alloc((size_t)len + 1);
    if (!op->text)
        return false;
    if (len)
        memcpy(op->text, text, (size_t)len);
    op->len = len;
    return true;
}

static void on_void(int rc, const void *data)
{
    op_done(op_of(data), rc);
}

static void on_string(int rc, const char *text, const void *data)
{
    (void)text;
    op_done(op_of(data), rc);
}

static void on_stat(int rc, const struct Stat *stat, const void *data)
{
    if (!rc && stat)
        op_of(data)->stat = *stat;
    op_done(op_of(data), rc);
}

static void on_created(int rc, const char *path, const struct Stat *stat,
                       const void *data)
{
    struct zk_op *op = op_of(data);

    if (!rc && stat)
        op->stat = *stat;
    if (!rc && (!path || !op_text(op, path, (int)strlen(path))))
        rc = ZMARSHALLINGERROR;
    op_done(op, rc);
}

static void on_data(int rc, const char *text, int len, const struct Stat *stat,
                    const void *data)
{
    struct zk_op *op = op_of(data);

    if (!rc && stat)
        op->stat = *stat;
    if (!rc && !op_text(op, text, len))
        rc = ZMARSHALLINGERROR;
    op_done(op, rc);
}

static bool op_names(struct zk_op *op, const struct String_vector *names)
{
    int i;

    if (!names || names->count <= 0)
        return true;
    op->names.data = hfi_alloc((size_t)names->count * sizeof(char *));
    if (!op->names.data)
        return false;
    for (i = 0; i < names->count; i++) {
        op->names.data[i] = hfi_strdup(names->data[i]);
        if (!op->names.data[i])
            return false;
        op->names.count++;
    }
    return true;
}

static void on_children(int rc, const struct String_vector *names,
                        const void *data)
{
    if (!rc && !op_names(op_of(data), names))
        rc = ZMARSHALLINGERROR;
    op_done(op_of(data), rc);
}

/* ---- requests ---------------------------------------------------------- */

/* The next request, or NULL if there is no connection to send it on: then it
 * has failed for certain.  The mutex is taken, for op_sent() to let go. */
static struct zk_op *op_new(struct zk_batch *reqs)
{
    struct zk_op *op = &reqs->ops[reqs->n++];

    pthread_mutex_lock(&reqs->ses->conn->mu);
    op->batch = reqs;
    op->sent_at = hfi_now();
    op->rc = ZINVALIDSTATE;
    if (reqs->ses->state != ZK_UP) {
        pthread_mutex_unlock(&reqs->ses->conn->mu);
        return NULL;
    }
    if (hfi_link_alone(&reqs->link))
        hfi_link_append(&reqs->ses->batches, &reqs->link);
    return op;
}

/* The same for one that changes something. */
static struct zk_op *op_write(struct zk_batch *reqs)
{
    struct zk_op *op = op_new(reqs);

    if (op)
        op->leads = op->wrote = true;
    return op;
}

/* The library took the request, or will never answer it. */
static void op_sent(struct zk_op *op, int rc)
{
    struct zk_batch *reqs = op->batch;

    op->rc = rc;
    if (!rc) {
        reqs->pending++;
        reqs->ses->asked_at = op->sent_at;
        if (!reqs->ses->pending++)
            reqs->ses->heard_at = reqs->ses->sent_at = hfi_now();
    }
    pthread_mutex_unlock(&reqs->ses->conn->mu);
}

/* What follows is answered by a server that has asked the leader before; one
 * that stands alone need not, and is not asked anything: false. */
bool zk_sync(struct zk_batch *reqs, const char *path)
{
    struct zk_op *op = op_new(reqs);

    if (op && reqs->ses->standalone) {
        op->rc = ZOK;
        pthread_mutex_unlock(&reqs->ses->conn->mu);
        return false;
    }
    if (op) {
        op->leads = true;
        op_sent(op, zoo_async(reqs->ses->zh, path, on_string, op));
    }
    return true;
}

static void on_proof(int rc, const void *data)
{
    op_done(op_of(data), rc == ZNONODE ? ZOK : rc);
}

/* The same, from a leader that has not been deposed without its noticing: a
 * frozen one that wakes up, or one that is cut off, answers a sync for a while.
 * Its successor lets a session last for the full time from its own beginning,
 * which is after the last write that was agreed to.  As long as that write is
 * not older than what a session lasts longer than its leases, a sync will do;
 * else a transaction that changes nothing asks the majority. */
bool zk_prove(struct zk_batch *reqs, const char *path)
{
    struct zk_session *ses = reqs->ses;
    zoo_op_t check;
    struct zk_op *op;
    bool fresh;

    pthread_mutex_lock(&ses->conn->mu);
    fresh = ses->standalone || hfi_now() - ses->proven_at <= ses->got_ms / 5;
    pthread_mutex_unlock(&ses->conn->mu);
    if (fresh)
        return zk_sync(reqs, path);
    op = op_write(reqs);
    if (!op)
        return true;
    zoo_check_op_init(&check, path, -1);
    op_sent(op, zoo_amulti(ses->zh, 1, &check, reqs->results, on_proof, op));
    return true;
}

const struct ACL_vector *zk_acl(const struct zk_conn *zc)
{
    return zc->auth ? &ZOO_CREATOR_ALL_ACL : &ZOO_OPEN_ACL_UNSAFE;
}

void zk_create(struct zk_batch *reqs, const char *path, const char *data,
               int mode)
{
    struct zk_op *op = op_write(reqs);

    if (op)
        op_sent(op,
                zoo_acreate2(reqs->ses->zh, path, data, (int)strlen(data),
                             zk_acl(reqs->ses->conn), mode, on_created, op));
}

/* `version` -1: whatever its data is by now. */
void zk_delete(struct zk_batch *reqs, const char *path, int version)
{
    struct zk_op *op = op_write(reqs);

    if (op)
        op_sent(op, zoo_adelete(reqs->ses->zh, path, version, on_void, op));
}

void zk_set(struct zk_batch *reqs, const char *path, const char *data,
            int version)
{
    struct zk_op *op = op_write(reqs);

    if (op)
        op_sent(op, zoo_aset(reqs->ses->zh, path, data, (int)strlen(data),
                             version, on_stat, op));
}

void zk_exists(struct zk_batch *reqs, const char *path, bool watch)
{
    struct zk_op *op = op_new(reqs);

    if (op)
        op_sent(op, zoo_awexists(reqs->ses->zh, path, watch ? zk_watcher : NULL,
                                 reqs->ses, on_stat, op));
}

void zk_get(struct zk_batch *reqs, const char *path, bool watch)
{
    struct zk_op *op = op_new(reqs);

    if (op)
        op_sent(op, zoo_awget(reqs->ses->zh, path, watch ? zk_watcher : NULL,
                              reqs->ses, on_data, op));
}

void zk_children(struct zk_batch *reqs, const char *path, bool watch)
{
    struct zk_op *op = op_new(reqs);

    if (op)
        op_sent(op, zoo_awget_children(reqs->ses->zh, path,
                                       watch ? zk_watcher : NULL, reqs->ses,
                                       on_children, op));
}

/* All of them or none; at most ZK_MULTI_MAX.  Which of them failed is in
 * `results`. */
void zk_multi(struct zk_batch *reqs, int n, const zoo_op_t *ops)
{
    struct zk_op *op = op_write(reqs);

    if (op)
        op_sent(op,
                zoo_amulti(reqs->ses->zh, n, ops, reqs->results, on_void, op));
}

/* ---- meaning ----------------------------------------------------------- */

hf_status zk_no_answer(const struct zk_conn *zc, struct hf_error *err)
{
    return hfi_fail(err, HF_UNCERTAIN, "%s: no answer", zc->base.endpoint);
}

hf_status zk_status(const struct zk_conn *zc, int rc, const char *what,
                    struct hf_error *err)
{
    hf_status st;

    switch (rc) {
    case ZOK:
        return HF_OK;
    case ZCONNECTIONLOSS:
    case ZOPERATIONTIMEOUT:
    case ZRUNTIMEINCONSISTENCY:
    case ZSESSIONMOVED:
    case ZSYSTEMERROR:
        st = HF_UNCERTAIN;
        break;
    case ZINVALIDSTATE:
    case ZSESSIONEXPIRED:
    case ZCLOSING:
    case ZTHROTTLEDOP:
    case ZNOTREADONLY:
        st = HF_UNAVAILABLE;
        break;
    case ZNOAUTH:
    case ZAUTHFAILED:
    case ZINVALIDACL:
    case ZSESSIONCLOSEDREQUIRESASLAUTH:
        st = HF_DENIED;
        break;
    default:
        st = HF_PROTOCOL;
    }
    return hfi_fail(err, st, "%s: %s: %s", zc->base.endpoint, what, zerror(rc));
}
