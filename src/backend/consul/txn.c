/* SPDX-License-Identifier: MIT
 *
 * txn.c - transactions of Consul's store, all or none.
 *
 * Two of them are the whole cost of a lock, so they are written and read as
 * text.  To build and to take apart a tree for each costs a third as much as
 * all that libcurl does, twice.  A failure on the way (no memory) is kept in
 * `bad` and told once, when the transaction is to be sent.
 *
 * A name has no control characters and is UTF-8 (kv.c), all else here is
 * plain ASCII: quotes and backslashes are what JSON wants escaped.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

/* ---- writing ------------------------------------------------------------ */

/* Room for `more` bytes and a NUL at the end, or NULL. */
static char *ops_room(struct consul_ops *ops, size_t more)
{
    size_t size = ops->size ? ops->size : sizeof(ops->first);
    char *text = ops->text ? ops->text : ops->first;

    while (size < ops->len + more + 1)
        size *= 2;
    if (size > sizeof(ops->first) && size > ops->size) {
        text = hfi_realloc(ops->text, size);
        if (!text) {
            ops->bad = true;
            return NULL;
        }
        if (!ops->text)
            memcpy(text, ops->first, ops->len);
        ops->text = text;
        ops->size = size;
    }
    return text + ops->len;
}

static void ops_add(struct consul_ops *ops, const char *text)
{
    size_t len = strlen(text);
    char *at = ops_room(ops, len);

    if (at) {
        memcpy(at, text, len + 1);
        ops->len += len;
    }
}

/* `,"field":"text"`; the quotes around it are ours, those in it are escaped. */
static void ops_string(struct consul_ops *ops, const char *field,
                       const char *text)
{
    char *at;

    ops_add(ops, field);
    at = ops_room(ops, 2 * strlen(text) + 1);
    if (!at)
        return;
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') {
            *at++ = '\\';
            ops->len++;
        }
        *at++ = *text;
        ops->len++;
    }
    *at++ = '"';
    *at = '\0';
    ops->len++;
}

static void ops_number(struct consul_ops *ops, const char *field, uint64_t n)
{
    char digits[24];

    snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n);
    ops_add(ops, field);
    ops_add(ops, digits);
}

/* `,"Value":"..."`, as base64, which needs no other escapes. */
static void ops_value(struct consul_ops *ops, const char *value)
{
    char *at;

    ops_add(ops, ",\"Value\":\"");
    at = ops_room(ops, strlen(value) / 3 * 4 + 5);
    if (!at)
        return;
    hfi_consul_encode(at, value);
    ops->len += strlen(at);
    ops_add(ops, "\"");
}

static void ops_op(struct consul_ops *ops, const char *verb, const char *name,
                   const char *session, const char *value, int64_t flags,
                   uint64_t index)
{
    ops_string(ops,
               ops->len ? ",{\"KV\":{\"Verb\":\"" : "[{\"KV\":{\"Verb\":\"",
               verb);
    ops_string(ops, ",\"Key\":\"", name);
    if (session)
        ops_string(ops, ",\"Session\":\"", session);
    if (value) {
        ops_value(ops, value);
        ops_number(ops, ",\"Flags\":", (uint64_t)flags);
    }
    if (index)
        ops_number(ops, ",\"Index\":", index);
    ops_add(ops, "}}");
}

/* Add an operation.  NULL and 0 leave a field out. */
void hfi_consul_op(struct consul_ops *ops, const char *verb, const char *name,
                   const char *session, const char *value, uint64_t index)
{
    ops_op(ops, verb, name, session, value, CONSUL_FLAGS, index);
}

/* The same for the entry of a key that several may hold. */
void hfi_consul_op_many(struct consul_ops *ops, const char *verb,
                        const char *name, const char *session,
                        const char *value)
{
    ops_op(ops, verb, name, session, value, CONSUL_MANY_FLAGS, 0);
}

/* The same for an entry that is written again: it stays what `kv` says. */
void hfi_consul_op_as(struct consul_ops *ops, const struct consul_kv *kv,
                      const char *verb, const char *name, const char *session,
                      const char *value)
{
    ops_op(ops, verb, name, session, value,
           kv->semaphore ? CONSUL_SEMAPHORE_FLAGS
           : kv->joined  ? CONSUL_JOINED_FLAGS
           : kv->many    ? CONSUL_MANY_FLAGS
                         : CONSUL_FLAGS,
           0);
}

/* The same for the entries of a semaphore. */
void hfi_consul_op_semaphore(struct consul_ops *ops, const char *verb,
                             const char *name, const char *session,
                             const char *value)
{
    ops_op(ops, verb, name, session, value, CONSUL_SEMAPHORE_FLAGS, 0);
}

/* Only if the entry has not changed since `index`; 0: does not exist. */
void hfi_consul_expect_index(struct consul_ops *ops, const char *name,
                             uint64_t index)
{
    hfi_consul_op(ops, index ? "check-index" : "check-not-exists", name, NULL,
                  NULL, index);
}

/* The body of the request, good until `ops` is finished; NULL: no memory. */
const char *hfi_consul_ops_text(struct consul_ops *ops)
{
    ops_add(ops, "]");
    return ops->bad ? NULL : ops->text ? ops->text : ops->first;
}

void hfi_consul_ops_fini(struct consul_ops *ops)
{
    hfi_free(ops->text);
    ops->text = NULL;
}

/* ---- reading ------------------------------------------------------------ */

static bool txn_ends_with(const char *text, const char *end)
{
    size_t len = strlen(text), n = strlen(end);

    return len >= n && !strcmp(text + len - n, end);
}

/* `invalid session "ID"` */
static void txn_bad_session(struct consul_done *done, const char *what)
{
    const char *at = strchr(what, '"');

    if (!done->bad_session && at && strlen(at) > CONSUL_ID_LEN)
        memcpy(done->bad, at + 1, CONSUL_ID_LEN);
    done->bad_session = true;
}

/* What the service says of each operation that failed.  HF_DENIED: `denied`
 * says which the token does not allow; none of the others was tried. */
static hf_status txn_errors(const struct consul_conn *cc, const json_t *errors,
                            struct consul_done *done, struct hf_error *err)
{
    const json_t *error;
    const char *what;
    json_int_t op;
    uint64_t bit;
    size_t i;

    for (i = 0; i < json_array_size(errors); i++) {
        error = json_array_get(errors, i);
        op = json_integer_value(json_object_get(error, "OpIndex"));
        what = json_string_value(json_object_get(error, "What"));
        bit = op >= 0 && op < CONSUL_OPS_MAX ? UINT64_C(1) << op : 0;
        done->failed |= bit;
        if (!what)
            continue;
        if (txn_ends_with(what, "due to lock delay"))
            done->delayed = true;
        else if (!strncmp(what, "invalid session", 15))
            txn_bad_session(done, what);
        else if (!strncmp(what, "Permission denied", 17))
            done->denied |= bit;
    }
    if (done->denied)
        return hfi_fail(err, HF_DENIED, "%s: the ACL token does not allow this",
                        cc->base.endpoint);
    return done->failed
               ? HF_OK
               : hfi_fail(err, HF_PROTOCOL, "%s: refused without a reason",
                          cc->base.endpoint);
}

/* Behind the string that begins at `at`, or NULL if it does not end. */
static const char *txn_skip_string(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1])
            at++;
    return *at ? at + 1 : NULL;
}

static const char *txn_skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* Is the name from `at` to `end`, with its quotes, this one? */
static bool txn_is_named(const char *at, const char *end, const char *name)
{
    size_t len = strlen(name);

    return (size_t)(end - at) == len + 2 && !memcmp(at + 1, name, len);
}

/* Read an object with results in one pass, without building a tree of it: the
 * ModifyIndex of the last one goes to *index (0: none).  An agent in
 * development mode indents what it writes.  False: it is no such object. */
static bool txn_results(const char *text, uint64_t *index)
{
    const char *at = txn_skip_space(text), *end;
    bool found = false;
    int depth = 0;

    *index = 0;
    if (*at != '{')
        return false;
    for (; *at; at = txn_skip_space(at)) {
        if (*at != '"') {
            depth += *at == '{' || *at == '[';
            depth -= *at == '}' || *at == ']';
            at++;
            continue;
        }
        end = txn_skip_string(at);
        if (!end)
            return false;
        if (*txn_skip_space(end) == ':') {
            found |= depth == 1 && txn_is_named(at, end, "Results");
            if (txn_is_named(at, end, "ModifyIndex"))
                *index = strtoull(txn_skip_space(end) + 1, NULL, 10);
        }
        at = end;
    }
    return found && !depth;
}

hf_status hfi_consul_txn_read(const struct consul_conn *cc,
                              struct consul_reply *reply,
                              struct consul_done *done, struct hf_error *err)
{
    if (reply->status == 409) {
        hfi_consul_reply_parse(reply);
        return txn_errors(cc, json_object_get(reply->json, "Errors"), done,
                          err);
    }
    if (reply->status != 200 || !reply->data ||
        !txn_results(reply->data, &done->index))
        return hfi_fail(err, HF_PROTOCOL,
                        "%s: an answer that is no transaction's",
                        cc->base.endpoint);
    done->ok = true;
    return HF_OK;
}

/* Run the operations, all or none, and finish `ops`.  HF_OK says that there is
 * an answer: see `done`.  Then *reply is to be finished. */
hf_status hfi_consul_txn_keep(struct consul_conn *cc, struct consul_pool *pool,
                              struct consul_ops *ops, bool write,
                              int64_t deadline, struct consul_done *done,
                              struct consul_reply *reply, struct hf_error *err)
{
    /* A read that is not consistent may be served by a leader that was. */
    struct consul_request rq = {.method = "PUT",
                                .path =
                                    write ? "/v1/txn" : "/v1/txn?consistent",
                                .body = hfi_consul_ops_text(ops),
                                .write = write};
    hf_status st;

    do {
        *done = (struct consul_done){.ok = false};
        st = rq.body ? hfi_consul_call(cc, pool, &rq, deadline, reply, err)
                     : hfi_nomem(err);
        if (st)
            break;
        st = hfi_consul_txn_read(cc, reply, done, err);
        done->agent = reply->agent;
        done->sent = reply->sent;
        if (st)
            hfi_consul_reply_fini(reply);
    } while (st == HF_DENIED &&
             hfi_consul_options_reread(&cc->options, &cc->mu));
    hfi_consul_ops_fini(ops);
    return st;
}

/* The same, for what `done` says only. */
hf_status hfi_consul_txn(struct consul_conn *cc, struct consul_pool *pool,
                         struct consul_ops *ops, bool write, int64_t deadline,
                         struct consul_done *done, struct hf_error *err)
{
    struct consul_reply reply;
    hf_status st =
        hfi_consul_txn_keep(cc, pool, ops, write, deadline, done, &reply, err);

    if (!st)
        hfi_consul_reply_fini(&reply);
    return st;
}
