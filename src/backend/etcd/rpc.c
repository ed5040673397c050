/* SPDX-License-Identifier: MIT
 *
 * rpc.c - calls: packing, credentials, errors.
 *
 * Calls that belong together go out together and cost one round trip.  With a
 * user, each carries a token, which lapses; a call that was refused for its
 * token was not carried out, so it is sent again with a new one.
 *
 * A server that says "not now" may have said it before or after the deed:
 * only where the words leave no doubt is it HF_UNAVAILABLE.  The write that
 * fills the database is carried out and answered with "space exceeded".
 */
#include "etcd.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* The longest password. */
#define PASSWORD_MAX 1024

/* ---- errors ------------------------------------------------------------ */

/* What the server's words mean to us, and what to do about it.  The first line
 * whose code and words fit; a code of -1 fits all.  Where another member may
 * know better, the connection is left for it; a full database is full for all
 * of them. */
static const struct {
    int code;
    const char *words;
    hf_status st;
    const char *hint;
    bool elsewhere;
} rpc_errors[] = {
    {-1, "no leader", HF_UNAVAILABLE, "the cluster has no leader now", true},
    {-1, "invalid user ID or password", HF_DENIED, "user or password is wrong",
     false},
    {-1, "authentication is not enabled", HF_DENIED, "the server wants no user",
     false},
    {-1, "user name is empty", HF_DENIED, "give a user in the URL", false},
    {-1, "space exceeded", HF_UNCERTAIN, "its database is full", false},
    {-1, "too many requests", HF_UNAVAILABLE, "it has too much to do", true},
    {-1, "not supported for learner", HF_UNAVAILABLE, "it is a learner", true},
    {-1, "too many operations", HF_UNSUPPORTED, "--max-txn-ops is too small",
     false},
    {5, "lease not found", HF_LOST, "the lease is gone", false},
    {3, "", HF_PROTOCOL, "it does not take our request", false},
    {7, "", HF_DENIED, "the user lacks rights; see holdfast-etcd(7)", false},
    {8, "", HF_UNAVAILABLE, "it has too much to do", true},
    {9, "", HF_PROTOCOL, "it does not take our request", false},
    {11, "", HF_PROTOCOL, "it does not take our request", false},
    {12, "", HF_UNSUPPORTED, "it is not etcd, or older than 3.3", false},
    {16, "", HF_DENIED, "the credentials are refused", false},
    {-1, "", HF_UNCERTAIN, "it cannot answer now", true},
};

static hf_status rpc_error(struct etcd_conn *ec, const struct hfi_h2_call *call,
                           struct hf_error *err)
{
    char text[128];
    size_t i = 0;

    hfi_quote(text, sizeof(text), call->message);
    while (
        (rpc_errors[i].code >= 0 && rpc_errors[i].code != call->grpc_status) ||
        !strstr(call->message, rpc_errors[i].words))
        i++;
    if (rpc_errors[i].elsewhere && ec->nends > 1)
        hfi_h2_retire(&ec->h2, call->via);
    return hfi_fail(err, rpc_errors[i].st, "%s: %s: %s (%d)", ec->base.endpoint,
                    rpc_errors[i].hint, text, call->grpc_status);
}

static bool is_token_refused(const struct hfi_h2_call *call)
{
    return !call->st && call->grpc_status &&
           (strstr(call->message, "invalid auth token") ||
            strstr(call->message, "auth store is old") ||
            strstr(call->message, "revision in header is old"));
}

hf_status etcd_bad_reply(struct etcd_conn *ec, struct hf_error *err)
{
    return hfi_fail(err, HF_PROTOCOL, "%s: an answer that makes no sense",
                    ec->base.endpoint);
}

/* ---- calls ------------------------------------------------------------- */

size_t etcd_add(struct etcd_batch *batch, const char *path,
                const ProtobufCMessage *message)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    struct hfi_h2_call *call = &batch->calls[batch->n];
    unsigned char *body =
        batch->n < ETCD_CALLS_MAX ? hfi_alloc(HFI_GRPC_PREFIX + len) : NULL;

    if (!body) {
        batch->failed = true;
        return 0;
    }
    protobuf_c_message_pack(message, body + HFI_GRPC_PREFIX);
    *call = (struct hfi_h2_call){.path = path,
                                 .body = body,
                                 .len = HFI_GRPC_PREFIX + len,
                                 .patient = batch->patient,
                                 .st = HF_UNAVAILABLE}; /* not sent yet */
    return batch->n++;
}

void etcd_batch_free(struct etcd_batch *batch)
{
    while (batch->n)
        hfi_h2_done(&batch->calls[--batch->n]);
}

/* Send those again that were refused for their token. */
static hf_status send_refused(struct etcd_conn *ec, struct etcd_batch *batch,
                              unsigned age, int64_t deadline,
                              struct hf_error *err)
{
    char *token = NULL;
    hf_status st = HF_OK;
    size_t i;

    for (i = 0; i < batch->n && !st; i++) {
        struct hfi_h2_call *call = &batch->calls[i];

        if (!is_token_refused(call))
            continue;
        if (!token)
            st = etcd_token(ec, age, &token, &age, deadline, err);
        if (st)
            break;
        hfi_free(call->answer);
        *call = (struct hfi_h2_call){.path = call->path,
                                     .body = call->body,
                                     .len = call->len,
                                     .patient = call->patient};
        st = hfi_h2_call(&ec->h2, call, 1, token, deadline, err);
    }
    hfi_free(token);
    return st;
}

hf_status etcd_send(struct etcd_conn *ec, struct etcd_batch *batch,
                    int64_t deadline, struct hf_error *err)
{
    int64_t login_by = batch->login_by ? batch->login_by : deadline;
    char *token = NULL;
    unsigned age = 0;
    hf_status st;

    if (batch->failed)
        return hfi_nomem(err);
    if (!hfi_left_ms(deadline))
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: the answers before this request took all of its "
                        "time: give it more with timeout=",
                        ec->base.endpoint);
    batch->revision = atomic_load(&ec->revision);
    st = ec->user ? etcd_token(ec, 0, &token, &age, login_by, err) : HF_OK;
    if (!st)
        st = hfi_h2_call(&ec->h2, batch->calls, batch->n, token, deadline, err);
    hfi_free(token);
    if (!st && ec->user) {
        st = send_refused(ec, batch, age, login_by, err);
        if (st && batch->n > 1)
            st = hfi_restate(err, HF_UNCERTAIN); /* The rest was done. */
    }
    return st;
}

/* ---- members that are behind, and clusters that were restored ----------- */

/* Only other answers than the one that we believe in came for some time. */
#define RESTORED_MS 1000

/* Does an answer to it come from a member that has a leader and a quorum? */
static bool is_linearizable(const char *path)
{
    return !strcmp(path, ETCD_RANGE) || !strcmp(path, ETCD_TXN) ||
           !strcmp(path, ETCD_GRANT);
}

/* A term or a revision that is older than one that was seen, with a quorum
 * behind it, is that of a cluster which was restored from a snapshot or made
 * anew.  What it says next is believed when every endpoint has answered so,
 * none has answered otherwise meanwhile, and no lock that we held can be
 * left. */
static void answer_restored(struct etcd_conn *ec, const Pb__Header *header,
                            const struct hfi_h2_call *call)
{
    int64_t now = hfi_now();
    bool yes;
    size_t i;

    if (!is_linearizable(call->path))
        return;
    pthread_mutex_lock(&ec->mu);
    if (!atomic_exchange(&ec->doubted, true)) {
        ec->old_since = now;
        memset(ec->old, 0, sizeof(ec->old));
    }
    ec->old[call->end] = true;
    for (i = 0; i < ec->nends && ec->old[i]; i++)
        continue;
    yes = i == ec->nends && now > ec->old_since + RESTORED_MS &&
          hfi_sessions_lapsed(&ec->leases);
    if (yes) {
        atomic_store(&ec->cluster, header->cluster_id);
        atomic_store(&ec->term, header->raft_term);
        atomic_store(&ec->revision, header->revision);
        atomic_store(&ec->doubted, false);
    }
    pthread_mutex_unlock(&ec->mu);
    if (yes)
        hfi_warn(&ec->base, "the cluster was restored or made anew: locks of "
                            "before are lost, and fences may begin again");
}

/* Remember the highest revision. */
static void answer_revision(struct etcd_conn *ec, int64_t revision)
{
    int64_t seen = atomic_load(&ec->revision);

    while (revision > seen)
        if (atomic_compare_exchange_weak(&ec->revision, &seen, revision))
            break;
}

/* Is it of the cluster that we know, of no older term and, from a quorum, of no
 * older revision than had been seen before the request was sent?  A cluster
 * that is restored with the addresses that it had has the same ids, and may
 * have come to the same term. */
static bool answer_is_current(struct etcd_conn *ec, const Pb__Header *header,
                              bool quorum, int64_t revision)
{
    uint64_t none = 0, seen = atomic_load(&ec->term);

    if (header->cluster_id &&
        !atomic_compare_exchange_strong(&ec->cluster, &none,
                                        header->cluster_id) &&
        none != header->cluster_id)
        return false;
    if (quorum && header->revision < revision)
        return false;
    while (header->raft_term > seen)
        if (atomic_compare_exchange_weak(&ec->term, &seen, header->raft_term))
            return true;
    return header->raft_term == seen;
}

/* A member that is behind what we have seen, or of another cluster, is left, and
 * what it says is not believed. */
static bool answer_is_old(struct etcd_conn *ec, const ProtobufCMessage *message,
                          const struct hfi_h2_call *call, int64_t revision)
{
    /* Every answer has its header first. */
    const Pb__Header *header = ((const Pb__RangeResponse *)message)->header;
    bool quorum = is_linearizable(call->path);

    if (!header || !header->raft_term)
        return false;
    if (answer_is_current(ec, header, quorum, revision)) {
        answer_revision(ec, header->revision);
        if (quorum && atomic_load(&ec->doubted))
            atomic_store(&ec->doubted, false);
        return false;
    }
    hfi_h2_retire(&ec->h2, call->via);
    answer_restored(ec, header, call);
    return true;
}

hf_status etcd_answer(struct etcd_conn *ec, const struct etcd_batch *batch,
                      size_t i, const ProtobufCMessageDescriptor *type,
                      ProtobufCMessage **ret, struct hf_error *err)
{
    const struct hfi_h2_call *call = &batch->calls[i];

    if (call->st)
        return hfi_fail(err, call->st, "%s: no answer", ec->base.endpoint);
    if (call->grpc_status)
        return rpc_error(ec, call, err);
    *ret = protobuf_c_message_unpack(type, NULL,
                                     call->answer_len - HFI_GRPC_PREFIX,
                                     call->answer + HFI_GRPC_PREFIX);
    if (!*ret)
        return etcd_bad_reply(ec, err);
    if (!answer_is_old(ec, *ret, call, batch->revision))
        return HF_OK;
    etcd_free(*ret);
    *ret = NULL;
    return hfi_fail(err, HF_UNCERTAIN,
                    "%s: this member is behind the others, or was restored",
                    ec->base.endpoint);
}

void etcd_free(void *message)
{
    if (message)
        protobuf_c_message_free_unpacked(message, NULL);
}

hf_status etcd_call(struct etcd_conn *ec, const char *path,
                    const ProtobufCMessage *message,
                    const ProtobufCMessageDescriptor *type,
                    ProtobufCMessage **ret, int64_t deadline,
                    struct hf_error *err)
{
    hf_status st = HF_UNAVAILABLE;
    bool moved = true;
    size_t i;

    /* What one member has not taken another may; but why it has not is told, and
     * not that there is no time to ask the other. */
    for (i = 0; i < ec->nends && st == HF_UNAVAILABLE && moved; i++) {
        struct etcd_batch batch = {.n = 0};

        etcd_add(&batch, path, message);
        st = etcd_send(ec, &batch, deadline, err);
        if (!st)
            st = etcd_answer(ec, &batch, 0, type, ret, err);
        moved = batch.failed || !hfi_h2_goes_via(&ec->h2, batch.calls[0].via);
        etcd_batch_free(&batch);
        if (!hfi_left_ms(deadline))
            break;
    }
    return st;
}

/* ---- credentials ------------------------------------------------------- */

/* Send user and password.  A file is read each time: it may have changed with
 * the password. */
static hf_status login_send(struct etcd_conn *ec, ProtobufCMessage **ret,
                            int64_t deadline, struct hf_error *err)
{
    Pb__AuthenticateRequest ask = PB__AUTHENTICATE_REQUEST__INIT;
    struct etcd_batch batch = {.n = 0};
    char secret[PASSWORD_MAX];
    hf_status st = HF_OK;

    ask.name = ec->user;
    ask.password = ec->password;
    if (ec->password_file) {
        st = hfi_url_secret(ec->password_file,
                            "the file of password_file=", secret,
                            sizeof(secret), err);
        ask.password = secret;
    }
    if (st)
        return st;
    etcd_add(&batch, ETCD_LOGIN, &ask.base);
    st = batch.failed
             ? hfi_nomem(err)
             : hfi_h2_call(&ec->h2, batch.calls, 1, NULL, deadline, err);
    if (!st)
        st = etcd_answer(ec, &batch, 0, &pb__authenticate_response__descriptor,
                         ret, err);
    if (batch.n)
        explicit_bzero(batch.calls[0].body, batch.calls[0].len);
    explicit_bzero(secret, sizeof(secret));
    etcd_batch_free(&batch);
    return st;
}

/* Ask for a token.  The mutex is let go meanwhile. */
static hf_status token_login(struct etcd_conn *ec, int64_t deadline,
                             struct hf_error *err)
{
    ProtobufCMessage *answer = NULL;
    hf_status st;

    ec->logging_in = true;
    pthread_mutex_unlock(&ec->mu);
    st = login_send(ec, &answer, deadline, err);
    pthread_mutex_lock(&ec->mu);
    ec->logging_in = false;
    hfi_cond_wake(&ec->settled);
    if (!st) {
        hfi_free(ec->token);
        ec->token = hfi_strdup(((Pb__AuthenticateResponse *)answer)->token);
        ec->token_age++;
        if (!ec->token)
            st = hfi_nomem(err);
    }
    etcd_free(answer);
    /* Nothing of the caller's was sent. */
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

/* A token that is newer than `age`. */
hf_status etcd_token(struct etcd_conn *ec, unsigned age, char **ret,
                     unsigned *ret_age, int64_t deadline, struct hf_error *err)
{
    hf_status st = HF_OK;

    pthread_mutex_lock(&ec->mu);
    while (!st && ec->token_age <= age) {
        if (!ec->logging_in)
            st = token_login(ec, deadline, err);
        else if (hfi_now() >= deadline)
            st = hfi_fail(err, HF_UNAVAILABLE, "%s: no token in time",
                          ec->base.endpoint);
        else
            hfi_cond_wait(&ec->settled, &ec->mu, deadline);
    }
    if (!st) {
        *ret = hfi_strdup(ec->token);
        *ret_age = ec->token_age;
        if (!*ret)
            st = hfi_nomem(err);
    }
    pthread_mutex_unlock(&ec->mu);
    return st;
}
