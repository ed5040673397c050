/* SPDX-License-Identifier: MIT
 *
 * mem.c - the order of mem:, asked of the backend itself: a waiter that has a
 * place and does not run is what a busy machine makes of any waiter.
 */
#include "../t.h"

#include <string.h>

#include "core/core.h"

struct party {
    struct hfi_claim claim;
    struct hfi_receipt receipt;
};

static struct party party(char name, bool shared)
{
    struct party ret = {
        .claim = {.key = "k", .ttl_ms = 60000, .shared = shared, .queue = true},
    };

    memset(ret.claim.token, name, HFI_TOKEN_LEN);
    return ret;
}

static hf_status party_tries(hf_client *client, struct party *p)
{
    struct hfi_answer answer = {0};

    return client->be->try_acquire(client->conn, &p->claim, &p->receipt,
                                   &answer, HFI_NEVER, &t_err);
}

static void party_leaves(hf_client *client, struct party *p)
{
    CHECK_OK(client->be->release(client->conn, &p->claim, &p->receipt,
                                 HFI_NEVER, &t_err));
}

TEST(a_reader_does_not_pass_a_writer_that_is_slow_to_come)
{
    struct party reader = party('a', true), writer = party('b', false);
    struct party late = party('c', true), later = party('d', true);
    hf_client *client;

    CHECK_OK(hf_open("mem:order", NULL, &client, &t_err));
    CHECK_OK(party_tries(client, &reader));
    CHECK_EQ(party_tries(client, &writer), HF_BUSY);
    party_leaves(client, &reader);
    CHECK_EQ(party_tries(client, &late), HF_BUSY);
    party_leaves(client, &late);
    CHECK_EQ(party_tries(client, &late), HF_BUSY);
    CHECK_OK(party_tries(client, &writer));
    party_leaves(client, &writer);
    CHECK_OK(party_tries(client, &later)); /* All who wait are readers. */
    CHECK_OK(party_tries(client, &late));
    party_leaves(client, &late);
    party_leaves(client, &later);
    hf_close(client);
}

T_MAIN
