/* SPDX-License-Identifier: MIT
 *
 * resp_link.h - RESP: many threads, one connection; see shared.h.
 *
 * Replies come in the order of the requests.
 *
 * A call that runs into its deadline leaves its place to an abandoned call,
 * which throws the late reply away, and the connection goes on: who is slow to
 * answer one call is no worse for the others.  Only a connection on which
 * nothing at all arrives is retired: nobody else begins on it, and those who
 * wait on it still get what is theirs.
 */
#ifndef HFI_MUX_H
#define HFI_MUX_H

#include "shared.h"

struct redisReply;
struct mux_link;

/* What a connection needs before its first call (AUTH, SELECT ...).  It may use
 * hfi_mux_exchange() on the fresh link. */
typedef hf_status hfi_mux_handshake(void *arg, struct mux_link *,
                                    int64_t deadline, struct hf_error *);

/* Where to connect to now; asked anew for each connection. */
typedef hf_status hfi_mux_find(void *arg, struct hfi_endpoint *ret,
                               int64_t deadline, struct hf_error *);

struct hfi_mux {
    struct hfi_shared shared;
    hfi_mux_find *find;
    hfi_mux_handshake *handshake;
    void *arg;
    bool blocks; /* its calls keep the server waiting: one that was given up may
                  * do so still, so nobody begins behind it */

    /* A second connection to the same server, for what must not wait behind
     * others; made when it is first needed. */
    hfi_mux_handshake *aside_handshake; /* how it begins; NULL: there is none */
    struct hfi_mux *_Atomic aside;
    _Atomic int64_t unheard_until; /* of that one: it was made, and did not
                                    * answer; resp_aside.c */
};

/* A call between its beginning and its end.  One that is abandoned is on the
 * heap. */
struct hfi_mux_call {
    struct hfi_shared_call base;
    struct mux_link *link;
    struct redisReply **replies; /* the caller's */
    int want, got;
    uint64_t begin; /* where its bytes start in the stream that is sent */
    int64_t begun_at;
    int64_t left_at; /* when it was abandoned */
};

void hfi_mux_init(struct hfi_mux *, hfi_mux_find *, hfi_mux_handshake *,
                  void *arg);
void hfi_mux_fini(struct hfi_mux *);
void hfi_mux_after_fork_child(struct hfi_mux *); /* in a forked child */

/* Send `len` bytes, which are `n` requests, and wait for their replies, which
 * are then the caller's.  HF_UNAVAILABLE: not sent.  HF_UNCERTAIN: sent, and no
 * answer. */
hf_status hfi_mux_call(struct hfi_mux *, const char *bytes, size_t len, int n,
                       struct redisReply **replies, int64_t deadline,
                       struct hf_error *);

/* The same in two steps, so that calls to several servers can be under way at
 * once.  What was begun must be finished. */
hf_status hfi_mux_begin(struct hfi_mux *, struct hfi_mux_call *,
                        const char *bytes, size_t len, int n,
                        struct redisReply **replies, int64_t deadline,
                        struct hf_error *);
hf_status hfi_mux_finish(struct hfi_mux_call *, int64_t deadline,
                         struct hf_error *);

/* Begin several calls of one request each, in one write.  `bytes` of each follow
 * those of the one before.  How many were begun: the first ones. */
struct hfi_mux_start {
    struct hfi_mux_call *call;
    size_t len;
    struct redisReply **reply;
};
size_t hfi_mux_begin_several(struct hfi_mux *, const char *bytes,
                             const struct hfi_mux_start *, size_t n,
                             int64_t deadline);

/* Begin what must not wait for others, such as a renewal: on the shared
 * connection if nothing is under way there, since what comes later is served
 * later; and else on the one aside, if hfi_mux_set_aside() has said how that
 * begins.  So who has little to do has one connection. */
hf_status hfi_mux_begin_first(struct hfi_mux *, struct hfi_mux_call *,
                              const char *bytes, size_t len, int n,
                              struct redisReply **replies, int64_t deadline,
                              struct hf_error *);
void hfi_mux_set_aside(struct hfi_mux *, hfi_mux_handshake *);

/* For one thread that waits for several servers at once, with poll(2) on the
 * descriptors of its calls.  hfi_mux_advance() takes in what has come, if
 * poll(2) saw something, without waiting; true if the call is done, and
 * hfi_mux_finish() will then not wait either.  Another thread may take in what
 * belongs to this one, so the poll must be a short one. */
bool hfi_mux_advance(struct hfi_mux_call *, bool readable);
int hfi_mux_call_fd(const struct hfi_mux_call *);

/* Where other threads are on the connection, too, it is better to wait with
 * them for one of the calls: until it is done, or until the deadline, at which
 * it stays under way. */
bool hfi_mux_is_shared(const struct hfi_mux_call *);
bool hfi_mux_await(struct hfi_mux_call *, int64_t deadline);

/* Finish a call without its replies, and go on using the connection: what is
 * sent there next is still served after it. */
void hfi_mux_abandon(struct hfi_mux_call *);

/* For how long the connection has owed the answer of an abandoned call; 0 if it
 * owes none, -1 if there is no connection.  Takes in what has come. */
int64_t hfi_mux_owed_ms(struct hfi_mux *);

/* Is there a connection, as far as is known? */
bool hfi_mux_is_up(struct hfi_mux *);

/* The next call connects, however short ago that failed. */
void hfi_mux_end_pause(struct hfi_mux *);

/* The same on a link that only its maker knows yet; or the two halves of it, for
 * several requests at once. */
hf_status hfi_mux_send(struct mux_link *, const char *bytes, size_t len,
                       int64_t deadline, struct hf_error *);
hf_status hfi_mux_receive(struct mux_link *, struct redisReply **reply,
                          int64_t deadline, struct hf_error *);
hf_status hfi_mux_exchange(struct mux_link *, const char *bytes, size_t len,
                           struct redisReply **reply, int64_t deadline,
                           struct hf_error *);

/* A connection of one's own, for what the server says unasked: found and begun
 * as the shared one is.  hfi_mux_hear() takes the next reply without waiting;
 * HF_OK and NULL if there is none yet, HF_UNAVAILABLE once it is broken. */
hf_status hfi_mux_open(struct hfi_mux *, int64_t deadline,
                       struct mux_link **ret, struct hf_error *);
int hfi_mux_fd(const struct mux_link *);
hf_status hfi_mux_hear(struct mux_link *, struct redisReply **reply);
bool hfi_mux_say(struct mux_link *, const char *bytes, size_t len,
                 int64_t deadline);
void hfi_mux_close(struct mux_link *);

/* Begin a new connection for calls from now on: the server is not the one. */
void hfi_mux_retire(struct hfi_mux *);

/* The same unless it is connected to there, and one that is being made is made
 * again; true if there was one to elsewhere.  Calls that are under way to
 * elsewhere end at once: what that server says counts no more. */
bool hfi_mux_move(struct hfi_mux *, const struct hfi_endpoint *to);

/* Is it connected to there?  Is that link? */
bool hfi_mux_is_at(struct hfi_mux *, const struct hfi_endpoint *to);
bool hfi_mux_is_to(const struct mux_link *, const struct hfi_endpoint *to);

#endif
