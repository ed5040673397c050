/* SPDX-License-Identifier: MIT
 *
 * names.c - a key is any string of 1 to HF_KEY_MAX bytes, and different keys
 * are different locks, whatever the service makes of their bytes.
 *
 * Keys here bear no prefix where the whole key is the point; the others begin
 * with the prefix of the test, so that the list can be compared exactly.
 */
#include "conf.h"

#include <stdio.h>

enum { KEYS = 1000 };

static const char *const odd[] = {
    "a",
    "A",
    ".",
    "..",
    "...",
    "/",
    "//",
    "/etc/passwd",
    "../../etc/passwd",
    "a/b",
    "a//b",
    "a/",
    "a.lock",
    ".lock",
    "{}",
    "{a}b",
    "{a",
    "a}",
    " ",
    "  ",
    " a",
    "a ",
    "\n",
    "a\nb",
    "\r\n",
    "\t",
    "%",
    "%%",
    "%2F",
    "%2f",
    "%00",
    "%s%n",
    "~",
    "~root",
    "*",
    "?",
    "[a]",
    "$HOME",
    "`id`",
    "'",
    "\"",
    "\\",
    "\\0",
    ";",
    "&",
    "|",
    "<",
    ">",
    "#",
    "-",
    "--",
    "-n",
    "+",
    "=",
    "a=b",
    ",",
    ":",
    "a:b",
    "@",
    "!",
    "^",
    "(",
    ")",
    "_",
    "\x01",
    "\x1f",
    "\x7f",
    "\x80",
    "\xff",
    "\xc3\xa4",
    "a\xcc\x88",
    "\xe2\x82\xac",
    "\xf0\x9f\x94\x92",
    "\xc3",
    "\xe2\x82",
    "\xc0\x80",
    "con",
    "nul",
    "NUL",
    "key.lock.lock",
    "~2f",
    "=2F",
    "_2F",
    "\\x2f",
};

enum { ODD = sizeof(odd) / sizeof(odd[0]) };

/* The i-th of KEYS keys, each different from all others. */
static void make_key(char key[HF_KEY_MAX + 1], int i)
{
    size_t len = (size_t)snprintf(key, HF_KEY_MAX + 1, "%s", conf_prefix());

    if (i < ODD) {
        strcpy(key + len, odd[i]);
    } else if (i < ODD + 255) {
        /* Each byte that there is, alone in the middle. */
        sprintf(key + len, "<%c>", i - ODD + 1);
    } else if (i < ODD + 355) {
        /* A hundred that differ in their thousandth byte only. */
        memset(key + len, 'x', HF_KEY_MAX - len);
        key[HF_KEY_MAX] = 0;
        key[999] = (char)(i - ODD - 255 + 33);
    } else if (i < ODD + 455) {
        /* Every length up to the longest, each a prefix of the next. */
        memset(key + len, '/', HF_KEY_MAX - len);
        key[HF_KEY_MAX - (i - ODD - 355) * 7] = 0;
    } else {
        sprintf(key + len, "plain %d/%d", i % 7, i);
    }
}

static void key_at(int i, char key[HF_KEY_MAX + 1])
{
    memset(key, 0, HF_KEY_MAX + 1);
    make_key(key, i);
}

struct listing {
    bool seen[KEYS];
    int count;
    uint64_t fences[KEYS];
};

static bool tick_off(void *arg, const char *key, const struct hf_info *info)
{
    struct listing *listing = arg;
    char want[HF_KEY_MAX + 1];

    CHECK(info->held);
    for (int i = 0; i < KEYS; i++) {
        if (listing->seen[i])
            continue;
        key_at(i, want);
        if (strcmp(key, want) != 0)
            continue;
        listing->seen[i] = true;
        CHECK_EQ(info->fence, listing->fences[i]);
        listing->count++;
        return true;
    }
    t_fail(__FILE__, __LINE__, "listed, but never locked: \"%s\"", key);
}

TEST_TIMEOUT(a_thousand_odd_keys_are_different_locks_and_listed_exactly, 300)
{
    static struct listing listing;
    static hf_lock *lk[KEYS];
    char key[HF_KEY_MAX + 1];
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *none = NULL;
    /* Some of each kind, where it is far or little is asked for. */
    int step = conf_trip_ms ? 37 : t_scaled(100, 0) < 10 ? 5 : 1;

    for (int i = 0; i < KEYS; i += step) {
        key_at(i, key);
        lk[i] = conf_try(a, key, NULL);
        CHECK_STR(hf_key(lk[i]), key);
        listing.fences[i] = hf_fence(lk[i]);
    }
    for (int i = 0; i < KEYS; i += step) {
        key_at(i, key);
        CHECK(hf_held(lk[i]));
        CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_BUSY);
    }
    CHECK_OK(hf_list(b, conf_prefix(), tick_off, &listing, &t_err));
    CHECK_EQ(listing.count, (KEYS + step - 1) / step);
    for (int i = 0; i < KEYS; i += step)
        conf_unlock(lk[i]);
    CHECK_EQ(conf_count_listed(b, conf_prefix()), 0);
    for (int i = 0; i < KEYS; i += 37) {
        key_at(i, key);
        conf_unlock(conf_try(b, key, NULL));
    }
    hf_close(a);
    hf_close(b);
}

static bool is_key(void *arg, const char *key, const struct hf_info *info)
{
    (void)info;
    CHECK_STR(key, *(const char **)arg);
    *(const char **)arg = NULL;
    return true;
}

TEST(a_key_without_anything_before_it_is_locked_and_listed_as_it_is)
{
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *none = NULL;

    for (int i = 0; i < ODD; i += conf_trip_ms ? 7 : 1) {
        const char *want = odd[i];
        hf_lock *lk = conf_lock(a, odd[i], NULL);

        CHECK_STATUS(hf_acquire(b, odd[i], 0, NULL, &none, &t_err), HF_BUSY);
        /* Others may hold locks in a service that is shared. */
        if (conf_count_listed(b, odd[i]) == 1) {
            CHECK_OK(hf_list(b, odd[i], is_key, &want, &t_err));
            CHECK(want == NULL);
        }
        CHECK_GE(conf_count_listed(b, odd[i]), 1);
        CHECK(conf_look(b, odd[i]).held);
        conf_unlock(lk);
    }
    hf_close(a);
    hf_close(b);
}

TEST(a_key_of_1024_bytes_is_good_and_one_more_is_refused)
{
    char key[HF_KEY_MAX + 2];
    hf_client *client = conf_open();
    struct hf_info info = HF_INFO_INIT;
    hf_request *req = NULL;
    hf_lock *lk = NULL;

    memset(key, 'k', sizeof(key));
    memcpy(key, conf_prefix(), strlen(conf_prefix()));
    key[HF_KEY_MAX] = 0;
    conf_unlock(conf_try(client, key, NULL));
    conf_check_free(key);
    key[HF_KEY_MAX] = 'k';
    key[HF_KEY_MAX + 1] = 0;
    CHECK_STATUS(hf_acquire(client, key, 0, NULL, &lk, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire_start(client, key, 0, NULL, NULL, &req, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_inspect(client, key, &info, &t_err), HF_INVALID);
    CHECK_STATUS(hf_check(client, key, 1, &t_err), HF_INVALID);
    CHECK_STATUS(hf_break(client, key, 1, &t_err), HF_INVALID);
    CHECK(lk == NULL && req == NULL);
    hf_close(client);
}

TEST(an_empty_key_is_refused)
{
    hf_client *client = conf_open();
    struct hf_info info = HF_INFO_INIT;
    hf_request *req = NULL;
    hf_lock *lk = NULL;

    CHECK_STATUS(hf_acquire(client, "", 0, NULL, &lk, &t_err), HF_INVALID);
    CHECK_STATUS(hf_acquire_start(client, "", 0, NULL, NULL, &req, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_inspect(client, "", &info, &t_err), HF_INVALID);
    CHECK_STATUS(hf_check(client, "", 1, &t_err), HF_INVALID);
    CHECK(lk == NULL && req == NULL);
    hf_close(client);
}

TEST(the_longest_owner_and_note_are_kept_whole_and_longer_ones_refused)
{
    char owner[HF_OWNER_MAX + 2], note[HF_NOTE_MAX + 2];
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct hf_info info;
    hf_lock *lk, *none = NULL;

    memset(owner, 'o', sizeof(owner));
    memset(note, 'n', sizeof(note));
    owner[HF_OWNER_MAX] = note[HF_NOTE_MAX] = 0;
    opts.owner = owner;
    opts.note = note;
    lk = conf_try(client, key, &opts);
    info = conf_look(client, key);
    CHECK_STR(info.owner, hf_token(lk));
    if (conf_traits & HF_TRAIT_NOTED) {
        CHECK_STR(info.note, note);
        CHECK_STR(hf_token(lk), owner);
    }
    conf_unlock(lk);

    note[HF_NOTE_MAX] = 'n';
    note[HF_NOTE_MAX + 1] = 0;
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &none, &t_err), HF_INVALID);
    note[HF_NOTE_MAX] = 0;
    owner[HF_OWNER_MAX] = 'o';
    owner[HF_OWNER_MAX + 1] = 0;
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &none, &t_err), HF_INVALID);
    CHECK(none == NULL);
    hf_close(client);
    conf_check_free(key);
}

TEST(any_bytes_in_owner_and_note_come_back_or_are_refused)
{
    static const char *const texts[] = {
        "two\nlines", "tab\there", "\"quoted\" \\ back",     "\xc3\xa4\xff",
        "a=b note=c", "\x01\x02",  " leading and trailing ", "%41 %",
        "\n\n",
    };
    const char *key = conf_key("k");
    hf_client *client;

    conf_needs(HF_TRAIT_NOTED);
    client = conf_open();
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct hf_lock_opts opts = conf_opts(0, 0);
        hf_lock *lk = NULL;
        hf_status st;

        opts.owner = opts.note = texts[i];
        st = hf_acquire(client, key, 0, &opts, &lk, &t_err);
        if (st == HF_INVALID) {
            CHECK(t_err.text[0]);
            continue;
        }
        t_check_status(__FILE__, __LINE__, texts[i], st, HF_OK);
        CHECK_STR(conf_look(client, key).note, texts[i]);
        CHECK_STR(conf_look(client, key).owner, texts[i]);
        CHECK_EQ(conf_look(client, key).fence, hf_fence(lk));
        conf_unlock(lk);
    }
    hf_close(client);
}
