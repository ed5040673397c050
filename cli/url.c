/* SPDX-License-Identifier: MIT
 *
 * url.c - what of a URL, or of a word that may be one, is shown.
 *
 * INVARIANT  No password is.  What the one parser of URLs cannot read is not
 * shown, because nobody can tell which part of it is a password.  ps(1) shows the
 * words of the command line to everybody, so every program that takes a URL there
 * uses what cli_url_hide() returns, and wipes a URL that it does not use.
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

/* A name that is escaped in part may be any. */
bool cli_url_secret(const char *url)
{
    static const char *const words[] = {"pass", "secret", "token", "auth"};
    const char *at, *colon, *authority = strstr(url, "://");
    const char *query = strchr(url, '?');

    for (size_t i = 0; query && i < sizeof(words) / sizeof(words[0]); i++)
        if (strcasestr(query, words[i]))
            return true;
    for (const char *name = query; name; name = strchr(name + 1, '&'))
        if (memchr(name, '%', strcspn(name, "=")))
            return true;
    if (!authority)
        return false;
    authority += 3;
    at = memchr(authority, '@', strcspn(authority, "?#"));
    colon = at ? memchr(authority, ':', (size_t)(at - authority)) : NULL;
    return colon != NULL;
}

/* May everybody see it?  Not if it may be meant to hold a secret. */
static bool url_open(const char *word)
{
    size_t place = strcspn(word, "?");
    struct hfi_url url;
    struct hf_error err;

    if (cli_url_secret(word) ||
        (!strstr(word, "://") && strcspn(word, "@=") < place) ||
        hfi_url_parse(&url, word, &err))
        return false;
    hfi_url_fini(&url);
    return true;
}

void cli_url_wipe(char *word)
{
    if (url_open(word))
        return;
    word += strcspn(word, ":");
    memset(word, '*', strlen(word));
}

const char *cli_url_hide(char *word)
{
    static struct url_copy {
        struct url_copy *next;
        char text[];
    } * copies; /* They are used until the end. */
    size_t size = strlen(word) + 1;
    struct url_copy *copy =
        url_open(word) ? NULL : malloc(sizeof(*copy) + size);

    if (!copy)
        return word;
    memcpy(copy->text, word, size);
    copy->next = copies;
    copies = copy;
    cli_url_wipe(word);
    return copy->text;
}
