/* SPDX-License-Identifier: MIT
 *
 * consul.c - what a lock on Consul costs, beside the bare HTTP calls.
 *
 *     test/servers/consul build/bench/consul/bench-consul
 *
 * Bare means libcurl on one connection: PUT ?acquire and PUT ?release, and a
 * blocking GET for the hand-over.  All candidates run in turn in one process,
 * so that a slow moment of the machine falls on all alike; medians are told.
 * `consul lock` starts a process for each lock, and so does its counterpart
 * here.
 */
#include "holdfast.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 101, OPS = 20, HANDS = 300, RUNS = 10 };

static const char *service;
static char base[128], session[64];

static void die(const char *what)
{
    fprintf(stderr, "bench-consul: %s\n", what);
    exit(1);
}

static double now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static int compare(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;

    return (d > 0) - (d < 0);
}

static double quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof(*values), compare);
    return values[(size_t)((double)(n - 1) * q)];
}

/* One line of the table, and one with a limit that it must keep. */
static void told(const char *what, double value, const char *unit)
{
    printf("%-36s%10.*f %s\n", what, *unit == 'u' ? 0 : 2, value, unit);
}

static void limit(const char *what, double value, const char *unit, double most)
{
    printf("%-36s%10.*f %s   at most %g: %s\n", what, *unit == 'u' ? 0 : 2,
           value, unit, most, value <= most ? "kept" : "MISSED");
}

/* ---- bare calls --------------------------------------------------------- */

struct answer {
    char text[4096];
    size_t len;
    unsigned long long index;
};

static size_t keep(char *data, size_t one, size_t n, void *arg)
{
    struct answer *answer = arg;
    size_t room = sizeof(answer->text) - 1 - answer->len;

    (void)one;
    memcpy(answer->text + answer->len, data, n < room ? n : room);
    answer->len += n < room ? n : room;
    answer->text[answer->len] = '\0';
    return n;
}

static size_t head(char *line, size_t one, size_t n, void *arg)
{
    (void)one;
    sscanf(line, "X-Consul-Index: %llu", &((struct answer *)arg)->index);
    return n;
}

static void bare(CURL *easy, const char *method, const char *path,
                 const char *body, struct answer *answer)
{
    char url[512];

    answer->len = 0;
    answer->text[0] = '\0';
    snprintf(url, sizeof(url), "%s%s", base, path);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, answer);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, head);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, answer);
    if (body)
        curl_easy_setopt(easy, CURLOPT_COPYPOSTFIELDS, body);
    else
        curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
    if (curl_easy_perform(easy))
        die("a bare call failed");
}

static void bare_lock(CURL *easy, const char *verb)
{
    struct answer answer = {.len = 0};
    char path[256];

    snprintf(path, sizeof(path), "/v1/kv/bench/bare?%s=%s", verb, session);
    bare(easy, "PUT", path, "host:12345", &answer);
    if (strncmp(answer.text, "true", 4) != 0)
        die("a bare lock was refused");
}

/* The last ModifyIndex in an answer. */
static unsigned long long last_index(const char *text)
{
    static const char name[] = "\"ModifyIndex\":";
    unsigned long long index = 0;

    while ((text = strstr(text, name))) {
        text += sizeof(name) - 1;
        index = strtoull(text, NULL, 10);
    }
    if (!index)
        die("a bare transaction was refused");
    return index;
}

static void begin_bare(CURL *easy)
{
    struct answer answer = {.len = 0};
    char *id;

    bare(easy, "PUT", "/v1/session/create",
         "{\"TTL\":\"600s\",\"LockDelay\":\"0s\",\"NodeChecks\":[],"
         "\"Checks\":[]}",
         &answer);
    id = strstr(answer.text, "\"ID\":");
    if (!id || sscanf(id, "\"ID\":%*[ ]\"%36[^\"]", session) != 1)
        if (!id || sscanf(id, "\"ID\":\"%36[^\"]", session) != 1)
            die("no session");
}

/* ---- acquire and release ------------------------------------------------ */

static double round_bare(CURL *easy)
{
    double began = now_us();

    for (int i = 0; i < OPS; i++) {
        bare_lock(easy, "acquire");
        bare_lock(easy, "release");
    }
    return (now_us() - began) / OPS;
}

/* The same two transactions that holdfast sends, word for word: what of the
 * difference is the service's share. */
static double round_txn(CURL *easy)
{
    static const char *const verbs[] = {"lock", "unlock"};
    struct answer answer = {.len = 0};
    unsigned long long index;
    double began;
    char body[512];

    bare(easy, "GET", "/v1/kv/bench/bare", NULL, &answer);
    index = answer.index;
    began = now_us();
    for (int i = 0; i < 2 * OPS; i++) {
        snprintf(body, sizeof(body),
                 "[{\"KV\":{\"Verb\":\"check-index\",\"Key\":\"bench/bare\","
                 "\"Index\":%llu}},{\"KV\":{\"Verb\":\"%s\",\"Key\":"
                 "\"bench/bare\",\"Session\":\"%s\",\"Value\":\"%s\","
                 "\"Flags\":3304740253564472344}}]",
                 index, verbs[i % 2], session,
                 "dG9rZW4gMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWYK");
        bare(easy, "PUT", "/v1/txn", body, &answer);
        index = last_index(answer.text);
    }
    return (now_us() - began) / OPS;
}

static double round_ours(hf_client *client)
{
    struct hf_error err;
    double began = now_us();
    hf_lock *lk;

    for (int i = 0; i < OPS; i++)
        if (hf_acquire(client, "bench/ours", 0, NULL, &lk, &err) ||
            hf_release(lk, &err))
            die(err.text);
    return (now_us() - began) / OPS;
}

/* Nothing decides by itself who goes first: a round may warm the caches for
 * the next one. */
static void bench_pair(CURL *easy, hf_client *client)
{
    static double bares[ROUNDS], ours[ROUNDS], txns[ROUNDS];
    double bare_us, txn_us, ours_us;

    round_bare(easy);
    round_ours(client);
    for (int i = 0; i < ROUNDS; i++) {
        if (i % 2)
            ours[i] = round_ours(client);
        bares[i] = round_bare(easy);
        txns[i] = round_txn(easy);
        if (i % 2 == 0)
            ours[i] = round_ours(client);
    }
    bare_us = quantile(bares, ROUNDS, 0.5);
    txn_us = quantile(txns, ROUNDS, 0.5);
    ours_us = quantile(ours, ROUNDS, 0.5);
    told("acquire+release, bare calls", bare_us, "us");
    told("acquire+release, bare transactions", txn_us, "us");
    told("acquire+release, holdfast", ours_us, "us");
    told("  transactions / bare calls", txn_us / bare_us, "x");
    limit("  holdfast / bare calls", ours_us / bare_us, "x", 1.15);
}

/* ---- hand-over ---------------------------------------------------------- */

static _Atomic int64_t released; /* us, when the release began */
static atomic_bool waiting;

static void *wait_bare(void *arg)
{
    struct answer answer = {.len = 0};
    CURL *easy = curl_easy_init();
    double *took = arg;
    char path[128];

    bare(easy, "GET", "/v1/kv/bench/bare", NULL, &answer);
    atomic_store(&waiting, true);
    snprintf(path, sizeof(path), "/v1/kv/bench/bare?wait=60s&index=%llu",
             answer.index);
    bare(easy, "GET", path, NULL, &answer);
    bare_lock(easy, "acquire");
    *took = now_us() - (double)atomic_load(&released);
    bare_lock(easy, "release");
    curl_easy_cleanup(easy);
    return NULL;
}

struct ours {
    hf_client *client;
    double took;
};

static void *wait_ours(void *arg)
{
    struct ours *ours = arg;
    struct hf_error err;
    hf_lock *lk;

    atomic_store(&waiting, true);
    if (hf_acquire(ours->client, "bench/hand", -1, NULL, &lk, &err))
        die(err.text);
    ours->took = now_us() - (double)atomic_load(&released);
    if (hf_release(lk, &err))
        die(err.text);
    return NULL;
}

static void settle(void)
{
    struct timespec ts = {.tv_nsec = 10000000};

    while (!atomic_load(&waiting))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    nanosleep(&ts, NULL);
    atomic_store(&waiting, false);
    atomic_store(&released, (int64_t)now_us());
}

static double hand_bare(CURL *easy)
{
    pthread_t thread;
    double took;

    bare_lock(easy, "acquire");
    pthread_create(&thread, NULL, wait_bare, &took);
    settle();
    bare_lock(easy, "release");
    pthread_join(thread, NULL);
    return took;
}

static double hand_ours(hf_client *from, hf_client *to)
{
    struct ours ours = {.client = to};
    struct hf_error err;
    pthread_t thread;
    hf_lock *lk;

    if (hf_acquire(from, "bench/hand", -1, NULL, &lk, &err))
        die(err.text);
    pthread_create(&thread, NULL, wait_ours, &ours);
    settle();
    if (hf_release(lk, &err))
        die(err.text);
    pthread_join(thread, NULL);
    return ours.took;
}

static void bench_hand_over(CURL *easy, hf_client *from, hf_client *to)
{
    static double bares[HANDS], ours[HANDS];

    for (int i = 0; i < HANDS; i++) {
        bares[i] = hand_bare(easy);
        ours[i] = hand_ours(from, to);
    }
    told("hand-over p50, bare query", quantile(bares, HANDS, 0.5), "us");
    told("hand-over p50, holdfast", quantile(ours, HANDS, 0.5), "us");
    told("  holdfast / bare query",
         quantile(ours, HANDS, 0.5) / quantile(bares, HANDS, 0.5), "x");
    told("hand-over p99, bare query", quantile(bares, HANDS, 0.99), "us");
    limit("hand-over p99, holdfast", quantile(ours, HANDS, 0.99), "us", 100000);
    told("  holdfast / bare query",
         quantile(ours, HANDS, 0.99) / quantile(bares, HANDS, 0.99), "x");
}

/* ---- a process for each lock -------------------------------------------- */

static void run(char *const argv[])
{
    int status;
    pid_t pid;

    fflush(stdout);
    pid = fork();
    if (!pid) {
        if (!freopen("/dev/null", "w", stdout) ||
            !freopen("/dev/null", "w", stderr))
            _exit(1);
        execv(argv[0], argv);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
        die("a process failed");
}

static double runs(char *const argv[])
{
    double took[RUNS], began;

    for (int i = 0; i < RUNS; i++) {
        began = now_us();
        run(argv);
        took[i] = now_us() - began;
    }
    return quantile(took, RUNS, 0.5) / 1000;
}

static void bench_processes(void)
{
    char address[160], once[] = "once", self[] = "/proc/self/exe";
    char lock[] = "lock", key[] = "bench/cli", job[] = "true", *consul;
    double theirs, ours;

    consul = getenv("HF_TEST_CONSUL");
    if (!consul)
        return;
    snprintf(address, sizeof(address), "-http-addr=%s", base);
    theirs = runs((char *[]){consul, lock, address, key, job, NULL});
    ours = runs((char *[]){self, once, NULL});
    told("a process that locks, consul lock", theirs, "ms");
    told("a process that locks, holdfast", ours, "ms");
    told("  holdfast / consul lock", ours / theirs, "x");
}

static hf_client *open_service(const char *url)
{
    struct hf_error err;
    hf_client *client;

    if (hf_open(url, NULL, &client, &err))
        die(err.text);
    return client;
}

int main(int argc, char **argv)
{
    hf_client *a, *b;
    hf_lock *lk;
    CURL *easy;

    (void)argv;
    service = getenv("HF_TEST_URL");
    if (!service || strncmp(service, "consul://", 9) != 0)
        die("run me under test/servers/consul");
    a = open_service(service);
    if (argc > 1) { /* See bench_processes(). */
        if (hf_acquire(a, "bench/once", -1, NULL, &lk, NULL) ||
            hf_release(lk, NULL))
            die("no lock");
        hf_close(a);
        return 0;
    }
    b = open_service(service);
    snprintf(base, sizeof(base), "http://%s", service + 9);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    easy = curl_easy_init();
    begin_bare(easy);
    bench_pair(easy, a);
    bench_hand_over(easy, a, b);
    bench_processes();
    curl_easy_cleanup(easy);
    hf_close(a);
    hf_close(b);
    return 0;
}
