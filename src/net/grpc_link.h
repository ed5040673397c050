/* SPDX-License-Identifier: MIT
 *
 * grpc_link.h - gRPC over HTTP/2: many threads, one connection.
 *
 * Threads share it as shared.h says.  Answers are matched by stream, so a call
 * that is given up is reset and disturbs nobody.  Where there is another
 * endpoint, a request that
 * ran into its deadline is reason enough to go there: a server that has lost a
 * request may well answer the others.  Where there is none, the connection is
 * left only if nothing at all was heard on it since.  A request in a hurry,
 * whose time was shorter than a round trip may be, is no reason for either: it
 * must not cost the others their connection.
 *
 * Beside that, a connection of one's own carries one stream in both directions,
 * for what a server says unasked.
 */
#ifndef HFI_H2GRPC_H
#define HFI_H2GRPC_H

#include "shared.h"

struct h2_link;

/* What precedes each message: a flag and four bytes of length. */
#define HFI_GRPC_PREFIX 5

/* The largest answer that is taken. */
#define HFI_GRPC_MAX (16u << 20)

/* One request and its answer.  `body` has room for the prefix in front of the
 * message; hfi_h2_call() fills it. */
struct hfi_h2_call {
    struct hfi_shared_call base; /* of grpc_link.c */
    const char *path;            /* "/etcdserverpb.KV/Txn" */
    unsigned char *body;
    size_t len;   /* with the prefix */
    bool patient; /* a member without a leader may wait for one */

    hf_status st;          /* HF_OK: answered, grpc_status says how */
    int grpc_status;       /* 0 is fine */
    char message[160];     /* the server's, when it is not */
    unsigned char *answer; /* with the prefix; hfi_h2_done() frees it */
    size_t answer_len;
    unsigned via; /* the connection that it went over; 0: none */
    size_t end;   /* the endpoint of that connection */

    /* of grpc_link.c */
    size_t at, room;
    int32_t stream_id;
    int http_status;
    bool sent;
    void (*heard)(void *arg, const void *message, size_t len); /* a stream's */
    void *arg;
};

struct hfi_h2 {
    struct hfi_shared shared;
    const struct hfi_endpoint *ends; /* the caller's */
    size_t nends;
    size_t next; /* the endpoint to try first */
};

void hfi_h2_init(struct hfi_h2 *, const struct hfi_endpoint *, size_t n);
void hfi_h2_fini(struct hfi_h2 *);
void hfi_h2_after_fork_child(struct hfi_h2 *); /* in a forked child */

/* Send `n` requests together and wait for their answers; `token` may be NULL.
 * Each call has its status: HF_UNAVAILABLE, it was not taken; HF_UNCERTAIN, it
 * was sent and has no answer.  If one failed that is returned, and
 * HF_UNAVAILABLE only if none was taken. */
hf_status hfi_h2_call(struct hfi_h2 *, struct hfi_h2_call *, size_t n,
                      const char *token, int64_t deadline, struct hf_error *);
void hfi_h2_done(struct hfi_h2_call *);

/* Begin a new connection, elsewhere if there is a choice, unless that has been
 * done since: `via` is the one that is to be left. */
void hfi_h2_retire(struct hfi_h2 *, unsigned via);
/* Would a call go over this connection now? */
bool hfi_h2_goes_via(struct hfi_h2 *, unsigned via);
/* Is there a connection that is good as far as is known? */
bool hfi_h2_is_up(struct hfi_h2 *);

/* A connection of one's own with one stream; `heard` is told each message.
 * These calls are for one thread at a time.  hfi_h2_hear() never waits;
 * HF_UNAVAILABLE once the stream is over, and then it is to be closed. */
hf_status hfi_h2_open(struct hfi_h2 *, const char *path, const char *token,
                      void (*heard)(void *, const void *, size_t), void *arg,
                      int64_t deadline, struct h2_link **ret,
                      struct hf_error *);
hf_status hfi_h2_send(struct h2_link *, const void *message, size_t len);
hf_status hfi_h2_hear(struct h2_link *);
bool hfi_h2_ping(struct h2_link *); /* false: the last one is unanswered */
int hfi_h2_fd(const struct h2_link *);
void hfi_h2_close(struct h2_link *);

#endif
