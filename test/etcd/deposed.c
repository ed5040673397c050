/* SPDX-License-Identifier: MIT
 *
 * deposed.c - a leader that is stopped, loses its office and goes on: run under
 * test/servers/etcd -3 -n -q.
 *
 * Such a leader answers a KeepAlive out of its memory.  Here the holder asks it
 * at that very moment, and hears nothing more until the end of its lease; the
 * waiter asks the others.
 */
#include "t.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../torture/net.h"

enum { MEMBERS = 3 };

struct scene {
    struct net *net;
    hf_client *holder, *waiter;
    hf_lock *lk;
    hf_request *rq;
    int leader; /* of the members, which count from 1 */
};

static const char *member_file(int n, const char *name)
{
    static char text[512];
    char path[512];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%d/%s", getenv("HF_TEST_MEMBERS"), n,
             name);
    file = fopen(path, "r");
    CHECK(file != NULL);
    CHECK(fgets(text, sizeof(text), file) != NULL);
    fclose(file);
    text[strcspn(text, "\n")] = '\0';
    return text;
}

static const char *member_port(int n)
{
    return strrchr(member_file(n, "url"), ':') + 1;
}

static void member_signal(int n, int sig)
{
    CHECK_EQ(kill(atoi(member_file(n, "pid")), sig), 0);
}

/* Who leads, as the members see it that are not `stopped`; 0: nobody. */
static int leader(int stopped)
{
    char command[256], line[1024];
    int n, found = 0;
    FILE *pipe;

    for (n = 1; n <= MEMBERS; n++) {
        if (n == stopped)
            continue;
        snprintf(command, sizeof(command),
                 "curl -s -m 2 http://127.0.0.1:%s/metrics", member_port(n));
        pipe = popen(command, "r");
        CHECK(pipe != NULL);
        while (fgets(line, sizeof(line), pipe))
            if (!strcmp(line, "etcd_server_is_leader 1\n"))
                found = n;
        pclose(pipe);
    }
    return found;
}

/* Nothing passes between member `n` and the others; 0: everything does. */
static void cut_off(int n)
{
    char path[512];
    FILE *file;
    int other;

    snprintf(path, sizeof(path), "%s/cuts", getenv("HF_TEST_MEMBERS"));
    file = fopen(path, "w");
    CHECK(file != NULL);
    for (other = 1; other <= MEMBERS && n; other++)
        if (other != n)
            fprintf(file, "%d %d\n%d %d\n", n, other, other, n);
    fclose(file);
}

static void tell(struct scene *s, const char *command)
{
    char answer[128];

    if (!net_tell(s->net, command, answer, sizeof(answer)))
        t_fail(__FILE__, __LINE__, "%s: %s", command, answer);
}

static hf_client *client_of(const char *url)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    opts.timeout_ms = 3000;
    t_poll_until(!hf_open(url, &opts, &client, &t_err), 20000);
    return client;
}

/* The holder, whose first member is the leader, and one that waits elsewhere.  The
 * cluster may be at an election after the test before. */
static void scene_begin(struct scene *s, const char *key, int64_t ttl_ms,
                        unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    char holder[256], waiter[256];
    int i, port[MEMBERS], who[MEMBERS];

    memset(s, 0, sizeof(*s));
    t_poll_until((s->leader = leader(0)) != 0, 20000);
    s->net = net_new();
    CHECK(s->net != NULL);
    for (i = 0; i < MEMBERS; i++) {
        who[i] = (s->leader - 1 + i) % MEMBERS + 1;
        port[i] = net_port(s->net, "127.0.0.1", member_port(who[i]));
        CHECK_GT(port[i], 0);
    }
    snprintf(holder, sizeof(holder),
             "etcd://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d?order=given",
             port[0], port[1], port[2]);
    snprintf(waiter, sizeof(waiter), "etcd://127.0.0.1:%s",
             member_port(who[1]));
    snprintf(waiter + strlen(waiter), sizeof(waiter) - strlen(waiter),
             ",127.0.0.1:%s", member_port(who[2]));
    s->holder = client_of(holder);
    s->waiter = client_of(waiter);
    opts.ttl_ms = ttl_ms;
    opts.flags = flags;
    t_poll_until(!hf_acquire(s->holder, key, 0, &opts, &s->lk, &t_err), 20000);
    opts.flags = 0;
    CHECK_OK(hf_acquire_start(s->waiter, key, -1, &opts, NULL, &s->rq, &t_err));
    t_poll_until(hf_request_place(s->rq) == 1, 20000);
}

static void scene_depose(struct scene *s)
{
    member_signal(s->leader, SIGSTOP);
    cut_off(s->leader);
    t_poll_until(leader(s->leader) != 0, 20000);
}

/* The waiter does not have it before the holder has stopped believing. */
static void scene_end(struct scene *s)
{
    struct hf_event event = HF_EVENT_INIT;

    t_poll_until(hf_next_event(s->waiter, &event) || !hf_held(s->lk), 40000);
    CHECK(!hf_held(s->lk));
    tell(s, "all pass");
    cut_off(0);
    hf_release(s->lk, NULL); /* These may find the cluster at an election. */
    hf_close(s->holder);
    if (event.lock)
        hf_release(event.lock, NULL);
    hf_close(s->waiter);
    net_free(s->net);
}

static void *thaw(void *arg)
{
    t_sleep_ms(100);
    member_signal(*(int *)arg, SIGCONT);
    return NULL;
}

TEST(a_deposed_leader_extends_no_lock)
{
    struct scene s;
    pthread_t thread;

    scene_begin(&s, "manual", 5000, HF_MANUAL);
    scene_depose(&s);
    t_poll_until(hf_remaining_ms(s.lk) < 1500, 20000);
    CHECK_EQ(pthread_create(&thread, NULL, thaw, &s.leader), 0);
    if (hf_extend(s.lk, 0, &t_err)) /* It may not come through. */
        printf("# %s\n", t_err.text);
    printf("# %lld ms are left\n", (long long)hf_remaining_ms(s.lk));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    scene_end(&s);
}

TEST(a_deposed_leader_keeps_no_lock_for_the_keeper)
{
    struct scene s;
    int64_t end, left = 6000 - 90; /* when it is renewed */

    scene_begin(&s, "kept", 9000, 0);
    scene_depose(&s);
    t_poll_until(hf_remaining_ms(s.lk) < left, 20000);
    thaw(&s.leader);
    end = t_now_ms() + 700;
    while (hf_remaining_ms(s.lk) < left && t_now_ms() < end)
        t_sleep_ms(1);
    tell(&s, "all hold");
    printf("# %lld ms are left\n", (long long)hf_remaining_ms(s.lk));
    scene_end(&s);
}

T_MAIN
