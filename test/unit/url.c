/* SPDX-License-Identifier: MIT
 *
 * The URL parser, escapes, and keys as file names.
 */
#include "t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/file/file.h"
#include "base/escape.h"
#include "base/url.h"

static struct hfi_url parsed(const char *text)
{
    struct hfi_url url;

    CHECK_OK(hfi_url_parse(&url, text, &t_err));
    return url;
}

TEST(a_bare_path_is_taken_as_it_is)
{
    struct hfi_url url = parsed("file:/run/a%20b?ttl=5s");

    CHECK_STR(url.scheme, "file");
    CHECK_STR(url.path, "/run/a b");
    CHECK_EQ(url.nhosts, 0);
    CHECK_STR(hfi_url_param(&url, "ttl", ""), "5s");
    CHECK_STR(hfi_url_param(&url, "no", "-"), "-");
    hfi_url_fini(&url);
}

TEST(an_empty_authority_leaves_the_path)
{
    struct hfi_url url = parsed("file:///run/x");

    CHECK_STR(url.path, "/run/x");
    CHECK_EQ(url.nhosts, 0);
    hfi_url_fini(&url);
}

TEST(hosts_ports_and_credentials_are_told_apart)
{
    struct hfi_url url =
        parsed("redis+sentinel://me:p%40ss@a:1,[::1]:2,c/main/x?db=3&x=%26");

    CHECK_STR(url.scheme, "redis+sentinel");
    CHECK_STR(url.user, "me");
    CHECK_STR(url.password, "p@ss");
    CHECK_EQ(url.nhosts, 3);
    CHECK_STR(url.hosts[0].name, "a");
    CHECK_EQ(url.hosts[0].port, 1);
    CHECK_STR(url.hosts[1].name, "::1");
    CHECK_EQ(url.hosts[1].port, 2);
    CHECK_STR(url.hosts[2].name, "c");
    CHECK_EQ(url.hosts[2].port, 0);
    CHECK_STR(url.path, "/main/x");
    CHECK_STR(hfi_url_param(&url, "x", ""), "&");
    hfi_url_fini(&url);
}

TEST(one_user_is_for_all_hosts)
{
    struct hfi_url url = parsed("redlock://u:p,q@a,b:2");

    CHECK(!url.users);
    CHECK_EQ(url.nhosts, 2);
    CHECK_STR(url.user, "u");
    CHECK_STR(url.password, "p,q");
    for (int i = 0; i < 2; i++) {
        CHECK_STR(url.hosts[i].user, "u");
        CHECK_STR(url.hosts[i].password, "p,q");
    }
    hfi_url_fini(&url);
}

TEST(hosts_may_have_users_of_their_own)
{
    struct hfi_url url =
        parsed("redlock://u:p@a:1,b:2,:q%40%2C@[::1]:3,@d,v@e/7");

    CHECK(url.users);
    CHECK_EQ(url.nhosts, 5);
    CHECK(!url.user && !url.password);
    CHECK_STR(url.hosts[0].user, "u");
    CHECK_STR(url.hosts[0].password, "p");
    CHECK_STR(url.hosts[0].name, "a");
    CHECK_EQ(url.hosts[0].port, 1);
    CHECK_STR(url.hosts[1].user, "u");
    CHECK_STR(url.hosts[1].password, "p");
    CHECK_STR(url.hosts[1].name, "b");
    CHECK_EQ(url.hosts[1].port, 2);
    CHECK_STR(url.hosts[2].user, "");
    CHECK_STR(url.hosts[2].password, "q@,");
    CHECK_STR(url.hosts[2].name, "::1");
    CHECK(!url.hosts[3].user && !url.hosts[3].password);
    CHECK_STR(url.hosts[3].name, "d");
    CHECK_STR(url.hosts[4].user, "v");
    CHECK(!url.hosts[4].password);
    CHECK_STR(url.path, "/7");
    hfi_url_fini(&url);
}

TEST(an_authority_may_stand_without_a_path)
{
    struct hfi_url url = parsed("redis://h:6379?db=1");

    CHECK_STR(url.hosts[0].name, "h");
    CHECK_STR(url.path, "");
    hfi_url_fini(&url);
}

TEST(malformed_urls_are_refused_with_a_line_and_no_password)
{
    static const char *const bad[] = {
        "",
        "file",
        ":x",
        "fi le:x",
        "FILE:x",
        "file:%",
        "file:%4",
        "file:%zz",
        "file:%00",
        "x://h:0",
        "x://h:65536",
        "x://h:1a",
        "x://:1",
        "x://[::1",
        "x://[::1]x",
        "x:y?a",
        "x:y?a=%0",
        "x:y?a=1&a=2",
        "x://secret%@h",
        "x://u:secret%z@h",
        "x://a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q",
    };
    struct hfi_url url;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        t_err.text[0] = '\0';
        if (hfi_url_parse(&url, bad[i], &t_err) != HF_INVALID)
            t_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
        CHECK(t_err.text[0]);
        CHECK(!strstr(t_err.text, "secret"));
    }
}

TEST(a_long_url_is_refused)
{
    static char text[HFI_URL_MAX + 10];
    struct hfi_url url;

    memset(text, 'a', sizeof(text) - 1);
    memcpy(text, "file:", 5);
    CHECK_STATUS(hfi_url_parse(&url, text, &t_err), HF_INVALID);
}

TEST(random_bytes_never_break_the_parser)
{
    static const char alphabet[] = "abc:/?#[]@!&=,%0f25 \n\x80\xff";
    char text[40];
    uint32_t seed = 7;

    for (int round = 0; round < 200000; round++) {
        struct hfi_url url;
        size_t len = 0, want = (seed >> 16) % sizeof(text);

        while (len < want) {
            seed = seed * 1664525u + 1013904223u;
            text[len++] = alphabet[(seed >> 16) % (sizeof(alphabet) - 1)];
        }
        text[len < sizeof(text) ? len : len - 1] = '\0';
        seed = seed * 1664525u + 1013904223u;
        if (!hfi_url_parse(&url, text, NULL))
            hfi_url_fini(&url);
    }
}

/* A password with characters that should have been escaped. */
TEST(no_message_shows_a_part_of_a_password)
{
    static const char *const bad[] = {
        "redis://:secret/secret@h/0",
        "redis://u:secret?secret@h",
        "redis://u:secret?secret=secret@h",
        "redis://u:12/secret@h",
        "redis://u:secret@secret/secret@h",
        "redis://u:secret@secret?secret=1@h",
        "mysql://u:se/secret@h/db?ssl=yes",
        "postgres://u:secret#secret/secret@h/db",
        "x://u?secret@h",
        "x:y?secret@h=1",
        "x:y?secret@h",
        "x://u:secret%2@h",
        "x://secret:99999999@h:secret",
        "x://u:p@h:secret",
        "x://u:p@[secret",
        ":secret@h",
        "//u:secret@h",
        "se cret:secret@h",
    };
    struct hfi_url url;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        t_err.text[0] = '\0';
        if (hfi_url_parse(&url, bad[i], &t_err) != HF_INVALID)
            t_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
        if (!t_err.text[0] || strstr(t_err.text, "secret"))
            t_fail(__FILE__, __LINE__, "%s: %s", bad[i], t_err.text);
    }
}

TEST(an_at_sign_may_stand_where_no_password_can_be)
{
    struct hfi_url url = parsed("x:///run/a@b?c=d@e");

    CHECK_STR(url.path, "/run/a@b");
    CHECK_STR(hfi_url_param(&url, "c", ""), "d@e");
    hfi_url_fini(&url);
    url = parsed("x://h/db?user=a@b");
    CHECK_STR(hfi_url_param(&url, "user", ""), "a@b");
    hfi_url_fini(&url);
    url = parsed("x://u:p%40@h:1/a%40b");
    CHECK_STR(url.password, "p@");
    CHECK_STR(url.path, "/a@b");
    hfi_url_fini(&url);
}

TEST(a_misspelt_scheme_is_guessed)
{
    static const struct {
        const char *url, *said;
    } cases[] = {{"flie:/x", "did you mean 'file:'?"},
                 {"me:", "did you mean 'mem:'?"},
                 {"memcached://h", "this build knows"},
                 {"q:", "this build knows"}};
    struct hf_client *client = NULL;
    char known[256];

    hfi_backend_names(known, sizeof(known)); /* A small build has no more. */
    if (strstr(known, "redis:")) {
        CHECK_STATUS(hf_open("redsi://h", NULL, &client, &t_err), HF_INVALID);
        CHECK(strstr(t_err.text, "did you mean 'redis:'?") != NULL);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        CHECK_STATUS(hf_open(cases[i].url, NULL, &client, &t_err), HF_INVALID);
        if (!strstr(t_err.text, cases[i].said))
            t_fail(__FILE__, __LINE__, "%s: %s", cases[i].url, t_err.text);
        CHECK(!strstr(t_err.text, "..."));
    }
}

TEST(a_value_that_an_option_does_not_have_is_refused)
{
    static const char *const words[] = {"fair", "barge", NULL};
    static const char *const yes[] = {"yes", "on", "true", "1"};
    static const char *const no[] = {"no", "off", "false", "0"};
    char text[32];
    struct hfi_url url = parsed("x:?q=barge&n=7&b=secret&m=12x&e=");
    int64_t number = 3;
    int word = 5;
    bool flag = true;

    CHECK_OK(hfi_url_word(&url, "absent", words, &word, &t_err));
    CHECK_EQ(word, 5);
    CHECK_OK(hfi_url_word(&url, "q", words, &word, &t_err));
    CHECK_EQ(word, 1);
    CHECK_STATUS(hfi_url_word(&url, "b", words, &word, &t_err), HF_INVALID);
    CHECK_STR(t_err.text, "url: b= is fair or barge");
    CHECK_STATUS(hfi_url_bool(&url, "b", &flag, &t_err), HF_INVALID);
    CHECK(!strstr(t_err.text, "secret"));
    CHECK_STATUS(hfi_url_bool(&url, "e", &flag, &t_err), HF_INVALID);
    CHECK_OK(hfi_url_number(&url, "absent", 1, 10, &number, &t_err));
    CHECK_EQ(number, 3);
    CHECK_OK(hfi_url_number(&url, "n", 1, 10, &number, &t_err));
    CHECK_EQ(number, 7);
    CHECK_STATUS(hfi_url_number(&url, "n", 8, 10, &number, &t_err), HF_INVALID);
    CHECK_STATUS(hfi_url_number(&url, "n", 1, 6, &number, &t_err), HF_INVALID);
    CHECK_STATUS(hfi_url_number(&url, "m", 1, 99, &number, &t_err), HF_INVALID);
    CHECK_STATUS(hfi_url_number(&url, "e", 0, 99, &number, &t_err), HF_INVALID);
    hfi_url_fini(&url);
    for (int i = 0; i < 8; i++) {
        snprintf(text, sizeof(text), "x:?b=%s", i < 4 ? yes[i] : no[i - 4]);
        url = parsed(text);
        CHECK_OK(hfi_url_bool(&url, "b", &flag, &t_err));
        CHECK_EQ(flag, i < 4);
        hfi_url_fini(&url);
    }
}

TEST(durations_are_written_as_on_the_command_line)
{
    static const struct {
        const char *text;
        int64_t ms;
    } cases[] = {
        {"x:?t=500ms", 500},  {"x:?t=30s", 30000},      {"x:?t=5m", 300000},
        {"x:?t=1h", 3600000}, {"x:?t=5", 5000},         {"x:?t=", 0},
        {"x:?t=s", 0},        {"x:?t=-5s", 0},          {"x:?t=5d", 432000000},
        {"x:?t=0s", 0},       {"x:?t=99999999999h", 0}, {"x:?t=1.5s", 1500},
        {"x:?t=0.5", 500},    {"x:?t=5sec", 0},         {"x:?t=.5s", 0}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hfi_url url = parsed(cases[i].text);
        int64_t ms = 0;
        hf_status st = hfi_url_duration(&url, "t", &ms, &t_err);

        CHECK_EQ(st, cases[i].ms ? HF_OK : HF_INVALID);
        CHECK_EQ(ms, cases[i].ms);
        hfi_url_fini(&url);
    }
}

TEST(unknown_options_are_named)
{
    static const char *const common[] = {"ttl", NULL};
    struct hfi_url url = parsed("file:x?tll=5s");

    CHECK_STATUS(hfi_url_only(&url, common, NULL, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "'tll'"));
    hfi_url_fini(&url);
}

static void check_round_trip(const char *key)
{
    char path[FILE_PATH_MAX];

    file_path(path, key);
    CHECK(path[0] != '.' && path[0] != '/');
    for (const char *at = path, *end; *at; at = *end ? end + 1 : end) {
        end = strchrnul(at, '/');
        CHECK_LE(end - at, 255);
    }
    CHECK(file_key(path));
    CHECK_STR(path, key);
}

TEST(a_password_that_others_can_read_is_warned_of)
{
    static const char *const here[] = {
        "localhost", "LOCALHOST", "a.localhost",    "127.0.0.1",
        "127.3.2.1", "::1",       "/run/redis.sock"};
    static const char *const away[] = {"example.com", "10.0.0.1",
                                       "fe80::1",     "localhost.example.com",
                                       "128.0.0.1",   "127.0.0.1.example.com"};
    char warning[256];

    for (size_t i = 0; i < sizeof(here) / sizeof(here[0]); i++) {
        warning[0] = '\0';
        hfi_warn_password(warning, sizeof(warning), here[i], false);
        CHECK_STR(warning, "");
    }
    for (size_t i = 0; i < sizeof(away) / sizeof(away[0]); i++) {
        snprintf(warning, sizeof(warning), "few nodes");
        hfi_warn_password(warning, sizeof(warning), away[i], true);
        CHECK_STR(warning, "few nodes");
        hfi_warn_password(warning, sizeof(warning), away[i], false);
        CHECK(!strncmp(warning, "few nodes; the password", 23));
        CHECK(strstr(warning, away[i]));
    }
    for (int i = 0; i < 5; i++) /* It is cut, and no more. */
        hfi_warn_password(warning, sizeof(warning), "example.com", false);
    CHECK_LT(strlen(warning), sizeof(warning));
}

TEST(every_key_has_a_file_name_that_leads_back_to_it)
{
    static char key[HF_KEY_MAX + 1];

    check_round_trip(".");
    check_round_trip("..");
    check_round_trip("a/b");
    check_round_trip("~");
    check_round_trip("%41");
    check_round_trip("x.lock");
    for (int c = 1; c < 256; c++) {
        key[0] = (char)c;
        key[1] = '\0';
        check_round_trip(key);
        for (int len = 230; len <= HF_KEY_MAX; len += 397) {
            memset(key, c, (size_t)len);
            key[len] = '\0';
            check_round_trip(key);
        }
    }
    memset(key, '/', HF_KEY_MAX);
    key[HF_KEY_MAX] = '\0';
    check_round_trip(key);
}

TEST(names_that_are_not_ours_have_no_key)
{
    static const char *const bad[] = {".lock",     "a",         "a%2f.lock",
                                      "%41.lock",  "a b.lock",  "a%.lock",
                                      "a~/b.lock", "a%00.lock", ".a.lock"};
    char path[FILE_PATH_MAX];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(path, sizeof(path), "%s", bad[i]);
        if (file_key(path))
            t_fail(__FILE__, __LINE__, "taken for ours: %s", bad[i]);
    }
}

TEST(the_fence_of_a_file_rises_also_when_the_clock_stands_or_goes_back)
{
    struct file_record rec = {.fence = 1000};

    CHECK_EQ(file_next_fence(&rec, 5000), 5000);
    CHECK_EQ(file_next_fence(&rec, 1001), 1001);
    CHECK_EQ(file_next_fence(&rec, 1000), 1001);
    CHECK_EQ(file_next_fence(&rec, 7), 1001);
    rec.fence = (UINT64_C(1) << 53) - 1;
    CHECK_EQ(file_next_fence(&rec, 7), 0);
}

TEST(escaping_says_how_much_room_it_needs)
{
    char buf[8];

    CHECK_EQ(hfi_escape(buf, sizeof(buf), "a b", ""), 5);
    CHECK_STR(buf, "a%20b");
    CHECK_EQ(hfi_escape(buf, sizeof(buf), "aaaaaaa", ""), 7);
    CHECK_STR(buf, "aaaaaaa");
    CHECK_EQ(hfi_escape(buf, sizeof(buf), "aaaaaaaa", ""), 8);
}

TEST(a_name_has_no_password)
{
    static const char *const rows[][2] = {
        {"redis://u:SECRET@h:1,[::1]:2/0?x=SECRET", "redis://h:1,[::1]:2"},
        {"redis:u:SECRET@h", "redis:"},
        {"redis:/u:SECRET@h", "redis:"},
        {"postgres:host=h password=SECRET", "postgres:"},
        {"file:/run/a@b", "file:/run/a@b"},
        {"sqlite:a=b.db", "sqlite:a=b.db"},
        {"file:", "file:"},
    };
    char name[256];
    size_t i;

    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hfi_url url = parsed(rows[i][0]);

        hfi_url_name(&url, name, sizeof(name));
        CHECK_STR(name, rows[i][1]);
        hfi_url_fini(&url);
    }
}

T_MAIN
