/* SPDX-License-Identifier: MIT
 *
 * client.c - the entry points about a client: open, close, describe.
 */
#include "check.h"

#include "config.h"

#include "base/banned.h"

const char *hf_version(void)
{
    return HFI_VERSION;
}

hf_status hf_open(const char *text, const struct hf_client_opts *opts,
                  hf_client **ret, struct hf_error *err)
{
    const struct hfi_backend *be;
    struct hfi_url url;
    hf_status st = HF_OK;

    if (!ret)
        return hfi_fail(err, HF_INVALID, "no place for the client was given");
    if (opts) {
        st = hfi_check_size(opts->size, sizeof(*opts), "hf_client_opts", err);
        if (!st)
            st = hfi_check_duration(opts->timeout_ms, 1, "timeout_ms", err);
        if (!st)
            st = hfi_check_text(opts->note, HF_NOTE_MAX, "note", err);
    }
    if (!st && text && !*text)
        st = hfi_fail(err, HF_INVALID,
                      "the url is empty: name a service, such as "
                      "redis://host, or file: for this machine");
    if (!st)
        st = hfi_url_parse(&url, text ? text : "file:", err);
    if (st)
        return st;
    st = hfi_backend_find(url.scheme, &be, err);
    if (!st)
        st = hfi_open_with(be, &url, opts, ret, err);
    hfi_url_fini(&url);
    return st;
}

void hf_close(hf_client *c)
{
    if (c && *c->mark)
        hfi_close(c);
    else if (c)
        hfi_after_fork_child(c);
}

void hf_cancel(hf_client *c)
{
    if (!c || !*c->mark)
        return;
    atomic_fetch_add(&c->cancels, 1);
    hfi_notifier_notify(&c->notifier);
}

hf_status hf_describe(hf_client *c, struct hf_service *ret,
                      struct hf_error *err)
{
    const char *const *scheme;
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = hfi_check_size(ret->size, sizeof(*ret), "hf_service", err);
    if (st)
        return st;
    scheme = c->be->schemes;
    ret->traits = c->conn->traits & HFI_TRAITS_PUBLIC;
    ret->ttl_ms = c->defaults.ttl_ms;
    snprintf(ret->scheme, sizeof(ret->scheme), "%s", *scheme);
    snprintf(ret->endpoint, sizeof(ret->endpoint), "%s", c->conn->endpoint);
    pthread_mutex_lock(&c->mu);
    snprintf(ret->warning, sizeof(ret->warning), "%s", c->conn->warning);
    pthread_mutex_unlock(&c->mu);
    return HF_OK;
}

hf_status hf_services(hf_services_fn *fn, void *arg, struct hf_error *err)
{
    if (!fn)
        return hfi_fail(err, HF_INVALID, "no function was given");
    hfi_backend_each(fn, arg);
    return HF_OK;
}
