/* SPDX-License-Identifier: MIT
 *
 * record.c - the parser of the record in a lock file.
 *
 * CHECKED  for every content: a file of any bytes is read within the buffer; of
 * a record that begins as ours does, every field with any bytes behind it is
 * parsed within the text; numbers do not overflow and stay below FENCE_MAX;
 * texts fit where they are copied; a fence that is written fills its fixed
 * place; the next fence is greater than the last, or there is none.
 *
 * UNWIND 32
 * SLOW the_mark_has_its_place
 * BUGS
 *   any_file_is_read_within_the_buffer s|char text\[RECORD_MAX + 8\]|char text[RECORD_MAX]|
 *   any_number_is_below_the_limit s/ || n >= FENCE_MAX//
 *   any_field_is_cut_within_the_text s|\*at = stop + 1;|*at = stop + 2;|
 *   any_text_fits s/ || strlen(text) >= size//
 *   the_next_fence_is_greater s|uint64_t next = rec->fence + 1|uint64_t next = rec->fence|
 *   the_mark_has_its_place s|for (i = 19; fence; i--|for (i = 18; fence; i--|
 */
#include "cbmc.h"
#include "text.h"

#include "src/backend/file/file.h"
#undef FILE_RECORD_MAX
#define FILE_RECORD_MAX 29

#include "src/base/escape.c"

unsigned long strtoul(const char *text, char **end, int base)
{
    (void)text;
    (void)end;
    (void)base;
    return any_u64();
}

#include "src/backend/file/record.c"

/* The first line as far as its number, then any bytes; fewer than were asked
 * for, or an error. */
ssize_t pread(int fd, void *to, size_t size, off_t from)
{
    char *text = to;
    size_t i, len = (size_t)any_upto(RECORD_MAX);

    (void)fd;
    (void)from;
    check(size == RECORD_MAX, "as much as there is room for");
    if (any_bool())
        return -1;
    for (i = 0; i < RECORD_MAX; i++)
        text[i] = i < BROKEN_AT ? record_head[i] : any_char();
    return (ssize_t)len;
}

void any_file_is_read_within_the_buffer(void)
{
    struct file_record rec;
    hf_status st = record_read(0, 0, &rec, false, NULL, NULL);

    check(st || (rec.fence < FENCE_MAX && rec.broken < FENCE_MAX), "a fence");
}

#define LENGTH 8

static char text[LENGTH + 1];

static void any_text(void)
{
    size_t i;

    for (i = 0; i < LENGTH; i++)
        text[i] = any_char();
    text[LENGTH] = '\0';
}

void any_field_is_cut_within_the_text(void)
{
    char *at = text, *value = NULL;

    any_text();
    if (!record_field(&at, "ns=", '\n', &value))
        return;
    check(value == text + 3 && at > value && at <= text + LENGTH, "inside");
    check(at[-1] == '\0' && !strchr(value, '\n'), "the value ends there");
}

void any_number_is_below_the_limit(void)
{
    char digits[24];
    uint64_t n = 0;
    size_t i;

    for (i = 0; i < sizeof(digits) - 1; i++)
        digits[i] = any_char();
    digits[sizeof(digits) - 1] = '\0';
    if (!record_number(digits, &n))
        return;
    check(n < FENCE_MAX, "a fence is below the limit");
    for (i = 0; digits[i] == '0'; i++)
        ;
    check(strlen(digits + i) <= 16, "it has no more digits than the limit");
}

void any_text_fits(void)
{
    char to[4];

    any_text();
    if (record_text(text, to, sizeof(to)))
        check(strlen(to) < sizeof(to), "it ends within its room");
}

void the_rest_is_parsed_within_the_text(void)
{
    struct file_record rec;

    any_text();
    memcpy(text, "ns=", 3);
    record_parse_more(text, &rec);
}

void the_next_fence_is_greater(void)
{
    struct file_record rec = {0};
    uint64_t next;

    rec.fence = any_u64();
    assume(rec.fence < FENCE_MAX);
    next = file_next_fence(&rec, any_upto(INT64_MAX));
    check(!next || (next > rec.fence && next < FENCE_MAX), "it rises");
}

/* With any number of seven digits; what is longer differs in the loop only. */
void the_mark_has_its_place(void)
{
    char to[21];
    uint64_t fence = (uint64_t)any_upto(9999999), n = 0;
    int i;

    check(record_put_mark(to, fence) == to + sizeof(to), "its place");
    for (i = 0; i < 20; i++)
        n = n * 10 + (uint64_t)(to[i] - '0');
    check(n == fence && to[20] == '\n', "the same number");
}

void the_longest_mark_fits(void)
{
    char to[21];

    check(record_put_mark(to, UINT64_MAX) == to + sizeof(to), "its place");
}
