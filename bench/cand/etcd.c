/* SPDX-License-Identifier: MIT
 *
 * etcd.c - bare gRPC to etcd as a candidate.
 *
 * A pair is what a lock cannot do without: one transaction that puts a key if
 * its range is empty, and one that deletes it, over holdfast's own connection
 * code.  All threads share a connection.
 *
 * Contended, it is the Lock service inside etcd: one call that the server
 * answers when the lock is there, and one that unlocks.  Each process has a
 * lease of its own.
 */
#include "cand.h"

#include "backend/etcd/etcd.h"
#include "base/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOCK   "/v3lockpb.Lock/Lock"
#define UNLOCK "/v3lockpb.Lock/Unlock"
#define GRANT  "/etcdserverpb.Lease/LeaseGrant"

static struct hfi_endpoint end = {.alive_ms = 15000};
static struct hfi_h2 h2;
static bool connected;

struct conn {
    uint64_t lease;
    unsigned char key[600]; /* that Lock() gave us */
    size_t key_len;
};

static void call_with(const char *path, unsigned char *body, size_t len,
                      struct hfi_h2_call *call)
{
    struct hf_error err;

    *call = (struct hfi_h2_call){
        .path = path, .body = body, .len = HFI_GRPC_PREFIX + len};
    if (hfi_h2_call(&h2, call, 1, NULL, hfi_now() + 600000, &err))
        bench_die("%s", err.text);
    if (call->grpc_status)
        bench_die("%s: %s", path, call->message);
}

static void txn(const Pb__TxnRequest *request)
{
    size_t len = pb__txn_request__get_packed_size(request);
    unsigned char *body = bench_alloc(HFI_GRPC_PREFIX + len);
    struct hfi_h2_call call;

    pb__txn_request__pack(request, body + HFI_GRPC_PREFIX);
    call_with(ETCD_TXN, body, len, &call);
    free(call.answer);
    free(body);
}

static void *conn_open(void)
{
    const char *url = getenv("HF_TEST_URL");

    if (!connected) {
        if (!url || sscanf(url, "etcd://%255[^:]:%d", end.host, &end.port) != 2)
            bench_die("no HF_TEST_URL");
        hfi_h2_init(&h2, &end, 1);
        connected = true;
    }
    return bench_alloc(sizeof(struct conn));
}

static void take(void *arg, const char *key)
{
    char dir[300], last[300], name[300];
    Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
    Pb__Compare compare = PB__COMPARE__INIT, *compares[] = {&compare};
    Pb__PutRequest put = PB__PUT_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    size_t len = (size_t)snprintf(dir, sizeof(dir), "raw/%s/", key);

    (void)arg;
    snprintf(last, sizeof(last), "raw/%s0", key);
    snprintf(name, sizeof(name), "raw/%s/1", key);
    compare.target = 1;
    compare.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    compare.key = (ProtobufCBinaryData){len, (uint8_t *)dir};
    compare.range_end = (ProtobufCBinaryData){len, (uint8_t *)last};
    put.key = (ProtobufCBinaryData){len + 1, (uint8_t *)name};
    op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    op.put = &put;
    request.n_compare = request.n_success = 1;
    request.compare = compares;
    request.success = ops;
    txn(&request);
}

static void give(void *arg, const char *key)
{
    char name[300];
    Pb__TxnRequest request = PB__TXN_REQUEST__INIT;
    Pb__DeleteRangeRequest gone = PB__DELETE_RANGE_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    size_t len = (size_t)snprintf(name, sizeof(name), "raw/%s/1", key);

    (void)arg;
    gone.key = (ProtobufCBinaryData){len, (uint8_t *)name};
    op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op.delete_range = &gone;
    request.n_success = 1;
    request.success = ops;
    txn(&request);
}

/* ---- the Lock service, whose messages have two plain fields ------------- */

static size_t put_number(unsigned char *at, uint64_t value)
{
    size_t n = 0;

    for (; value >= 128; value >>= 7)
        at[n++] = (unsigned char)(value | 128);
    at[n++] = (unsigned char)value;
    return n;
}

static size_t put_bytes(unsigned char *at, int field, const void *data,
                        size_t len)
{
    size_t n = 1;

    at[0] = (unsigned char)(field << 3 | 2);
    n += put_number(at + n, len);
    memcpy(at + n, data, len);
    return n + len;
}

static const unsigned char *get_number(const unsigned char *at, uint64_t *ret)
{
    int shift = 0;

    for (*ret = 0;; shift += 7) {
        *ret |= (uint64_t)(*at & 127) << shift;
        if (!(*at++ & 128))
            return at;
    }
}

/* Field `wanted` of a message: its number, or where its bytes are. */
static const unsigned char *find(const struct hfi_h2_call *call,
                                 unsigned wanted, uint64_t *ret)
{
    const unsigned char *at = call->answer + HFI_GRPC_PREFIX;
    const unsigned char *over = call->answer + call->answer_len;
    uint64_t tag;

    while (at < over) {
        at = get_number(at, &tag);
        at = get_number(at, ret);
        if (tag >> 3 == wanted)
            return at;
        if ((tag & 7) == 2)
            at += *ret;
    }
    bench_die("an answer of etcd lacks field %u", wanted);
}

static uint64_t new_lease(void)
{
    unsigned char body[HFI_GRPC_PREFIX + 16];
    struct hfi_h2_call call;
    uint64_t lease;
    size_t n = HFI_GRPC_PREFIX;

    body[n++] = 1 << 3; /* a ttl of ten minutes: nobody renews it */
    n += put_number(body + n, 600);
    call_with(GRANT, body, n - HFI_GRPC_PREFIX, &call);
    find(&call, 2, &lease);
    free(call.answer);
    return lease;
}

static void await(void *arg, const char *key)
{
    struct conn *conn = arg;
    unsigned char body[600];
    const unsigned char *found;
    struct hfi_h2_call call;
    size_t n = HFI_GRPC_PREFIX;
    uint64_t len;

    if (!conn->lease)
        conn->lease = new_lease();
    n += put_bytes(body + n, 1, key, strlen(key));
    body[n++] = 2 << 3;
    n += put_number(body + n, conn->lease);
    call_with(LOCK, body, n - HFI_GRPC_PREFIX, &call);
    found = find(&call, 2, &len);
    if (len > sizeof(conn->key))
        bench_die("a long key");
    memcpy(conn->key, found, len);
    conn->key_len = len;
    free(call.answer);
}

static void pass(void *arg, const char *key)
{
    struct conn *conn = arg;
    unsigned char body[700];
    struct hfi_h2_call call;

    (void)key;
    call_with(UNLOCK, body,
              put_bytes(body + HFI_GRPC_PREFIX, 1, conn->key, conn->key_len),
              &call);
    free(call.answer);
}

int main(void)
{
    static const struct cand_kind kind = {
        .name = "etcd",
        .open = conn_open,
        .close = free,
        .take = take,
        .give = give,
        .await = await,
        .pass = pass,
    };

    return cand_main(&kind);
}
