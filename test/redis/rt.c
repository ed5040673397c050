/* SPDX-License-Identifier: MIT
 *
 * rt.c - servers for tests; see rt.h.
 */
#include "rt.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- servers ----------------------------------------------------------- */

int rt_free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK_EQ(bind(fd, (struct sockaddr *)&at, len), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    close(fd);
    return ntohs(at.sin_port);
}

static void rt_exec(struct rt_server *s)
{
    char path[200];
    int fd;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(path, sizeof(path), "%s/log", s->dir);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execvp(s->args[0], s->args);
    _exit(127);
}

static bool rt_answers(struct rt_server *s)
{
    redisReply *reply = rt_try(s, "PING");
    bool ok = reply && reply->type == REDIS_REPLY_STATUS;

    if (reply)
        freeReplyObject(reply);
    return ok;
}

void rt_again(struct rt_server *s)
{
    int64_t end = t_now_ms() + 20000;
    char command[256];

    CHECK_EQ(s->pid, 0);
    s->pid = fork();
    CHECK_GE(s->pid, 0);
    if (s->pid == 0)
        rt_exec(s);
    while (!rt_answers(s)) {
        if (t_now_ms() > end || waitpid(s->pid, NULL, WNOHANG) == s->pid) {
            snprintf(command, sizeof(command), "tail %s/log >&2", s->dir);
            CHECK_EQ(system(command), 0);
            t_fail(__FILE__, __LINE__, "the server does not start");
        }
        t_sleep_ms(5);
    }
}

static void rt_add(struct rt_server *s, const char *arg)
{
    int n = 0;

    while (s->args[n])
        n++;
    CHECK_LT(n, RT_ARGS - 1);
    s->args[n] = strdup(arg);
}

/* No port without TLS, so that who does not use it gets nowhere; and a
 * certificate is wanted of everybody. */
static void rt_add_tls(struct rt_server *s, const char *port)
{
    static const char *const files[][2] = {{"--tls-cert-file", "localhost.pem"},
                                           {"--tls-key-file", "localhost.key"},
                                           {"--tls-ca-cert-file", "ca.pem"}};
    char path[256];
    int i;

    rt_add(s, "--port");
    rt_add(s, "0");
    rt_add(s, "--tls-port");
    rt_add(s, port);
    rt_add(s, "--tls-replication");
    rt_add(s, "yes");
    for (i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", s->tls, files[i][1]);
        rt_add(s, files[i][0]);
        rt_add(s, path);
    }
}

void rt_start(struct rt_server *s, ...)
{
    static int count;
    const char *program = s->run ? s->run : "redis-server";
    char port[16], sock[200];
    const char *first[] = {program,     "--port", port,   "--bind",
                           "127.0.0.1", "--dir",  s->dir, "--unixsocket",
                           sock,        "--save", "",     NULL};
    const char *arg;
    va_list ap;
    int n;

    *s = (struct rt_server){.port = rt_free_port(),
                            .run = s->run,
                            .password = s->password,
                            .tls = s->tls};
    if (system("command -v redis-server >/dev/null"))
        T_SKIP_HOST("there is no redis-server");
    snprintf(s->dir, sizeof(s->dir), "%s/%d", t_tmpdir(), count++);
    snprintf(port, sizeof(port), "%d", s->port);
    snprintf(sock, sizeof(sock), "%s/sock", s->dir);
    CHECK_EQ(mkdir(s->dir, 0700), 0);
    for (n = 0; first[n]; n++)
        rt_add(s, first[n]);
    if (s->tls)
        rt_add_tls(s, port);
    va_start(ap, s);
    while ((arg = va_arg(ap, const char *)))
        rt_add(s, arg);
    va_end(ap);
    rt_again(s);
}

void rt_signal(struct rt_server *s, int sig)
{
    if (sig == SIGSTOP)
        t_stop(s->pid);
    else
        CHECK_EQ(kill(s->pid, sig), 0);
}

void rt_crash(struct rt_server *s)
{
    rt_signal(s, SIGKILL);
    CHECK_EQ(waitpid(s->pid, NULL, 0), s->pid);
    s->pid = 0;
}

void rt_stop(struct rt_server *s)
{
    int i;

    if (s->pid)
        rt_crash(s);
    for (i = 0; s->args[i]; i++)
        free(s->args[i]);
    memset(s->args, 0, sizeof(s->args));
}

/* What is kept beside a lock: nothing but its last grant and what is known of
 * it, which have names of one letter.  The place of a waiter has its token.  A
 * replica in a cluster does not tell; its master does. */
static bool rt_is_tidy(struct rt_server *s, const char *name)
{
    redisReply *fields = rt_try(s, "HKEYS %s", name);
    bool tidy =
        fields->type == REDIS_REPLY_ARRAY || !strncmp(fields->str, "MOVED ", 6);
    const char *rest = strstr(name, ":meta:") + strlen(":meta:");
    char queue[2200];
    long long places = 0;
    size_t i;

    for (i = 0; i < fields->elements; i++)
        places += fields->element[i]->len != 1;
    freeReplyObject(fields);
    snprintf(queue, sizeof(queue), "%.*s:queue:%s",
             (int)(rest - name) - (int)strlen(":meta:"), name, rest);
    if (places)
        places -= rt_int(s, "ZCOUNT %s 4e15 (7e15", queue);
    return tidy && places <= 0;
}

/* One key, by its name, that is neither a fence nor what belongs to it, nor a
 * mark of claims that are over, nor the place of a waiter that was passed over,
 * since it was dead: or NULL. */
static const char *rt_stray(struct rt_server *s)
{
    static char name[2200];
    redisReply *keys = rt_ask(s, "KEYS *");
    const char *found = NULL;
    size_t i;

    for (i = 0; i < keys->elements && !found; i++) {
        snprintf(name, sizeof(name), "%s", keys->element[i]->str);
        if (strstr(name, ":queue:")) {
            if (rt_int(s, "ZCOUNT %s -inf (4e15", name) > 0)
                found = name;
        } else if (!strstr(name, ":meta:") || !rt_is_tidy(s, name)) {
            found = name;
        }
    }
    freeReplyObject(keys);
    return found;
}

/* Servers before 7.0 have no sharded channels. */
size_t rt_channels(struct rt_server *s)
{
    redisReply *plain = rt_ask(s, "PUBSUB CHANNELS *wake:*");
    redisReply *sharded = rt_try(s, "PUBSUB SHARDCHANNELS *wake:*");
    size_t n = plain->elements;

    if (sharded && sharded->type == REDIS_REPLY_ARRAY)
        n += sharded->elements;
    freeReplyObject(plain);
    if (sharded)
        freeReplyObject(sharded);
    return n;
}

void rt_check_clean(struct rt_server *s)
{
    int64_t end = t_now_ms() + 3000;
    const char *stray;

    while ((stray = rt_stray(s))) {
        if (t_now_ms() > end)
            t_fail(__FILE__, __LINE__, "left behind: %s", stray);
        t_sleep_ms(20);
    }
    t_poll_until(rt_channels(s) == 0, 3000);
}

void rt_end(struct rt_server *s)
{
    rt_check_clean(s);
    rt_stop(s);
}

/* ---- questions --------------------------------------------------------- */

static redisReply *rt_vtry_once(struct rt_server *s, const char *fmt,
                                va_list ap)
{
    struct timeval limit = {.tv_sec = 10};
    redisContext *c;
    redisReply *reply = NULL;
    char path[200];

    snprintf(path, sizeof(path), "%s/sock", s->dir);
    c = redisConnectUnixWithTimeout(path, limit);
    if (c && !c->err) {
        redisSetTimeout(c, limit);
        if (s->password) {
            reply = redisCommand(c, "AUTH %s", s->password);
            if (reply)
                freeReplyObject(reply);
        }
        reply = redisvCommand(c, fmt, ap);
    }
    if (c)
        redisFree(c);
    return reply;
}

/* A server that becomes a replica closes all connections, also one on which the
 * question is just being asked; hiredis raises SIGPIPE then.  Elsewhere nobody
 * may. */
static redisReply *rt_vtry(struct rt_server *s, const char *fmt, va_list ap)
{
    struct timespec now = {0};
    redisReply *reply;
    sigset_t pipe, old;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &old);
    reply = rt_vtry_once(s, fmt, ap);
    while (sigtimedwait(&pipe, NULL, &now) == SIGPIPE)
        continue;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return reply;
}

redisReply *rt_try(struct rt_server *s, const char *fmt, ...)
{
    redisReply *reply;
    va_list ap;

    va_start(ap, fmt);
    reply = rt_vtry(s, fmt, ap);
    va_end(ap);
    return reply;
}

static redisReply *rt_vask(struct rt_server *s, const char *fmt, va_list ap)
{
    redisReply *reply = rt_vtry(s, fmt, ap);

    if (!reply)
        t_fail(__FILE__, __LINE__, "no answer to %s", fmt);
    if (reply->type == REDIS_REPLY_ERROR)
        t_fail(__FILE__, __LINE__, "%s: %s", fmt, reply->str);
    return reply;
}

redisReply *rt_ask(struct rt_server *s, const char *fmt, ...)
{
    redisReply *reply;
    va_list ap;

    va_start(ap, fmt);
    reply = rt_vask(s, fmt, ap);
    va_end(ap);
    return reply;
}

void rt_do(struct rt_server *s, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    freeReplyObject(rt_vask(s, fmt, ap));
    va_end(ap);
}

long long rt_int(struct rt_server *s, const char *fmt, ...)
{
    redisReply *reply;
    long long n;
    va_list ap;

    va_start(ap, fmt);
    reply = rt_vask(s, fmt, ap);
    va_end(ap);
    n = reply->type == REDIS_REPLY_INTEGER ? reply->integer : -1;
    freeReplyObject(reply);
    return n;
}

const char *rt_text(struct rt_server *s, const char *fmt, ...)
{
    static _Thread_local char texts[16][16384];
    static _Thread_local unsigned next;
    char *text = texts[next++ % 16];
    redisReply *reply;
    va_list ap;

    va_start(ap, fmt);
    reply = rt_vask(s, fmt, ap);
    va_end(ap);
    snprintf(text, sizeof(texts[0]), "%s", reply->str ? reply->str : "");
    freeReplyObject(reply);
    return text;
}

long long rt_calls(struct rt_server *s, const char *command)
{
    char name[64];
    const char *at;

    snprintf(name, sizeof(name), "cmdstat_%s:calls=", command);
    at = strstr(rt_text(s, "INFO commandstats"), name);
    return at ? strtoll(at + strlen(name), NULL, 10) : 0;
}

long long rt_waiters(struct rt_server *s, const char *key)
{
    return rt_int(s, "ZCOUNT {holdfast:%s}:queue: -inf (7e15", key);
}

void rt_plant(struct rt_server *s, int n, int ms, const char *channel)
{
    rt_do(s, "EVAL %s 2 {holdfast:k}:queue: {holdfast:k}:meta: %d %d %s",
          "local now=redis.call('TIME')[1]*1000 "
          "for i=1,ARGV[1] do local k=string.format('%032x',i) "
          "redis.call('ZADD',KEYS[1],i,k) redis.call('HSET',KEYS[2],k,"
          "cmsgpack.pack({now+ARGV[2],'','0 x',ARGV[3],'1',now-9000})) end",
          n, ms, channel);
}

bool rt_hears(struct rt_server *s, const char *key)
{
    redisReply *meta = rt_ask(s, "HGETALL {holdfast:%s}:meta:", key);
    bool any = false, all = true;
    size_t i;

    for (i = 0; i + 1 < meta->elements; i += 2) {
        const redisReply *place = meta->element[i + 1];

        if (meta->element[i]->len == 1)
            continue; /* It is none. */
        any = true;
        all = all && memmem(place->str, place->len, "wake:", 5);
    }
    freeReplyObject(meta);
    return any && all;
}

/* ---- clients ----------------------------------------------------------- */

const char *rt_url(int port, const char *more)
{
    static _Thread_local char urls[8][512];
    static _Thread_local unsigned next;
    char *url = urls[next++ % 8];

    snprintf(url, sizeof(urls[0]), "redis://127.0.0.1:%d%s", port, more);
    return url;
}

hf_client *rt_open(struct rt_server *s, const char *more)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(rt_url(s->port, more), NULL, &client, &t_err));
    return client;
}

struct hf_lock_opts rt_opts(int64_t ttl_ms, unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.flags = flags;
    return opts;
}

hf_lock *rt_lock(hf_client *client, const char *key, int64_t wait_ms,
                 int64_t ttl_ms, unsigned flags)
{
    struct hf_lock_opts opts = rt_opts(ttl_ms, flags);
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, wait_ms, &opts, &lk, &t_err));
    return lk;
}

void rt_check_refused(const char *url, hf_status want, const char *word)
{
    hf_client *client = NULL;
    const char *rest;
    size_t len;

    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), want);
    rest = strstr(t_err.text, ": ");
    len = rest ? (size_t)(rest - t_err.text) + 2 : 0;
    if (rest && !strncmp(rest + 2, t_err.text, len)) /* who it was */
        t_fail(__FILE__, __LINE__, "it is named twice: %s", t_err.text);
    if (!strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "'%s' is not in: %s", word, t_err.text);
    CHECK(!strstr(t_err.text, "s3cret"));
}

void rt_check_works(const char *url)
{
    hf_client *client = NULL;
    struct hf_service service = {.size = sizeof(service)};

    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(hf_release(rt_lock(client, "k", 1000, 5000, 0), &t_err));
    CHECK_OK(hf_describe(client, &service, &t_err));
    CHECK(!strstr(service.endpoint, "s3cret"));
    hf_close(client);
}

struct rt_waiter rt_waiter(hf_client *client, const char *key, int64_t wait_ms,
                           int64_t ttl_ms, unsigned flags)
{
    return (struct rt_waiter){.client = client,
                              .key = key,
                              .wait_ms = wait_ms,
                              .ttl_ms = ttl_ms,
                              .flags = flags};
}

static void *rt_wait_run(void *arg)
{
    struct rt_waiter *w = arg;
    struct hf_lock_opts opts = rt_opts(w->ttl_ms, w->flags);
    hf_lock *lk = NULL;

    opts.owner = w->owner;
    opts.retry_ms = w->retry_ms;
    w->st = hf_acquire(w->client, w->key, w->wait_ms, &opts, &lk, &w->err);
    if (w->st)
        return NULL;
    w->fence = hf_fence(lk);
    __atomic_store_n(&w->got_at, t_now_ms(), __ATOMIC_RELEASE);
    t_sleep_ms(w->hold_ms);
    w->st = hf_release(lk, &w->err);
    if (w->cut && w->st == HF_UNCERTAIN)
        w->st = HF_OK;
    return NULL;
}

void rt_wait_start(struct rt_waiter *w)
{
    CHECK_EQ(pthread_create(&w->thread, NULL, rt_wait_run, w), 0);
}

void rt_wait_join(struct rt_waiter *w)
{
    CHECK_EQ(pthread_join(w->thread, NULL), 0);
    if (w->st)
        t_fail(__FILE__, __LINE__, "a waiter for %s: %s (%s)", w->key,
               hf_status_name(w->st), w->err.text);
}
