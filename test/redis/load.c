/* SPDX-License-Identifier: MIT
 *
 * load.c - clients that take turns; see load.h.
 *
 * Each grant's fence must be greater than that of every grant which was over
 * before its acquisition began, come what may.  And nobody is in it beside
 * another who still believes, except while the test says that the service may
 * forget.
 */
#include "load.h"

static void load_note(struct load *load, uint64_t fence)
{
    uint64_t seen = atomic_load(&load->newest);

    while (seen < fence &&
           !atomic_compare_exchange_weak(&load->newest, &seen, fence))
        ;
}

/* In it, for a moment.  Who leaves without holding it proves nothing. */
static void member_turn(struct load *load, hf_lock *lk)
{
    int others = atomic_fetch_add(&load->inside, 1);

    t_sleep_ms(2);
    if (others && hf_held(lk) && !atomic_load(&load->may_forget) &&
        atomic_load(&load->inside) > 1 && hf_held(lk))
        t_fail(__FILE__, __LINE__, "two are in it and believe");
    atomic_fetch_sub(&load->inside, 1);
}

static void *member_run(void *arg)
{
    struct load_member *me = arg;
    struct load *load = me->load;
    struct hf_lock_opts opts =
        rt_opts(load->ttl_ms ? load->ttl_ms : 2000, HF_FAIR);
    struct hf_error err;
    hf_client *client = NULL;
    hf_lock *lk;
    uint64_t before;

    CHECK_OK(hf_open(load->url, NULL, &client, &t_err));
    while (!atomic_load(&load->stop)) {
        before = atomic_load(&load->newest);
        if (hf_acquire(client, load->key, 500, &opts, &lk, &err))
            continue;
        CHECK_GT(hf_fence(lk), before);
        load_note(load, hf_fence(lk));
        atomic_fetch_add(&load->grants[me->id], 1);
        member_turn(load, lk);
        hf_release(lk, &err);
    }
    hf_close(client);
    return NULL;
}

void load_start(struct load *load)
{
    int i;

    for (i = 0; i < LOAD_MEMBERS; i++) {
        load->member[i].load = load;
        load->member[i].id = i;
        CHECK_EQ(pthread_create(&load->member[i].thread, NULL, member_run,
                                &load->member[i]),
                 0);
    }
}

void load_stop(struct load *load)
{
    int i;

    atomic_store(&load->stop, true);
    for (i = 0; i < LOAD_MEMBERS; i++)
        pthread_join(load->member[i].thread, NULL);
}

void load_check_goes_on(struct load *load)
{
    int i, before[LOAD_MEMBERS];

    for (i = 0; i < LOAD_MEMBERS; i++)
        before[i] = atomic_load(&load->grants[i]);
    for (i = 0; i < LOAD_MEMBERS; i++)
        t_poll_until(atomic_load(&load->grants[i]) > before[i] + 10, 20000);
}
