/* SPDX-License-Identifier: MIT
 *
 * consul.c - bare HTTP to Consul as a candidate: libcurl, a connection for each
 * thread, one session.
 *
 * A pair is PUT ?acquire and PUT ?release.  Contended, it is what Consul's
 * documentation describes: try, and when it is busy, a blocking GET until the
 * key changes, then try again.  That is not fair, and all are woken.
 */
#include "cand.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char base[200], session[64];

struct conn {
    CURL *easy;
    char text[4096];
    size_t len;
    unsigned long long index;
};

static size_t keep(char *data, size_t one, size_t n, void *arg)
{
    struct conn *conn = arg;
    size_t room = sizeof(conn->text) - 1 - conn->len;

    (void)one;
    memcpy(conn->text + conn->len, data, n < room ? n : room);
    conn->len += n < room ? n : room;
    conn->text[conn->len] = '\0';
    return n;
}

static size_t head(char *line, size_t one, size_t n, void *arg)
{
    (void)one;
    sscanf(line, "X-Consul-Index: %llu", &((struct conn *)arg)->index);
    return n;
}

static void call(struct conn *conn, const char *method, const char *path,
                 const char *body)
{
    char url[900];

    conn->len = 0;
    conn->text[0] = '\0';
    snprintf(url, sizeof(url), "%s%s", base, path);
    curl_easy_setopt(conn->easy, CURLOPT_URL, url);
    if (body)
        curl_easy_setopt(conn->easy, CURLOPT_COPYPOSTFIELDS, body);
    else
        curl_easy_setopt(conn->easy, CURLOPT_HTTPGET, 1L);
    curl_easy_setopt(conn->easy, CURLOPT_CUSTOMREQUEST, method);
    if (curl_easy_perform(conn->easy))
        bench_die("a call failed: %s", path);
}

static void *conn_open(void)
{
    struct conn *conn = bench_alloc(sizeof(*conn));
    const char *url = getenv("HF_TEST_URL"), *id;

    if (!url || strncmp(url, "consul://", 9) != 0)
        bench_die("no HF_TEST_URL");
    snprintf(base, sizeof(base), "http://%s", url + 9);
    conn->easy = curl_easy_init();
    curl_easy_setopt(conn->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(conn->easy, CURLOPT_WRITEFUNCTION, keep);
    curl_easy_setopt(conn->easy, CURLOPT_WRITEDATA, conn);
    curl_easy_setopt(conn->easy, CURLOPT_HEADERFUNCTION, head);
    curl_easy_setopt(conn->easy, CURLOPT_HEADERDATA, conn);
    if (*session)
        return conn;
    call(conn, "PUT", "/v1/session/create",
         "{\"TTL\":\"600s\",\"LockDelay\":\"0s\",\"NodeChecks\":[],"
         "\"Checks\":[]}");
    id = strstr(conn->text, "\"ID\":");
    if (!id || sscanf(id + 5, "%*[ \"]%36[^\"]", session) != 1)
        bench_die("no session");
    return conn;
}

static void conn_close(void *arg)
{
    struct conn *conn = arg;

    curl_easy_cleanup(conn->easy);
    free(conn);
}

static bool put(struct conn *conn, const char *key, const char *verb)
{
    char path[600];

    snprintf(path, sizeof(path), "/v1/kv/raw/%s?%s=%s", key, verb, session);
    call(conn, "PUT", path, "host:12345");
    return !strncmp(conn->text, "true", 4);
}

static void take(void *conn, const char *key)
{
    if (!put(conn, key, "acquire"))
        bench_die("%s is not free", key);
}

static void give(void *conn, const char *key)
{
    if (!put(conn, key, "release"))
        bench_die("%s was not ours", key);
}

static void await(void *arg, const char *key)
{
    struct conn *conn = arg;
    char path[600];

    while (!put(conn, key, "acquire")) {
        snprintf(path, sizeof(path), "/v1/kv/raw/%s", key);
        call(conn, "GET", path, NULL);
        while (strstr(conn->text, "\"Session\"")) {
            snprintf(path, sizeof(path), "/v1/kv/raw/%s?wait=60s&index=%llu",
                     key, conn->index);
            call(conn, "GET", path, NULL);
        }
    }
}

int main(void)
{
    static const struct cand_kind kind = {
        .name = "consul",
        .open = conn_open,
        .close = conn_close,
        .take = take,
        .give = give,
        .await = await,
        .pass = give,
    };

    curl_global_init(CURL_GLOBAL_DEFAULT);
    return cand_main(&kind);
}
