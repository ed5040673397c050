/* SPDX-License-Identifier: MIT
 *
 * peer.c - a shell, and Consul's own tools as the other side; see peer.h.
 */
#include "peer.h"

#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

__attribute__((format(printf, 3, 0))) static void make(char *buf, size_t size,
                                                       const char *fmt,
                                                       va_list ap)
{
    static const char begin[] =
        "export C=http://$(cat $HF_TEST_DIR/1.addr); "
        "[ -n \"$HF_TEST_CACERT\" ] && C=https://localhost:${C##*:}; "
        "export CONSUL_HTTP_ADDR=$C; "
        "curl() { command curl ${HF_TEST_CACERT:+--cacert $HF_TEST_CACERT} "
        "${HF_TEST_TOKEN_FILE:+-H \"X-Consul-Token: "
        "$(cat $HF_TEST_TOKEN_FILE)\"} \"$@\"; }; ";
    int len = snprintf(buf, size, "%s", begin);

    vsnprintf(buf + len, size - (size_t)len, fmt, ap);
}

int sh(const char *fmt, ...)
{
    char command[4096];
    va_list ap;
    int status;

    va_start(ap, fmt);
    make(command, sizeof(command), fmt, ap);
    va_end(ap);
    fflush(stdout);
    status = system(command);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

const char *out(const char *fmt, ...)
{
    static char results[8][8192];
    static int next;
    char command[4096], *text = results[next++ % 8];
    size_t len = 0;
    FILE *pipe;
    va_list ap;
    int c;

    va_start(ap, fmt);
    make(command, sizeof(command), fmt, ap);
    va_end(ap);
    pipe = popen(command, "r");
    CHECK(pipe != NULL);
    while ((c = getc(pipe)) != EOF)
        if (c > ' ' && len + 1 < sizeof(results[0]))
            text[len++] = (char)c;
    text[len] = '\0';
    pclose(pipe);
    return text;
}

const char *url(const char *options)
{
    static _Thread_local char text[1024];
    const char *base = getenv("HF_TEST_URL");

    CHECK(base != NULL);
    snprintf(text, sizeof(text), "%s%s", base, options);
    return text;
}

hf_client *open_url(const char *address)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(address, NULL, &client, &t_err));
    return client;
}

hf_lock *lock(hf_client *client, const char *key, int64_t ttl_ms,
              int64_t wait_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_acquire(client, key, wait_ms, &opts, &lk, &t_err));
    return lk;
}

int count_sessions(void)
{
    return atoi(out("curl -s $C/v1/session/list | tr ',' '\\n' | "
                    "grep '\"Name\":\"holdfast' | grep -vc common"));
}

int count_common(void)
{
    return atoi(out("curl -s $C/v1/session/list | tr ',' '\\n' | "
                    "grep -c '\"Name\":\"holdfast common'"));
}

int count_locked(void)
{
    return count_locked_below("");
}

void check_clean(void)
{
    CHECK_EQ(count_sessions(), 0);
    CHECK_EQ(count_common(), 0);
    CHECK_EQ(count_locked(), 0);
    CHECK_STR(out("curl -s $C/v1/kv/?keys | grep '/.holdfast/'"), "");
}

void check_lost(hf_lock *lk, hf_loss reason)
{
    struct pollfd pfd = {.fd = hf_lost_fd(lk), .events = POLLIN};

    CHECK_EQ(poll(&pfd, 1, 30000), 1);
    CHECK(!hf_held(lk));
    CHECK_STR(hf_loss_name(hf_lost_reason(lk)), hf_loss_name(reason));
}

void steal(const char *name, const char *first)
{
    CHECK_EQ(sh("s=$(curl -s -X PUT $C/v1/session/create | cut -d'\"' -f4); "
                "%s >/dev/null; curl -s -X PUT -d x "
                "\"$C/v1/kv/%s?acquire=$s&flags=3304740253564472344\" | "
                "grep -q true",
                first, name),
             0);
}

int count_holders(const char *key)
{
    return atoi(out("curl -s $C/v1/kv/%s/.holdfast-holders/?keys | "
                    "tr ',' '\n' | grep -c holders",
                    key));
}

int count_locked_below(const char *name)
{
    return atoi(out("curl -s \"$C/v1/kv/%s?recurse\" | tr ',' '\n' | "
                    "grep -c '\"Session\"'",
                    name));
}

int count_live_holders(const char *key)
{
    char name[256];

    snprintf(name, sizeof(name), "%s/.holdfast-holders/", key);
    return count_locked_below(name);
}

const char *flags_of(const char *key)
{
    return out("curl -s $C/v1/kv/%s | tr ',' '\n' | grep '\"Flags\"'", key);
}

unsigned long long index_of(const char *key)
{
    return strtoull(out("curl -s $C/v1/kv/%s | tr ',' '\n' | "
                        "sed -n 's/.*\"ModifyIndex\":\\([0-9]*\\).*/\\1/p'",
                        key),
                    NULL, 10);
}

void end_session_of(const char *name)
{
    CHECK_EQ(sh("s=$(curl -s \"$C/v1/kv/%s?recurse\" | tr ',' '\n' | "
                "sed -n 's/.*\"Session\":\"\\([^\"]*\\)\".*/\\1/p' | head -1); "
                "curl -s -X PUT $C/v1/session/destroy/$s >/dev/null",
                name),
             0);
}

static void *wait_for_it(void *arg)
{
    struct peer_waiter *w = arg;

    CHECK_OK(hf_acquire(w->client, w->key, -1, &w->opts, &w->lk, &t_err));
    atomic_store(&w->done, true);
    return NULL;
}

void waiter_start_as(struct peer_waiter *w, hf_client *client, const char *key,
                     unsigned flags, const char *owner)
{
    *w = (struct peer_waiter){
        .client = client, .key = key, .opts = HF_LOCK_OPTS_INIT};
    w->opts.flags = flags;
    w->opts.ttl_ms = 20000;
    w->opts.owner = owner;
    CHECK_EQ(pthread_create(&w->thread, NULL, wait_for_it, w), 0);
}

void waiter_start(struct peer_waiter *w, hf_client *client, const char *key,
                  unsigned flags)
{
    waiter_start_as(w, client, key, flags, NULL);
}

void waiter_release(struct peer_waiter *w)
{
    CHECK_EQ(pthread_join(w->thread, NULL), 0);
    CHECK_OK(hf_release(w->lk, &t_err));
}
