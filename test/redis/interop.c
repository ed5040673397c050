/* SPDX-License-Identifier: MIT
 *
 * interop.c - holdfast and the lock libraries that people have today exclude
 * each other on the same key, in both directions: redis-py's Lock, and from npm
 * node-redlock and redis-semaphore's Mutex.
 *
 * A peer is a process that is told what to do line by line.  The libraries from
 * npm are fetched once into $HF_PEERS; where that cannot be done, the points
 * are skipped and say why.
 */
#include "rt.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
    pid_t pid;
    FILE *to, *from;
    const char *prefix; /* what the library puts before a key */
};

static void peer_start(struct peer *peer, const char *const *argv)
{
    int to[2], from[2];

    CHECK_EQ(pipe2(to, O_CLOEXEC), 0);
    CHECK_EQ(pipe2(from, O_CLOEXEC), 0);
    peer->pid = fork();
    CHECK_GE(peer->pid, 0);
    if (peer->pid == 0) {
        dup2(to[0], STDIN_FILENO);
        dup2(from[1], STDOUT_FILENO);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    peer->to = fdopen(to[1], "w");
    peer->from = fdopen(from[0], "r");
}

static void peer_stop(struct peer *peer)
{
    int status;

    fclose(peer->to);
    CHECK_EQ(waitpid(peer->pid, &status, 0), peer->pid);
    fclose(peer->from);
    CHECK_EQ(status, 0);
}

static void peer_send(struct peer *peer, const char *line)
{
    fprintf(peer->to, "%s\n", line);
    CHECK_EQ(fflush(peer->to), 0);
}

static const char *peer_answer(struct peer *peer)
{
    static char answer[512];

    if (!fgets(answer, sizeof(answer), peer->from))
        t_fail(__FILE__, __LINE__, "the peer is gone");
    answer[strcspn(answer, "\n")] = '\0';
    return answer;
}

static const char *peer_ask(struct peer *peer, const char *line)
{
    peer_send(peer, line);
    return peer_answer(peer);
}

/* ---- both directions --------------------------------------------------- */

static void check_exclusion(struct rt_server *s, struct peer *peer,
                            hf_client *client, const char *key)
{
    struct hf_lock_opts opts = rt_opts(30000, 0);
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk, *other = NULL;

    lk = rt_lock(client, key, 0, 30000, 0);
    CHECK_STR(peer_ask(peer, "try k 30000"), "busy");
    CHECK_STR(rt_text(s, "GET %s", key), hf_token(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STR(peer_ask(peer, "try k 30000"), "yes");
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &other, &t_err), HF_BUSY);
    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    CHECK(info.held);
    CHECK_STR(info.owner, peer_ask(peer, "token"));
    CHECK_GT(info.left_ms, 20000);
    CHECK_STR(peer_ask(peer, "extend"), "ok");
    CHECK_STR(peer_ask(peer, "release"), "ok");
    CHECK_OK(hf_release(rt_lock(client, key, 0, 30000, 0), &t_err));
}

static void check_waiting(struct peer *peer, hf_client *client, const char *key)
{
    struct rt_waiter w = rt_waiter(client, key, 20000, 60000, 0);
    hf_lock *lk;
    int64_t freed;

    /* The peer waits for us. */
    lk = rt_lock(client, key, 0, 30000, 0);
    peer_send(peer, "wait k 60000");
    t_sleep_ms(100);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STR(peer_answer(peer), "yes");
    /* We wait for the peer, which tells nobody that it releases. */
    rt_wait_start(&w);
    t_sleep_ms(300);
    freed = t_now_ms();
    CHECK_STR(peer_ask(peer, "release"), "ok");
    rt_wait_join(&w);
    CHECK_LE(w.got_at - freed, 2000);
}

/* The peer's lease ends; what is ours then stays ours. */
static void check_expiry(struct rt_server *s, struct peer *peer,
                         hf_client *client, const char *key)
{
    int64_t begun = t_now_ms();
    hf_lock *lk;

    CHECK_STR(peer_ask(peer, "try k 400"), "yes");
    lk = rt_lock(client, key, 5000, 30000, 0);
    CHECK_GE(t_now_ms() - begun, 350);
    peer_ask(peer, "release"); /* says what it likes to say */
    CHECK_STR(rt_text(s, "GET %s", key), hf_token(lk));
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
}

/* Read, add one, write: by the peer and by us, under the same lock. */
static void check_counting(struct rt_server *s, struct peer *peer,
                           hf_client *client, const char *key)
{
    char line[64];
    int i, n = t_scaled(60, 20);
    hf_lock *lk;

    rt_do(s, "SET sum 0");
    snprintf(line, sizeof(line), "count k sum %d", n);
    peer_send(peer, line);
    for (i = 0; i < n; i++) {
        lk = rt_lock(client, key, 20000, 10000, 0);
        rt_do(s, "SET sum %lld", strtoll(rt_text(s, "GET sum"), NULL, 10) + 1);
        CHECK_OK(hf_release(lk, &t_err));
        t_sleep_ms(1);
    }
    CHECK_STR(peer_answer(peer), "ok");
    CHECK_EQ(strtoll(rt_text(s, "GET sum"), NULL, 10), 2 * n);
    rt_do(s, "DEL sum");
}

static void check_peer(struct rt_server *s, struct peer *peer)
{
    hf_client *client = rt_open(s, "?prefix=");
    char key[64];

    snprintf(key, sizeof(key), "%sk", peer->prefix);
    check_exclusion(s, peer, client, key);
    check_waiting(peer, client, key);
    check_expiry(s, peer, client, key);
    check_counting(s, peer, client, key);
    peer_stop(peer);
    hf_close(client);
    rt_end(s);
}

/* ---- the peers --------------------------------------------------------- */

TEST(redis_py_and_holdfast_exclude_each_other)
{
    struct rt_server s = {0};
    struct peer peer = {.prefix = ""};
    const char *python = "python3";
    char port[16];

    if (system("python3 -c 'import redis' 2>/dev/null")) {
        python = "/usr/bin/python3";
        if (system("/usr/bin/python3 -c 'import redis' 2>/dev/null"))
            T_SKIP_HOST("there is no redis-py");
    }
    rt_start(&s, NULL);
    snprintf(port, sizeof(port), "%d", s.port);
    peer_start(&peer,
               (const char *[]){python, HF_TEST_SOURCE "/peer.py", port, NULL});
    check_peer(&s, &peer);
}

/* Where the libraries of npm are; fetched on first use. */
static const char *npm_directory(void)
{
    static char dir[300];
    const char *base = getenv("HF_PEERS");
    char command[2048];

    if (system("command -v node >/dev/null && command -v npm >/dev/null"))
        T_SKIP_HOST("there is no npm");
    snprintf(dir, sizeof(dir), "%s", base ? base : t_tmpdir());
    snprintf(command, sizeof(command),
             "mkdir -p %s && cd %s && exec 9>lock && flock 9 &&"
             "{ [ -d node_modules/redlock ] ||"
             " { [ ! -e failed ] && timeout 40 npm install --no-audit --no-fund"
             " --silent ioredis@5 redis-semaphore@5 redlock@5.0.0-beta.2 ||"
             " { touch failed; false; }; }; } >npm.log 2>&1",
             dir, dir);
    if (system(command))
        T_SKIP_HOST("the registry of npm does not answer");
    return dir;
}

static void check_npm(const char *library, const char *prefix)
{
    struct rt_server s = {0};
    struct peer peer = {.prefix = prefix};
    const char *dir = npm_directory();
    char port[16];

    rt_start(&s, NULL);
    snprintf(port, sizeof(port), "%d", s.port);
    peer_start(&peer, (const char *[]){"node", HF_TEST_SOURCE "/peer.mjs", dir,
                                       port, library, NULL});
    check_peer(&s, &peer);
}

TEST(redis_semaphore_and_holdfast_exclude_each_other)
{
    check_npm("redis-semaphore", "mutex:");
}

TEST(node_redlock_and_holdfast_exclude_each_other)
{
    check_npm("redlock", "");
}

T_MAIN
