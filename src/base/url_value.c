/* SPDX-License-Identifier: MIT
 *
 * url_value.c - the values of options: words, yes and no, numbers, durations.
 *
 * A value that is none of those that an option has is an error, for every
 * service: `ssl=true` must not mean the same as no option at all.  Values are
 * not shown in messages, since a URL that was cut in the wrong place may have a
 * part of a password there.
 */
#include "url.h"

#include "error.h"

#include "banned.h"

hf_status hfi_url_word(const struct hfi_url *url, const char *name,
                       const char *const *words, int *ret, struct hf_error *err)
{
    const char *text = hfi_url_param(url, name, NULL);
    char list[128] = "";
    size_t len = 0;
    int i;

    if (!text)
        return HF_OK;
    for (i = 0; words[i]; i++) {
        if (!strcmp(words[i], text)) {
            *ret = i;
            return HF_OK;
        }
        if (len < sizeof(list))
            len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%s",
                                    !i             ? ""
                                    : words[i + 1] ? ", "
                                                   : " or ",
                                    words[i]);
    }
    return hfi_fail(err, HF_INVALID, "url: %s= is %s", name, list);
}

hf_status hfi_url_bool(const struct hfi_url *url, const char *name, bool *ret,
                       struct hf_error *err)
{
    static const char *const words[] = {"no",    "yes",  "off", "on",
                                        "false", "true", "0",   "1"};
    const char *text = hfi_url_param(url, name, NULL);
    size_t i;

    if (!text)
        return HF_OK;
    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strcmp(words[i], text)) {
            *ret = i % 2;
            return HF_OK;
        }
    return hfi_fail(err, HF_INVALID,
                    "url: %s= is yes or no (or on, off, true, false, 1, 0)",
                    name);
}

/* At most `max`, which is small. */
static bool value_digits(const char *text, int64_t max, int64_t *ret)
{
    int64_t n = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        n = n * 10 + (*text - '0');
        if (n > max)
            return false;
    }
    *ret = n;
    return true;
}

hf_status hfi_url_number(const struct hfi_url *url, const char *name,
                         int64_t min, int64_t max, int64_t *ret,
                         struct hf_error *err)
{
    const char *text = hfi_url_param(url, name, NULL);
    int64_t n;

    if (!text)
        return HF_OK;
    if (!value_digits(text, max, &n) || n < min)
        return hfi_fail(err, HF_INVALID,
                        "url: %s= is a number from %lld to %lld", name,
                        (long long)min, (long long)max);
    *ret = n;
    return HF_OK;
}

/* ---- durations --------------------------------------------------------- */

/* How many ms the unit `text` has; 0 if it is none. */
static int64_t value_unit(const char *text)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"", 1000},   {"ms", 1},      {"s", 1000},
                 {"m", 60000}, {"h", 3600000}, {"d", 86400000}};
    size_t i;

    for (i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (!strcmp(text, units[i].name))
            return units[i].ms;
    return 0;
}

/* "30s", "1.5m", "30" in ms; 0 if it is no duration. */
static int64_t value_duration(const char *text)
{
    int64_t whole = 0, part = 0, scale = 1, unit;

    if (*text < '0' || *text > '9')
        return 0;
    for (; *text >= '0' && *text <= '9'; text++) {
        if (whole > 1000000000)
            return 0;
        whole = whole * 10 + (*text - '0');
    }
    if (*text == '.')
        for (text++; *text >= '0' && *text <= '9'; text++)
            if (scale < 1000000) {
                part = part * 10 + (*text - '0');
                scale *= 10;
            }
    unit = value_unit(text);
    return whole * unit + (part * unit + scale - 1) / scale;
}

hf_status hfi_url_duration(const struct hfi_url *url, const char *name,
                           int64_t *ret, struct hf_error *err)
{
    const char *text = hfi_url_param(url, name, NULL);
    int64_t ms;

    if (!text)
        return HF_OK;
    ms = value_duration(text);
    if (!ms)
        return hfi_fail(err, HF_INVALID,
                        "url: %s= is a duration such as 500ms, 30s, 5m or 1h; "
                        "a bare number is in seconds",
                        name);
    *ret = ms;
    return HF_OK;
}

hf_status hfi_url_keep(const struct hfi_url *url, int64_t *ret,
                       struct hf_error *err)
{
    *ret = HFI_KEEP_MS;
    if (!strcmp(hfi_url_param(url, "keep", ""), "off")) {
        *ret = 0;
        return HF_OK;
    }
    return hfi_url_duration(url, "keep", ret, err);
}
