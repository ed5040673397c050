/* SPDX-License-Identifier: MIT
 *
 * resp.c - Redis' protocol, with bounds; see resp.h.
 *
 * hiredis parses.  It makes room for as many elements as a peer announces, and
 * keeps as many bytes as it sends; what comes from the network does not get to
 * decide that here.
 *
 * It also writes commands, but by printf, twice for each argument: that was two
 * thirds of all that this side did for an acquisition.
 */
#include "resp.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/banned.h"

/* How hiredis counts the elements of an array. */
#if HIREDIS_MAJOR >= 1
typedef size_t resp_count;
#else
typedef int resp_count;
#endif

static redisReplyObjectFunctions resp_functions;
static void *(*resp_any_array)(const redisReadTask *, resp_count);

static void *resp_array(const redisReadTask *task, resp_count elements)
{
    return elements > HFI_RESP_ITEMS ? NULL : resp_any_array(task, elements);
}

static void resp_prepare(void)
{
    redisReader *standard = redisReaderCreate();

    if (!standard)
        return;
    resp_functions = *standard->fn;
    resp_any_array = resp_functions.createArray;
    resp_functions.createArray = resp_array;
    redisReaderFree(standard);
}

redisReader *hfi_resp_reader(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, resp_prepare);
    return resp_any_array ? redisReaderCreateWithFunctions(&resp_functions)
                          : NULL;
}

/* ---- what was received ------------------------------------------------- */

/* The parser's private pointer has two numbers.  One counts the bytes since the
 * last whole reply: what it has taken in already is memory, too.  The other
 * counts those that follow and are not kept. */
#define RESP_SINCE 24
#define RESP_MASK  ((UINT64_C(1) << RESP_SINCE) - 1)

/* What a server sends at most, unless it was told otherwise. */
#define RESP_BULK_MAX (UINT64_C(512) << 20)

static const redisReadTask *resp_task(const redisReader *reader)
{
#if HIREDIS_MAJOR >= 1
    return reader->ridx < 0 ? NULL : reader->task[reader->ridx];
#else
    return reader->ridx < 0 ? NULL : &reader->rstack[reader->ridx];
#endif
}

/* The parser waits for the rest of a string.  If that is a long one, have it
 * read the beginning only, and return how many bytes of it follow; else 0. */
static uint64_t resp_cut(redisReader *reader)
{
    const redisReadTask *task = resp_task(reader);
    const char *text = reader->buf + reader->pos;
    size_t head, old = reader->pos, left = reader->len - reader->pos;
    const char *end = memchr(text, '\r', left < RESP_SINCE ? left : RESP_SINCE);
    char kept[HFI_RESP_KEPT + 16];
    uint64_t len;
    int n;

    if (sizeof(void *) < sizeof(len) || !task ||
        task->type != REDIS_REPLY_STRING || !end || *text < '1' || *text > '9')
        return 0;
    head = (size_t)(end - text) + 2;
    len = strtoull(text, NULL, 10);
    if (len <= HFI_RESP_LONG || len > RESP_BULK_MAX ||
        left < head + HFI_RESP_KEPT || left >= head + len + 2)
        return 0;
    n = snprintf(kept, sizeof(kept), "%d\r\n", HFI_RESP_KEPT);
    memcpy(kept + n, text + head, HFI_RESP_KEPT);
    memcpy(kept + n + HFI_RESP_KEPT, "\r\n", 2);
    reader->pos = reader->len;
    if (redisReaderFeed(reader, kept, (size_t)n + HFI_RESP_KEPT + 2) !=
        REDIS_OK) {
        reader->pos = old;
        return 0;
    }
    return head + len + 2 - left;
}

bool hfi_resp_feed(redisReader *reader, const char *buf, size_t len)
{
    uint64_t state = (uintptr_t)reader->privdata;
    uint64_t since = state & RESP_MASK, skip = state >> RESP_SINCE;
    size_t n;

    if (since > HFI_RESP_KEPT && !skip)
        skip = resp_cut(reader);
    n = skip < len ? (size_t)skip : len;
    since += len - n;
    if (since > HFI_RESP_MAX)
        return false;
    reader->privdata = (void *)(uintptr_t)((skip - n) << RESP_SINCE | since);
    return n == len || redisReaderFeed(reader, buf + n, len - n) == REDIS_OK;
}

bool hfi_resp_next(redisReader *reader, redisReply **ret)
{
    uint64_t state = (uintptr_t)reader->privdata;
    void *reply = NULL;

    if (redisReaderGetReply(reader, &reply) != REDIS_OK)
        return false;
    if (reply)
        reader->privdata = (void *)(uintptr_t)(state & ~RESP_MASK);
    *ret = reply;
    return true;
}

/* The parser may have taken in the first byte of a reply, which is its type, or
 * the head of an array, and keeps other parts in its buffer. */
bool hfi_resp_has_part(const redisReader *reader)
{
    const redisReadTask *task = resp_task(reader);

    return reader->pos < reader->len ||
           (task && (reader->ridx > 0 || task->type >= 0));
}

/* ---- commands ---------------------------------------------------------- */

/* `mark`, a number and the end of a line. */
#define RESP_HEAD_MAX 24

static char *resp_head(char *to, char mark, size_t n)
{
    char digits[RESP_HEAD_MAX - 3];
    size_t at = sizeof(digits);

    *to++ = mark;
    do
        digits[--at] = (char)('0' + n % 10);
    while (n /= 10);
    memcpy(to, digits + at, sizeof(digits) - at);
    to += sizeof(digits) - at;
    *to++ = '\r';
    *to++ = '\n';
    return to;
}

size_t hfi_resp_room(int argc, const char *const *argv)
{
    size_t room = RESP_HEAD_MAX;
    int i;

    for (i = 0; i < argc; i++)
        room += RESP_HEAD_MAX + strlen(argv[i]) + 2;
    return room;
}

size_t hfi_resp_write(char *to, int argc, const char *const *argv)
{
    char *at = resp_head(to, '*', (size_t)argc);
    int i;

    for (i = 0; i < argc; i++) {
        size_t len = strlen(argv[i]);

        at = resp_head(at, '$', len);
        memcpy(at, argv[i], len);
        at += len;
        *at++ = '\r';
        *at++ = '\n';
    }
    return (size_t)(at - to);
}
