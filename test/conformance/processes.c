/* SPDX-License-Identifier: MIT
 *
 * processes.c - holders that die, freeze or fork.
 *
 * A dead holder's lock passes on: within its ttl and a second, and at once
 * where the service sees the death.  A frozen holder learns that its lease is
 * over before any call of its can say otherwise; where nothing takes a lock
 * from a living process, it still has it, and nobody else got in.  A forked
 * child has nothing but dead handles.
 */
#include "conf.h"

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a holder in another process is to do. */
struct part {
    char key[128];
    struct hf_lock_opts opts;
};

static struct part part(int64_t ttl_ms, unsigned flags)
{
    struct part p = {.opts = conf_opts(ttl_ms, flags)};

    snprintf(p.key, sizeof(p.key), "%s", conf_key("k"));
    return p;
}

static void hold(struct t_peer *up, void *arg)
{
    struct part *p = arg;
    hf_client *client = conf_open();
    hf_lock *lk = conf_lock(client, p->key, &p->opts);

    t_tell(up, (int64_t)hf_fence(lk));
    t_hear(up);
    conf_unlock(lk);
    hf_close(client);
}

TEST(a_killed_holders_lock_passes_on_within_its_ttl_and_a_second)
{
    struct part p = part(2000, 0); /* whole seconds: some services count so */
    struct t_peer peer;
    hf_client *client;
    int64_t killed;

    conf_needs(HF_TRAIT_PROCESSES);
    for (int i = 0; i < 2; i++) {
        peer = t_fork(hold, &p);
        t_hear(&peer);
        conf_check_busy(p.key);
        killed = t_now_ms();
        t_kill(&peer);
        client = conf_open();
        conf_unlock(conf_lock(client, p.key, NULL));
        CHECK_LE(t_now_ms() - killed,
                 (conf_traits & HF_TRAIT_TWICE ? 2 : 1) * conf_ms(2000) +
                     conf_ms(1000));
        hf_close(client);
    }
}

TEST(a_killed_holders_lock_passes_on_at_once)
{
    struct part p = part(600000, 0);
    struct conf_waiter w;
    struct t_peer peer;
    hf_client *client;
    uint64_t fence;

    conf_needs(HF_TRAIT_PROCESSES | HF_TRAIT_DEATH);
    peer = t_fork(hold, &p);
    fence = (uint64_t)t_hear(&peer);
    client = conf_open();
    conf_waiter_start(&w, client, p.key, -1, NULL);
    t_sleep_ms(50);
    CHECK(!atomic_load(&w.done));
    t_kill(&peer);
    t_poll_until(atomic_load(&w.done), 20000);
    conf_waiter_join(&w, HF_OK);
    if (conf_traits & HF_TRAIT_FENCED)
        CHECK_GT(hf_fence(w.lk), fence);
    conf_unlock(w.lk);
    hf_close(client);
    conf_check_free(p.key);
}

static void wait_for_it(struct t_peer *up, void *arg)
{
    struct part *p = arg;
    hf_client *client = conf_open();
    hf_lock *lk;

    t_tell(up, 0);
    lk = conf_lock(client, p->key, NULL);
    t_tell(up, 1);
    conf_unlock(lk);
    hf_close(client);
}

TEST(a_killed_waiter_does_not_hold_up_the_others)
{
    struct part p = part(2000, 0);
    struct t_peer waiter;
    hf_client *a, *b;
    struct conf_waiter w;
    hf_lock *lk;

    conf_needs(HF_TRAIT_PROCESSES);
    waiter = t_fork(wait_for_it, &p);
    t_hear(&waiter);
    a = conf_open();
    b = conf_open();
    lk = conf_lock(a, p.key, NULL);
    t_sleep_ms(conf_ms(150));
    t_kill(&waiter);
    conf_waiter_start(&w, b, p.key, -1, NULL);
    t_sleep_ms(50);
    conf_unlock(lk);
    t_poll_until(atomic_load(&w.done), 40000);
    conf_waiter_join(&w, HF_OK);
    conf_unlock(w.lk);
    hf_close(a);
    hf_close(b);
}

/* Wait for the lock and tell its fence; the line says which fence was broken. */
static void wait_and_tell(struct t_peer *up, void *arg)
{
    struct part *p = arg;
    hf_client *client = conf_open();
    hf_lock *lk;
    uint64_t broken;

    t_hear(up);
    lk = conf_lock(client, p->key, &p->opts);
    broken = (uint64_t)t_hear(up);
    if (hf_fence(lk) == broken) { /* Word of it may come a moment later. */
        t_poll_until(!hf_held(lk), 5000);
        CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    } else {
        CHECK_OK(hf_check(client, p->key, hf_fence(lk), &t_err));
        conf_unlock(lk);
    }
    hf_close(client);
}

/* Many services grant a lock to one that waits when the holder leaves, whether
 * it is awake or not.  The lease is long: its renewal comes too late to tell. */
TEST(a_frozen_waiter_whose_grant_is_broken_does_not_rely_on_it)
{
    struct part p = part(60000, 0);
    struct t_peer waiter;
    struct hf_info info;
    hf_client *client;
    hf_lock *lk;

    conf_needs(HF_TRAIT_PROCESSES | HF_TRAIT_BREAK | HF_TRAIT_FENCED);
    waiter = t_fork(wait_and_tell, &p);
    client = conf_open();
    lk = conf_lock(client, p.key, &p.opts);
    t_tell(&waiter, 0);
    conf_await_waiters(client, p.key, 1);
    t_sleep_ms(conf_ms(150)); /* Now it sleeps. */
    kill(waiter.pid, SIGSTOP);
    conf_unlock(lk);
    info = conf_look(client, p.key);
    if (info.held)
        CHECK_OK(hf_break(client, p.key, info.fence, &t_err));
    t_tell(&waiter, info.held ? (int64_t)info.fence : 0);
    kill(waiter.pid, SIGCONT);
    t_join(&waiter);
    hf_close(client);
    conf_check_free(p.key);
}

TEST(processes_hand_a_lock_on)
{
    struct part p = part(0, 0);
    struct t_peer peers[4];
    hf_client *client;
    hf_lock *lk;

    conf_needs(HF_TRAIT_PROCESSES);
    for (int i = 0; i < 4; i++)
        peers[i] = t_fork(hold, &p);
    for (int i = 0; i < 4; i++)
        for (int j = 0, said = 0; !said; j = (j + 1) % 4) {
            int64_t fence;

            if (peers[j].fd < 0 || !t_try_hear(&peers[j], 10, &fence))
                continue;
            t_tell(&peers[j], 0);
            t_join(&peers[j]);
            peers[j].fd = -1;
            said = 1;
        }
    client = conf_open();
    lk = conf_try(client, p.key, NULL);
    conf_unlock(lk);
    hf_close(client);
}

/* Freeze in the middle of holding; the first thing done after the thaw is to
 * ask, in the way that the word from above says. */
static void freeze(struct t_peer *up, void *arg)
{
    struct part *p = arg;
    bool gone = p->opts.flags & HF_MANUAL || conf_traits & HF_TRAIT_LEASED;
    hf_client *client = conf_open();
    hf_lock *lk = conf_lock(client, p->key, &p->opts);
    int64_t how;

    t_tell(up, (int64_t)hf_fence(lk));
    how = t_hear(up); /* sent while frozen */
    if (how == 0)
        CHECK_EQ(hf_held(lk), !gone);
    if (how == 1)
        CHECK_STATUS(hf_extend(lk, 0, &t_err), gone ? HF_LOST : HF_OK);
    CHECK_EQ(hf_held(lk), !gone);
    CHECK_EQ(hf_remaining_ms(lk) == 0, gone);
    if (gone)
        t_poll_until(hf_lost_reason(lk) != HF_LOSS_NONE, 20000);
    CHECK_STATUS(hf_release(lk, &t_err), gone ? HF_LOST : HF_OK);
    hf_close(client);
    t_tell(up, 1);
}

static void freeze_beyond_ttl(unsigned flags)
{
    bool shared = conf_traits & HF_TRAIT_PROCESSES;
    bool leased = conf_traits & HF_TRAIT_LEASED;

    for (int how = 0; how < 3; how++) {
        struct part p = part(400, flags);
        struct t_peer peer = t_fork(freeze, &p);
        hf_client *client = conf_open();
        hf_lock *lk = NULL;
        int64_t fence = t_hear(&peer), end;

        kill(peer.pid, SIGSTOP);
        waitpid(peer.pid, NULL, WUNTRACED);
        end = t_now_ms() + conf_ms(1000);
        if (shared && leased) {
            lk = conf_lock(client, p.key, NULL);
            if (conf_traits & HF_TRAIT_FENCED)
                CHECK_GT(hf_fence(lk), fence);
        } else if (shared) {
            CHECK_STATUS(hf_acquire(client, p.key, 1000, NULL, &lk, &t_err),
                         HF_TIMEOUT);
        }
        t_poll_until(t_now_ms() >= end, 20000);
        t_tell(&peer, how);
        kill(peer.pid, SIGCONT);
        CHECK_EQ(t_hear(&peer), 1);
        t_join(&peer);
        if (lk)
            conf_unlock(lk);
        hf_close(client);
        conf_check_free(p.key);
    }
}

TEST(a_frozen_holder_learns_the_truth_before_anything_says_ok)
{
    freeze_beyond_ttl(0);
}

TEST(a_frozen_manual_holder_learns_that_its_lease_is_over)
{
    freeze_beyond_ttl(HF_MANUAL);
}

/* A child of a process that has a client and a lock.  It forks with threads
 * about, so it does no more than call and exit. */
static void use_dead_handles(hf_client *client, hf_lock *lk, const char *key)
{
    struct hf_info info = HF_INFO_INIT;
    struct hf_service about = {.size = sizeof(about)};
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req = NULL;
    hf_lock *none = NULL;

    CHECK(!hf_held(lk));
    CHECK_EQ(hf_remaining_ms(lk), 0);
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire(client, key, 0, NULL, &none, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire(client, key, -1, NULL, &none, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire_start(client, key, -1, NULL, NULL, &req, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_inspect(client, key, &info, &t_err), HF_INVALID);
    CHECK_STATUS(hf_check(client, key, 1, &t_err), HF_INVALID);
    CHECK_STATUS(hf_break(client, key, hf_fence(lk), &t_err), HF_INVALID);
    CHECK_STATUS(hf_describe(client, &about, &t_err), HF_INVALID);
    CHECK(!hf_next_event(client, &event));
    hf_cancel(client);
    CHECK_STATUS(hf_release(lk, &t_err), HF_INVALID);
    CHECK(none == NULL && req == NULL);
    hf_close(client);
}

TEST(a_forked_child_can_neither_use_nor_release_its_parents_lock)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct hf_lock_opts opts = conf_opts(1500, 0);
    hf_lock *lk = conf_try(client, key, &opts);
    int fd = hf_lost_fd(lk), status;
    struct conf_waiter w;
    pid_t pid;

    conf_waiter_start(&w, client, key, -1, NULL);
    t_sleep_ms(50);
    pid = fork();
    CHECK_GE(pid, 0);
    if (pid == 0) {
        use_dead_handles(client, lk, key);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    t_sleep_ms(conf_ms(2000));
    CHECK(hf_held(lk));
    CHECK(!conf_readable(fd, 0));
    CHECK(!atomic_load(&w.done));
    conf_check_busy(key);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    conf_unlock(lk);
    conf_waiter_join(&w, HF_OK);
    conf_unlock(w.lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_forked_childs_end_does_not_free_its_parents_lock)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);

    for (int i = 0; i < 4; i++) {
        pid_t pid = fork();

        CHECK_GE(pid, 0);
        if (pid == 0) {
            if (i % 2)
                hf_close(client);
            if (i == 3)
                execl("/bin/true", "true", (char *)NULL);
            _exit(0);
        }
        CHECK_EQ(waitpid(pid, NULL, 0), pid);
        CHECK(hf_held(lk));
        conf_check_busy(key);
    }
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_release_frees_the_lock_though_a_forked_child_lives_on)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);
    pid_t pid = fork();

    CHECK_GE(pid, 0);
    if (pid == 0)
        for (;;)
            pause();
    conf_unlock(lk);
    conf_check_free(key);
    lk = conf_try(client, key, NULL);
    hf_close(client);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    conf_check_free(key);
    kill(pid, SIGKILL);
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* A holder that forks; its child closes the client and lives on. */
static void hold_and_fork(struct t_peer *up, void *arg)
{
    struct part *p = arg;
    hf_client *client = conf_open();
    hf_lock *lk = conf_lock(client, p->key, &p->opts);
    pid_t pid = fork();

    CHECK_GE(pid, 0);
    if (pid == 0) {
        hf_close(client);
        t_tell(up, 1);
        for (;;)
            pause();
    }
    t_hear(up);
    conf_unlock(lk);
    hf_close(client);
}

TEST(a_child_that_closed_the_client_does_not_keep_a_dead_parents_lock)
{
    struct part p = part(600000, 0);
    struct t_peer peer;
    hf_client *client;

    conf_needs(HF_TRAIT_PROCESSES | HF_TRAIT_DEATH);
    peer = t_fork(hold_and_fork, &p);
    t_hear(&peer);
    conf_check_busy(p.key);
    t_kill(&peer);
    client = conf_open();
    conf_unlock(conf_lock(client, p.key, NULL));
    hf_close(client);
}

/* The service cannot be used by a child of one who uses it, and says so. */
#define CHILD_REFUSED 77

TEST(a_forked_child_can_open_a_client_of_its_own)
{
    const char *key = conf_key("k");
    hf_client *client;
    hf_lock *lk;
    int status;
    pid_t pid;

    conf_needs(HF_TRAIT_PROCESSES);
    if (t_thread_sanitizer)
        T_SKIP_HOST("the thread sanitizer does not follow such a fork");
    client = conf_open();
    lk = conf_try(client, key, NULL);
    pid = fork();
    CHECK_GE(pid, 0);
    if (pid == 0) {
        hf_client *own = NULL;
        hf_lock *none = NULL;
        hf_status st = hf_open(conf_url(), NULL, &own, &t_err);

        if (st == HF_UNSUPPORTED)
            _exit(CHILD_REFUSED);
        CHECK_STATUS(st, HF_OK);
        CHECK_STATUS(hf_acquire(own, key, 0, NULL, &none, &t_err), HF_BUSY);
        conf_unlock(conf_try(own, conf_key("other"), NULL));
        hf_close(own);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    hf_close(client);
    if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_REFUSED)
        T_SKIP_TRAIT("a child of a process that has it open is refused");
    CHECK_EQ(status, 0);
}
