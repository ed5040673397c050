/* SPDX-License-Identifier: MIT
 *
 * out.c - text for people, for shells and for programs.
 *
 * Keys, notes and owner ids are any bytes but NUL, and some were written by
 * strangers.  So nothing of theirs reaches a reader raw:
 *
 *  (1) People get one line: controls and what is invisible are shown as \xNN or
 *      \uNNNN, and so are bytes that are no UTF-8, so that a note can neither move
 *      the cursor nor forge a second message.  The password of a URL is not shown.
 *  (2) Shells get words in single quotes, which eval gives back byte by byte.
 *  (3) Programs get JSON that is valid whatever the bytes are.  UTF-8 passes
 *      through; a byte that is no part of UTF-8 becomes the four characters \xNN.
 *      A lone surrogate would not do: many who read JSON put the same character
 *      in place of all of them, and others refuse it.
 *  (4) No two keys, notes or owner ids look the same, to people or to programs:
 *      a backslash is doubled where it would else begin something that stands
 *      for another text.  So the bytes can be had back: from left to right \\
 *      is a backslash, \xNN a byte, for people \uNNNN a character, and any other
 *      backslash is itself.
 *
 * Data goes to stdout, talk goes to stderr.
 */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int64_t cli_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* The length of the UTF-8 sequence at `s`, and its code point; 0 if it is none:
 * no overlong form, no surrogate, nothing above U+10FFFF. */
static int out_utf8(const unsigned char *s, uint32_t *code)
{
    int len;

    *code = s[0];
    if (s[0] < 0x80)
        return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4)
        return 0;
    len = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    *code = s[0] & (0xffu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (s[i] & 0x3f);
    }
    if (len == 3 && (*code < 0x800 || (*code >= 0xd800 && *code < 0xe000)))
        return 0;
    if (len == 4 && (*code < 0x10000 || *code > 0x10ffff))
        return 0;
    return len;
}

/* Whether this character is obeyed or passed over instead of being shown: C0 and C1
 * controls, line separators, and what Unicode calls default ignorable, which is
 * invisible or changes the direction or the look of others.  page.html of
 * holdfast-serve has the same list. */
static bool out_control(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0x00, 0x1f},       {0x7f, 0x9f},       {0xad, 0xad},
        {0x34f, 0x34f},     {0x61c, 0x61c},     {0x115f, 0x1160},
        {0x17b4, 0x17b5},   {0x180b, 0x180f},   {0x200b, 0x200f},
        {0x2028, 0x202e},   {0x2060, 0x206f},   {0x3164, 0x3164},
        {0xfe00, 0xfe0f},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},
        {0xfff0, 0xfff8},   {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a},
        {0xe0000, 0xe0fff},
    };

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (code <= ranges[i][1])
            return code >= ranges[i][0];
    return false;
}

/* Is the backslash at `s` doubled?  (4)  People also see \uNNNN and controls. */
static bool out_doubled(const unsigned char *s, bool people)
{
    uint32_t code;

    if (s[0] != '\\' || !s[1])
        return false;
    return s[1] == '\\' || s[1] == 'x' || !out_utf8(s + 1, &code) ||
           (people && (s[1] == 'u' || out_control(code)));
}

static void out_clean(const char *text, char *ret, size_t size, bool exact)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t used = 0;

    while (*s) {
        char piece[24];
        uint32_t code;
        int len = out_utf8(s, &code), n;

        if (exact && out_doubled(s, true))
            n = snprintf(piece, sizeof(piece), "\\\\");
        else if (len == 0 || (out_control(code) && code < 0x80))
            n = snprintf(piece, sizeof(piece), "\\x%02x", *s);
        else if (out_control(code) && code > 0xffff)
            n = snprintf(piece, sizeof(piece), "\\x%02x\\x%02x\\x%02x\\x%02x",
                         s[0], s[1], s[2], s[3]);
        else if (out_control(code))
            n = snprintf(piece, sizeof(piece), "\\u%04x", (unsigned)code);
        else
            n = snprintf(piece, sizeof(piece), "%.*s", len, (const char *)s);
        if (used + (size_t)n >= size)
            break;
        memcpy(ret + used, piece, (size_t)n);
        used += (size_t)n;
        s += len ? len : 1;
    }
    ret[used] = '\0';
}

void cli_clean(const char *text, char *ret, size_t size)
{
    out_clean(text, ret, size, false);
}

void cli_show(const char *text, char *ret, size_t size)
{
    out_clean(text, ret, size, true);
}

/* Put stars in place of what is between the two. */
static void out_stars(char *from, char *to)
{
    if (to - from >= 3) {
        memcpy(from, "***", 3);
        memmove(from + 3, to, strlen(to) + 1);
    } else {
        memset(from, '*', (size_t)(to - from));
    }
}

/* scheme:user:password@host or scheme:/user:password@host, which lacks slashes:
 * the stars go behind the first colon. */
static void out_mask_words(char *text)
{
    char *word, *end, *last, *first;

    for (word = text; *word; word = *end ? end + 1 : end) {
        end = word + strcspn(word, " ");
        first = memchr(word, ':', (size_t)(end - word));
        last = memrchr(word, '@', (size_t)(end - word));
        if (first && last && last > first + 1 &&
            strncmp(first, "://", 3) != 0 &&
            memchr(first + 1, ':', (size_t)(last - first - 1))) {
            out_stars(first + 1, last);
            end = word + strcspn(word, " ");
        }
    }
}

/* scheme:rest?name=value: any option may be a secret, or the rest of one in
 * which a & was not escaped, so the stars go behind the question mark. */
static void out_mask_options(char *text, bool all)
{
    char *word, *end, *colon, *query;

    for (word = text; *word; word = *end ? end + 1 : end) {
        end = word + strcspn(word, " ");
        colon = memchr(word, ':', (size_t)(end - word));
        query = colon ? memchr(colon, '?', (size_t)(end - colon)) : NULL;
        if (!query || !memchr(query, '=', (size_t)(end - query)))
            continue;
        end = all ? strrchr(query, '\'') : query + strcspn(query, " '");
        if (!end)
            end = query + strlen(query);
        out_stars(query + 1, end);
        end = query + strcspn(query, " ");
    }
}

void cli_mask(char *text, bool all)
{
    char *at = text;

    while ((at = strstr(at, "://"))) {
        char *last = NULL;

        at += 3;
        for (char *s = at; *s && (all || *s != ' '); s++)
            if (*s == '@')
                last = s;
        if (last)
            out_stars(at, last);
    }
    out_mask_options(text, all);
    out_mask_words(text);
}

/* The text was cut: a URL at its end may have lost the sign that a password
 * ends with. */
static void out_mask_cut(char *text)
{
    char *at = strrchr(text, ' ');

    at = strstr(at ? at : text, "://");
    if (at)
        out_stars(at + 3, text + strlen(text));
}

void cli_say(const char *fmt, ...)
{
    char raw[2048];
    char line[4096] = "holdfast: ";
    size_t len = strlen(line);
    va_list ap;

    va_start(ap, fmt);
    if (vsnprintf(raw, sizeof(raw), fmt, ap) >= (int)sizeof(raw))
        out_mask_cut(raw);
    va_end(ap);
    cli_mask(raw, false);
    cli_clean(raw, line + len, sizeof(line) - len - 1);
    len = strlen(line);
    line[len] = '\n';
    line[len + 1] = '\0';
    say_text(line);
}

const char *cli_ago(int64_t ms, char ret[32])
{
    int64_t s = ms / 1000;

    if (ms < 1000)
        snprintf(ret, 32, "%" PRId64 "ms", ms < 0 ? 0 : ms);
    else if (s < 60)
        snprintf(ret, 32, "%" PRId64 "s", s);
    else if (s < 3600)
        snprintf(ret, 32, "%" PRId64 "m%02ds", s / 60, (int)(s % 60));
    else if (s < 86400)
        snprintf(ret, 32, "%" PRId64 "h%02dm", s / 3600, (int)(s % 3600 / 60));
    else
        snprintf(ret, 32, "%" PRId64 "d%02dh", s / 86400,
                 (int)(s % 86400 / 3600));
    return ret;
}

void cli_shell_word(FILE *out, const char *text)
{
    putc('\'', out);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", out);
        else
            putc(*text, out);
    putc('\'', out);
}

/* Above 16 bits JSON takes two. */
static void out_json_code(FILE *out, uint32_t code)
{
    if (code > 0xffff) {
        fprintf(out, "\\u%04x", (unsigned)(0xd7c0 + (code >> 10)));
        code = 0xdc00 + (code & 0x3ff);
    }
    fprintf(out, "\\u%04x", (unsigned)code);
}

void cli_json_text(FILE *out, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;

    putc('"', out);
    while (*s) {
        uint32_t code;
        int len = out_utf8(s, &code);

        if (len == 0)
            fprintf(out, "\\\\x%02x", *s++);
        else if (out_doubled(s, false))
            s++, fputs("\\\\\\\\", out);
        else if (*s == '"' || *s == '\\')
            fprintf(out, "\\%c", *s++);
        else if (*s == '\n')
            s++, fputs("\\n", out);
        else if (out_control(code))
            s += len, out_json_code(out, code);
        else
            for (; len > 0; len--)
                putc(*s++, out);
    }
    putc('"', out);
}

void cli_json_open(struct cli_json *json, FILE *out)
{
    json->out = out;
    json->more = false;
    putc('{', out);
}

static void out_name(struct cli_json *json, const char *name)
{
    fprintf(json->out, "%s\"%s\": ", json->more ? ", " : "", name);
    json->more = true;
}

void cli_json_str(struct cli_json *json, const char *name, const char *value)
{
    out_name(json, name);
    if (value)
        cli_json_text(json->out, value);
    else
        fputs("null", json->out);
}

void cli_json_num(struct cli_json *json, const char *name, int64_t value)
{
    out_name(json, name);
    fprintf(json->out, "%" PRId64, value);
}

void cli_json_fence(struct cli_json *json, uint64_t fence)
{
    out_name(json, "fence");
    fprintf(json->out, "%" PRIu64, fence);
}

/* A number that is null when it is negative: "not known". */
void cli_json_opt(struct cli_json *json, const char *name, int64_t value)
{
    if (value < 0)
        cli_json_str(json, name, NULL);
    else
        cli_json_num(json, name, value);
}

void cli_json_bool(struct cli_json *json, const char *name, bool value)
{
    out_name(json, name);
    fputs(value ? "true" : "false", json->out);
}

void cli_json_info(struct cli_json *json, const char *key,
                   const struct hf_info *info)
{
    cli_json_str(json, "key", key);
    cli_json_bool(json, "held", info->held);
    cli_json_bool(json, "broken", info->held && info->broken);
    cli_json_fence(json, info->fence);
    cli_json_bool(json, "shared", info->held && info->shared);
    cli_json_bool(json, "kept", info->held && info->kept);
    cli_json_opt(json, "permits", info->permits > 0 ? info->permits : -1);
    cli_json_opt(json, "slot", info->held ? info->slot : -1);
    cli_json_num(json, "holders", info->held ? info->holders : 0);
    cli_json_opt(json, "waiters", info->waiters);
    cli_json_opt(json, "since_ms", info->held ? info->since_ms : -1);
    cli_json_opt(json, "left_ms", info->held ? info->left_ms : -1);
    cli_json_opt(json, "takeover_ms",
                 info->held && info->takeover_ms > 0 ? info->takeover_ms : -1);
    cli_json_str(json, "owner",
                 info->held && info->owner[0] ? info->owner : NULL);
    cli_json_str(json, "note", info->held ? info->note : NULL);
}

void cli_json_close(struct cli_json *json)
{
    putc('}', json->out);
}

int cli_done(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return CLI_OK;
    cli_say("standard output cannot be written: %s", strerror(errno));
    return CLI_FAILED;
}
