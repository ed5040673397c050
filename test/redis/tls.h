/* SPDX-License-Identifier: MIT
 *
 * tls.h - real Redis servers with TLS, and the certificates for them.
 */
#ifndef TLS_H
#define TLS_H

#include "rt.h"

/* Make, in the directory, a CA (ca.pem), a certificate for localhost and
 * 127.0.0.1 (localhost.pem), one for localhost alone (named.pem), one for another
 * name (elsewhere.test.pem), and a CA that nobody knows (no.pem). */
void tls_make(const char *dir);

/* "&ca=...&cert=...&key=..." of localhost, for a URL; good until the next. */
const char *tls_params(const char *dir);

/* A server with the certificate of that name, which wants one of its clients
 * ("yes") or not ("no"); *port is the one with TLS. */
void tls_start(struct rt_server *s, const char *dir, const char *name,
               const char *clients, int *port);

#endif
