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

struct nghttp2_session;

/* How long a writer may be kept by a connection that takes nothing. */
#define H2_OWN_WRITE_MS 50

struct h2_link {
    struct hfi_shared_link base;
    struct nghttp2_session *session;
    size_t end;    /* which endpoint it goes to */
    int64_t asked; /* when the first request after base.heard_at was sent */
    bool greeted;  /* the server's settings are here */
    bool pinged;   /* and the answer is not here */
    bool tls;
    char authority[300];
    struct hfi_h2_call own; /* the stream of hfi_h2_open() */
};

/* One that is not connected: all it is to send stands in base.out. */
struct h2_link *h2_link_new(struct hfi_h2 *, size_t end);

/* Connect, and have the server's greeting: one that is stopped accepts
 * connections too. */
hf_status h2_link_open(struct hfi_h2 *, size_t end, int64_t deadline,
                       struct h2_link **ret, struct hf_error *);
void h2_link_free(struct h2_link *);

/* Begin a request.  HF_OK: the call is in base.calls until it is done, or the
 * link breaks. */
hf_status h2_link_submit(struct h2_link *, struct hfi_h2_call *,
                         const char *token, struct hf_error *);

/* Nobody waits for it any more. */
void h2_link_abandon(struct h2_link *, struct hfi_h2_call *);

/* The stream has more to send. */
void h2_link_resume(struct h2_link *, struct hfi_h2_call *);

/* Bring what was read; false: the link is broken. */
bool h2_link_feed(struct h2_link *, const void *bytes, size_t len);

/* Move what is to be written into base.out; false: the link is broken. */
bool h2_link_collect(struct h2_link *);

/* Ask for a sign of life. */
void h2_link_ping(struct h2_link *);

/* The first endpoint that answers, from `first` on. */
hf_status h2_find(struct hfi_h2 *, size_t first, int64_t deadline,
                  struct h2_link **ret, struct hf_error *);

void h2_prefix(unsigned char *body, size_t len);

#endif
