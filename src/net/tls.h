/* SPDX-License-Identifier: MIT
 *
 * tls.h - what TLS needs before its handshake, which is stream.c's.
 */
#ifndef HFI_TLS_H
#define HFI_TLS_H

#include "base/error.h"
#include "base/url.h"

struct ssl_st;
struct ssl_ctx_st;

/* TLS 1.2 or newer, with the peer's name verified unless the URL says
 * verify=no; ca=, cert= and key= are files.  They are read again for each
 * connection, so that certificates can be replaced while a client runs; one
 * that cannot be read then leaves what was read before. */
hf_status hfi_tls_new(struct ssl_ctx_st **ret, const struct hfi_url *,
                      struct hf_error *err);
void hfi_tls_free(struct ssl_ctx_st *);

/* Is the peer who it should be?  Not without TLS (NULL). */
bool hfi_tls_is_verified(const struct ssl_ctx_st *);

/* The state of a connection to `host` over `fd`, or NULL: no memory. */
struct ssl_st *hfi_tls_begin(struct ssl_ctx_st *, int fd, const char *host);

/* The reason that OpenSSL has for a failure, as a message about `what`. */
hf_status hfi_tls_fail(struct hf_error *, hf_status, const char *what);

#endif
