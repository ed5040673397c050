/* SPDX-License-Identifier: MIT
 *
 * tls.c - servers with TLS; see tls.h.
 */
#include "tls.h"

void tls_make(const char *dir)
{
    char command[2048];

    snprintf(command, sizeof(command),
             "cd %s && ("
             "new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes' &&"
             "openssl req -x509 $new -days 2 -subj '/CN=test CA'"
             " -keyout ca.key -out ca.pem &&"
             "openssl req -x509 $new -days 2 -subj '/CN=no CA'"
             " -keyout no.key -out no.pem &&"
             "for name in localhost named elsewhere.test; do"
             " openssl req $new -subj /CN=$name"
             "  -keyout $name.key -out $name.csr &&"
             " case $name in"
             " localhost) echo subjectAltName=DNS:localhost,IP:127.0.0.1;;"
             " named) echo subjectAltName=DNS:localhost;;"
             " *) echo subjectAltName=DNS:$name;;"
             " esac >ext &&"
             " openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -days 2"
             "  -CAcreateserial -extfile ext -out $name.pem || exit 1;"
             "done) >openssl.log 2>&1",
             dir);
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
