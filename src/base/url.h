/* SPDX-License-Identifier: MIT
 *
 * url.h - one parser for every URL.
 *
 *     scheme:path?name=value&...
 *     scheme://[user[:password]@]host[:port],host[:port].../path?name=value
 *     scheme://user:password@host,user:password@host...
 *
 * One user and password are for all hosts.  If there is more than one '@', each
 * is for its host and for those after it, up to the next; an empty one ends it.
 * Only backends that say so take that.
 *
 * Percent escapes are decoded in every part, and %00 is refused.  Nothing of a
 * URL but its scheme and the names of options ever appears in a message.
 */
#ifndef HFI_URL_H
#define HFI_URL_H

#include <stdint.h>

#include "holdfast.h"

#define HFI_URL_MAX    4096
#define HFI_HOSTS_MAX  16
#define HFI_PARAMS_MAX 24

struct hfi_host {
    const char *name;
    int port;                    /* 0: not given */
    const char *user, *password; /* NULL: not given */
};

struct hfi_param {
    const char *name, *value;
};

struct hfi_url {
    char *text; /* what all the pointers below point into */
    size_t size;
    const char *scheme;
    const char *user, *password; /* NULL: not given, or: */
    bool users;                  /* hosts have users of their own */
    struct hfi_host hosts[HFI_HOSTS_MAX];
    size_t nhosts;
    const char *path; /* "" if there is none */
    struct hfi_param params[HFI_PARAMS_MAX];
    size_t nparams;
};

hf_status hfi_url_parse(struct hfi_url *ret, const char *text,
                        struct hf_error *err);
void hfi_url_fini(struct hfi_url *); /* wipes the password */

/* What of a URL may be shown: its scheme and its hosts with their ports, or of a
 * service of this machine the path.  Any other path may be a password in a URL
 * that lacks slashes. */
void hfi_url_name(const struct hfi_url *, char *ret, size_t size);

/* The value of an option, or `otherwise`. */
const char *hfi_url_param(const struct hfi_url *, const char *name,
                          const char *otherwise);

/* ---- url_value.c: *ret is left alone if the option is not given -------- */

/* The number of one of the words, of which the list ends with NULL. */
hf_status hfi_url_word(const struct hfi_url *, const char *name,
                       const char *const *words, int *ret, struct hf_error *);

/* yes, on, true, 1; no, off, false, 0. */
hf_status hfi_url_bool(const struct hfi_url *, const char *name, bool *ret,
                       struct hf_error *);

/* A whole number from `min`, which is not negative, to `max`. */
hf_status hfi_url_number(const struct hfi_url *, const char *name, int64_t min,
                         int64_t max, int64_t *ret, struct hf_error *);

/* A duration in ms: "500ms", "30s", "1.5m", "1h", "1d", or "30", in seconds as
 * on the command line. */
hf_status hfi_url_duration(const struct hfi_url *, const char *name,
                           int64_t *ret, struct hf_error *err);

/* keep=: how long what a free key left behind stays after its last grant, a
 * week if the URL does not say; 0 is keep=off, for ever. */
#define HFI_KEEP_MS (INT64_C(7) * 24 * 3600 * 1000)
hf_status hfi_url_keep(const struct hfi_url *, int64_t *ret,
                       struct hf_error *err);

/* ---- url.c ------------------------------------------------------------- */

/* What stands in the file of this name, which an option gave, but for the end
 * of its last line: a secret, which is not to stand in a URL.  HF_INVALID if it
 * is longer than `size` allows; `what` is for the message. */
hf_status hfi_url_secret(const char *path, const char *what, char *ret,
                         size_t size, struct hf_error *err);

/* Is it this machine, by its name alone: the path of a socket, localhost, or an
 * address of the loopback interface? */
bool hfi_url_is_here(const char *host);

/* Add to the warnings of a conn, if need be, that a password is sent to `host`
 * where others can read it: to another machine without TLS, or with TLS to
 * anybody who says that he is that machine.  `verified`: there is TLS, and the
 * name in the server's certificate is checked. */
void hfi_warn_password(char *warning, size_t size, const char *host,
                       bool verified);

/* The same for a URL: the first of its hosts where that is so. */
void hfi_warn_passwords(char *warning, size_t size, const struct hfi_url *,
                        bool verified);

/* HF_INVALID if an option is in neither list (which end with NULL). */
hf_status hfi_url_only(const struct hfi_url *, const char *const *common,
                       const char *const *own, struct hf_error *err);

#endif
