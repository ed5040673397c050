/* SPDX-License-Identifier: MIT
 *
 * etcd.c - a lease of etcd kept by calls, and by messages of one stream.
 *
 * It is run beside a server, whose URL is in HF_TEST_URL:
 *
 *     test/servers/etcd build/bench/bench-etcd keepalive
 *     test/servers/etcd -3 build/bench/bench-etcd stall
 *
 *   keepalive   what each takes, here and in the server
 *   stall       both on a follower whose leader falls silent
 *
 * All else is asked by `make bench BACKEND=etcd`.
 */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/etcd/etcd.h"
#include "base/env.h"

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
    struct hfi_endpoint end = {.alive_ms = 15000};
    struct hfi_h2 h2;

    if (!url || sscanf(url, "etcd://%255[^:]:%d", end.host, &end.port) != 2)
        return fprintf(stderr, "bench-etcd: no HF_TEST_URL\n"), 1;
    hfi_h2_init(&h2, &end, 1);
    if (!strcmp(mode, "keepalive"))
        keepalive(&h2);
    else if (!strcmp(mode, "stall"))
        stall();
    else
        return fprintf(stderr, "bench-etcd: no such figure\n"), 64;
    hfi_h2_fini(&h2);
    return 0;
}
