/* SPDX-License-Identifier: MIT
 *
 * tls.c - consuls: the peer's name is verified unless told otherwise.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The server as 127.0.0.1, which its certificate does not name. */
static const char *by_number(const char *options)
{
    static char text[512];
    const char *port = strrchr(getenv("HF_TEST_URL"), ':');

    snprintf(text, sizeof(text), "consuls://127.0.0.1:%d?cacert=%s%s",
             atoi(port + 1), getenv("HF_TEST_CACERT"), options);
    return text;
}

static void use(const char *address)
{
    hf_client *client = open_url(address), *other = open_url(address);
    hf_lock *lk = lock(client, "tls", 3000, 0), *next;

    CHECK_EQ(count_sessions(), 1); /* So the count below counts. */
    CHECK_EQ(count_locked(), 1);
    CHECK_STATUS(hf_acquire(other, "tls", 0, NULL, &next, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(other, "tls", 200, NULL, &next, &t_err),
                 HF_TIMEOUT);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(other);
    check_clean();
}

TEST(a_verified_server_is_used)
{
    use(url(""));
    use(by_number("&server_name=localhost"));
}

TEST(a_server_of_another_name_is_refused_unless_told_otherwise)
{
    hf_client *none = NULL;

    CHECK_STATUS(hf_open(by_number(""), NULL, &none, &t_err), HF_DENIED);
    CHECK(none == NULL);
    use(by_number("&verify=no"));
}

TEST(a_server_of_an_unknown_ca_is_refused)
{
    char text[256];
    hf_client *none = NULL;

    snprintf(text, sizeof(text), "%s", getenv("HF_TEST_URL"));
    *strchr(text, '?') = '\0';
    CHECK_STATUS(hf_open(text, NULL, &none, &t_err), HF_DENIED);
    setenv("CONSUL_CACERT", getenv("HF_TEST_CACERT"), 1);
    use(text);
}

TEST(plain_http_to_a_tls_port_is_refused)
{
    char text[256];
    hf_client *none = NULL;

    snprintf(text, sizeof(text), "consul://localhost:%d",
             atoi(strrchr(getenv("HF_TEST_URL"), ':') + 1));
    CHECK(hf_open(text, NULL, &none, &t_err) != HF_OK);
    CHECK(none == NULL);
}

/* The server's key, its certificate and the CA behind it are exchanged, and the
 * server starts again with them. */
TEST_TIMEOUT(certificates_that_were_exchanged_cost_no_lock, 120)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk = lock(client, "tls/new", 40000, 0);

    CHECK_EQ(sh("$HF_TEST_MAKE_CERTS $HF_TEST_DIR"), 0);
    CHECK_EQ(sh("kill -KILL $(cat $HF_TEST_DIR/1.pid); "
                "touch $HF_TEST_DIR/1.again"),
             0);
    t_poll_until(sh("curl -s -m 1 -o /dev/null -w '%%{http_code}' "
                    "$C/v1/kv/none?consistent | grep -q 404") == 0,
                 30000);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    check_clean();
}

T_MAIN
