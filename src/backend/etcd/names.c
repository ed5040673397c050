/* SPDX-License-Identifier: MIT
 *
 * names.c - names of keys, and what stands in them.
 *
 *   PREFIX KEY/LEASE-NUMBER    the place of one claim in the queue for KEY
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
 * The value of a place is words, "hf1 TOKEN OWNER NOTE", escaped likewise, and
 * after them "fence=N" if it joined holders whose fence is N, and "broken" if
 * an operator broke it.  Others leave theirs empty.  Whoever changes or removes
 * a place does it on the condition that it bears his token.
 */
#include "etcd.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/escape.h"

#include "base/banned.h"

#define NAME_KEEP " !\"#$&'()*+,-.:;<=>?@[\\]^_`{|}~"
#define WORD_KEEP "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"

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
    snprintf(ret + len, size - len, "%.25s", etcd_own(receipt)->last);
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

/* What begins with "hf1 TOKEN " lies between "hf1 TOKEN" and "hf1 TOKEN!". */
void etcd_bears(struct etcd_bears *bears, ProtobufCBinaryData key,
                const char *token)
{
    pb__compare__init(&bears->above);
    pb__compare__init(&bears->below);
    snprintf(bears->low, sizeof(bears->low), "hf1 %s", token);
    snprintf(bears->high, sizeof(bears->high), "hf1 %s!", token);
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
    size_t len = (size_t)snprintf(ret, size, "hf1 %s ", words->token);

    len += hfi_escape(ret + len, size - len, words->owner, WORD_KEEP);
    ret[len++] = ' ';
    ret[len] = '\0';
    len += hfi_escape(ret + len, size - len, words->note, WORD_KEEP);
    if (words->fence)
        len += (size_t)snprintf(ret + len, size - len, " fence=%" PRIu64,
                                words->fence);
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

void etcd_read_value(ProtobufCBinaryData value, struct etcd_words *ret)
{
    char text[ETCD_VALUE_MAX], mark[8], more[32];
    const char *at = text;

    *ret = (struct etcd_words){0};
    if (value.len >= sizeof(text) || value.len < 4 ||
        memchr(value.data, '\0', value.len))
        return;
    memcpy(text, value.data, value.len);
    text[value.len] = '\0';
    if (!next_word(&at, mark, sizeof(mark)) || strcmp(mark, "hf1") != 0 ||
        !next_word(&at, ret->token, sizeof(ret->token)) ||
        !next_word(&at, ret->owner, sizeof(ret->owner)) ||
        !next_word(&at, ret->note, sizeof(ret->note)))
        *ret = (struct etcd_words){0};
    while (ret->token[0] && *at && next_word(&at, more, sizeof(more))) {
        if (!strncmp(more, "fence=", 6))
            ret->fence = strtoull(more + 6, NULL, 10);
        else if (!strcmp(more, "broken"))
            ret->broken = true;
    }
}
