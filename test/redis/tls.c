/* SPDX-License-Identifier: MIT
 *
 * tls.c - servers with TLS; see tls.h.
 */
#include "tls.h"

void tls_make(const char *dir)
{
    char command[512];

    snprintf(command, sizeof(command), "'%s' '%s'",
             getenv("HF_TEST_MAKE_CERTS"), dir);
    if (system("command -v openssl >/dev/null"))
        T_SKIP_HOST("there is no openssl");
    CHECK_EQ(system(command), 0);
}

const char *tls_params(const char *dir)
{
    static char text[700];

    snprintf(text, sizeof(text),
             "&ca=%s/ca.pem&cert=%s/localhost.pem&key=%s/localhost.key", dir,
             dir, dir);
    return text;
}

void tls_start(struct rt_server *s, const char *dir, const char *name,
               const char *clients, int *port)
{
    char text[16], cert[256], key[256], ca[256];

    *port = rt_free_port();
    snprintf(text, sizeof(text), "%d", *port);
    snprintf(cert, sizeof(cert), "%s/%s.pem", dir, name);
    snprintf(key, sizeof(key), "%s/%s.key", dir, name);
    snprintf(ca, sizeof(ca), "%s/ca.pem", dir);
    rt_start(s, "--tls-port", text, "--tls-cert-file", cert, "--tls-key-file",
             key, "--tls-ca-cert-file", ca, "--tls-auth-clients", clients,
             NULL);
}
