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

/* The parser's private pointer counts the bytes since the last whole reply: what
 * it has taken in already is memory, too. */
bool hfi_resp_feed(redisReader *reader, const char *buf, size_t len)
{
    uintptr_t since = (uintptr_t)reader->privdata + len;

    reader->privdata = (void *)since;
    return since <= HFI_RESP_MAX &&
           redisReaderFeed(reader, buf, len) == REDIS_OK;
}

bool hfi_resp_next(redisReader *reader, redisReply **ret)
{
    void *reply = NULL;

    if (redisReaderGetReply(reader, &reply) != REDIS_OK)
        return false;
    if (reply)
        reader->privdata = NULL;
    *ret = reply;
    return true;
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
