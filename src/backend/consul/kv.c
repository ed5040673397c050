/* SPDX-License-Identifier: MIT
 *
 * kv.c - names and values of Consul's store.
 *
 * NAMES  A key is its own name, so that others who use the same name are
 *   excluded, except where the store could not keep it apart: '%', control
 *   characters, bytes that are not UTF-8, a slash at the start, at the end or
 *   after another, and "." and ".." as a part are written as '%' and two hex
 *   digits.  The HTTP interface would silently clean such a path.  layout=cli
 *   adds "/.lock", as `consul lock` does.
 *
 * VALUES  Lines of a word and a text, escaped likewise:
 *
 *     token 0123...   fence 4711   owner order-99   note host:123
 *     linger          would be given up if asked
 *     wanted          and was asked
 *     broken 4711     this grant was taken away by an operator
 *     shared          a grant, a waiter or the key is shared: many.c
 *     permits 3       or has permits, of which a grant has
 *     slot 2          this one
 *     joins           others of its owner id may join this grant: reenter.c
 *     common 20000    the ttl of the session that has the key locked for all who
 *                     hold it: common.c
 *
 *   The fence is there only once the entry was written again after the grant;
 *   until then it is the entry's ModifyIndex.
 */
#include "consul.h"

#include "base/alloc.h"
#include "base/escape.h"

#include "base/banned.h"

/* ---- names -------------------------------------------------------------- */

static bool kv_is_utf8(const char *text)
{
    const char *c = text;
    json_t *test;

    while (*c && (unsigned char)*c < 0x80)
        c++;
    if (!*c)
        return true;
    test = json_string(text);
    json_decref(test);
    return test;
}

/* Must the byte at `c`, in a text that begins at `text`, be escaped? */
static bool kv_is_odd(const char *text, const char *c, bool utf8)
{
    bool first = c == text || c[-1] == '/';
    size_t part;

    if ((unsigned char)*c >= 0x80)
        return !utf8;
    if ((unsigned char)*c < ' ' || *c == 127 || *c == '%')
        return true;
    if (*c == '/')
        return first || !c[1];
    if (*c != '.' || !first)
        return false;
    part = strcspn(c, "/");
    return part == 1 || (part == 2 && c[1] == '.') ||
           !strncmp(c, ".holdfast", 9);
}

static size_t kv_escape(char *ret, size_t size, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    bool utf8 = kv_is_utf8(text);
    size_t len = 0;
    const char *c;

    for (c = text; *c && len + 4 < size; c++) {
        if (!kv_is_odd(text, c, utf8)) {
            ret[len++] = *c;
            continue;
        }
        ret[len++] = '%';
        ret[len++] = digits[(unsigned char)*c >> 4];
        ret[len++] = digits[*c & 15];
    }
    ret[len] = '\0';
    return len;
}

/* The name of the entry that is the lock `key`; ret has CONSUL_NAME_MAX. */
bool hfi_consul_name(const struct consul_options *options, const char *key,
                     char *ret)
{
    size_t len = (size_t)snprintf(ret, CONSUL_NAME_MAX, "%s", options->prefix);

    len += kv_escape(ret + len, CONSUL_NAME_MAX - len, key);
    if (options->cli)
        len += (size_t)snprintf(ret + len, CONSUL_NAME_MAX - len, "/.lock");
    return len < CONSUL_NAME_MAX - 4;
}

/* And back; false if it is not the name of a lock.  ret has HF_KEY_MAX + 1. */
bool hfi_consul_key_of(const struct consul_options *options, const char *name,
                       char *ret)
{
    char buf[CONSUL_NAME_MAX], again[CONSUL_NAME_MAX];
    size_t skip = strlen(options->prefix), len = strlen(name);

    if (len >= sizeof(buf) || strncmp(name, options->prefix, skip) != 0)
        return false;
    memcpy(buf, name, len + 1);
    if (options->cli) {
        if (len < skip + 7 || strcmp(buf + len - 6, "/.lock") != 0)
            return false;
        buf[len - 6] = '\0';
    }
    if (!hfi_unescape(buf + skip) || strlen(buf + skip) > HF_KEY_MAX ||
        !buf[skip])
        return false;
    memcpy(ret, buf + skip, strlen(buf + skip) + 1);
    /* What we would not have written is not ours to list twice. */
    return hfi_consul_name(options, ret, again) && !strcmp(again, name);
}

/* The longest name that all keys with this prefix begin with for sure. */
void hfi_consul_list_prefix(const struct consul_options *options,
                            const char *prefix, char *ret)
{
    size_t len = (size_t)snprintf(ret, CONSUL_NAME_MAX, "%s", options->prefix);
    const char *c;

    for (c = prefix; *c && len + 1 < CONSUL_NAME_MAX; c++) {
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
              (*c >= '0' && *c <= '9') || *c == '-' || *c == '_' ||
              ((*c == '.' || *c == '/') && c > prefix && c[-1] != '/' && c[1])))
            break;
        ret[len++] = *c;
    }
    ret[len] = '\0';
}

/* The name of something below the key, whatever the layout: ret has
 * CONSUL_NAME_MAX. */
bool hfi_consul_below(const struct consul_options *options, const char *key,
                      const char *part, char *ret)
{
    struct consul_options plain = {.prefix = options->prefix};
    size_t len;

    if (!hfi_consul_name(&plain, key, ret))
        return false;
    len = strlen(ret);
    return snprintf(ret + len, CONSUL_NAME_MAX - len, "/%s", part) <
           (int)(CONSUL_NAME_MAX - len);
}

/* The same for what is kept in a folder there. */
bool hfi_consul_part(const struct consul_options *options, const char *key,
                     const char *folder, const char *token, char *ret)
{
    char part[64 + HFI_TOKEN_LEN];

    snprintf(part, sizeof(part), "%s/%s", folder, token);
    return hfi_consul_below(options, key, part, ret);
}

bool hfi_consul_is_id(const char *text)
{
    return strlen(text) == CONSUL_ID_LEN &&
           strspn(text, "0123456789abcdefABCDEF-") == CONSUL_ID_LEN;
}

/* "/v1/kv/NAME?query", with everything escaped that is not plain. */
void hfi_consul_path(char *buf, size_t size, const char *name,
                     const char *query)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t len = (size_t)snprintf(buf, size, "/v1/kv/");
    const char *c;

    for (c = name; *c && len + 4 < size; c++) {
        if ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
            (*c >= '0' && *c <= '9') || strchr("/-_.~", *c)) {
            buf[len++] = *c;
            continue;
        }
        buf[len++] = '%';
        buf[len++] = digits[(unsigned char)*c >> 4];
        buf[len++] = digits[*c & 15];
    }
    snprintf(buf + len, size - len, "%s", query);
}

/* ---- values ------------------------------------------------------------- */

#define VALUE_KEEP " !#$&'()*+,-./:;<=>?@[]^_`{|}~\"\\"

static size_t kv_line(char *ret, size_t len, const char *word, const char *text)
{
    char escaped[3 * HF_NOTE_MAX + 1];

    hfi_escape(escaped, sizeof(escaped), text, VALUE_KEEP);
    return len + (size_t)snprintf(ret + len, CONSUL_VALUE_MAX - len, "%s %s\n",
                                  word, escaped);
}

static size_t kv_number(char *ret, size_t len, const char *word, uint64_t n)
{
    return len + (size_t)snprintf(ret + len, CONSUL_VALUE_MAX - len,
                                  "%s %llu\n", word, (unsigned long long)n);
}

/* In which way the key is used.  Who does not know these words reads no
 * further, so they come last. */
static size_t kv_use(char *ret, size_t len, bool shared, int32_t permits,
                     int32_t slot)
{
    if (shared)
        len = kv_line(ret, len, "shared", "");
    if (permits)
        len = kv_number(ret, len, "permits", (uint64_t)permits);
    if (permits && slot > 0)
        len = kv_number(ret, len, "slot", (uint64_t)slot);
    return len;
}

/* The value of a grant, or of a waiter; ret has CONSUL_VALUE_MAX. */
void hfi_consul_value(char *ret, const struct hfi_claim *claim, uint64_t fence,
                      int32_t slot)
{
    size_t len = kv_line(ret, 0, "token", claim->token);

    if (fence)
        len = kv_number(ret, len, "fence", fence);
    if (claim->owner)
        len = kv_line(ret, len, "owner", claim->owner);
    if (claim->note)
        len = kv_line(ret, len, "note", claim->note);
    len = kv_use(ret, len, claim->shared, claim->permits, slot);
    if (claim->owner)
        kv_line(ret, len, "joins", "");
}

/* The value that says all that `kv` says. */
void hfi_consul_kv_value(char *ret, const struct consul_kv *kv)
{
    size_t len = 0;

    ret[0] = '\0';
    if (kv->token[0])
        len = kv_line(ret, len, "token", kv->token);
    if (kv->fence)
        len = kv_number(ret, len, "fence", kv->fence);
    if (kv->broken)
        len = kv_number(ret, len, "broken", kv->broken);
    if (kv->by[0])
        len = kv_line(ret, len, "by", kv->by);
    if (kv->linger)
        len = kv_line(ret, len, "linger", "");
    if (kv->wanted)
        len = kv_line(ret, len, "wanted", "");
    if (kv->owner[0])
        len = kv_line(ret, len, "owner", kv->owner);
    if (kv->note[0])
        len = kv_line(ret, len, "note", kv->note);
    len = kv_use(ret, len, kv->shared, kv->permits, kv->slot);
    if (kv->joins)
        len = kv_line(ret, len, "joins", "");
    if (kv->common_ms)
        len = kv_number(ret, len, "common", (uint64_t)kv->common_ms);
    if (kv->freed)
        kv_number(ret, len, "freed", kv->freed);
}

static void kv_take(char *ret, size_t size, char *text)
{
    if (hfi_unescape(text) && strlen(text) < size)
        memcpy(ret, text, strlen(text) + 1);
}

/* A small number, or 0. */
static int32_t kv_small(const char *text)
{
    unsigned long long n = strtoull(text, NULL, 10);

    return n <= INT32_MAX ? (int32_t)n : 0;
}

static bool kv_parse_use(struct consul_kv *kv, const char *word,
                         const char *text)
{
    if (!strcmp(word, "shared"))
        kv->shared = true;
    else if (!strcmp(word, "permits"))
        kv->permits = kv_small(text);
    else if (!strcmp(word, "slot"))
        kv->slot = kv_small(text);
    else if (!strcmp(word, "joins"))
        kv->joins = true;
    else if (!strcmp(word, "freed"))
        kv->freed = strtoull(text, NULL, 10);
    else if (!strcmp(word, "common"))
        kv->common_ms = (int64_t)(strtoull(text, NULL, 10) & INT64_MAX);
    else
        return false;
    return true;
}

static bool kv_parse_line(struct consul_kv *kv, char *line)
{
    char *text = strchr(line, ' ');

    if (!text)
        return false;
    *text++ = '\0';
    if (!strcmp(line, "token"))
        kv_take(kv->token, sizeof(kv->token), text);
    else if (!strcmp(line, "owner"))
        kv_take(kv->owner, sizeof(kv->owner), text);
    else if (!strcmp(line, "note"))
        kv_take(kv->note, sizeof(kv->note), text);
    else if (!strcmp(line, "by"))
        kv_take(kv->by, sizeof(kv->by), text);
    else if (!strcmp(line, "fence"))
        kv->fence = strtoull(text, NULL, 10);
    else if (!strcmp(line, "broken"))
        kv->broken = strtoull(text, NULL, 10);
    else if (!strcmp(line, "linger"))
        kv->linger = true;
    else if (!strcmp(line, "wanted"))
        kv->wanted = true;
    else
        return kv_parse_use(kv, line, text);
    return true;
}

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* As base64; ret has 4 bytes for 3, and 5. */
void hfi_consul_encode(char *ret, const char *text)
{
    size_t i, len = strlen(text);
    unsigned long bits;

    for (i = 0; i < len; i += 3) {
        bits = (unsigned long)(unsigned char)text[i] << 16;
        if (i + 1 < len)
            bits |= (unsigned long)(unsigned char)text[i + 1] << 8;
        if (i + 2 < len)
            bits |= (unsigned char)text[i + 2];
        *ret++ = base64_digits[bits >> 18];
        *ret++ = base64_digits[bits >> 12 & 63];
        *ret++ = i + 1 < len ? base64_digits[bits >> 6 & 63] : '=';
        *ret++ = i + 2 < len ? base64_digits[bits & 63] : '=';
    }
    *ret = '\0';
}

/* False if it is no base64 or does not fit. */
static bool kv_decode(char *ret, size_t size, const char *text)
{
    unsigned bits = 0, n = 0;
    const char *digit;
    size_t len = 0;

    for (; *text && *text != '='; text++) {
        digit = strchr(base64_digits, *text);
        if (!digit || len + 1 >= size)
            return false;
        bits = bits << 6 | (unsigned)(digit - base64_digits);
        n += 6;
        if (n >= 8) {
            n -= 8;
            ret[len++] = (char)(bits >> n & 255);
        }
    }
    ret[len] = '\0';
    return true;
}

static const char *kv_string(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text ? text : "";
}

/* 0 if it is no such number. */
static uint64_t kv_uint(const json_t *object, const char *name)
{
    json_int_t n = json_integer_value(json_object_get(object, name));

    return n > 0 ? (uint64_t)n : 0;
}

/* The value of an entry, if it is an object of JSON, to be put back; or NULL. */
json_t *hfi_consul_kv_json(const json_t *entry)
{
    const char *value = kv_string(entry, "Value");
    size_t size = strlen(value) + 1;
    char *text = hfi_alloc(size);
    json_t *json = NULL;

    if (text && kv_decode(text, size, value))
        json = json_loads(text, 0, NULL);
    hfi_free(text);
    if (!json_is_object(json)) {
        json_decref(json);
        json = NULL;
    }
    return json;
}

/* The .lock of a semaphore says how many permits there are. */
static void kv_parse_semaphore(struct consul_kv *kv, const json_t *entry)
{
    json_t *json = hfi_consul_kv_json(entry);
    json_int_t n = json_integer_value(json_object_get(json, "Limit"));

    kv->semaphore = n > 0 && n <= INT32_MAX;
    if (kv->semaphore) {
        kv->permits = (int32_t)n;
        kv->contender = false;
        kv->common_ms =
            json_integer_value(json_object_get(json, CONSUL_SEMAPHORE_MS));
    }
    json_decref(json);
}

/* The session that has a key locked for several holders does not hold it itself:
 * common.c (3). */
static void kv_parse_common(struct consul_kv *kv)
{
    if (!kv->semaphore && (!kv->many || kv->foreign || kv->token[0]))
        return;
    memcpy(kv->common, kv->session, sizeof(kv->common));
    kv->session[0] = '\0';
}

/* Read an entry as the HTTP interface shows it. */
void hfi_consul_kv_parse(struct consul_kv *kv, const json_t *entry)
{
    const char *session = kv_string(entry, "Session");
    const char *value = kv_string(entry, "Value");
    json_int_t flags = json_integer_value(json_object_get(entry, "Flags"));
    char text[CONSUL_VALUE_MAX], *line, *next;

    *kv = (struct consul_kv){.exists = true};
    kv->index = kv_uint(entry, "ModifyIndex");
    kv->create = kv_uint(entry, "CreateIndex");
    if (hfi_consul_is_id(session))
        memcpy(kv->session, session, sizeof(kv->session));
    kv->contender = flags == CONSUL_SEMAPHORE_FLAGS && kv->session[0];
    kv->foreign = kv->contender;
    if (!*value)
        return;
    kv->joined = flags == CONSUL_JOINED_FLAGS;
    kv->many = kv->joined || flags == CONSUL_MANY_FLAGS;
    kv->foreign = flags != CONSUL_FLAGS && !kv->many;
    if (flags == CONSUL_SEMAPHORE_FLAGS)
        kv_parse_semaphore(kv, entry);
    if (kv->semaphore)
        kv_parse_common(kv);
    if (kv->foreign || !kv_decode(text, sizeof(text), value))
        return;
    for (line = text; *line; line = next) {
        next = strchr(line, '\n');
        if (!next)
            break;
        *next++ = '\0';
        if (!kv_parse_line(kv, line))
            break;
    }
    if (kv->many && !kv->joined && !kv->shared && !kv->permits)
        kv->foreign = true;
    kv_parse_common(kv);
}

/* Nobody has the key, and nobody may be one of several who have it. */
bool hfi_consul_kv_is_free(const struct consul_kv *kv)
{
    return !kv->session[0] && !kv->foreign && !kv->many;
}

/* The fence of the grant, or of the last one if the entry is free; 0
 * unknown. */
uint64_t hfi_consul_fence(const struct consul_kv *kv)
{
    return kv->fence || (!kv->session[0] && !kv->many) ? kv->fence : kv->index;
}

/* Is it the grant of this token with this fence, whatever session has it? */
bool hfi_consul_is_grant(const struct consul_kv *kv, const char *token,
                         uint64_t fence)
{
    return kv->session[0] && !strcmp(kv->token, token) &&
           hfi_consul_fence(kv) == fence;
}

/* Read the answer to a question for one entry; false if it is none.  An entry
 * always has an index, and so has the answer that there is none: without, it is
 * the answer of something that stands before the agent. */
bool hfi_consul_kv_read(struct consul_kv *kv, struct consul_reply *reply)
{
    const json_t *entry;

    if (reply->status == 404) {
        *kv = (struct consul_kv){.index = 0};
        return reply->index;
    }
    hfi_consul_reply_parse(reply);
    entry = json_array_get(reply->json, 0);
    hfi_consul_kv_parse(kv, entry);
    return json_is_object(entry) && kv->index;
}

hf_status hfi_consul_read(struct consul_conn *cc, struct consul_pool *pool,
                          const char *name, bool consistent, int64_t deadline,
                          struct consul_kv *kv, struct hf_error *err)
{
    char path[3 * CONSUL_NAME_MAX];
    struct consul_request rq = {.method = "GET", .path = path};
    struct consul_reply reply;
    hf_status st;

    hfi_consul_path(path, sizeof(path), name, consistent ? "?consistent" : "");
    st = hfi_consul_call(cc, pool, &rq, deadline, &reply, err);
    if (st)
        return st;
    if (!hfi_consul_kv_read(kv, &reply))
        st = hfi_fail(err, HF_PROTOCOL, "%s: an answer that is no entry",
                      cc->base.endpoint);
    kv->agent = reply.agent;
    hfi_consul_reply_fini(&reply);
    return st;
}
