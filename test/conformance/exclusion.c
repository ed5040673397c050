/* SPDX-License-Identifier: MIT
 *
 * exclusion.c - one holder at a time, whatever the callers do.
 *
 * The proof is a counter that nothing protects but the lock: each turn reads
 * it, lets others run, and writes it back plus one.  Two holders at once would
 * sooner or later lose a turn, and the flag `inside` catches them in the act.
 * The counter lies in a page shared by eight processes of 64 threads each; if
 * the service does not reach across processes, by eight clients of one.
 */
#include "conf.h"

#include <sched.h>
#include <stdio.h>
#include <unistd.h>

enum { PARTIES = 8, THREADS = 64 };

/* What all contenders share. */
struct field {
    atomic_int inside;
    atomic_long insider, insiders_fence; /* to tell the tale if it fails */
    atomic_long turns;                   /* how many there must have been */
    long counter;   /* protected by the lock under test only */
    uint64_t fence; /* likewise: of the last holder */
};

struct party {
    struct field *field;
    hf_client *client;
    const char *key;
    struct hf_lock_opts opts;
    int threads, rounds;
    bool strict; /* every fence must be greater, not only not smaller */
    bool mixed;  /* try, wait briefly and give up, or wait for ever */
    unsigned seed;
};

/* The critical section: everything here is wrong without a lock. */
static void turn(struct party *party, hf_lock *lk)
{
    struct field *field = party->field;
    long seen;

    if (atomic_fetch_add(&field->inside, 1))
        t_fail(__FILE__, __LINE__,
               "process %ld holds fence %ld while process %d holds %llu",
               atomic_load(&field->insider),
               atomic_load(&field->insiders_fence), (int)getpid(),
               (unsigned long long)hf_fence(lk));
    atomic_store(&field->insider, getpid());
    atomic_store(&field->insiders_fence, (long)hf_fence(lk));
    seen = field->counter;
    sched_yield();
    if (party->strict)
        CHECK_LT(field->fence, hf_fence(lk));
    else
        CHECK_LE(field->fence, hf_fence(lk));
    field->fence = hf_fence(lk);
    sched_yield();
    field->counter = seen + 1;
    CHECK(hf_held(lk));
    atomic_fetch_add(&field->turns, 1);
    CHECK_EQ(atomic_fetch_sub(&field->inside, 1), 1);
}

static int64_t some_wait(struct party *party, unsigned *seed)
{
    static const int64_t waits[] = {0, 1, 3, 10, -1};

    return party->mixed ? waits[rand_r(seed) % 5] : -1;
}

static void *contend(void *arg)
{
    struct party *party = arg;
    unsigned seed = party->seed + (unsigned)(uintptr_t)&seed;

    for (int i = 0; i < party->rounds; i++) {
        int64_t wait_ms = some_wait(party, &seed);
        int64_t begin = t_now_ms();
        hf_lock *lk = NULL;
        hf_status st = hf_acquire(party->client, party->key, wait_ms,
                                  &party->opts, &lk, &t_err);

        if (party->mixed &&
            (st == HF_BUSY || st == HF_TIMEOUT || st == HF_CANCELED)) {
            CHECK((st == HF_BUSY) == (wait_ms == 0) || st == HF_CANCELED);
            continue;
        }
        /* A request of a short wait has a second: a machine that is busier
         * gives no answer in time.  A client that connects in the background
         * may not have begun when a short wait is over. */
        if (party->mixed && (st == HF_UNAVAILABLE || st == HF_UNCERTAIN) &&
            (t_now_ms() - begin >= 1000 || getenv("HF_TEST_BACKGROUND")))
            continue;
        t_check_status(__FILE__, __LINE__, "hf_acquire", st, HF_OK);
        turn(party, lk);
        conf_unlock(lk);
    }
    return NULL;
}

/* One client and its threads, until all have had their turns. */
static void *run_party(void *arg)
{
    struct party *party = arg;
    pthread_t threads[THREADS];

    party->client = conf_open();
    for (int i = 0; i < party->threads; i++)
        threads[i] = conf_thread(contend, party);
    for (int i = 0; i < party->threads; i++) {
        if (party->mixed)
            hf_cancel(party->client);
        pthread_join(threads[i], NULL);
    }
    hf_close(party->client);
    return NULL;
}

static void run_in_child(struct t_peer *up, void *arg)
{
    (void)up;
    run_party(arg);
}

/* Let PARTIES parties contend, then do the sums. */
static void contest(struct party like)
{
    struct field *field = t_shared(sizeof(*field));
    struct party parties[PARTIES];
    struct t_peer peers[PARTIES];
    pthread_t threads[PARTIES];
    bool processes = conf_traits & HF_TRAIT_PROCESSES;

    like.field = field;
    like.key = conf_key("contest");
    for (int i = 0; i < PARTIES; i++) {
        parties[i] = like;
        parties[i].seed = (unsigned)i;
        if (processes)
            peers[i] = t_fork(run_in_child, &parties[i]);
        else
            threads[i] = conf_thread(run_party, &parties[i]);
    }
    for (int i = 0; i < PARTIES; i++) {
        if (processes)
            t_join(&peers[i]);
        else
            pthread_join(threads[i], NULL);
    }
    CHECK_EQ(field->counter, atomic_load(&field->turns));
    if (!like.mixed)
        CHECK_EQ(field->counter, PARTIES * like.threads * like.rounds);
    else
        CHECK_GT(field->counter, 0);
    conf_check_free(like.key);
}

TEST_TIMEOUT(one_holder_at_a_time_among_64_threads_of_8_parties, 240)
{
    contest((struct party){
        .opts = conf_opts(0, 0),
        .threads = conf_trip_ms ? 2 : THREADS,
        .rounds = conf_times(10, 2),
    });
}

TEST_TIMEOUT(one_holder_at_a_time_and_rising_fences_when_all_are_fair, 240)
{
    contest((struct party){
        .opts = conf_opts(0, HF_FAIR),
        .threads = conf_trip_ms ? 2 : 8,
        .rounds = conf_times(10, 2),
        .strict = conf_traits & HF_TRAIT_FENCED,
    });
}

TEST_TIMEOUT(one_holder_at_a_time_when_all_poll, 240)
{
    struct hf_lock_opts opts = conf_opts(0, HF_POLL);

    opts.retry_ms = 2;
    contest((struct party){
        .opts = opts,
        .threads = conf_trip_ms ? 2 : 8,
        .rounds = conf_times(10, 2),
    });
}

TEST_TIMEOUT(one_holder_at_a_time_when_leases_linger, 240)
{
    struct hf_lock_opts opts = conf_opts(0, 0);

    opts.linger_ms = 20;
    opts.local_turns = 2;
    contest((struct party){
        .opts = opts,
        .threads = conf_trip_ms ? 2 : 8,
        .rounds = conf_times(15, 2),
    });
}

TEST_TIMEOUT(one_holder_at_a_time_while_others_try_give_up_and_cancel, 240)
{
    struct hf_lock_opts opts = conf_opts(2000, 0);

    opts.linger_ms = 5;
    contest((struct party){
        .opts = opts,
        .threads = conf_trip_ms ? 2 : 16,
        .rounds = conf_times(40, 5),
        .mixed = true,
    });
}

TEST(a_second_client_is_refused_until_the_first_lets_go)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL), *none = NULL;

    CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_BUSY);
    CHECK(none == NULL);
    CHECK(hf_held(lk));
    CHECK_STR(hf_key(lk), key);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_NONE);
    conf_unlock(lk);
    conf_unlock(conf_try(b, key, NULL));
    hf_close(a);
    hf_close(b);
}

TEST(the_same_client_is_refused_without_an_owner_id)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL), *none = NULL;

    CHECK_STATUS(hf_acquire(client, key, 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(client, key, 50, NULL, &none, &t_err), HF_TIMEOUT);
    CHECK(none == NULL);
    conf_unlock(lk);
    conf_unlock(conf_try(client, key, NULL));
    hf_close(client);
}

TEST(different_keys_do_not_exclude_each_other)
{
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *one = conf_try(a, conf_key("1"), NULL);
    hf_lock *two = conf_try(a, conf_key("2"), NULL);
    hf_lock *three = conf_try(b, conf_key("3"), NULL);

    CHECK(strcmp(hf_token(one), hf_token(two)) != 0);
    CHECK_EQ(strlen(hf_token(three)), 32);
    conf_unlock(two);
    conf_unlock(one);
    conf_unlock(three);
    hf_close(b);
    hf_close(a);
}
