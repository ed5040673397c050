/* SPDX-License-Identifier: MIT
 *
 * etcd.c - locks on etcd beside the bare transactions and etcd's Go package.
 *
 * It is run beside a server, whose URL is in HF_TEST_URL:
 *
 *     test/servers/etcd build/bench/bench-etcd single
 *
 *   single      one thread takes and gives back one lock
 *   spread64    64 threads, each with a key of its own, on one client
 *   contended8  8 clients queue for one key
 *   local8      8 threads of one client do
 *   waiters N   N requests of one client wait for one key
 *   keepalive   a lease kept by calls, and by messages of one stream
 *   stall       both on a follower whose leader falls silent; wants -3
 *
 * "raw" is what a lock cannot do without: one transaction that puts a key if
 * the range is empty, and one that deletes it, over the same connection code.
 * etcd_peer.go prints the same figures for the Go package; bench/etcd runs
 * both and forms the ratios.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

static double cpu_seconds(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
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

/* What all contenders for one key have in common; the lock guards it. */
struct turn {
    double last; /* when it was last taken */
    long late;   /* later than that by half of etcd's slow tick */
};

struct part {
    pthread_t thread;
    hf_client *client;
    const struct hf_lock_opts *opts;
    struct turn *turn; /* or NULL: each has a key of its own */
    char key[32];
    double until;
    long done;
};

static void *part_run(void *arg)
{
    struct part *p = arg;
    struct hf_error err;
    hf_lock *lk;

    while (seconds() < p->until) {
        must(hf_acquire(p->client, p->key, -1, p->opts, &lk, &err), &err);
        if (p->turn) {
            p->turn->late += seconds() > p->turn->last + 0.05;
            p->turn->last = seconds();
        }
        must(hf_release(lk, &err), &err);
        p->done++;
    }
    return NULL;
}

/* So many threads for a second; pairs per second. */
static double many(hf_client **clients, int nclients, int threads, bool one_key,
                   const struct hf_lock_opts *opts)
{
    struct part parts[THREADS_MAX] = {0};
    double began = seconds();
    struct turn turn = {.last = began};
    long done = 0;
    int i;

    for (i = 0; i < threads; i++) {
        parts[i].client = clients[i % nclients];
        parts[i].opts = opts;
        parts[i].turn = one_key ? &turn : NULL;
        parts[i].until = began + 1;
        snprintf(parts[i].key, sizeof(parts[i].key), "k%d", one_key ? 0 : i);
        pthread_create(&parts[i].thread, NULL, part_run, &parts[i]);
    }
    for (i = 0; i < threads; i++) {
        pthread_join(parts[i].thread, NULL);
        done += parts[i].done;
    }
    if (one_key)
        printf("late %.3f\n", 100 * (double)turn.late / (double)done);
    return (double)done / (seconds() - began);
}

/* One thread: alternate both, so that a slow moment falls on both. */
static void single(struct hfi_h2 *h2, hf_client *client)
{
    double raw = 0, ours = 0, at;
    int i, k;

    for (i = 0; i < 40; i++) {
        at = seconds();
        for (k = 0; k < 25; k++)
            raw_pair(h2);
        raw += seconds() - at;
        at = seconds();
        for (k = 0; k < 25; k++)
            lock_pair(client, "k", 0, NULL);
        ours += seconds() - at;
    }
    printf("raw %.1f\n", 1000 / raw);
    printf("pairs %.1f\n", 1000 / ours);
}

/* So many requests wait for one key; what they cost this process. */
static long status_of(const char *what)
{
    char line[128];
    long value = 0;
    FILE *file = fopen("/proc/self/status", "r");

    while (file && fgets(line, sizeof(line), file))
        if (!strncmp(line, what, strlen(what)))
            value = strtol(line + strlen(what), NULL, 10);
    if (file)
        fclose(file);
    return value;
}

static void waiters(hf_client *client, int n)
{
    struct hf_lock_opts fair = HF_LOCK_OPTS_INIT;
    hf_request **all = calloc((size_t)n, sizeof(hf_request *));
    struct hf_info info = {.size = sizeof(info)};
    struct hf_error err;
    double began = seconds();
    long before;
    hf_lock *lk;
    int i;

    fair.flags = HF_FAIR;
    fair.ttl_ms = 120000;
    must(hf_acquire(client, "k", 0, &fair, &lk, &err), &err);
    before = status_of("VmRSS:");
    for (i = 0; all && i < n; i++)
        must(hf_acquire_start(client, "k", -1, &fair, NULL, &all[i], &err),
             &err);
    do {
        sleep(1);
        must(hf_inspect(client, "k", &info, &err), &err);
    } while (info.waiters < n && seconds() < began + 300);
    printf("waiting %d\nqueued_in_s %.1f\nbytes_each %.0f\nthreads %ld\n",
           (int)info.waiters, seconds() - began,
           (double)(status_of("VmRSS:") - before) * 1024 / n,
           status_of("Threads:"));
    fflush(stdout);
    for (i = 0; all && i < n; i++)
        hf_request_cancel(all[i]);
    free(all);
    must(hf_release(lk, &err), &err);
}

/* ---- keeping a lease: by calls, or by messages of one stream? ----------- */

static void keep_call(struct hfi_h2 *h2, const char *path,
                      const ProtobufCMessage *message, int64_t *id)
{
    size_t len = protobuf_c_message_get_packed_size(message);
    struct hfi_h2_call call = {.path = path,
                               .body = calloc(1, HFI_GRPC_PREFIX + len),
                               .len = HFI_GRPC_PREFIX + len};
    Pb__LeaseGrantResponse *answer;
    struct hf_error err;

    protobuf_c_message_pack(message, call.body + HFI_GRPC_PREFIX);
    must(hfi_h2_call(h2, &call, 1, NULL, hfi_now() + 5000, &err), &err);
    answer = pb__lease_grant_response__unpack(
        NULL, call.answer_len - HFI_GRPC_PREFIX, call.answer + HFI_GRPC_PREFIX);
    if (answer)
        *id = answer->id;
    pb__lease_grant_response__free_unpacked(answer, NULL);
    free(call.body);
    free(call.answer);
}

static void keep_heard(void *arg, const void *message, size_t len)
{
    (void)message;
    *(int *)arg += len > 0;
}

/* What a file of the cluster's directory says of a member. */
static void member_of(int id, const char *what, char *ret, int size)
{
    const char *members = getenv("HF_TEST_MEMBERS");
    char path[300];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%d/%s", members ? members : "", id, what);
    file = fopen(path, "r");
    if (!file || !fgets(ret, size, file)) {
        fprintf(stderr, "bench-etcd: no such member\n");
        exit(1);
    }
    fclose(file);
}

static double server_seconds(void)
{
    char path[64], text[1024] = "", pid[32];
    unsigned long user = 0, kernel = 0;
    FILE *file;

    member_of(1, "pid", pid, sizeof(pid));
    snprintf(path, sizeof(path), "/proc/%d/stat", atoi(pid));
    file = fopen(path, "r");
    if (!file || !fgets(text, sizeof(text), file))
        return 0;
    fclose(file);
    sscanf(text, "%*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu %lu",
           &user, &kernel);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static void keepalive(struct hfi_h2 *h2)
{
    enum { TIMES = 5000 };
    Pb__LeaseGrantRequest ask = PB__LEASE_GRANT_REQUEST__INIT;
    Pb__LeaseKeepAliveRequest keep = PB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    struct h2_link *own = NULL;
    unsigned char message[32];
    double at[3], cpu[3], server[3];
    int64_t id = 0;
    struct hf_error err;
    int i, heard = 0;

    ask.ttl = 60;
    keep_call(h2, ETCD_GRANT, &ask.base, &id);
    keep.id = id;
    must(hfi_h2_open(h2, ETCD_KEEP_ALIVE, NULL, keep_heard, &heard,
                     hfi_now() + 5000, &own, &err),
         &err);
    at[0] = seconds(), cpu[0] = cpu_seconds(), server[0] = server_seconds();
    for (i = 0; i < TIMES; i++)
        keep_call(h2, ETCD_KEEP_ALIVE, &keep.base, &id);
    at[1] = seconds(), cpu[1] = cpu_seconds(), server[1] = server_seconds();
    for (i = 0; i < TIMES; i++) {
        struct pollfd p = {.fd = hfi_h2_fd(own), .events = POLLIN};
        size_t len = pb__lease_keep_alive_request__pack(&keep, message);

        hfi_h2_send(own, message, len);
        while (heard <= i && poll(&p, 1, 5000) == 1 && !hfi_h2_hear(own))
            continue;
    }
    at[2] = seconds(), cpu[2] = cpu_seconds(), server[2] = server_seconds();
    for (i = 0; i < 2; i++)
        printf("%s %.1f us, client %.1f, server %.1f\n", i ? "stream" : "calls",
               (at[i + 1] - at[i]) * 1e6 / TIMES,
               (cpu[i + 1] - cpu[i]) * 1e6 / TIMES,
               (server[i + 1] - server[i]) * 1e6 / TIMES);
    hfi_h2_close(own);
}

/* ---- the same when the leader falls silent ------------------------------ */

static int leader(void)
{
    FILE *pipe = popen("etcdctl endpoint status |"
                       " awk -F', ' '$5 == \"true\" { print NR }'",
                       "r");
    int id = 0;

    if (!pipe || fscanf(pipe, "%d", &id) != 1)
        id = 0;
    if (pipe)
        pclose(pipe);
    return id;
}

/* Until a call that is given up after half a second is answered. */
static void *stall_calls(void *arg)
{
    struct hfi_h2 *h2 = arg;
    unsigned char body[HFI_GRPC_PREFIX + 16] = {0};
    Pb__LeaseKeepAliveRequest keep = PB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    double began = seconds();
    hf_status st;

    do {
        struct hfi_h2_call call = {.path = ETCD_KEEP_ALIVE, .body = body};

        keep.id = 1; /* There is no such lease, which only a leader knows. */
        call.len = HFI_GRPC_PREFIX + pb__lease_keep_alive_request__pack(
                                         &keep, body + HFI_GRPC_PREFIX);
        st = hfi_h2_call(h2, &call, 1, NULL, hfi_now() + 500, NULL);
        if (!st && call.grpc_status)
            st = HF_UNAVAILABLE;
        free(call.answer);
    } while (st && seconds() < began + 30);
    printf("calls answered after %.1f s\n", seconds() - began);
    return NULL;
}

static void stall(void)
{
    Pb__LeaseKeepAliveRequest keep = PB__LEASE_KEEP_ALIVE_REQUEST__INIT;
    struct hfi_endpoint end = {.alive_ms = 15000};
    int lead = leader(), heard = 0, sent;
    char pid[32], url[64];
    unsigned char message[32];
    struct h2_link *own = NULL;
    struct hf_error err;
    struct hfi_h2 h2;
    pthread_t calls;
    double began;

    member_of(lead, "pid", pid, sizeof(pid));
    member_of(lead % 3 + 1, "url", url, sizeof(url));
    if (sscanf(url, "etcd://%255[^:]:%d", end.host, &end.port) != 2)
        exit(1);
    hfi_h2_init(&h2, &end, 1);
    must(hfi_h2_open(&h2, ETCD_KEEP_ALIVE, NULL, keep_heard, &heard,
                     hfi_now() + 5000, &own, &err),
         &err);
    kill(atoi(pid), SIGSTOP);
    began = seconds();
    pthread_create(&calls, NULL, stall_calls, &h2);
    keep.id = 1;
    for (sent = 0; heard < 3 && seconds() < began + 30;) {
        struct pollfd p = {.fd = hfi_h2_fd(own), .events = POLLIN};
        int before = heard;

        if (sent < 3 && seconds() >= began + 0.5 * sent) {
            hfi_h2_send(own, message,
                        pb__lease_keep_alive_request__pack(&keep, message));
            sent++;
        }
        if (poll(&p, 1, 20) == 1 && hfi_h2_hear(own))
            break;
        if (heard > before)
            printf("stream: message %d answered after %.1f s\n", heard,
                   seconds() - began);
    }
    if (heard < 3)
        printf("stream: ended after %.1f s with %d of %d answered\n",
               seconds() - began, heard, sent);
    pthread_join(calls, NULL);
    kill(atoi(pid), SIGCONT);
    hfi_h2_close(own);
    hfi_h2_fini(&h2);
}

int main(int argc, char **argv)
{
    const char *url = getenv("HF_TEST_URL"), *mode = argc > 1 ? argv[1] : "";
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
    fair.flags = HF_FAIR;
    if (!strcmp(mode, "single"))
        single(&h2, clients[0]);
    else if (!strcmp(mode, "spread64"))
        printf("pairs %.1f\n", many(clients, 1, 64, false, NULL));
    else if (!strcmp(mode, "contended8"))
        printf("pairs %.1f\n", many(clients, 8, 8, true, &fair));
    else if (!strcmp(mode, "local8"))
        printf("pairs %.1f\n", many(clients, 1, 8, true, NULL));
    else if (!strcmp(mode, "waiters"))
        waiters(clients[0], argc > 2 ? atoi(argv[2]) : 10000);
    else if (!strcmp(mode, "keepalive"))
        keepalive(&h2);
    else if (!strcmp(mode, "stall"))
        stall();
    else
        return fprintf(stderr, "bench-etcd: no such figure\n"), 64;
    printf("cpu %.3f\n", cpu_seconds());
    for (i = 0; i < 8; i++)
        hf_close(clients[i]);
    hfi_h2_fini(&h2);
    return 0;
}
