/* SPDX-License-Identifier: MIT
 *
 * check-urls.c - are these URLs that a service accepts?
 *
 * Reads one URL from each line and prints those that hf_open() would refuse
 * before it connects: the URL does not parse, or its service does not have one
 * of its options.  Nothing is opened.  Of a service that this build has left
 * out, the options are not checked.
 */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"

static const char *const common[] = {"timeout", "ttl", "retry", "wait", NULL};

static hf_status check_url(const char *text, struct hf_error *err)
{
    const struct hfi_backend *be;
    struct hfi_url url;
    hf_status st = hfi_url_parse(&url, text, err);

    if (st)
        return st;
    if (!hfi_backend_find(url.scheme, &be, err))
        st = hfi_url_only(&url, common, be->options, err);
    hfi_url_fini(&url);
    return st;
}

int main(void)
{
    char line[HFI_URL_MAX + 2];
    struct hf_error err;

    while (fgets(line, sizeof(line), stdin)) {
        line[strcspn(line, "\n")] = '\0';
        if (check_url(line, &err))
            printf("%s: %s\n", line, err.text);
    }
    return 0;
}
