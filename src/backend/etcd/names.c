/* SPDX-License-Identifier: MIT
 *
 * names.c - names of keys, and what stands in them.
 *
 *   PREFIX KEY/LEASE-NUMBER        the place of one claim in the queue for KEY
 *   PREFIX KEY/RLEASE-NUMBER       the same, of a shared claim (a reader)
 *   PREFIX KEY/SN.LEASE-NUMBER     of one with N permits (a semaphore)
 *   PREFIX KEY/~LEASE-NUMBER       of one that joined its owner id
 *   PREFIX KEY/SN.~LEASE-NUMBER    the same, with permits
 *
 * The number tells the claims of a client apart, and is used again when one is
 * done with it for certain (lease.c).  A name that is new each time, as
 * the token would make it, stays in etcd's index until the next compaction,
 * and every look at the queue passes by all of them.
 *
 * Everything below "PREFIX KEY/" queues for KEY, also what `etcdctl lock` and
 * Go's concurrency.Mutex put there.  So a key must not look like something
 * below another: its slashes are escaped, as are '%' and control characters.
 *
 *   PREFIX%break/LEASE/TOKEN   word for the holder that its lock was broken,
 *                              with the key as its value; no escape looks so
 *
 * Names of one kind lie next to each other, those with permits behind the shared
 * ones: so the comparison of a range of names or two tells whether there is a
 * claim of another kind (try.c).
 *
 * The value of a place is words, "hf1 TOKEN OWNER NOTE", escaped likewise, and
 * after them "fence=N" if it joined holders whose fence is N, "slot=N" once it
 * was granted a permit, and "broken" if an operator broke it.  Others leave
 * theirs empty.  Whoever changes or removes a place does it on the condition
 * that it bears his token.
 *
 * Right behind the token stand "+" if the claim is shared, "*" if it has a
 * permit, and "-" if its holder has released it and min_hold_ms keep it.  For a
 * holdfast that does not know these, such a value is that of another program,
 * whose claims it waits for and does not join.
 */
#include "etcd.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/escape.h"

#include "base/banned.h"

#define NAME_KEEP " !\"#$&'()*+,-.:;<=>?@[\\]^_`{|}~"
#define WORD_KEEP "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"

static const struct etcd_words etcd_no_words = {.slot = -1};

/* The number that a text is up to `end`, as we write it, or -1. */
static int32_t names_number(const char *text, char end)
{
    char *stop;
    unsigned long long number;

    if (*text < '0' || *text > '9')
        return -1;
    number = strtoull(text, &stop, 10);
    if (number > INT32_MAX || *stop != end || (*text == '0' && stop > text + 1))
        return -1;
    return (int32_t)number;
}

void etcd_dir(const struct etcd_conn *ec, const char *key, char *ret,
              size_t size)
{
    size_t len = (size_t)snprintf(ret, size, "%s", ec->prefix);

    len += hfi_escape(ret + len, size - len, key, NAME_KEEP);
    if (len + 1 < size)
        memcpy(ret + len, "/", 2);
}

void etcd_name(const struct etcd_conn *ec, const struct hfi_claim *claim,
               const struct hfi_receipt *receipt, char *ret, size_t size)
{
    size_t len;

    etcd_dir(ec, claim->key, ret, size);
    len = strlen(ret);
    snprintf(ret + len, size - len, "%.39s", etcd_own(receipt)->last);
}

void etcd_last(char ret[ETCD_LAST_MAX], const struct hfi_claim *claim,
               bool joined, int64_t lease, uint32_t number)
{
    const char *mark = joined ? "~" : "";
    char kind[16];

    if (claim->permits)
        snprintf(kind, sizeof(kind), "S%d.%s", (int)claim->permits, mark);
    else
        snprintf(kind, sizeof(kind), "%s", claim->shared ? "R" : mark);
    snprintf(ret, ETCD_LAST_MAX, "%.14s%" PRIx64 "-%x", kind, (uint64_t)lease,
             (unsigned)number & 0xfffffff);
}

const char *etcd_last_lease(const char *last)
{
    const char *dot = last[0] == 'S' ? strchr(last, '.') : NULL;

    if (dot)
        last = dot + 1;
    last += last[0] == 'R';
    return last + (last[0] == '~');
}

enum etcd_kind etcd_kind(ProtobufCBinaryData name, size_t dir, int32_t *permits)
{
    char last[16] = "";

    *permits = 0;
    if (name.len > dir)
        snprintf(last, sizeof(last), "%.*s",
                 (int)(name.len - dir < 15 ? name.len - dir : 15),
                 (const char *)name.data + dir);
    if (last[0] == 'R')
        return ETCD_SHARED;
    if (last[0] == '~')
        return ETCD_JOINED;
    if (last[0] != 'S')
        return ETCD_ALONE;
    *permits = names_number(last + 1, '.');
    if (*permits <= 0) {
        *permits = -1;
        return ETCD_STRANGE;
    }
    return strstr(last, ".~") ? ETCD_JOINED : ETCD_PERMIT;
}

void etcd_break_notice(const struct etcd_conn *ec, int64_t lease,
                       const char *token, char *ret, size_t size)
{
    snprintf(ret, size, "%s%%break/%" PRIx64 "/%s", ec->prefix, (uint64_t)lease,
             token);
}

ProtobufCBinaryData etcd_text(const char *text)
{
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

void etcd_compare(Pb__Compare *compare, ProtobufCBinaryData key,
                  int64_t revision)
{
    compare->key = key;
    compare->target = 1; /* the create revision; equal */
    compare->with_case = PB__COMPARE__WITH_CREATE_REVISION;
    compare->create_revision = revision;
}

ProtobufCBinaryData etcd_end(char *text)
{
    ProtobufCBinaryData end = etcd_text(text);

    while (end.len && end.data[end.len - 1] == 0xff)
        end.len--;
    if (end.len)
        end.data[end.len - 1]++;
    else
        end = (ProtobufCBinaryData){1, (uint8_t *)(uintptr_t) ""};
    return end;
}

bool etcd_is(ProtobufCBinaryData data, const char *text)
{
    return data.len == strlen(text) && !memcmp(data.data, text, data.len);
}

bool etcd_key_of(const struct etcd_conn *ec, ProtobufCBinaryData name,
                 char *ret)
{
    size_t skip = strlen(ec->prefix), len = name.len;

    while (len > skip && name.data[len - 1] != '/')
        len--;
    if (len <= skip + 1 || len - skip > 3 * HF_KEY_MAX + 1 ||
        memchr(name.data, '\0', len))
        return false;
    len -= skip + 1;
    memcpy(ret, name.data + skip, len);
    ret[len] = '\0';
    return hfi_unescape(ret) && strlen(ret) <= HF_KEY_MAX;
}

/* What begins with "hf1 TOKEN", and then a mark or a space, lies between "hf1
 * TOKEN" and "hf1 TOKEN.". */
void etcd_bears(struct etcd_bears *bears, ProtobufCBinaryData key,
                const char *token)
{
    pb__compare__init(&bears->above);
    pb__compare__init(&bears->below);
    snprintf(bears->low, sizeof(bears->low), "hf1 %s", token);
    snprintf(bears->high, sizeof(bears->high), "hf1 %s.", token);
    bears->above.key = bears->below.key = key;
    bears->above.target = bears->below.target = 3; /* the value */
    bears->above.with_case = PB__COMPARE__WITH_VALUE;
    bears->below.with_case = PB__COMPARE__WITH_VALUE;
    bears->above.value = etcd_text(bears->low);
    bears->below.value = etcd_text(bears->high);
    bears->above.result = 1; /* greater */
    bears->below.result = 2; /* less */
}

void etcd_write_value(const struct etcd_words *words, char *ret, size_t size)
{
    size_t len = (size_t)snprintf(
        ret, size, "hf1 %s%s%s%s ", words->token, words->shared ? "+" : "",
        words->permit ? "*" : "", words->kept ? "-" : "");

    len += hfi_escape(ret + len, size - len, words->owner, WORD_KEEP);
    ret[len++] = ' ';
    ret[len] = '\0';
    len += hfi_escape(ret + len, size - len, words->note, WORD_KEEP);
    if (words->fence)
        len += (size_t)snprintf(ret + len, size - len, " fence=%" PRIu64,
                                words->fence);
    if (words->permit && words->slot >= 0)
        len += (size_t)snprintf(ret + len, size - len, " slot=%d",
                                (int)words->slot);
    if (words->broken)
        snprintf(ret + len, size - len, " broken");
}

uint64_t etcd_fence(const Pb__KeyValue *kv, const struct etcd_words *words)
{
    return words->fence ? words->fence : (uint64_t)kv->create_revision;
}

/* The next word of at most `max` bytes; false: there is none. */
static bool next_word(const char **at, char *ret, size_t size)
{
    const char *end = *at + strcspn(*at, " ");
    char word[3 * HF_NOTE_MAX + 1];
    size_t len = (size_t)(end - *at);

    if (len >= sizeof(word))
        return false;
    memcpy(word, *at, len);
    word[len] = '\0';
    if (!hfi_unescape(word) || strlen(word) >= size)
        return false;
    snprintf(ret, size, "%s", word);
    *at = end + (*end == ' ');
    return true;
}

/* A token and the marks behind it. */
static bool next_token(const char **at, struct etcd_words *ret)
{
    char word[HFI_TOKEN_LEN + 4];
    const char *mark;
    size_t len;

    if (!next_word(at, word, sizeof(word)))
        return false;
    len = strcspn(word, "+*-");
    if (len > HFI_TOKEN_LEN)
        return false;
    memcpy(ret->token, word, len);
    ret->token[len] = '\0';
    for (mark = word + len; *mark; mark++) {
        ret->shared = ret->shared || *mark == '+';
        ret->permit = ret->permit || *mark == '*';
        ret->kept = ret->kept || *mark == '-';
        if (!strchr("+*-", *mark))
            return false;
    }
    return true;
}

/* What may stand behind the note. */
static void read_more(const char *at, struct etcd_words *ret)
{
    char more[32];

    while (*at && next_word(&at, more, sizeof(more))) {
        if (!strncmp(more, "fence=", 6))
            ret->fence = strtoull(more + 6, NULL, 10);
        else if (!strncmp(more, "slot=", 5))
            ret->slot = names_number(more + 5, '\0');
        else if (!strcmp(more, "broken"))
            ret->broken = true;
    }
}

void etcd_read_value(ProtobufCBinaryData value, struct etcd_words *ret)
{
    char text[ETCD_VALUE_MAX], mark[8];
    const char *at = text;

    *ret = etcd_no_words;
    if (value.len >= sizeof(text) || value.len < 4 ||
        memchr(value.data, '\0', value.len))
        return;
    memcpy(text, value.data, value.len);
    text[value.len] = '\0';
    if (!next_word(&at, mark, sizeof(mark)) || strcmp(mark, "hf1") != 0 ||
        !next_token(&at, ret) ||
        !next_word(&at, ret->owner, sizeof(ret->owner)) ||
        !next_word(&at, ret->note, sizeof(ret->note)))
        *ret = etcd_no_words;
    if (ret->token[0])
        read_more(at, ret);
}
