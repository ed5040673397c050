/* SPDX-License-Identifier: MIT
 *
 * resp.c - commands and the bounds of replies in Redis' protocol.
 *
 * CHECKED  for every command of one argument of up to three bytes: it fits in
 * the room that was computed for it, and begins and ends as it must; for every
 * length: its digits; for every part of a reply in a buffer of up to ROOM
 * bytes, and whatever the parser's state: nothing outside of the buffer is
 * read, and what is counted does not overflow.  hiredis is a stub that looks at
 * what it is given and may refuse it.  The limits of resp.h are smaller here, so
 * that a short buffer can exceed them.
 *
 * UNWIND 26
 * SLOW a_command_fits_in_its_room
 * BUGS
 *   a_length_is_written_in_full s|while (n /= 10)|while (n /= 100)|
 *   a_long_string_is_cut_within_the_buffer s|left < head + HFI_RESP_KEPT|left < head|
 *   a_long_string_is_cut_within_the_buffer s|left < RESP_SINCE ? left : RESP_SINCE|RESP_SINCE|
 *   a_long_string_is_cut_within_the_buffer s| \|\| left >= head + len + 2)|)|
 *   what_is_fed_is_counted s|if (since > HFI_RESP_MAX)|if (since > 4 * HFI_RESP_MAX)|
 */
#include "cbmc.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

#include "src/net/resp.h"
#undef HFI_RESP_LONG
#define HFI_RESP_LONG 8
#undef HFI_RESP_KEPT
#define HFI_RESP_KEPT 4
#undef HFI_RESP_MAX
#define HFI_RESP_MAX 64

static size_t looked(const char *buf, size_t len)
{
    size_t i, n = 0;

    for (i = 0; i < len; i++)
        n += buf[i] == '\n';
    return n;
}

int redisReaderFeed(redisReader *reader, const char *buf, size_t len)
{
    (void)reader;
    looked(buf, len);
    return any_bool() ? REDIS_OK : REDIS_ERR;
}

unsigned long long strtoull(const char *text, char **end, int base)
{
    unsigned long long n = 0;

    (void)end;
    (void)base;
    for (; *text >= '0' && *text <= '9'; text++)
        n = n * 10 + (unsigned long long)(*text - '0');
    return n;
}

/* Only "%d\r\n" of HFI_RESP_KEPT is written this way. */
static int put_kept(char *to, size_t size)
{
    check(size >= 4, "room for it");
    memcpy(to, "4\r\n", 4);
    return 3;
}
#define snprintf(to, size, ...) put_kept(to, size)

#include "src/net/resp.c"

#define ROOM 20

static char received[ROOM];

static redisReader any_reader(void)
{
    redisReader reader = {0};
    size_t i;

    for (i = 0; i < ROOM; i++)
        received[i] = any_char();
    reader.len = (size_t)any_upto(ROOM);
    reader.pos = (size_t)any_upto(ROOM);
    assume(reader.pos <= reader.len);
    reader.buf = received + ROOM - reader.len; /* its end is the end */
    reader.ridx = any_bool() ? -1 : 0;
    reader.rstack[0].type = any_int();
    return reader;
}

void a_long_string_is_cut_within_the_buffer(void)
{
    redisReader reader = any_reader();
    size_t old = reader.pos;
    uint64_t skip = resp_cut(&reader);

    check(skip <= RESP_BULK_MAX + 32, "a length that a server may send");
    check(reader.pos == (skip ? reader.len : old), "cut, or as it was");
}

void what_is_fed_is_counted(void)
{
    redisReader reader = any_reader();
    uint64_t skip = (uint64_t)any_upto(INT64_C(1) << 30);
    uint64_t since = (uint64_t)any_upto(HFI_RESP_MAX);
    size_t len = (size_t)any_upto(ROOM);
    uint64_t state;

    reader.ridx = -1;
    reader.privdata = (void *)(uintptr_t)(skip << RESP_SINCE | since);
    if (!hfi_resp_feed(&reader, received, len))
        return;
    state = (uintptr_t)reader.privdata;
    check((state & RESP_MASK) <= HFI_RESP_MAX, "what is kept is bounded");
    check((state >> RESP_SINCE) == (skip > len ? skip - len : 0), "skipped");
    check((state & RESP_MASK) == since + (skip > len ? 0 : len - skip), "kept");
}

static char first[4], sent[2 * RESP_HEAD_MAX + 40];

/* Its room is the end of `sent`, so that one byte more would be outside. */
void a_command_fits_in_its_room(void)
{
    const char *argv[1] = {first};
    size_t room, len, i;
    char *to;

    for (i = 0; i < 3; i++)
        first[i] = any_char();
    room = hfi_resp_room(1, argv);
    check(room <= sizeof(sent), "no more than is needed");
    to = sent + sizeof(sent) - room;
    len = hfi_resp_write(to, 1, argv);
    check(to[0] == '*' && to[1] == '1' && to[2] == '\r', "its head");
    check(to[len - 2] == '\r' && to[len - 1] == '\n', "its end");
}

void a_length_is_written_in_full(void)
{
    char to[RESP_HEAD_MAX], *end, *at;
    size_t n = (size_t)any_upto(9999), m = 0;

    end = resp_head(to, '$', n);
    check(end <= to + sizeof(to) && end[-1] == '\n' && end[-2] == '\r', "end");
    for (at = to + 1; at < end - 2; at++)
        m = m * 10 + (size_t)(*at - '0');
    check(m == n, "the same number");
}

void the_longest_length_fits(void)
{
    char to[RESP_HEAD_MAX];

    check(resp_head(to, '$', SIZE_MAX) <= to + sizeof(to), "it fits");
}
