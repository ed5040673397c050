/* SPDX-License-Identifier: MIT
 *
 * stream.h - a connection over TCP, a unix socket or TLS, in which everything
 * ends by a deadline: name resolution, connecting, the handshake, each read
 * and each write.
 *
 * One thread may read while another writes.
 */
#ifndef HFI_STREAM_H
#define HFI_STREAM_H

#include <pthread.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/traffic.h"
#include "tls.h"

struct hfi_endpoint {
    char host[256]; /* a name or an address; for a unix socket, its path */
    int port;       /* 0: a unix socket */
    struct ssl_ctx_st *tls;      /* NULL: in the clear */
    int64_t alive_ms;            /* a peer that is silent this long is gone */
    int spin_us;                 /* so long its answer is waited for awake */
    struct hfi_traffic *traffic; /* where bytes and requests are counted; NULL:
                                  * nowhere */
};

/* As long as it takes to fall asleep and to be woken. */
#define HFI_SPIN_US 100

struct hfi_stream {
    int fd; /* -1: closed */
    struct ssl_st *ssl;
    pthread_mutex_t ssl_mu; /* OpenSSL does not read and write at once */
    int64_t receive_ms;     /* what SO_RCVTIMEO is set to */
    struct hfi_traffic *traffic;
};

/* "host:port", for messages. */
const char *hfi_endpoint_name(const struct hfi_endpoint *, char *buf,
                              size_t size);

hf_status hfi_stream_open(struct hfi_stream *, const struct hfi_endpoint *,
                          int64_t deadline, struct hf_error *err);
void hfi_stream_close(struct hfi_stream *);

/* Read at least one byte.  0: the peer closed; -1: errno, ETIMEDOUT at the
 * deadline.  A deadline of 0 never waits and fails with EAGAIN. */
ssize_t hfi_stream_read(struct hfi_stream *, void *buf, size_t size,
                        int64_t deadline);

/* Write all of it, or fail as above. */
bool hfi_stream_write(struct hfi_stream *, const void *buf, size_t len,
                      int64_t deadline);

/* Has the system had to send something again, in vain so far?  Then the peer's
 * machine, or the way to it, is gone. */
bool hfi_stream_is_unheard(const struct hfi_stream *);

/* Has the peer closed it, or sent what nobody asked for? */
bool hfi_stream_is_stale(const struct hfi_stream *);

#endif
