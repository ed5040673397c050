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
 *     hf1 . x|s . TTL . FENCE . TOKEN . REF . OWNER . KEY
 *
 * separated by dots, where every byte other than [A-Za-z0-9_-] is %XX.  It is
 * all that another process needs besides the URL, which is not in it because
 * that may hold a password.  `hf1` is the version of the format.
 */
#include "cli.h"

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
    char *to = ret;

    to +=
        snprintf(to, CLI_HANDLE_MAX, "hf1.%c.%" PRId64 ".%" PRIu64 ".",
                 handle->shared ? 's' : 'x', handle->ttl_ms, handle->hf.fence);
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

bool cli_handle_decode(const char *word, struct cli_handle *ret)
{
    uint64_t ttl;

    *ret = (struct cli_handle){0};
    if (strncmp(word, "hf1.", 4) || (word[4] != 'x' && word[4] != 's') ||
        word[5] != '.')
        return false;
    ret->shared = word[4] == 's';
    word = handle_number(word + 6, INT64_MAX, &ttl);
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

/* Print a handle: assignments for eval, or JSON. */
static int handle_print(const struct cli_opts *opts,
                        const struct cli_handle *handle)
{
    char word[CLI_HANDLE_MAX];
    struct cli_json json;

    cli_handle_encode(handle, word);
    if (opts->json) {
        cli_json_open(&json, stdout);
        cli_json_str(&json, "handle", word);
        cli_json_str(&json, "key", handle->key);
        cli_json_num(&json, "fence", (int64_t)handle->hf.fence);
        cli_json_str(&json, "owner", handle->hf.token);
        cli_json_num(&json, "ttl_ms", handle->ttl_ms);
        cli_json_close(&json);
        putchar('\n');
        return cli_done();
    }
    printf("HOLDFAST_HANDLE='%s'; HOLDFAST_KEY=", word);
    cli_shell_word(stdout, handle->key);
    printf("; HOLDFAST_FENCE=%" PRIu64 "; HOLDFAST_OWNER=", handle->hf.fence);
    cli_shell_word(stdout, handle->hf.token);
    printf("; export HOLDFAST_HANDLE HOLDFAST_KEY HOLDFAST_FENCE"
           " HOLDFAST_OWNER\n");
    return cli_done();
}

static int handle_refuse(const struct hf_service *svc)
{
    cli_say("%s cannot keep a lock without a process: use 'holdfast run', or "
            "another service with -u URL",
            svc->endpoint);
    return CLI_CONFIG;
}

/* Ask for the lock as the options say.  The note names our parent, the script,
 * since we shall be gone when somebody reads it. */
static hf_status handle_take(const struct cli_opts *opts, hf_client *client,
                             const struct cli_handle *handle, hf_lock **ret,
                             struct hf_error *err)
{
    struct hf_lock_opts lo = HF_LOCK_OPTS_INIT;
    char host[65] = "", note[128];

    gethostname(host, sizeof(host) - 1);
    snprintf(note, sizeof(note), "%s:%d (holdfast acquire)", host,
             (int)getppid());
    lo.ttl_ms = handle->ttl_ms;
    lo.owner = opts->owner;
    lo.note = opts->note ? opts->note : note;
    lo.retry_ms = opts->retry_ms;
    lo.flags = HF_MANUAL | (opts->shared ? HF_SHARED : 0) |
               (opts->fair ? HF_FAIR : 0) | (opts->poll ? HF_POLL : 0);
    return hf_acquire(client, opts->args[0], opts->wait_ms, &lo, ret, err);
}

int cmd_acquire(struct cli_opts *opts)
{
    struct cli_handle handle = {0};
    struct hf_service svc;
    struct hf_error err;
    hf_client *client;
    hf_lock *lock;
    int code;

    if (opts->nargs != 1)
        return cli_usage(opts->cmd, "one KEY is needed");
    code = cli_open(opts, &client, &svc);
    if (code)
        return code;
    if (!(svc.traits & HF_TRAIT_DETACH)) {
        code = handle_refuse(&svc);
        goto out;
    }
    handle.ttl_ms = opts->ttl_ms ? opts->ttl_ms : 30000;
    handle.shared = opts->shared;
    if (handle_take(opts, client, &handle, &lock, &err) ||
        hf_detach(lock, &handle.hf, &err)) {
        if (cli_exit_of(err.status) != CLI_BUSY)
            code = cli_fail(&err);
        else if (code = opts->busy_exit, !opts->quiet)
            cli_fail(&err);
        goto out;
    }
    snprintf(handle.key, sizeof(handle.key), "%s", opts->args[0]);
    snprintf(handle.owner, sizeof(handle.owner), "%s",
             opts->owner ? opts->owner : "");
    code = handle_print(opts, &handle);

out:
    cli_close(client);
    return code;
}

/* Open the service and take up the lock of the handle that was given. */
static int handle_attach(struct cli_opts *opts, struct cli_handle *handle,
                         hf_client **client, hf_lock **lock)
{
    struct hf_lock_opts lo = HF_LOCK_OPTS_INIT;
    const char *word = getenv("HOLDFAST_HANDLE");
    struct hf_service svc;
    struct hf_error err;
    int code;

    if (opts->nargs > 0)
        word = opts->args[0];
    if (opts->nargs > 1 || !word)
        return cli_usage(opts->cmd, "one HANDLE or $HOLDFAST_HANDLE is needed");
    if (!cli_handle_decode(word, handle))
        return cli_usage(opts->cmd, "'%s' is no handle from acquire", word);
    code = cli_open(opts, client, &svc);
    if (code)
        return code;
    if (!(svc.traits & HF_TRAIT_DETACH)) {
        cli_close(*client);
        return handle_refuse(&svc);
    }
    if (opts->ttl_ms)
        handle->ttl_ms = opts->ttl_ms;
    lo.ttl_ms = handle->ttl_ms;
    lo.owner = handle->owner[0] ? handle->owner : NULL;
    lo.flags = HF_MANUAL | (handle->shared ? HF_SHARED : 0);
    if (hf_attach(*client, handle->key, &handle->hf, &lo, lock, &err)) {
        cli_close(*client);
        return cli_fail(&err);
    }
    return CLI_OK;
}

int cmd_renew(struct cli_opts *opts)
{
    struct cli_handle handle;
    struct hf_error err;
    hf_client *client;
    hf_lock *lock;
    int code = handle_attach(opts, &handle, &client, &lock);

    if (code)
        return code;
    if (hf_detach(lock, &handle.hf, &err))
        code = cli_fail(&err);
    else
        code = handle_print(opts, &handle);
    cli_close(client);
    return code;
}

int cmd_release(struct cli_opts *opts)
{
    struct cli_handle handle;
    struct hf_error err;
    hf_client *client;
    hf_lock *lock;
    int code = handle_attach(opts, &handle, &client, &lock);

    if (code)
        return code;
    if (hf_release(lock, &err))
        code = cli_fail(&err);
    cli_close(client);
    return code;
}
