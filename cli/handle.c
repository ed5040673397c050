/* SPDX-License-Identifier: MIT
 *
 * handle.c - acquire, renew, release: a lock that outlives the process.
 *
 * Between these commands nobody renews the lease: no daemon is left behind, the
 * service keeps the lock and lets it lapse after --ttl.  That needs a service
 * that can (HF_TRAIT_DETACH).  Where a lock lives in a process, as with file:,
 * `acquire` refuses before it has taken anything and says what to do instead;
 * that is a matter of the URL and so exit status 78.
 *
 * THE HANDLE is one word that needs no quoting:
 *
 *     hf1 . x|s|pN . TTL . FENCE . TOKEN . REF . OWNER . KEY
 *
 * (exclusive, shared, or with N permits), separated by dots, where every byte
 * other than [A-Za-z0-9_-] is %XX.  It is all that another process needs besides
 * the URL, which is not in it because that may hold a password.  `hf1` is the
 * version of the format.  renew and release use the lock under the handle's own
 * token and do not take it up, so the handle that acquire printed stays good
 * until the lock is gone.
 */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool handle_plain(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/* Append `text`, encoded, at `to`; returns the new end. */
static char *handle_put(char *to, const char *text)
{
    static const char hex[] = "0123456789ABCDEF";

    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;

        if (handle_plain(c)) {
            *to++ = *text;
            continue;
        }
        *to++ = '%';
        *to++ = hex[c >> 4];
        *to++ = hex[c & 15];
    }
    *to = '\0';
    return to;
}

void cli_handle_encode(const struct cli_handle *handle,
                       char ret[CLI_HANDLE_MAX])
{
    char *to = ret, mode[16];

    snprintf(mode, sizeof(mode), "p%d", (int)handle->permits);
    to += snprintf(to, CLI_HANDLE_MAX, "hf1.%s.%" PRId64 ".%" PRIu64 ".",
                   handle->permits  ? mode
                   : handle->shared ? "s"
                                    : "x",
                   handle->ttl_ms, handle->hf.fence);
    to = handle_put(to, handle->hf.token);
    *to++ = '.';
    to = handle_put(to, handle->hf.ref);
    *to++ = '.';
    to = handle_put(to, handle->owner);
    *to++ = '.';
    handle_put(to, handle->key);
}

static int handle_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Decode one field up to a dot or the end.  NULL if it is malformed or does
 * not fit, else where it ended. */
static const char *handle_get(const char *from, char *ret, size_t size)
{
    size_t used = 0;

    for (; *from && *from != '.'; from++) {
        int high, low;

        if (used + 1 >= size)
            return NULL;
        if (*from != '%') {
            if (!handle_plain((unsigned char)*from))
                return NULL;
            ret[used++] = *from;
            continue;
        }
        high = handle_hex(from[1]);
        low = high < 0 ? -1 : handle_hex(from[2]);
        if (low < 0 || high + low == 0)
            return NULL;
        ret[used++] = (char)(high * 16 + low);
        from += 2;
    }
    ret[used] = '\0';
    return from;
}

/* A number that ends with a dot; NULL if there is none. */
static const char *handle_number(const char *from, uint64_t max, uint64_t *ret)
{
    uint64_t n = 0;
    const char *s = from;

    for (; *s >= '0' && *s <= '9'; s++) {
        uint64_t digit = (uint64_t)(*s - '0');

        if (n > (max - digit) / 10)
            return NULL;
        n = n * 10 + digit;
    }
    *ret = n;
    return s > from && *s == '.' ? s + 1 : NULL;
}

/* "x.", "s." or "p3."; NULL if it is none of them, else where it ended. */
static const char *handle_mode(const char *from, struct cli_handle *ret)
{
    uint64_t permits = 0;

    if (*from == 'p') {
        from = handle_number(from + 1, INT32_MAX, &permits);
        ret->permits = (int32_t)permits;
        return permits ? from : NULL;
    }
    ret->shared = *from == 's';
    return (*from == 'x' || *from == 's') && from[1] == '.' ? from + 2 : NULL;
}

bool cli_handle_decode(const char *word, struct cli_handle *ret)
{
    uint64_t ttl;

    *ret = (struct cli_handle){.hf = HF_HANDLE_INIT};
    if (strncmp(word, "hf1.", 4))
        return false;
    word = handle_mode(word + 4, ret);
    word = word ? handle_number(word, INT64_MAX, &ttl) : NULL;
    word = word ? handle_number(word, UINT64_MAX, &ret->hf.fence) : NULL;
    if (word)
        word = handle_get(word, ret->hf.token, sizeof(ret->hf.token));
    if (!word || *word != '.')
        return false;
    word = handle_get(word + 1, ret->hf.ref, sizeof(ret->hf.ref));
    if (!word || *word != '.')
        return false;
    word = handle_get(word + 1, ret->owner, sizeof(ret->owner));
    if (!word || *word != '.')
        return false;
    word = handle_get(word + 1, ret->key, sizeof(ret->key));
    if (!word || *word || !ret->key[0] || !ret->hf.token[0])
        return false;
    ret->ttl_ms = (int64_t)ttl;
    return true;
}

/* Write a handle: assignments for eval, or JSON. */
static void handle_write(FILE *out, bool as_json,
                         const struct cli_handle *handle)
{
    char word[CLI_HANDLE_MAX];
    struct cli_json json;

    cli_handle_encode(handle, word);
    if (as_json) {
        cli_json_open(&json, out);
        cli_json_str(&json, "handle", word);
        cli_json_str(&json, "key", handle->key);
        cli_json_fence(&json, handle->hf.fence);
        cli_json_str(&json, "owner", handle->hf.token);
        cli_json_num(&json, "ttl_ms", handle->ttl_ms);
        cli_json_close(&json);
        putc('\n', out);
        return;
    }
    fprintf(out, "HOLDFAST_HANDLE='%s'; HOLDFAST_KEY=", word);
    cli_shell_word(out, handle->key);
    fprintf(out,
            "; HOLDFAST_FENCE=%" PRIu64 "; HOLDFAST_OWNER=", handle->hf.fence);
    cli_shell_word(out, handle->hf.token);
    fprintf(out, "; export HOLDFAST_HANDLE HOLDFAST_KEY HOLDFAST_FENCE"
                 " HOLDFAST_OWNER\n");
}

static int handle_refuse(const struct hf_service *svc)
{
    cli_say("%s cannot keep a lock without a process: use 'holdfast run', or "
            "another service with -u URL",
            svc->endpoint);
    return CLI_CONFIG;
}

/* The options for a call about a handle. */
static struct hf_lock_opts handle_options(const struct cli_handle *handle)
{
    struct hf_lock_opts lo = HF_LOCK_OPTS_INIT;

    lo.ttl_ms = handle->ttl_ms;
    lo.owner = handle->owner[0] ? handle->owner : NULL;
    lo.flags = HF_MANUAL | (handle->shared ? HF_SHARED : 0);
    lo.permits = handle->permits;
    return lo;
}

/* ---- acquire ------------------------------------------------------------- */

static volatile sig_atomic_t handle_signal;

static void handle_on_signal(int signo)
{
    handle_signal = signo;
}

/* Let signals end a write(2) that blocks, as long as they are not ignored. */
static void handle_catch(const struct sig *sig)
{
    struct sigaction act = {.sa_handler = handle_on_signal}, old;

    for (const int *list = sig_ending; *list; list++) {
        sigaction(*list, NULL, &old);
        if (old.sa_handler != SIG_IGN)
            sigaction(*list, &act, NULL);
    }
    sigprocmask(SIG_SETMASK, &sig->old, NULL);
}

/* Write it all to stdout; false if that fails or a signal comes. */
static bool handle_put_out(const char *text, size_t len)
{
    while (len && !handle_signal) {
        ssize_t n = write(STDOUT_FILENO, text, len);

        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0) {
            text += n;
            len -= (size_t)n;
        }
    }
    errno = EINTR;
    return len == 0;
}

/* Print the handle.  A lock whose handle nobody got is released: it would be
 * kept from everybody for the whole lease. */
static int handle_hand_out(struct run *run, const struct cli_handle *handle)
{
    struct hf_lock_opts lo = handle_options(handle);
    struct hf_error err;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    const char *why;
    bool ok;

    if (out)
        handle_write(out, run->opts->json, handle);
    ok = out && fclose(out) == 0;
    handle_catch(&run->sig);
    ok = ok && handle_put_out(text, size);
    why = strerror(errno);
    free(text);
    if (ok)
        return CLI_OK;
    if (hf_handle_release(run->client, handle->key, &handle->hf, &lo, &err))
        cli_say("the handle cannot be written: %s; '%s' could not be released "
                "either: %s",
                why, handle->key, err.text);
    else
        cli_say("the handle cannot be written: %s; '%s' was released", why,
                handle->key);
    run->cancel = handle_signal;
    return run->cancel ? 128 + run->cancel : CLI_FAILED;
}

/* Wait for the lock, leave it in the service and print its handle. */
static int handle_acquire(struct run *run)
{
    const struct cli_opts *opts = run->opts;
    struct cli_handle handle = {.hf = HF_HANDLE_INIT,
                                .ttl_ms = run->ttl,
                                .shared = opts->shared,
                                .permits = opts->permits};
    struct hf_error err;
    hf_status st = wait_for_lock(run, &err);

    if (run->cancel) {
        if (st == HF_OK)
            run_give_back(run, &err);
        return 128 + run->cancel;
    }
    if (st == HF_OK)
        st = hf_detach(run->locks.lock[0], &handle.hf, &err);
    run->locks.lock[0] = NULL;
    if (cli_exit_of(st) == CLI_BUSY) {
        run_busy(run, &err);
        return opts->busy_exit;
    }
    if (st)
        return cli_fail(&err);
    snprintf(handle.key, sizeof(handle.key), "%s", run->key);
    snprintf(handle.owner, sizeof(handle.owner), "%s",
             opts->owner ? opts->owner : "");
    return handle_hand_out(run, &handle);
}

/* The note names our parent, the script, since we shall be gone when somebody
 * reads it. */
static void handle_note(char *ret, size_t size)
{
    char host[65] = "";

    gethostname(host, sizeof(host) - 1);
    snprintf(ret, size, "%s:%d (holdfast acquire)", host, (int)getppid());
}

int cmd_acquire(struct cli_opts *opts)
{
    struct run run = {.opts = opts, .manual = true, .sig.fd = -1};
    static char note[128];
    int code;

    if (opts->nargs != 1)
        return cli_usage(opts->cmd, "'acquire' takes one KEY");
    code = cli_key(opts, "the", opts->args[0]);
    if (code)
        return code;
    if (!say_start()) {
        cli_say("no thread can be started: is a limit reached?");
        return CLI_FAILED;
    }
    if (opts->shared && opts->permits)
        return cli_usage(opts->cmd, "give --shared or --permits, not both");
    args_set_keys(&run);
    run.asked_at = cli_now();
    if (!opts->note) {
        handle_note(note, sizeof(note));
        opts->note = note;
    }
    code = cli_open(opts, &run.client, &run.svc);
    if (code)
        return code;
    run.remote = run.svc.traits & HF_TRAIT_MACHINES;
    run.ttl = opts->ttl_ms ? opts->ttl_ms : run.svc.ttl_ms;
    if (!(run.svc.traits & HF_TRAIT_DETACH))
        code = handle_refuse(&run.svc);
    else if (sig_open(&run.sig))
        code = handle_acquire(&run);
    else
        code = sig_failed();
    if (run.client)
        cli_close(run.client);
    if (run.cancel) {
        say_flush(END_SAY_MS);
        sig_die(run.cancel, false);
    }
    return code;
}

/* ---- renew, release ------------------------------------------------------ */

/* Open the service of the handle that was given; CLI_OK or the exit status. */
static int handle_open(struct cli_opts *opts, struct cli_handle *handle,
                       hf_client **client)
{
    const char *word = getenv("HOLDFAST_HANDLE");
    struct hf_service svc;
    int code;

    if (opts->nargs > 0)
        word = opts->args[0];
    if (opts->nargs > 1 || !word || !*word)
        return cli_usage(opts->cmd,
                         "one HANDLE is needed, as an argument or in "
                         "$HOLDFAST_HANDLE");
    if (!cli_handle_decode(word, handle))
        return cli_usage(opts->cmd, /* It may be one, damaged: a secret. */
                         "that is no handle; 'holdfast acquire' prints one, to "
                         "be passed on unchanged");
    code = cli_open(opts, client, &svc);
    if (code)
        return code;
    if (!(svc.traits & HF_TRAIT_DETACH)) {
        code = handle_refuse(&svc);
        cli_close(*client);
        return code;
    }
    if (opts->ttl_ms)
        handle->ttl_ms = opts->ttl_ms;
    return CLI_OK;
}

int cmd_renew(struct cli_opts *opts)
{
    struct cli_handle handle;
    struct hf_lock_opts lo;
    struct hf_error err;
    hf_client *client;
    int code = handle_open(opts, &handle, &client);

    if (code)
        return code;
    lo = handle_options(&handle);
    if (hf_handle_extend(client, handle.key, &handle.hf, &lo, &err)) {
        code = cli_fail(&err);
    } else {
        handle_write(stdout, opts->json, &handle);
        code = cli_done();
    }
    cli_close(client);
    return code;
}

int cmd_release(struct cli_opts *opts)
{
    struct cli_handle handle;
    struct hf_lock_opts lo;
    struct hf_error err;
    hf_client *client;
    int code = handle_open(opts, &handle, &client);

    if (code)
        return code;
    lo = handle_options(&handle);
    if (hf_handle_release(client, handle.key, &handle.hf, &lo, &err))
        code = cli_fail(&err);
    cli_close(client);
    return code;
}
