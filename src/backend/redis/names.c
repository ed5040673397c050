/* SPDX-License-Identifier: MIT
 *
 * names.c - names of keys, the slots that they are in, and digests of
 * scripts.
 */
#include "redis.h"

#include <openssl/sha.h>

#include "base/banned.h"

void redis_script_digest(const char *script, char ret[41])
{
    unsigned char digest[SHA_DIGEST_LENGTH];
    int i;

    SHA1((const unsigned char *)script, strlen(script), digest);
    for (i = 0; i < SHA_DIGEST_LENGTH; i++)
        snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}

/* ---- names ------------------------------------------------------------- */

/* The slot of a cluster that a text belongs to: CRC-16/XMODEM. */
static unsigned slot_of(const char *text, size_t len)
{
    unsigned crc = 0, x;

    for (; len > 0; len--, text++) {
        x = (crc >> 8 ^ (unsigned char)*text) & 0xff;
        x ^= x >> 4;
        crc = (crc << 8 ^ x << 12 ^ x << 5 ^ x) & 0xffff;
    }
    return crc % 16384;
}

/* The least number whose decimal digits are in the slot. */
static unsigned slot_numbers[REDIS_SLOTS];

static void slot_find_numbers(void)
{
    unsigned n, slot, left = REDIS_SLOTS;
    bool known[REDIS_SLOTS] = {false};
    char text[16];

    for (n = 0; left; n++) {
        slot = slot_of(text, (size_t)snprintf(text, sizeof(text), "%u", n));
        if (known[slot])
            continue;
        known[slot] = true;
        slot_numbers[slot] = n;
        left--;
    }
}

unsigned redis_slot_number(unsigned slot)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, slot_find_numbers);
    return slot_numbers[slot];
}

/* What stands in braces in the names of the companions, so that they go where
 * the key goes: its own tag, or the whole of it.  A key with a brace but no tag
 * cannot be put in braces; the first number in its slot can. */
static void redis_tag(const char *key, char *ret, size_t size)
{
    const char *open = strchr(key, '{');
    const char *end = open ? strchr(open, '}') : NULL;

    if (end && end > open + 1) {
        memcpy(ret, open + 1, (size_t)(end - open - 1));
        ret[end - open - 1] = '\0';
    } else if (!strchr(key, '}'))
        memcpy(ret, key, strlen(key) + 1);
    else
        snprintf(ret, size, "%u", redis_slot_number(slot_of(key, strlen(key))));
}

unsigned redis_slot(const char *name)
{
    const char *open = strchr(name, '{');
    const char *end = open ? strchr(open, '}') : NULL;

    if (end && end > open + 1)
        return slot_of(open + 1, (size_t)(end - open - 1));
    return slot_of(name, strlen(name));
}

/* "{TAG}:SUFFIX:REST" */
static void redis_companion(char *to, const char *tag, size_t tag_len,
                            const char *suffix, const char *rest,
                            size_t rest_len)
{
    size_t len = strlen(suffix);

    *to++ = '{';
    memcpy(to, tag, tag_len);
    to += tag_len;
    *to++ = '}';
    *to++ = ':';
    memcpy(to, suffix, len);
    to += len;
    *to++ = ':';
    memcpy(to, rest, rest_len + 1);
}

/* Written by hand: it is done for every request, and printf would take longer
 * for it than for all the rest.  REDIS_NAME_MAX is room enough for any key. */
void redis_name(const struct redis_conn *rc, const char *key,
                struct redis_names *ret)
{
    static const char *const suffixes[] = {"", "meta", "queue", "owners"};
    char tag[HF_KEY_MAX + 128 + 1], *main = ret->text[REDIS_MAIN];
    size_t prefix_len = strlen(rc->prefix), key_len = strlen(key);
    size_t tag_len, rest_len;
    int i;

    memcpy(main, rc->prefix, prefix_len);
    memcpy(main + prefix_len, key, key_len + 1);
    redis_tag(main, tag, sizeof(tag));
    tag_len = strlen(tag);
    rest_len = strcmp(tag, main) ? prefix_len + key_len : 0;
    for (i = REDIS_META; i < REDIS_NAMES; i++)
        redis_companion(ret->text[i], tag, tag_len, suffixes[i],
                        rest_len ? main : "", rest_len);
}
