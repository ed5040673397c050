/* SPDX-License-Identifier: MIT
 *
 * grpc_wire.h - one HTTP/2 connection that speaks gRPC; see grpc_link.h.
 *
 * It knows frames, streams and messages, and neither threads nor waiting: its
 * owner has a mutex, brings what was read and takes what is to be written.
 */
#ifndef HFI_H2LINK_H
#define HFI_H2LINK_H

#include "grpc_link.h"
#include "sendbuf.h"

struct nghttp2_session;

/* How long a writer may be kept by a connection that takes nothing. */
#define H2_OWN_WRITE_MS 50

/* How many are woken after the mutex was let go; more wait for it. */
#define H2_WAKE_MAX 128

struct h2_link {
    struct hfi_h2 *h2;
    struct hfi_stream stream;
    struct nghttp2_session *session;
    struct hfi_link calls; /* of struct hfi_h2_call, not yet answered */
    struct hfi_sendbuf out;
    size_t end; /* which endpoint it goes to */
    unsigned users;
    int64_t heard; /* when something last came */
    int64_t asked; /* when the first request after that was sent */
    unsigned number;
    bool reading, writing, batching, retired, broken;
    bool greeted; /* the server's settings are here */
    bool pinged;  /* and the answer is not here */
    bool tls;
    char authority[300];
    struct hf_error why;
    struct hfi_h2_sleeper *woken[H2_WAKE_MAX]; /* to be told by the reader */
    int nwoken;
    struct hfi_h2_call own; /* the stream of hfi_h2_open() */
};

/* One that is not connected: all it is to send stands in link->out. */
struct h2_link *h2_link_new(struct hfi_h2 *, size_t end);

/* Connect, and have the server's greeting: one that is stopped accepts
 * connections too. */
hf_status h2_link_open(struct hfi_h2 *, size_t end, int64_t deadline,
                       struct h2_link **ret, struct hf_error *);
void h2_link_free(struct h2_link *);

/* Begin a request.  HF_OK: the call is in link->calls until it is done. */
hf_status h2_link_submit(struct h2_link *, struct hfi_h2_call *,
                         const char *token, struct hf_error *);

/* Nobody waits for it any more. */
void h2_link_abandon(struct h2_link *, struct hfi_h2_call *);

/* The stream has more to send. */
void h2_link_resume(struct h2_link *, struct hfi_h2_call *);

/* Bring what was read; false: the link is broken. */
bool h2_link_feed(struct h2_link *, const void *bytes, size_t len);

/* Move what is to be written into link->out; false: the link is broken. */
bool h2_link_collect(struct h2_link *);

/* Nobody on the link will get an answer any more. */
void h2_link_break(struct h2_link *, const char *what, int sys_errno);

/* Ask for a sign of life. */
void h2_link_ping(struct h2_link *);

/* The first endpoint that answers, from `first` on. */
hf_status h2_find(struct hfi_h2 *, size_t first, int64_t deadline,
                  struct h2_link **ret, struct hf_error *);

void h2_prefix(unsigned char *body, size_t len);

#endif
