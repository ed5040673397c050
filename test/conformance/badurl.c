/* SPDX-License-Identifier: MIT
 *
 * badurl.c - URLs that cannot be opened: each is refused with one line that
 * says what is wrong, names no password, and leaves no client behind.
 */
#include "../t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void refuse(const char *url, hf_status want, const char *word)
{
    hf_client *client = NULL;
    hf_status st = hf_open(url, NULL, &client, &t_err);

    if (st != want)
        t_fail(__FILE__, __LINE__, "%s: %s is not %s (%s)", url,
               hf_status_name(st), hf_status_name(want), t_err.text);
    CHECK(client == NULL);
    CHECK_EQ(t_err.status, st);
    CHECK(t_err.text[0] && !strchr(t_err.text, '\n'));
    CHECK(!strstr(t_err.text, "secret"));
    if (word && !strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "%s: \"%s\" does not say \"%s\"", url,
               t_err.text, word);
}

TEST(an_unknown_scheme_is_refused_and_told_which_there_are)
{
    refuse("nonsense:/x", HF_INVALID, "nonsense");
    refuse("nonsense://localhost", HF_INVALID, "file");
    refuse("http://example.org/", HF_INVALID, "mem");
    /* Names are told whole, or stand behind the dots. */
    CHECK(strchr(":.", t_err.text[strlen(t_err.text) - 1]) != NULL);
    refuse("nonsense://user:secret@host/x?password=secret", HF_INVALID, NULL);
}

TEST(a_url_without_a_scheme_is_refused)
{
    static const char *const urls[] = {
        "nothing",  "/var/lock", "://",     ":",        ":x",
        "//host/x", " file:/x",  "FILE:/x", "fi le:/x", "file/x:y",
    };

    for (size_t i = 0; i < sizeof(urls) / sizeof(urls[0]); i++)
        refuse(urls[i], HF_INVALID, "scheme");
}

TEST(an_empty_url_is_refused_and_told_what_to_write)
{
    refuse("", HF_INVALID, "file:");
}

TEST(the_lease_of_the_url_is_told)
{
    static const struct {
        const char *url;
        int64_t ttl_ms;
    } rows[] = {{"mem:a", 30000}, {"mem:a?ttl=5s", 5000}};

    for (int i = 0; i < 2; i++) {
        struct hf_service about = {.size = sizeof(about)};
        hf_client *client = NULL;

        CHECK_OK(hf_open(rows[i].url, NULL, &client, &t_err));
        CHECK_OK(hf_describe(client, &about, &t_err));
        CHECK_EQ(about.ttl_ms, rows[i].ttl_ms);
        hf_close(client);
    }
}

TEST(malformed_escapes_are_refused)
{
    refuse("mem:%", HF_INVALID, "escape");
    refuse("mem:%4", HF_INVALID, "escape");
    refuse("mem:%zz", HF_INVALID, "escape");
    refuse("mem:a%00b", HF_INVALID, "escape");
    refuse("mem:a?x=%zz", HF_INVALID, NULL);
}

TEST(unknown_and_malformed_options_are_refused)
{
    refuse("mem:a?no_such_option=1", HF_INVALID, "no_such_option");
    refuse("file:/tmp?no_such_option=1", HF_INVALID, "no_such_option");
    refuse("mem:a?x", HF_INVALID, NULL);
    refuse("mem:a?=1", HF_INVALID, NULL);
    refuse("mem:a?ttl=secret", HF_INVALID, NULL);
}

TEST(a_url_that_is_too_long_is_refused)
{
    static const size_t sizes[] = {5000, 100000};

    for (int i = 0; i < 2; i++) {
        char *url = malloc(sizes[i] + 1);

        CHECK(url != NULL);
        memset(url, 'x', sizes[i]);
        memcpy(url, "mem:", 4);
        url[sizes[i]] = 0;
        refuse(url, HF_INVALID, NULL);
        free(url);
    }
}

TEST(the_embedded_default_is_a_directory_of_the_user)
{
    static const char *const urls[] = {NULL, "file:"};
    char uid[32];

    snprintf(uid, sizeof(uid), "holdfast-%lu", (unsigned long)geteuid());
    for (int i = 0; i < 2; i++) {
        struct hf_service about = {.size = sizeof(about)};
        hf_client *client = NULL;

        CHECK_OK(hf_open(urls[i], NULL, &client, &t_err));
        CHECK_OK(hf_describe(client, &about, &t_err));
        CHECK_STR(about.scheme, "file");
        CHECK(strstr(about.endpoint, uid) != NULL);
        hf_close(client);
    }
}

TEST(mem_without_a_name_is_private_and_with_one_is_shared)
{
    hf_client *a, *b, *c, *d;
    hf_lock *one, *two, *none = NULL;

    CHECK_OK(hf_open("mem:x", NULL, &a, &t_err));
    CHECK_OK(hf_open("mem:x", NULL, &b, &t_err));
    CHECK_OK(hf_open("mem:y", NULL, &c, &t_err));
    CHECK_OK(hf_open("mem:", NULL, &d, &t_err));
    CHECK_OK(hf_acquire(a, "k", 0, NULL, &one, &t_err));
    CHECK_STATUS(hf_acquire(b, "k", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_acquire(c, "k", 0, NULL, &two, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_acquire(d, "k", 0, NULL, &two, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
    hf_close(d);
}

T_MAIN
