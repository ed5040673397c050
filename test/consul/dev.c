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

/* The agent is started again, and knows nothing. */
static void restart(void)
{
    CHECK_EQ(sh("kill -KILL $(cat $HF_TEST_DIR/1.pid)"), 0);
    t_poll_until(sh("curl -s -o /dev/null $C/v1/status/leader") != 0, 20000);
    CHECK_EQ(sh("touch $HF_TEST_DIR/1.again"), 0);
    t_poll_until(sh("curl -s $C/v1/status/leader | grep -q :") == 0, 60000);
}

TEST_TIMEOUT(an_index_that_begins_again_is_warned_of, 120)
{
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = open_url(url(""));
    uint64_t fence;
    hf_lock *lk;

    for (int i = 0; i < 100; i++)
        CHECK_OK(hf_release(lock(client, "again", 20000, 0), &t_err));
    lk = lock(client, "again", 20000, 0);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    restart();
    lk = lock(client, "again", 20000, 60000);
    CHECK_LT(hf_fence(lk), fence);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "gone back") != NULL);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

T_MAIN
