/* SPDX-License-Identifier: MIT
 *
 * url.c - any text as a URL: it is refused, or all its parts are where they
 * should be; and a refusal repeats nothing that may be a password.
 */
#include "base/url.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void must(bool good)
{
    if (!good)
        abort();
}

/* The part is in the copy that the URL has made, and ends there; what is not
 * given is an empty string from elsewhere. */
static void check_part(const struct hfi_url *url, const char *part)
{
    must(part);
    if (!*part)
        return;
    must(part >= url->text && part < url->text + url->size);
    must(memchr(part, '\0', (size_t)(url->text + url->size - part) + 1));
}

static void check(const struct hfi_url *url)
{
    static const char *const none[] = {NULL};
    int64_t ms = -1;
    size_t i;

    check_part(url, url->scheme);
    check_part(url, url->path);
    must(url->nhosts <= HFI_HOSTS_MAX && url->nparams <= HFI_PARAMS_MAX);
    for (i = 0; i < url->nhosts; i++) {
        check_part(url, url->hosts[i].name);
        must(url->hosts[i].port >= 0 && url->hosts[i].port <= 65535);
    }
    for (i = 0; i < url->nparams; i++) {
        check_part(url, url->params[i].name);
        check_part(url, url->params[i].value);
        if (hfi_url_duration(url, url->params[i].name, &ms, NULL) == HF_OK)
            must(ms > 0);
    }
    must(!hfi_url_only(url, none, none, NULL) == !url->nparams);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct hf_error err = {.text = ""};
    struct hfi_url url;
    char *text = malloc(len + 1);

    must(text);
    memcpy(text, bytes, len);
    text[len] = '\0';
    hfi_mem_fail_at(len % 16 == 7);
    if (hfi_url_parse(&url, text, &err)) {
        must(!strstr(err.text, "hunter2"));
    } else {
        check(&url);
        hfi_url_fini(&url);
    }
    hfi_mem_fail_at(0);
    free(text);
    return 0;
}
