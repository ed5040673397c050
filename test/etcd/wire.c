/* SPDX-License-Identifier: MIT
 *
 * wire.c - whatever is at the other end, a call ends in time and with the right
 * word: HF_UNAVAILABLE only when it was certainly not carried out.
 */
#include "h2peer.h"

#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "net/grpc_link.h"
#include "t.h"

#define PATH "/etcdserverpb.KV/Txn"

/* A client of up to two peers. */
struct scene {
    struct h2peer peers[2];
    struct hfi_endpoint ends[2];
    struct hfi_h2 h2;
    int n;
};

static void scene_start(struct scene *s, int n, enum h2peer_mode mode)
{
    int i;

    memset(s, 0, sizeof(*s));
    s->n = n;
    for (i = 0; i < n; i++) {
        h2peer_start(&s->peers[i], i ? H2_ANSWERS : mode);
        memcpy(s->ends[i].host, "127.0.0.1", 10);
        s->ends[i].port = s->peers[i].port;
        s->ends[i].alive_ms = 15000;
    }
    hfi_h2_init(&s->h2, s->ends, (size_t)n);
}

static void scene_end(struct scene *s)
{
    int i;

    hfi_h2_fini(&s->h2);
    for (i = 0; i < s->n; i++)
        h2peer_stop(&s->peers[i]);
}

static int asked(struct scene *s, int i)
{
    return atomic_load(&s->peers[i].asked);
}

static int links(struct scene *s, int i)
{
    return atomic_load(&s->peers[i].links);
}

/* One call with a body of that size, and within that time. */
static hf_status ask_size(struct scene *s, struct hfi_h2_call *call,
                          size_t size, int64_t ms)
{
    *call = (struct hfi_h2_call){.path = PATH,
                                 .body = calloc(1, HFI_GRPC_PREFIX + size),
                                 .len = HFI_GRPC_PREFIX + size};
    CHECK(call->body != NULL);
    return hfi_h2_call(&s->h2, call, 1, NULL, hfi_now() + ms, &t_err);
}

static hf_status ask(struct scene *s)
{
    struct hfi_h2_call call;
    hf_status st = ask_size(s, &call, 10, 5000);

    if (!st)
        CHECK_EQ(call.answer_len, HFI_GRPC_PREFIX + 3);
    hfi_h2_done(&call);
    return st;
}

/* The peer does that to one call, and behaves for the next. */
static void misbehave(enum h2peer_mode mode, hf_status want)
{
    struct scene s;

    scene_start(&s, 1, H2_ANSWERS);
    CHECK_OK(ask(&s));
    atomic_store(&s.peers[0].mode, mode);
    CHECK_STATUS(ask(&s), want);
    atomic_store(&s.peers[0].mode, H2_ANSWERS);
    CHECK_OK(ask(&s));
    CHECK_EQ(asked(&s, 0), 3);
    scene_end(&s);
}

TEST(a_stream_that_is_refused_was_not_carried_out)
{
    misbehave(H2_REFUSES, HF_UNAVAILABLE);
}

TEST(a_stream_that_is_reset_may_have_been)
{
    misbehave(H2_RESETS, HF_UNCERTAIN);
}

TEST(what_came_after_the_last_of_a_goaway_was_not_carried_out)
{
    misbehave(H2_GOES_UNASKED, HF_UNAVAILABLE);
}

TEST(a_connection_that_ends_in_an_answer_leaves_it_open)
{
    misbehave(H2_CUTS, HF_UNCERTAIN);
}

TEST(an_answer_without_a_verdict_is_none)
{
    misbehave(H2_NO_STATUS, HF_UNCERTAIN);
}

TEST(bytes_that_are_no_frames_end_the_connection)
{
    misbehave(H2_NONSENSE, HF_UNCERTAIN);
}

TEST(an_answer_without_end_is_cut_off)
{
    misbehave(H2_TOO_LARGE, HF_UNCERTAIN);
}

TEST(a_goaway_lets_the_answers_come_and_the_next_goes_elsewhere)
{
    struct scene s;

    scene_start(&s, 2, H2_GOES_ANSWERING);
    CHECK_OK(ask(&s));
    CHECK_OK(ask(&s));
    CHECK_EQ(asked(&s, 0), 1);
    CHECK_EQ(asked(&s, 1), 1);
    scene_end(&s);
}

TEST(a_silent_server_is_left_for_another)
{
    struct scene s;
    struct hfi_h2_call call;

    scene_start(&s, 2, H2_SILENT);
    CHECK_STATUS(ask_size(&s, &call, 10, 300), HF_UNCERTAIN);
    hfi_h2_done(&call);
    CHECK_OK(ask(&s));
    CHECK_EQ(asked(&s, 1), 1);
    scene_end(&s);
}

TEST(a_server_that_does_not_greet_is_passed_by)
{
    struct scene s;

    scene_start(&s, 2, H2_NO_GREETING);
    CHECK_OK(ask(&s));
    CHECK_EQ(links(&s, 0), 1);
    CHECK_EQ(asked(&s, 1), 1);
    scene_end(&s);
}

TEST(the_only_server_that_does_not_greet_is_unavailable_in_time)
{
    struct hfi_h2_call call;
    struct scene s;
    int64_t began = hfi_now();

    scene_start(&s, 1, H2_NO_GREETING);
    CHECK_STATUS(ask_size(&s, &call, 10, 300), HF_UNAVAILABLE);
    CHECK_LT(hfi_now() - began, 10000);
    hfi_h2_done(&call);
    scene_end(&s);
}

TEST(a_verdict_without_an_answer_is_told)
{
    struct hfi_h2_call call;
    struct scene s;

    scene_start(&s, 1, H2_NO_LEADER);
    CHECK_OK(ask_size(&s, &call, 10, 5000));
    CHECK_EQ(call.grpc_status, 14);
    CHECK_STR(call.message, "etcdserver: no leader");
    hfi_h2_done(&call);
    scene_end(&s);
}

TEST(a_request_goes_through_a_window_of_seven_bytes)
{
    struct hfi_h2_call call;
    struct scene s;

    scene_start(&s, 1, H2_TINY_WINDOW);
    CHECK_OK(ask_size(&s, &call, 1000, 20000));
    hfi_h2_done(&call);
    CHECK_EQ(atomic_load(&s.peers[0].body), HFI_GRPC_PREFIX + 1000);
    scene_end(&s);
}

/* Many threads, on a connection that takes one request at a time. */
struct asker {
    pthread_t thread;
    struct scene *scene;
};

static void *asker_run(void *arg)
{
    int i;

    for (i = 0; i < 20; i++)
        CHECK_OK(ask(((struct asker *)arg)->scene));
    return NULL;
}

TEST(a_server_that_takes_one_stream_at_a_time_serves_all)
{
    struct asker askers[8];
    struct scene s;
    int i;

    scene_start(&s, 1, H2_ONE_STREAM);
    for (i = 0; i < 8; i++) {
        askers[i].scene = &s;
        pthread_create(&askers[i].thread, NULL, asker_run, &askers[i]);
    }
    for (i = 0; i < 8; i++)
        pthread_join(askers[i].thread, NULL);
    CHECK_EQ(asked(&s, 0), 160);
    CHECK_EQ(links(&s, 0), 1);
    scene_end(&s);
}

T_MAIN
