/* SPDX-License-Identifier: MIT
 *
 * unit.c - the parts of the command that need no process: times, words, JSON,
 * handles; and acquire, renew and release against mem:, which lives in this
 * process and keeps a lease as a server would.
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int test_number, test_failures;

static void tap(bool good, const char *name)
{
    printf("%sok %d - %s\n", good ? "" : "not ", ++test_number, name);
    test_failures += !good;
}

static void test_durations(void)
{
    static const struct {
        const char *text;
        int64_t ms; /* -1: refused */
    } rows[] = {
        {"0", 0},
        {"5", 5000},
        {"1.5", 1500},
        {"0.001", 1},
        {"0.0001", 1},
        {"500ms", 500},
        {"30s", 30000},
        {"5m", 300000},
        {"1h", 3600000},
        {"2d", 172800000},
        {"1.5h", 5400000},
        {"3.", 3000},
        {"", -1},
        {"s", -1},
        {".5", 500}, /* as in flock(1) */
        {".5m", 30000},
        {".", -1},
        {".s", -1},
        {"-1", -1},
        {"+1", -1},
        {" 1", -1},
        {"1 ", -1},
        {"1e3", -1},
        {"0x10", -1},
        {"inf", -1},
        {"nan", -1},
        {"5M", -1},
        {"5 s", -1},
        {"1s1", -1},
        {"99999999999999999999", -1},
        {"1.2.3", -1},
        {"9223372036854775807", -1},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int64_t ms = -1;
        bool read = cli_parse_ms(rows[i].text, &ms);
        char name[96];

        snprintf(name, sizeof(name), "the duration '%s' is %lld ms",
                 rows[i].text, (long long)rows[i].ms);
        tap(read == (rows[i].ms >= 0) && (!read || ms == rows[i].ms), name);
    }
}

/* What `print` writes about `text`, or NULL. */
static char *printed(void (*print)(FILE *, const char *), const char *text)
{
    char *ret = NULL;
    size_t size;
    FILE *out = open_memstream(&ret, &size);

    if (!out)
        return NULL;
    print(out, text);
    fclose(out);
    return ret;
}

static void test_json(void)
{
    static const struct {
        const char *text, *json;
    } rows[] = {
        {"", "\"\""},
        {"plain", "\"plain\""},
        {"a\"b\\c", "\"a\\\"b\\\\c\""},
        {"\n\t\x01\x7f", "\"\\n\\u0009\\u0001\\u007f\""},
        {"\xc3\xa4\xe2\x82\xac\xf0\x9f\x94\x92",
         "\"\xc3\xa4\xe2\x82\xac\xf0\x9f\x94\x92\""},
        {"\xc2\x9b\xe2\x80\xae", "\"\\u009b\\u202e\""},
        {"\xc2\xad\xef\xb8\x8f\xe3\x85\xa4\xf3\xa0\x81\x81",
         "\"\\u00ad\\ufe0f\\u3164\\udb40\\udc41\""},
        {"\xff", "\"\\\\xff\""},
        {"\xc3", "\"\\\\xc3\""},
        {"\xc3(", "\"\\\\xc3(\""},
        {"\xc0\x80", "\"\\\\xc0\\\\x80\""},
        {"\xe0\x80\x80", "\"\\\\xe0\\\\x80\\\\x80\""},
        {"\xed\xa0\x80", "\"\\\\xed\\\\xa0\\\\x80\""},
        {"\xf4\x90\x80\x80", "\"\\\\xf4\\\\x90\\\\x80\\\\x80\""},
        {"\xe2\x82", "\"\\\\xe2\\\\x82\""},
        {"\\xff", "\"\\\\\\\\xff\""},
        {"\\\xff", "\"\\\\\\\\\\\\xff\""},
        {"\\\\a\\", "\"\\\\\\\\\\\\a\\\\\""},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *json = printed(cli_json_text, rows[i].text);
        char name[96];

        snprintf(name, sizeof(name), "a JSON string is %s", rows[i].json);
        tap(json && !strcmp(json, rows[i].json), name);
        free(json);
    }
}

static void test_words(void)
{
    char *word = printed(cli_shell_word, "it's $HOME; `rm`\n\\");
    char clean[32], tiny[8];

    tap(word && !strcmp(word, "'it'\\''s $HOME; `rm`\n\\'"),
        "a shell word is quoted");
    free(word);
    cli_clean("a\033[2J\n", clean, sizeof(clean));
    tap(!strcmp(clean, "a\\x1b[2J\\x0a"), "control bytes are shown");
    cli_clean("\xc2\x9b"
              "2J\x9b\xe2\x80\xae\xc3\xa4\xff",
              clean, sizeof(clean));
    tap(!strcmp(clean, "\\u009b2J\\x9b\\u202e\xc3\xa4\\xff"),
        "C1 and bidi controls and bytes that are no UTF-8 are shown");
    cli_clean("\xc2\xad\xcd\x8f\xf3\xa0\x81\x81", clean, sizeof(clean));
    tap(!strcmp(clean, "\\u00ad\\u034f\\xf3\\xa0\\x81\\x81"),
        "what is invisible is shown");
    cli_show("a\\b\\x41\\u0041\\\n\\\\\\", clean, sizeof(clean));
    tap(!strcmp(clean, "a\\b\\\\x41\\\\u0041\\\\\\x0a\\\\\\\\\\"),
        "what looks like a byte or a character is shown to be none");
    cli_clean("abc\ndef\n", tiny, sizeof(tiny));
    tap(strlen(tiny) < sizeof(tiny), "a line is cut to its room");
}

static void test_masks(void)
{
    static const struct {
        const char *text, *masked;
        bool all;
    } rows[] = {
        {"no url", "no url", false},
        {"redis://host:1 and me@home", "redis://host:1 and me@home", false},
        {"redis://:pw@host:1", "redis://***@host:1", false},
        {"a redis://u:p@x@host b", "a redis://***@host b", false},
        {"'redis://:p w@host'", "'redis://***@host'", true},
        {"x://@h y://ab@h z://abcd@h", "x://@h y://**@h z://***@h", false},
        {"postgres://h/db?password=s3cret&a=b", "postgres://h/db?***", false},
        {"'consul://h?token=s3cret' no", "'consul://h?***' no", false},
        {"'redis://h?p%61ss=s3 cret' no", "'redis://h?***' no", true},
        {"redis://h?a_name_of_more_than_thirty_two_bytes=s3cret no",
         "redis://h?*** no", false},
        {"redis+unix:/u:s3cret@/x: no", "redis+unix:***@/x: no", false},
        {"mean 'redis:'? right: yes?", "mean 'redis:'? right: yes?", false},
        {"'postgres:u:s3cret@h/db' no", "'postgres:***@h/db' no", false},
        {"file:/run/lock/a@b: no", "file:/run/lock/a@b: no", false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[128], name[160];

        snprintf(text, sizeof(text), "%s", rows[i].text);
        cli_mask(text, rows[i].all);
        snprintf(name, sizeof(name), "\"%s\" is shown as \"%s\"", rows[i].text,
                 rows[i].masked);
        tap(!strcmp(text, rows[i].masked), name);
    }
}

static void test_guesses(void)
{
    static const struct {
        const char *word, *best;
    } rows[] = {{"trem", "term"},   {"kil", "kill"}, {"warning", NULL},
                {"wran", "warn"},   {"x", NULL},     {"te", "term"},
                {"notify-me", NULL}};
    static const char *const names[] = {"term", "kill", "warn"};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct guess guess = {.word = rows[i].word};
        char name[96];

        for (int k = 0; k < 3; k++)
            guess_try(&guess, names[k]);
        snprintf(name, sizeof(name), "whoever types '%s' means %s",
                 rows[i].word, rows[i].best ? rows[i].best : "none of ours");
        tap(rows[i].best ? guess.best && !strcmp(guess.best, rows[i].best)
                         : !guess.best,
            name);
    }
}

static void test_secrets(void)
{
    static const struct {
        const char *url;
        bool secret;
    } rows[] = {
        {"file:/run/lock", false},
        {"file:/odd@place:x", false},
        {"redis://host:6379/0", false},
        {"redis://user@host:6379", false},
        {"redis://user:pw@host:6379", true},
        {"redis://:pw@host", true},
        {"redis://:p/w@host", true},
        {"redlock://a:1,b:2,c:3", false},
        {"redlock://u:pw@a:1,b:2", true},
        {"postgres://host/db?password=x", true},
        {"consul://host?token=x", true},
        {"consul://host?t%6fken=x", true},
        {"etcd://host?cert=%2Fx", false},
        {"etcd://a:1?cert=/x", false},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char name[96];

        snprintf(name, sizeof(name), "%s %s the command's environment",
                 rows[i].url, rows[i].secret ? "stays out of" : "goes into");
        tap(cli_url_secret(rows[i].url) == rows[i].secret, name);
    }
}

static bool same_handle(const struct cli_handle *a, const struct cli_handle *b)
{
    return !strcmp(a->key, b->key) && !strcmp(a->hf.token, b->hf.token) &&
           !strcmp(a->hf.ref, b->hf.ref) && !strcmp(a->owner, b->owner) &&
           a->hf.fence == b->hf.fence && a->ttl_ms == b->ttl_ms &&
           a->shared == b->shared && a->permits == b->permits;
}

static void test_handles(void)
{
    static const char *const bad[] = {
        "",
        "hf1",
        "hf2.x.1.1.t...k",
        "hf1.y.1.1.t...k",
        "hf1.x..1.t...k",
        "hf1.x.1.1.t...",
        "hf1.x.1.1....k",
        "hf1.x.1.1.t..k",
        "hf1.p.1.1.t...k",
        "hf1.p0.1.1.t...k",
        "hf1.p2147483648.1.1.t...k",
        "hf1.p3x.1.1.t...k",
        "hf1.x.1.1.t...k.more",
        "hf1.x.1.1.t...%",
        "hf1.x.1.1.t...%0",
        "hf1.x.1.1.t...%00",
        "hf1.x.1.1.t...%zz",
        "hf1.x.1.1.t...a b",
        "hf1.x.99999999999999999999.1.t...k",
        "hf1.x.1.99999999999999999999.t...k",
        "hf1.x.1.1.0123456789012345678901234567890123456789...k",
    };
    struct cli_handle handle = {.ttl_ms = 1234, .shared = true}, back;
    char word[CLI_HANDLE_MAX];

    for (int i = 0; i < HF_KEY_MAX; i++)
        handle.key[i] = (char)(i % 255 + 1);
    handle.hf.fence = UINT64_MAX;
    memset(handle.hf.token, '.', sizeof(handle.hf.token) - 1);
    memset(handle.hf.ref, '\'', sizeof(handle.hf.ref) - 1);
    memset(handle.owner, ' ', sizeof(handle.owner) - 1);
    cli_handle_encode(&handle, word);
    tap(cli_handle_decode(word, &back) && same_handle(&handle, &back),
        "the longest handle of any bytes comes back the same");
    handle.shared = false;
    handle.permits = INT32_MAX;
    cli_handle_encode(&handle, word);
    tap(cli_handle_decode(word, &back) && same_handle(&handle, &back),
        "and with permits");
    tap(strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                     "0123456789_-.%") == strlen(word),
        "a handle needs no quoting");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char name[96];

        snprintf(name, sizeof(name), "'%s' is no handle", bad[i]);
        tap(!cli_handle_decode(bad[i], &back), name);
    }
}

/* Run a command line in this process; what it prints goes into `out`. */
static int command(char *out, size_t size, const char *const *words)
{
    char *argv[16] = {NULL};
    struct cli_opts opts = {0};
    FILE *file = tmpfile();
    int argc = 0, code, saved = dup(STDOUT_FILENO);

    for (; words[argc] && argc < 15; argc++)
        argv[argc] = (char *)words[argc];
    if (!file || saved < 0)
        return -1;
    fflush(stdout);
    dup2(fileno(file), STDOUT_FILENO);
    code = cli_parse(argc, argv, &opts);
    if (!code)
        code = opts.cmd->run(&opts);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    rewind(file);
    out[fread(out, 1, size - 1, file)] = '\0';
    fclose(file);
    return code;
}

static void test_acquire(void)
{
    static const char *const acquire[] = {
        "holdfast", "acquire", "-qnu", "mem:unit", "-t", "1h", "it's", NULL};
    const char *renew[] = {"holdfast", "renew", "-qu", "mem:unit", "--json",
                           "-t",       "2h",    "",    NULL};
    const char *release[] = {"holdfast", "release", "-qu",
                             "mem:unit", "",        NULL};
    char out[8192], handle[CLI_HANDLE_MAX] = "";
    hf_client *keep;

    if (hf_open("mem:unit", NULL, &keep, NULL))
        exit(99); /* it keeps the instance alive between the commands */
    tap(command(out, sizeof(out), acquire) == CLI_OK, "acquire takes a lock");
    tap(strstr(out, "; HOLDFAST_KEY='it'\\''s'; HOLDFAST_FENCE="),
        "acquire prints assignments for eval");
    tap(sscanf(out, "HOLDFAST_HANDLE='%4095[^']'", handle) == 1,
        "acquire prints the handle");
    tap(command(out, sizeof(out), acquire) == CLI_BUSY,
        "the lock stays when acquire has ended");
    renew[7] = release[4] = handle;
    tap(command(out, sizeof(out), renew) == CLI_OK, "renew renews it");
    tap(strstr(out, "\"ttl_ms\": 7200000") && strstr(out, "\"handle\": \""),
        "renew prints the handle with the new lease");
    tap(command(out, sizeof(out), release) == CLI_OK, "release gives it back");
    tap(command(out, sizeof(out), release) == CLI_LOST,
        "a second release is told that it is lost");
    tap(command(out, sizeof(out), renew) == CLI_LOST, "and so is a renew");
    tap(command(out, sizeof(out), acquire) == CLI_OK,
        "then it can be taken again");
    hf_close(keep);
}

static void test_break(void)
{
    static const char *const acquire[] = {
        "holdfast", "acquire", "-qnu", "mem:unit", "-t", "1h", "b", NULL};
    static const char *const status[] = {"holdfast", "status", "-qu",
                                         "mem:unit", "b",      NULL};
    const char *brk[] = {"holdfast", "break", "-qu", "mem:unit", "--json",
                         "--fence",  "",      "b",   NULL,       NULL};
    char out[8192], fence[32] = "";
    const char *at;
    hf_client *keep;

    if (hf_open("mem:unit", NULL, &keep, NULL))
        exit(99);
    tap(command(out, sizeof(out), status) == CLI_FREE,
        "status of a free lock is 1");
    command(out, sizeof(out), acquire);
    at = strstr(out, "HOLDFAST_FENCE=");
    snprintf(fence, sizeof(fence), "%.*s",
             at ? (int)strspn(at + 15, "0123456789") : 0, at ? at + 15 : "");
    brk[6] = fence;
    tap(command(out, sizeof(out), status) == CLI_OK,
        "status of a held lock is 0");
    tap(command(out, sizeof(out), brk) == CLI_OK &&
            strstr(out, "\"broken\": true, \"forced\": false, \"left_ms\": 3"),
        "break tells for how long others cannot have it");
    tap(command(out, sizeof(out), status) == CLI_OK &&
            strstr(out, "b: broken, still held by ") &&
            strstr(out, ", free when it is released, in 1h00m at the latest"),
        "status of a broken lock tells when it will be free");
    tap(command(out, sizeof(out), acquire) == CLI_BUSY,
        "and until then it is busy");
    brk[8] = "--force";
    tap(command(out, sizeof(out), brk) == CLI_OK &&
            strstr(out, "\"forced\": true, \"left_ms\": 0"),
        "break --force frees it");
    tap(command(out, sizeof(out), acquire) == CLI_OK, "at once");
    tap(command(out, sizeof(out), brk) == CLI_LOST,
        "break of a grant that is gone is 79");
    hf_close(keep);
}

/* KILL comes at the margin before the end of the lease, whatever the grace. */
static void test_margins(void)
{
    static const struct {
        int64_t ttl, grace, margin, lead;
        enum run_on_lost on_lost;
    } rows[] = {
        {30000, -1, 500, 5000, ON_LOST_TERM},
        {30000, 0, 500, 500, ON_LOST_TERM},
        {30000, 100, 500, 500, ON_LOST_TERM},
        {30000, 3600000, 500, 10000, ON_LOST_TERM},
        {30000, 0, 500, 500, ON_LOST_KILL},
        {30000, 0, 500, 0, ON_LOST_WARN},
        {2000, 0, 100, 100, ON_LOST_COMMAND},
        {100, -1, 10, 33, ON_LOST_TERM},
        {20, -1, 5, 6, ON_LOST_TERM},
        {10, -1, 2, 3, ON_LOST_TERM},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct guard_page page = {.deadline = INT64_MAX};
        struct cli_opts opts = {.grace_ms = rows[i].grace};
        struct run run = {.opts = &opts,
                          .ttl = rows[i].ttl,
                          .on_lost = rows[i].on_lost,
                          .guard.page = &page};
        char name[96];

        hold_times(&run, cli_now() + rows[i].ttl);
        snprintf(name, sizeof(name),
                 "a lease of %lld ms with a grace of %lld ms: KILL %lld ms "
                 "before its end",
                 (long long)rows[i].ttl, (long long)rows[i].grace,
                 (long long)rows[i].margin);
        tap(page.margin == rows[i].margin && page.lead == rows[i].lead, name);
    }
}

/* The guard sleeps while a group takes its time to end, but is awake when the
 * group has to get KILL. */
static void test_guard_pauses(void)
{
    bool in_time = true;

    for (int64_t now = 0; now < 100; now++)
        in_time = in_time && now + guard_pause_ms(now, 100) <= 100 &&
                  guard_pause_ms(now, 100) > 0;
    tap(in_time, "the guard does not sleep beyond the time of KILL");
    tap(guard_pause_ms(101, 100) > 0 && guard_pause_ms(0, INT64_MAX) > 0,
        "nor is it always awake after it, or if there is none");
}

/* A lock that no command has run under is not kept. */
static void test_min_hold(void)
{
    static const char *const args[] = {"holdfast",   "run", "-qnu", "mem:unit",
                                       "--min-hold", "1h",  "u",    "--",
                                       "/no/such",   NULL};
    struct run run = {.locks = {.keys = {"u", "v"}, .n = 2}};
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_info info = HF_INFO_INIT;
    hf_client *keep;
    struct hf_error err;
    char out[8192];
    bool good = true;

    if (hf_open("mem:unit", NULL, &keep, NULL))
        exit(99);
    tap(command(out, sizeof(out), args) == CLI_NOT_FOUND &&
            !hf_inspect(keep, "u", &info, NULL) && !info.held,
        "--min-hold does not count if the command cannot be run");
    run.client = keep;
    opts.min_hold_ms = 3600000;
    for (int permits = 0; permits < 3; permits++) {
        opts.permits = permits;
        good = good && !locks_acquire(&run, &opts, &err) &&
               !locks_release(keep, &run.locks, &opts, &err) &&
               !hf_inspect(keep, "u", &info, NULL) && !info.held &&
               !hf_inspect(keep, "v", &info, NULL) && !info.held;
    }
    tap(good, "nor if it was not started");
    good = !locks_acquire(&run, &opts, &err) &&
           !locks_release(keep, &run.locks, NULL, &err) &&
           !hf_inspect(keep, "u", &info, NULL) && info.kept;
    tap(good, "but after a command it does");
    hf_close(keep);
}

int main(void)
{
    test_durations();
    test_json();
    test_words();
    test_masks();
    test_guesses();
    test_secrets();
    test_handles();
    test_acquire();
    test_break();
    test_min_hold();
    test_margins();
    test_guard_pauses();
    printf("1..%d\n", test_number);
    return test_failures != 0;
}
