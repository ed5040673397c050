/* SPDX-License-Identifier: MIT
 *
 * ask.c - the question whether a lock shall be broken.
 *
 * INVARIANTS
 *  (1) Whoever answers can have seen what is broken: the fence, the holder and all
 *      of the key.  They take as many lines as they need, at the bottom.  If the
 *      screen is too small for that, the beginning and the end of the key are there,
 *      and it is called shortened.
 *  (2) What was typed before the question was drawn does not answer it (top_turn()
 *      in main.c).
 *  (3) Holder and fence are of the same grant.  A listing tells the note of one and
 *      maybe the fence of another of several holders: so of a lock that several may
 *      hold they come from hf_holders(), by the details.
 */
#include "top.h"

#include <curses.h>
#include <inttypes.h>
#include <string.h>

/* What is shown has at most so many bytes: a key, each byte of it as \xNN. */
#define ASK_TEXT (4 * HF_KEY_MAX + 1)

/* At most `width` columns of the text: all of it, or its beginning and its end. */
static void ask_shorten(char text[ASK_TEXT], int width)
{
    static const char dots[] = "...";
    int all, half = (width - 3) / 2;
    char ret[ASK_TEXT];
    const char *head, *tail;

    screen_fit(text, INT32_MAX, &all);
    if (all <= width)
        return;
    head = screen_fit(text, half, NULL);
    tail = screen_behind(text, all - (width - 3 - half));
    snprintf(ret, sizeof(ret), "%.*s%s%s", (int)(head - text), text, dots,
             tail);
    memcpy(text, ret, strlen(ret) + 1);
}

/* How many lines it takes; draws them from line y on if that is not 0. */
static int ask_lines(int y, const char *text)
{
    char line[ASK_TEXT + 64];
    int lines = 0;

    do {
        const char *end = screen_fit(text, COLS - 1, NULL);

        snprintf(line, sizeof(line), "%.*s", (int)(end - text), text);
        if (y)
            screen_text(y + lines, 0, COLS - 1, line);
        lines++;
        text = end;
    } while (*text);
    return lines;
}

/* In one line, if it is long enough for all of it. */
static bool ask_brief(const struct top *top, const char *key, const char *who)
{
    char line[2 * ASK_TEXT + 64];
    int columns;

    snprintf(line, sizeof(line),
             "break '%s', fence %" PRIu64 ", held by %s? y/n", key,
             top->ask_fence, who);
    screen_fit(line, INT32_MAX, &columns);
    if (columns >= COLS)
        return false;
    screen_text(LINES - 1, 0, COLS - 1, line);
    return true;
}

/* Else what is asked, the holder, and the key, a line or more each. */
void ask_draw(const struct top *top)
{
    char key[ASK_TEXT], who[ASK_TEXT], asked[64], line[ASK_TEXT + 64];
    int room = LINES - 3, lines, y; /* of the key */

    cli_show(top->ask_key, key, sizeof(key));
    cli_show(top->ask_who, who, sizeof(who));
    if (ask_brief(top, key, who))
        return;
    snprintf(line, sizeof(line), "key: %s", key);
    lines = ask_lines(0, line);
    if (lines > room) { /* A wide character may leave a column free. */
        ask_shorten(key, room * (COLS - 2) - 16);
        snprintf(line, sizeof(line), "key, shortened: %s", key);
        lines = ask_lines(0, line);
    }
    y = LINES - lines - 2;
    snprintf(asked, sizeof(asked), "break fence %" PRIu64 "? y/n",
             top->ask_fence);
    ask_lines(y, asked);
    ask_lines(y + 2, line);
    ask_shorten(who, COLS - 1 - 9);
    snprintf(line, sizeof(line), "held by: %s", who);
    ask_lines(y + 1, line);
}
