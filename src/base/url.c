/* SPDX-License-Identifier: MIT
 *
 * url.c - one parser for every URL; see url.h.
 *
 * The text is copied once and cut into pieces in place: each separator becomes
 * a NUL and each escape shrinks where it stands, so no piece can outgrow the
 * copy and there is one thing to free and to wipe.
 */
#include "url.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include "alloc.h"
#include "error.h"
#include "escape.h"

#include "banned.h"

/* Cut `text` at the first `c`; what follows it, or NULL. */
static char *url_cut(char *text, char c)
{
    char *at = strchr(text, c);

    if (!at)
        return NULL;
    *at = '\0';
    return at + 1;
}

static bool url_scheme_ok(const char *scheme)
{
    const char *c;

    for (c = scheme; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') ||
              *c == '+'))
            return false;
    return c > scheme;
}

static bool url_port(const char *text, int *ret)
{
    int port = 0;

    for (; *text; text++) {
        if (*text < '0' || *text > '9' || port > 65535)
            return false;
        port = port * 10 + (*text - '0');
    }
    *ret = port;
    return port >= 1 && port <= 65535;
}

/* host, host:port, [v6], [v6]:port */
static hf_status url_host(struct hfi_host *ret, char *text,
                          struct hf_error *err)
{
    char *port = NULL;

    if (*text == '[') {
        char *end = strchr(text, ']');

        if (!end || (end[1] && end[1] != ':'))
            return hfi_fail(err, HF_INVALID, "url: '[' without ']' in a host");
        *end = '\0';
        port = end[1] ? end + 2 : NULL;
        text++;
    } else {
        port = url_cut(text, ':');
    }
    if (!*text || !hfi_unescape(text))
        return hfi_fail(err, HF_INVALID, "url: an empty or malformed host");
    ret->name = text;
    ret->port = 0;
    if (port && !url_port(port, &ret->port))
        return hfi_fail(err, HF_INVALID,
                        "url: a port is a number from 1 to 65535");
    return HF_OK;
}

/* user, user:password, or nothing */
static hf_status url_user(struct hfi_host *ret, char *text,
                          struct hf_error *err)
{
    char *password = url_cut(text, ':');

    if (!hfi_unescape(text) || (password && !hfi_unescape(password)))
        return hfi_fail(err, HF_INVALID,
                        "url: a malformed %%-escape in user or password");
    ret->user = text;
    ret->password = password;
    return HF_OK;
}

/* [user[:password]@]host, where the user may be that of the host before. */
static hf_status url_next_host(struct hfi_url *url, char *text,
                               struct hfi_host *as, struct hf_error *err)
{
    char *at = url->users ? strrchr(text, '@') : NULL;
    hf_status st = HF_OK;

    if (at) {
        *at = '\0';
        *as = (struct hfi_host){0};
        if (at > text)
            st = url_user(as, text, err);
        text = at + 1;
    }
    if (st)
        return st;
    if (url->nhosts == HFI_HOSTS_MAX)
        return hfi_fail(err, HF_INVALID, "url: more than %d hosts",
                        HFI_HOSTS_MAX);
    url->hosts[url->nhosts] = *as;
    return url_host(&url->hosts[url->nhosts++], text, err);
}

static hf_status url_authority(struct hfi_url *url, char *text,
                               struct hf_error *err)
{
    char *at = strrchr(text, '@'), *next;
    struct hfi_host as = {0};
    hf_status st;

    /* Before a comma and another '@' there is a host; else it may as well be a
     * part of the password. */
    next = at ? memrchr(text, ',', (size_t)(at - text)) : NULL;
    url->users = next && memchr(text, '@', (size_t)(next - text));
    if (at && !url->users) {
        *at = '\0';
        st = url_user(&as, text, err);
        if (st)
            return st;
        url->user = as.user;
        url->password = as.password;
        text = at + 1;
    }
    for (; text && *text; text = next) {
        next = url_cut(text, ',');
        st = url_next_host(url, text, &as, err);
        if (st)
            return st;
    }
    return HF_OK;
}

/* Names appear in messages. */
static bool url_name_ok(const char *name)
{
    const char *c;

    for (c = name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
              (*c >= '0' && *c <= '9') || strchr("_-.", *c)))
            return false;
    return c > name;
}

static hf_status url_params(struct hfi_url *url, char *text,
                            struct hf_error *err)
{
    char *next, *value;

    for (; text; text = next) {
        next = url_cut(text, '&');
        if (!*text)
            continue;
        value = url_cut(text, '=');
        if (!value || !hfi_unescape(text) || !hfi_unescape(value) ||
            !url_name_ok(text))
            return hfi_fail(err, HF_INVALID,
                            "url: options are written name=value; a '?' in a "
                            "password is written %%3F");
        if (url->nparams == HFI_PARAMS_MAX)
            return hfi_fail(err, HF_INVALID, "url: more than %d options",
                            HFI_PARAMS_MAX);
        if (hfi_url_param(url, text, NULL))
            return hfi_fail(err, HF_INVALID, "url: an option is given twice");
        url->params[url->nparams++] = (struct hfi_param){text, value};
    }
    return HF_OK;
}

/* The path keeps its leading slash; only what follows "//" is an authority. */
static hf_status url_rest(struct hfi_url *url, char *rest, struct hf_error *err)
{
    char *query = url_cut(rest, '?');
    char *path;
    hf_status st;

    if (!strncmp(rest, "//", 2)) {
        rest += 2;
        path = strchr(rest, '/');
        if (path) {
            /* Make room for the NUL by moving the authority left, over one
             * of the slashes that led to it. */
            memmove(rest - 1, rest, (size_t)(path - rest));
            path[-1] = '\0';
            rest--;
        }
        st = url_authority(url, rest, err);
        if (st)
            return st;
        rest = path ? path : rest + strlen(rest);
    }
    if (!hfi_unescape(rest))
        return hfi_fail(err, HF_INVALID,
                        "url: a malformed %%-escape in the "
                        "path; write %% as %%25");
    url->path = rest;
    return query ? url_params(url, query, err) : HF_OK;
}

/* A '/' or '?' in a password ends what is taken for the authority: the rest of
 * it would be a path or an option, which messages may show.  What gives it away
 * is the '@' behind it. */
static hf_status url_whole(const char *rest, struct hf_error *err)
{
    const char *end;

    if (strncmp(rest, "//", 2) != 0)
        return HF_OK;
    rest += 2;
    end = rest + strcspn(rest, "/?");
    if (!strchr(end, '@') || strcspn(rest, ":@") > (size_t)(end - rest))
        return HF_OK;
    return hfi_fail(err, HF_INVALID,
                    "url: there is an '@' behind the hosts: in a user or a "
                    "password write / as %%2F, ? as %%3F and @ as %%40, and in "
                    "a path or an option @ as %%40");
}

hf_status hfi_url_parse(struct hfi_url *ret, const char *text,
                        struct hf_error *err)
{
    struct hfi_url url = {0};
    char *rest;
    hf_status st;

    if (strlen(text) > HFI_URL_MAX)
        return hfi_fail(err, HF_INVALID, "url: longer than %d bytes",
                        HFI_URL_MAX);
    url.text = hfi_strdup(text);
    if (!url.text)
        return hfi_nomem(err);
    url.size = strlen(text);
    rest = url_cut(url.text, ':');
    if (!rest || !url_scheme_ok(url.text)) {
        st = hfi_fail(err, HF_INVALID,
                      "url: it must begin with a scheme, as in file:/run/x");
        goto out;
    }
    url.scheme = url.text;
    st = url_whole(rest, err);
    if (!st)
        st = url_rest(&url, rest, err);
out:
    if (st)
        hfi_url_fini(&url);
    else
        *ret = url;
    return st;
}

void hfi_url_fini(struct hfi_url *url)
{
    if (url->text)
        explicit_bzero(url->text, url->size);
    hfi_free(url->text);
    *url = (struct hfi_url){0};
}

void hfi_url_name(const struct hfi_url *url, char *ret, size_t size)
{
    static const char *const local[] = {"file", "mem", "sqlite"};
    size_t i, at;

    snprintf(ret, size, "%s:%s", url->scheme, url->nhosts ? "//" : "");
    for (i = 0; i < sizeof(local) / sizeof(local[0]) && !url->nhosts; i++)
        if (!strcmp(url->scheme, local[i]))
            snprintf(ret, size, "%s:%s", url->scheme, url->path);
    for (i = 0; i < url->nhosts; i++) {
        const struct hfi_host *host = &url->hosts[i];
        bool six = strchr(host->name, ':');

        at = strlen(ret);
        snprintf(ret + at, size - at, "%s%s%s%s", i ? "," : "", six ? "[" : "",
                 host->name, six ? "]" : "");
        at = strlen(ret);
        if (host->port)
            snprintf(ret + at, size - at, ":%d", host->port);
    }
}

const char *hfi_url_param(const struct hfi_url *url, const char *name,
                          const char *otherwise)
{
    size_t i;

    for (i = 0; i < url->nparams; i++)
        if (!strcmp(url->params[i].name, name))
            return url->params[i].value;
    return otherwise;
}

hf_status hfi_url_secret(const char *path, const char *what, char *ret,
                         size_t size, struct hf_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), sys_errno;
    ssize_t n = fd < 0 ? -1 : 1;
    size_t len = 0;

    while (n > 0 && len < size) {
        n = read(fd, ret + len, size - len);
        len += n > 0 ? (size_t)n : 0;
    }
    sys_errno = errno;
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return hfi_fail_errno(err, HF_SYSTEM, sys_errno, "%s", what);
    if (len == size)
        return hfi_fail(err, HF_INVALID, "%s: it is too long", what);
    while (len && (ret[len - 1] == '\n' || ret[len - 1] == '\r'))
        len--;
    ret[len] = '\0';
    return HF_OK;
}

bool hfi_url_is_here(const char *host)
{
    size_t len = strlen(host);
    struct in6_addr six;
    struct in_addr four;

    if (inet_pton(AF_INET, host, &four) == 1)
        return (ntohl(four.s_addr) >> 24) == 127;
    if (inet_pton(AF_INET6, host, &six) == 1)
        return IN6_IS_ADDR_LOOPBACK(&six) ||
               (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == 127);
    return host[0] == '/' || !strcasecmp(host, "localhost") ||
           (len > 10 && !strcasecmp(host + len - 10, ".localhost"));
}

void hfi_warn_password(char *warning, size_t size, const char *host,
                       bool verified)
{
    size_t len = strlen(warning);

    if (verified || hfi_url_is_here(host))
        return;
    snprintf(warning + len, size - len,
             "%sthe password is sent to %.100s without verified TLS: whoever "
             "is in between can read it",
             len ? "; " : "", host);
}

void hfi_warn_passwords(char *warning, size_t size, const struct hfi_url *url,
                        bool verified)
{
    size_t i;

    for (i = 0; i < url->nhosts; i++)
        if (!hfi_url_is_here(url->hosts[i].name)) {
            hfi_warn_password(warning, size, url->hosts[i].name, verified);
            return;
        }
}

static bool url_listed(const char *const *list, const char *name)
{
    for (; list && *list; list++)
        if (!strcmp(*list, name))
            return true;
    return false;
}

/* Whether the name of an option may be part of a password in which a '&' was
 * not escaped: one stands before it, or no option has such a long name. */
static bool url_may_be_secret(const struct hfi_url *url, size_t nth)
{
    size_t i;

    for (i = 0; i < nth; i++)
        if (strcasestr(url->params[i].name, "pass") ||
            strcasestr(url->params[i].name, "token"))
            return true;
    return strlen(url->params[nth].name) >= 32;
}

hf_status hfi_url_only(const struct hfi_url *url, const char *const *common,
                       const char *const *own, struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];
    size_t i;

    for (i = 0; i < url->nparams; i++) {
        if (url_listed(common, url->params[i].name) ||
            url_listed(own, url->params[i].name))
            continue;
        if (url_may_be_secret(url, i))
            return hfi_fail(err, HF_INVALID,
                            "url: %s: has not all of these options; in a "
                            "password write & as %%26",
                            url->scheme);
        return hfi_fail(
            err, HF_INVALID,
            "url: %s: has no option '%s'; holdfast-url(7) names its manual "
            "page",
            url->scheme,
            hfi_quote(quoted, sizeof(quoted), url->params[i].name));
    }
    return HF_OK;
}
