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

/* The options of a client, checked. */
static hf_status client_opts(struct hf_client_opts *ret,
                             const struct hf_client_opts *given,
                             struct hf_error *err)
{
    hf_status st;

    *ret = (struct hf_client_opts)HF_CLIENT_OPTS_INIT;
    if (!given)
        return HF_OK;
    st = hfi_struct_read(ret, sizeof(*ret), given, "hf_client_opts", err);
    if (!st)
        st = hfi_check_duration(ret->timeout_ms, 1, "timeout_ms", err);
    if (!st && (ret->connect_ms < -1 || ret->connect_ms > HFI_TTL_MAX))
        st = hfi_fail(err, HF_INVALID,
                      "connect_ms is %lld; it must be 0 to connect in "
                      "hf_open(), -1 for no limit, or from 1 to %lld",
                      (long long)ret->connect_ms, (long long)HFI_TTL_MAX);
    if (!st && (unsigned)ret->log_level > HF_LOG_DEBUG)
        st = hfi_fail(err, HF_INVALID, "log_level is none of HF_LOG_...");
    if (!st && ret->reserved)
        st = hfi_fail(err, HF_INVALID,
                      "reserved is %u; it must be 0: begin with "
                      "HF_CLIENT_OPTS_INIT",
                      ret->reserved);
    if (!st)
        st = hfi_check_text(ret->note, HF_NOTE_MAX, "note", err);
    return st;
}

hf_status hf_open(const char *text, const struct hf_client_opts *given,
                  hf_client **ret, struct hf_error *err)
{
    const struct hfi_backend *be;
    struct hf_client_opts opts;
    struct hfi_url url;
    hf_status st;

    if (!ret)
        return hfi_fail(err, HF_INVALID, "no place for the client was given");
    st = client_opts(&opts, given, err);
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
        st = hfi_open_with(be, &url, &opts, ret, err);
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
    struct hf_service full = HF_SERVICE_INIT;
    struct hf_error offline;
    hf_status st = hfi_check_client(c, err);

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = hfi_check_size(ret, "hf_service", err);
    if (st)
        return st;
    scheme = c->be->schemes;
    full.ttl_ms = c->defaults.ttl_ms;
    snprintf(full.scheme, sizeof(full.scheme), "%s", *scheme);
    pthread_mutex_lock(&c->mu);
    full.traits = c->conn->traits & HFI_TRAITS_PUBLIC;
    snprintf(full.endpoint, sizeof(full.endpoint), "%s", c->conn->endpoint);
    snprintf(full.warning, sizeof(full.warning), "%s", c->conn->warning);
    if (hfi_connect_error(c, &offline))
        snprintf(full.warning, sizeof(full.warning), "%.255s", offline.text);
    pthread_mutex_unlock(&c->mu);
    hfi_struct_write(ret, &full, sizeof(full));
    return HF_OK;
}

hf_status hf_services(hf_services_fn *fn, void *arg, struct hf_error *err)
{
    if (!fn)
        return hfi_fail(err, HF_INVALID, "no function was given");
    hfi_backend_each(fn, arg);
    return HF_OK;
}
