/* SPDX-License-Identifier: MIT
 *
 * etcd.c - locks on etcd beside the bare transactions and etcd's Go package.
 *
 * It is run beside a server, whose URL is in HF_TEST_URL:
 *
 *     test/servers/etcd build/bench/bench-etcd
 *
 * "raw" is what a lock cannot do without: one transaction that puts a key if
 * the range is empty, and one that deletes it, over the same connection code.
 * etcd_peer.go prints the same figures for the Go package; bench/etcd runs
 * both and forms the ratios.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/etcd.h"
#include "env.h"
#include "holdfast.h"

#define THREADS_MAX 64

static double seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void must(hf_status st, const struct hf_error *err)
{
    if (!st)
        return;
    fprintf(stderr, "bench-etcd: %s\n", err->text);
    exit(1);
}

/* ---- raw --------------------------------------------------------------- */

static void raw_call(struct hfi_h2 *h2, const Pb__TxnRequest *txn)
{
    size_t len = pb__txn_request__get_packed_size(txn);
    struct hfi_h2_call call = {.path = ETCD_TXN,
                               .body = calloc(1, HFI_GRPC_PREFIX + len),
                               .len = HFI_GRPC_PREFIX + len};
    struct hf_error err;

    pb__txn_request__pack(txn, call.body + HFI_GRPC_PREFIX);
    must(hfi_h2_call(h2, &call, 1, NULL, hfi_now() + 5000, &err), &err);
    free(call.body);
    free(call.answer);
}

static void raw_pair(struct hfi_h2 *h2)
{
    static uint8_t dir[] = "raw/k/", end[] = "raw/k0", key[] = "raw/k/1";
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    Pb__Compare compare = PB__COMPARE__INIT, *compares[] = {&compare};
    Pb__PutRequest put = PB__PUT_REQUEST__INIT;
    Pb__DeleteRangeRequest gone = PB__DELETE_RANGE_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};

    compare.target = 1;
    compare.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    compare.key = (ProtobufCBinaryData){6, dir};
    compare.range_end = (ProtobufCBinaryData){6, end};
    put.key = gone.key = (ProtobufCBinaryData){7, key};
    op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    op.put = &put;
    txn.n_compare = txn.n_success = 1;
    txn.compare = compares;
    txn.success = ops;
    raw_call(h2, &txn);
    op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op.delete_range = &gone;
    txn.n_compare = 0;
    raw_call(h2, &txn);
}

/* ---- holdfast ---------------------------------------------------------- */

static void lock_pair(hf_client *client, const char *key, int64_t wait_ms,
                      const struct hf_lock_opts *opts)
{
    struct hf_error err;
    hf_lock *lk;

    must(hf_acquire(client, key, wait_ms, opts, &lk, &err), &err);
    must(hf_release(lk, &err), &err);
}

struct part {
    pthread_t thread;
    hf_client *client;
    const struct hf_lock_opts *opts;
    char key[32];
    double until;
    long done;
};

static void *part_run(void *arg)
{
    struct part *p = arg;

    while (seconds() < p->until) {
        lock_pair(p->client, p->key, -1, p->opts);
        p->done++;
    }
    return NULL;
}

/* So many threads for two seconds; pairs per second. */
static double many(hf_client **clients, int nclients, int threads, bool one_key,
                   const struct hf_lock_opts *opts)
{
    struct part parts[THREADS_MAX] = {0};
    double began = seconds();
    long done = 0;
    int i;

    for (i = 0; i < threads; i++) {
        parts[i].client = clients[i % nclients];
        parts[i].opts = opts;
        parts[i].until = began + 2;
        snprintf(parts[i].key, sizeof(parts[i].key), "k%d", one_key ? 0 : i);
        pthread_create(&parts[i].thread, NULL, part_run, &parts[i]);
    }
    for (i = 0; i < threads; i++) {
        pthread_join(parts[i].thread, NULL);
        done += parts[i].done;
    }
    return (double)done / (seconds() - began);
}

/* One thread: alternate both, so that a slow moment falls on both. */
static void single(struct hfi_h2 *h2, hf_client *client, int rounds)
{
    double raw = 0, ours = 0, at;
    int i, k;

    for (i = 0; i < rounds; i++) {
        at = seconds();
        for (k = 0; k < 100; k++)
            raw_pair(h2);
        raw += seconds() - at;
        at = seconds();
        for (k = 0; k < 100; k++)
            lock_pair(client, "k", 0, NULL);
        ours += seconds() - at;
    }
    printf("single-raw %.1f\n", raw * 1e4 / rounds);
    printf("single %.1f\n", ours * 1e4 / rounds);
    printf("single-ratio %.3f\n", ours / raw);
}

int main(void)
{
    const char *url = getenv("HF_TEST_URL");
    struct hf_lock_opts fair = HF_LOCK_OPTS_INIT;
    struct hfi_endpoint end = {.alive_ms = 15000};
    struct hf_error err;
    hf_client *clients[8];
    struct hfi_h2 h2;
    int i;

    if (!url || sscanf(url, "etcd://%255[^:]:%d", end.host, &end.port) != 2)
        return fprintf(stderr, "bench-etcd: no HF_TEST_URL\n"), 1;
    hfi_h2_init(&h2, &end, 1);
    for (i = 0; i < 8; i++)
        must(hf_open(url, NULL, &clients[i], &err), &err);
    raw_pair(&h2);
    lock_pair(clients[0], "k", 0, NULL);
    single(&h2, clients[0], 20);
    fair.flags = HF_FAIR;
    printf("spread64 %.0f\n", many(clients, 1, 64, false, NULL));
    printf("contended8 %.0f\n", many(clients, 8, 8, true, &fair));
    printf("contended8-local %.0f\n", many(clients, 1, 8, true, NULL));
    for (i = 0; i < 8; i++)
        hf_close(clients[i]);
    hfi_h2_fini(&h2);
    return 0;
}
