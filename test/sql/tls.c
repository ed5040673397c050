/* SPDX-License-Identifier: MIT
 *
 * tls.c - the TLS options of a URL reach the client library, and mean what they
 * say: who is not whom the certificate names is refused, and every connection
 * of a client is encrypted, the one that listens included.
 *
 * Run by test/servers/postgres or mysql, whose server is told to use TLS.
 */
#include "scene.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char tls_dir[96];

/* Certificates in a directory that the server may read. */
static void tls_make(void)
{
    char command[1024];

    if (system("command -v openssl >/dev/null"))
        T_SKIP_HOST("there is no openssl");
    snprintf(tls_dir, sizeof(tls_dir), "%s/tls", getenv("HF_TEST_DIR"));
    if (access(tls_dir, F_OK) == 0)
        return;
    snprintf(command, sizeof(command),
             "mkdir %s && $(dirname $HF_TEST_SERVER)/certs %s && cd %s && "
             "mkdir server && cp *.pem *.key server && chmod 600 server/*.key "
             "&& { [ $(id -u) != 0 ] || chown -R %s server; }",
             tls_dir, tls_dir, tls_dir,
             scene_is_postgres() ? "postgres" : "mysql");
    CHECK_EQ(system(command), 0);
}

/* Let the server bear the certificate of `name`, and accept nothing plain. */
static void tls_serve(const char *name)
{
    char text[1024];

    tls_make();
    if (scene_is_postgres())
        snprintf(text, sizeof(text),
                 "-c ssl=on -c ssl_cert_file=%s/server/%s.pem -c "
                 "ssl_key_file=%s/server/%s.key -c ssl_ca_file=%s/server/ca.pem"
                 " -c hba_file=%s/hba",
                 tls_dir, name, tls_dir, name, tls_dir, tls_dir);
    else
        snprintf(text, sizeof(text),
                 "--ssl-cert=%s/server/%s.pem --ssl-key=%s/server/%s.key "
                 "--ssl-ca=%s/server/ca.pem --require-secure-transport=ON",
                 tls_dir, name, tls_dir, name, tls_dir);
    scene_options(text);
    CHECK_EQ(system("cd $HF_TEST_DIR/tls && { echo 'local all all trust'; "
                    "echo 'host all postgres all trust'; "
                    "echo 'hostssl all holdfast all trust'; "
                    "echo 'hostssl all bearer all cert map=b'; } >hba && "
                    "chmod 644 hba"),
             0);
    scene_server("stop");
    scene_server("start");
}

/* A URL by the server's name, not its number. */
static const char *tls_url(const char *more)
{
    static char url[1024];

    snprintf(url, sizeof(url), "%s@localhost:%s/%s?timeout=5s%s",
             scene_is_postgres() ? "postgres://holdfast"
                                 : "mysql://holdfast:secret",
             getenv("HF_TEST_PORT"), scene_is_postgres() ? "postgres" : "test",
             more);
    return url;
}

/* The options by which the server is checked with `ca`; `more` follows. */
static const char *tls_checked(const char *ca, const char *more)
{
    static char text[512];

    if (scene_is_postgres())
        snprintf(text, sizeof(text),
                 "&sslmode=verify-full&sslrootcert=%s/%s.pem%s", tls_dir, ca,
                 more);
    else
        snprintf(text, sizeof(text), "&ssl_ca=%s/%s.pem%s", tls_dir, ca, more);
    return tls_url(text);
}

/* One address that refuses, and one whose certificate is not trusted. */
static const char *tls_two_hosts(void)
{
    static char url[512];

    snprintf(url, sizeof(url),
             "postgres://holdfast@127.0.0.1:1,localhost:%s/postgres?timeout=5s&"
             "sslmode=verify-full&sslrootcert=%s/no.pem",
             getenv("HF_TEST_PORT"), tls_dir);
    return url;
}

/* Two clients that pass a lock on, and all that they have is encrypted. */
static void tls_works(const char *url)
{
    hf_client *a = NULL, *b = NULL;
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;
    hf_lock *lk;

    CHECK_OK(hf_open(url, NULL, &a, &t_err));
    CHECK_OK(hf_open(url, NULL, &b, &t_err));
    CHECK_OK(hf_acquire(a, scene_key("tls"), 0, NULL, &lk, &t_err));
    CHECK_OK(
        hf_acquire_start(b, scene_key("tls"), 20000, NULL, NULL, &req, &t_err));
    t_sleep_ms(200);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_next_event(b, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    if (scene_is_postgres()) {
        CHECK_GE(scene_sql("SELECT count(*) FROM pg_stat_ssl JOIN "
                           "pg_stat_activity USING (pid) WHERE "
                           "application_name='holdfast' AND ssl"),
                 3); /* two sessions and a listener */
        CHECK_EQ(scene_sql("SELECT count(*) FROM pg_stat_ssl JOIN "
                           "pg_stat_activity USING (pid) WHERE "
                           "application_name='holdfast' AND NOT ssl"),
                 0);
    }
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(tls_is_used_and_the_name_is_checked, 120)
{
    tls_serve("localhost");
    tls_works(tls_checked("ca", ""));
    scene_refused(tls_checked("no", ""), HF_DENIED, "certificate");
    if (scene_is_postgres()) /* It says most of the address that was nearest. */
        scene_refused(tls_two_hosts(), HF_DENIED, "certificate");
    scene_refused(tls_url(scene_is_postgres() ? "&sslmode=disable" : ""),
                  HF_DENIED, "");
    tls_serve("elsewhere.test");
    scene_refused(tls_checked("ca", ""), HF_DENIED, "");
    /* Encrypted, and the name not looked at, because the URL says so. */
    tls_works(scene_is_postgres() ? tls_url("&sslmode=require")
                                  : tls_checked("ca", "&ssl_verify=no"));
}

TEST_TIMEOUT(a_client_shows_its_certificate, 120)
{
    char mine[600];

    tls_serve("localhost");
    snprintf(mine, sizeof(mine),
             scene_is_postgres() ? "&sslcert=%s/holdfast.pem&sslkey="
                                   "%s/holdfast.key"
                                 : "&ssl_cert=%s/holdfast.pem&ssl_key="
                                   "%s/holdfast.key",
             tls_dir, tls_dir);
    if (scene_is_postgres())
        CHECK_EQ(system("cd $HF_TEST_DIR/tls && chmod 600 holdfast.key && "
                        "{ echo 'local all all trust'; "
                        "echo 'hostssl all holdfast all cert'; } >hba && "
                        "kill -HUP $($HF_TEST_SERVER pid)"),
                 0);
    else
        CHECK_EQ(system("mariadb --no-defaults -u root -S $HF_TEST_DIR/socket "
                        "-e \"ALTER USER holdfast@'%' REQUIRE X509\""),
                 0);
    t_sleep_ms(300); /* The server reads its file again some time. */
    scene_refused(tls_checked("ca", ""), HF_DENIED, "");
    {
        hf_client *client = NULL;
        hf_lock *lk;

        CHECK_OK(hf_open(tls_checked("ca", mine), NULL, &client, &t_err));
        CHECK_OK(hf_acquire(client, scene_key("x"), 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client);
    }
}

T_MAIN
