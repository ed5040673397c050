/* SPDX-License-Identifier: MIT
 *
 * url.c - the parser of URLs and the escapes in them.
 *
 * CHECKED  for every authority, every list of options and every path of up to
 * LENGTH bytes: no access outside of the text, no overflow, all pieces lie in
 * the text, there are not too many of them, and ports are in range.
 *
 * UNWIND 8
 * SLOW every_authority_is_cut_within_the_text every_list_of_options_is_cut_within_the_text every_path_begins_within_the_text
 * BUGS
 *   every_port_is_in_range s|return port >= 1 && |return |
 *   every_path_begins_within_the_text s|path\[-1\] = |path[-4] = |
 *   every_authority_is_cut_within_the_text s|url->nhosts == HFI_HOSTS_MAX|url->nhosts == HFI_HOSTS_MAX + 1|
 *   every_list_of_options_is_cut_within_the_text s|if (!value \|\| |if (|
 */
#include "cbmc.h"
#include "text.h"

#include <stdlib.h>

/* Fewer hosts and options than in the source, so that a short text can have too
 * many of them. */
#include "src/base/url.h"
#undef HFI_HOSTS_MAX
#define HFI_HOSTS_MAX 1
#undef HFI_PARAMS_MAX
#define HFI_PARAMS_MAX 1

#include "src/base/escape.c"
#include "src/base/url.c"

#ifndef LENGTH
#define LENGTH 5
#endif

static char copy[LENGTH + 1];
static bool in_copy(const char *piece)
{
    return piece >= copy && piece <= copy + LENGTH;
}

static void any_text(void)
{
    size_t i;

    for (i = 0; i < LENGTH; i++)
        copy[i] = any_char();
    copy[LENGTH] = '\0';
}

void every_authority_is_cut_within_the_text(void)
{
    static struct hfi_url url;
    size_t i;

    any_text();
    if (url_authority(&url, copy, NULL))
        return;
    check(!url.user || in_copy(url.user), "the user");
    check(url.nhosts <= HFI_HOSTS_MAX, "not too many hosts");
    for (i = 0; i < HFI_HOSTS_MAX; i++)
        if (i < url.nhosts)
            check(in_copy(url.hosts[i].name) && url.hosts[i].port >= 0 &&
                      url.hosts[i].port <= 65535,
                  "a host of the copy, and a port");
}

void every_list_of_options_is_cut_within_the_text(void)
{
    static struct hfi_url url;

    any_text();
    if (!url_params(&url, copy, NULL) && url.nparams)
        check(in_copy(url.params[0].name) && in_copy(url.params[0].value) &&
                  *url.params[0].name,
              "an option of the copy");
}

/* Two slashes, then any bytes: the authority is moved and what follows is a
 * path. */
void every_path_begins_within_the_text(void)
{
    static struct hfi_url url;

    any_text();
    copy[0] = copy[1] = '/';
    if (!url_whole(copy, NULL) && !url_rest(&url, copy, NULL))
        check(in_copy(url.path), "a path of the copy");
}

void every_port_is_in_range(void)
{
    char text[8];
    int port = 0;
    size_t i;

    for (i = 0; i < sizeof(text) - 1; i++)
        text[i] = any_char();
    text[sizeof(text) - 1] = '\0';
    if (url_port(text, &port))
        check(port >= 1 && port <= 65535, "a port");
}

void an_escape_never_grows(void)
{
    char text[LENGTH + 1], old[LENGTH + 1];
    size_t i, len;

    for (i = 0; i < LENGTH; i++)
        old[i] = text[i] = any_char();
    old[LENGTH] = text[LENGTH] = '\0';
    len = strlen(text);
    if (hfi_unescape(text))
        check(strlen(text) <= len, "an escape never grows");
}

/* What is escaped is plain, fits where it was said to, and comes back. */
void an_escaped_text_comes_back(void)
{
    char text[3], escaped[7];
    size_t len, size = (size_t)any_upto(7);

    text[0] = any_char();
    text[1] = any_char();
    text[2] = '\0';
    assume(size > 0);
    len = hfi_escape(escaped, size, text, "./");
    check(strlen(escaped) < size, "it ends within its room");
    if (len < size) {
        check(strlen(escaped) == len && !strchr(escaped, ' '), "plain");
        check(hfi_unescape(escaped) && !strcmp(escaped, text), "comes back");
    }
}
