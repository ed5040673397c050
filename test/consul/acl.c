/* SPDX-License-Identifier: MIT
 *
 * acl.c - a token comes from a file or a variable, is asked for where it is
 * missing, and is never told.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *bare(void)
{
    static char text[256];

    snprintf(text, sizeof(text), "%s", getenv("HF_TEST_URL"));
    *strchr(text, '?') = '\0';
    return text;
}

static void use(const char *address)
{
    hf_client *client = open_url(address);
    hf_lock *lk = lock(client, "acl", 0, 0);

    CHECK_EQ(count_sessions(), 1); /* So the count below counts. */
    CHECK_EQ(count_locked(), 1);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    check_clean();
}

TEST(a_token_from_a_file_or_a_variable_opens_the_door)
{
    char token[64] = "";
    FILE *file = fopen(getenv("HF_TEST_TOKEN_FILE"), "r");

    CHECK(file && fgets(token, sizeof(token), file));
    fclose(file);
    use(url(""));
    setenv("CONSUL_HTTP_TOKEN_FILE", getenv("HF_TEST_TOKEN_FILE"), 1);
    use(bare());
    unsetenv("CONSUL_HTTP_TOKEN_FILE");
    setenv("CONSUL_HTTP_TOKEN", token, 1);
    use(bare());
}

static void refused(hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;
    hf_lock *none = NULL;

    CHECK_STATUS(hf_acquire(client, "acl", 0, NULL, &none, &t_err), HF_DENIED);
    CHECK(!strstr(t_err.text, "4711"));
    CHECK_STATUS(hf_acquire(client, "acl", 1000, NULL, &none, &t_err),
                 HF_DENIED);
    CHECK_STATUS(hf_inspect(client, "acl", &info, &t_err), HF_DENIED);
    hf_close(client);
    check_clean();
}

TEST(no_token_and_a_wrong_one_are_denied)
{
    refused(open_url(bare()));
    setenv("CONSUL_HTTP_TOKEN", "00000000-0000-0000-0000-000000004711", 1);
    refused(open_url(bare()));
}

/* Make a token for locks, and print what `field` of it is. */
static const char make_token[] =
    "M=\"X-Consul-Token: $(cat $HF_TEST_DIR/master)\"; "
    "command curl -s -H \"$M\" -X PUT $C/v1/acl/token "
    "-d '{\"Policies\": [{\"Name\": \"locks\"}]}' | tr -d ' \\n' >%s/made; "
    "sed 's/.*\"SecretID\":\"//; s/\".*//' %s/made >%s/token; "
    "sed 's/.*\"AccessorID\":\"//; s/\".*//' %s/made";

TEST(a_token_that_was_changed_in_its_file_costs_no_lock)
{
    const char *dir = t_tmpdir(), *old;
    struct hf_info info = HF_INFO_INIT;
    char text[512];
    hf_client *client;
    hf_lock *lk;

    old = out(make_token, dir, dir, dir, dir);
    snprintf(text, sizeof(text), "%s?token_file=%s/token", bare(), dir);
    client = open_url(text);
    lk = lock(client, "acl", 20000, 0);
    out(make_token, dir, dir, dir, dir);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(sh("command curl -sf -X DELETE $C/v1/acl/token/%s -H "
                "\"X-Consul-Token: $(cat $HF_TEST_DIR/master)\" >/dev/null",
                old),
             0);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_inspect(client, "acl", &info, &t_err));
    CHECK_OK(hf_release(lock(client, "acl/2", 20000, 0), &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    check_clean();
}

/* Have the policy "some" say that, and print a token for it. */
static const char *allow(const char *rules)
{
    return out("M=\"X-Consul-Token: $(cat $HF_TEST_DIR/master)\"; "
               "id=$(command curl -s -H \"$M\" $C/v1/acl/policies | "
               "tr '{' '\\n' | grep '\"some\"' | "
               "sed 's/.*\"ID\":\"//; s/\".*//'); "
               "command curl -s -H \"$M\" -X PUT $C/v1/acl/policy/$id "
               "-d '{\"Name\": \"some\", \"Rules\": \"session_prefix \\\"\\\" "
               "{policy=\\\"write\\\"} key_prefix \\\"\\\" "
               "{policy=\\\"write\\\"} %s\"}' >/dev/null; "
               "command curl -s -H \"$M\" -X PUT $C/v1/acl/token "
               "-d '{\"Policies\": [{\"Name\": \"some\"}]}' | tr -d ' \\n' | "
               "sed 's/.*\"SecretID\":\"//; s/\".*//'",
               rules);
}

#define DENY_3 "key \\\"acl/3\\\" {policy=\\\"deny\\\"}"

TEST(a_key_that_the_token_may_not_read_any_more_costs_no_other_lock)
{
    hf_client *client;
    hf_lock *lk[40];
    char key[16];

    setenv("CONSUL_HTTP_TOKEN", allow(""), 1);
    client = open_url(bare());
    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "acl/%d", i);
        lk[i] = lock(client, key, 2000, 0);
    }
    t_sleep_ms(
        2000); /* Now those that are close together are renewed at once. */
    allow(DENY_3);
    check_lost(lk[3], HF_LOSS_EXPIRED);
    t_sleep_ms(300); /* Leases that began at the same time would be over. */
    allow("");
    hf_release(lk[3], NULL);
    for (int i = 0; i < 40; i++)
        if (i != 3)
            CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    check_clean();
}

#define READ_3 "key \\\"acl/3\\\" {policy=\\\"read\\\"}"

TEST(a_release_that_is_refused_keeps_no_other_lock_from_lapsing)
{
    hf_client *a, *b = open_url(url(""));
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *refused, *kept, *next;

    setenv("CONSUL_HTTP_TOKEN", allow(""), 1);
    a = open_url(bare());
    refused = lock(a, "acl/3", 1500, 0);
    kept = lock(a, "acl/kept", 1500, 0);
    allow(READ_3);
    CHECK_STATUS(hf_release(refused, &t_err), HF_DENIED);
    CHECK_OK(hf_detach(lock(a, "acl/left", 1500, 0), &handle, &t_err));
    next = lock(b, "acl/left", 1500, 20000);
    CHECK(hf_held(kept));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST(a_handle_whose_release_is_refused_lapses_all_the_same)
{
    hf_client *a, *b = open_url(url(""));
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *kept, *next;

    setenv("CONSUL_HTTP_TOKEN", allow(""), 1);
    a = open_url(bare());
    kept = lock(a, "acl/kept", 1500, 0);
    CHECK_OK(hf_detach(lock(a, "acl/3", 1500, 0), &handle, &t_err));
    allow(READ_3);
    CHECK_STATUS(hf_handle_release(a, "acl/3", &handle, NULL, &t_err),
                 HF_DENIED);
    allow("");
    next = lock(b, "acl/3", 1500, 20000);
    CHECK(hf_held(kept));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST(a_token_that_others_can_read_on_its_way_is_warned_of)
{
    struct hf_service about = {.size = sizeof(about)};
    char text[512];
    hf_client *client = open_url(url(""));

    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_STR(about.warning, "");
    hf_close(client);
    /* This machine, by a name of which that is not said. */
    snprintf(text, sizeof(text), "consul://127.1:%d?token_file=%s",
             atoi(strrchr(bare(), ':') + 1), getenv("HF_TEST_TOKEN_FILE"));
    client = open_url(text);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "the ACL token is sent to 127.1 without"));
    hf_close(client);
    *strchr(text, '?') = '\0';
    client = open_url(text);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_STR(about.warning, "");
    hf_close(client);
}

TEST(a_token_file_that_is_missing_or_no_token_is_refused)
{
    char text[512];
    hf_client *none = NULL;

    snprintf(text, sizeof(text), "%s?token_file=/nonexistent", bare());
    CHECK(hf_open(text, NULL, &none, &t_err) != HF_OK);
    CHECK_EQ(sh("printf 'a\\nb\\n' >%s/two", t_tmpdir()), 0);
    snprintf(text, sizeof(text), "%s?token_file=%s/two", bare(), t_tmpdir());
    CHECK_STATUS(hf_open(text, NULL, &none, &t_err), HF_INVALID);
    CHECK(none == NULL);
}

T_MAIN
