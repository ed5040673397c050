/* SPDX-License-Identifier: MIT
 *
 * url.c - what of a URL, or of a word that may be one, is shown.
 *
 * INVARIANT  No password is.  What the one parser of URLs cannot read is not
 * shown, because nobody can tell which part of it is a password.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/url.h"

/* Is there a service of this name? */
static bool url_known(const char *scheme)
{
    const struct hfi_backend *be;
    struct hf_error err;

    return hfi_backend_find(scheme, &be, &err) != HF_INVALID;
}

void cli_url_name(const char *text, char *ret, size_t size)
{
    char scheme[32];
    struct hfi_url url;
    struct hf_error err;

    snprintf(ret, size, "a URL that cannot be read");
    snprintf(scheme, sizeof(scheme), "%.*s", (int)strcspn(text, ":"), text);
    if (!text[strcspn(text, ":")] || !url_known(scheme))
        return;
    if (hfi_url_parse(&url, text, &err)) {
        snprintf(ret, size, "%s:", scheme);
        return;
    }
    hfi_url_name(&url, ret, size);
    hfi_url_fini(&url);
}

const char *cli_word(const char *word, char ret[CLI_WORD])
{
    bool slashes = strstr(word, "://");
    struct hfi_url url;
    struct hf_error err;
    char *copy;

    if (!slashes && !strpbrk(word, "@=")) {
        snprintf(ret, CLI_WORD, "'%.200s'", word);
        return ret;
    }
    snprintf(ret, CLI_WORD, "what looks like a URL");
    copy = slashes && !hfi_url_parse(&url, word, &err) ? strdup(word) : NULL;
    if (!copy)
        return ret;
    hfi_url_fini(&url);
    cli_mask(copy, true); /* before it is cut */
    snprintf(ret, CLI_WORD, "'%.200s'", copy);
    free(copy);
    return ret;
}
