/* SPDX-License-Identifier: MIT
 *
 * limits.c - a server with its default limits: a ttl that it does not accept is
 * refused, and the message says what it would accept.
 */
#include "peer.h"

#include <string.h>

TEST(a_ttl_below_the_servers_minimum_is_refused_with_the_minimum)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url(url(""));
    hf_lock *none = NULL;

    opts.ttl_ms = 5000;
    CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "10s") != NULL);
    CHECK_STATUS(hf_acquire(client, "k", 1000, &opts, &none, &t_err),
                 HF_INVALID);
    opts.ttl_ms = 10000;
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &none, &t_err));
    CHECK_OK(hf_release(none, &t_err));
    hf_close(client);
    check_clean();
}

TEST(a_ttl_beyond_a_day_is_refused_with_the_maximum)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url(url(""));
    hf_lock *none = NULL;

    opts.ttl_ms = 25 * 3600 * 1000;
    CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "24h") != NULL);
    hf_close(client);
    check_clean();
}

T_MAIN
