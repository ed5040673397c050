/* SPDX-License-Identifier: MIT
 *
 * dev.c - `consul agent -dev`, the first agent that a newcomer starts.
 */
#include "peer.h"

#include <stdlib.h>
#include <string.h>

TEST(the_first_thing_that_is_tried_works)
{
    CHECK_STR(
        out("$HF_TEST_HOLDFAST run -u %s first -- echo it works", url("")),
        "itworks");
    CHECK_EQ(count_locked(), 0);
}

TEST(an_agent_that_keeps_everything_in_memory_is_warned_of)
{
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = open_url(url(""));

    CHECK_OK(hf_release(lock(client, "dev", 20000, 0), &t_err));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "development mode") != NULL);
    hf_close(client);
}

T_MAIN
