/* SPDX-License-Identifier: MIT
 *
 * screen.c - what is drawn: the list, or one lock (details.c).
 *
 * Keys and notes are cleaned of controls before they are drawn, and cut to
 * columns, not bytes.  Without colours everything is still told, in words.
 */
#include "top.h"

#include <curses.h>
#include <inttypes.h>
#include <limits.h>
#include <string.h>
#include <wchar.h>

#define SCREEN_BAR 8

enum { PAIR_RED = 1, PAIR_YELLOW, PAIR_GREEN };

size_t screen_rows(void)
{
    return LINES > 3 ? (size_t)LINES - 3 : 1;
}

/* The character at *at and what combines with it, ready to be drawn; its columns.
 * What cannot be drawn is a question mark. */
static int screen_char(const char **at, cchar_t *ret)
{
    wchar_t wide[CCHARW_MAX + 1] = {0}, next;
    mbstate_t state = {0};
    size_t len = mbrtowc(wide, *at, MB_LEN_MAX, &state), n = 1;

    if (len == (size_t)-1 || len == (size_t)-2 || wcwidth(wide[0]) < 1) {
        memset(&state, 0, sizeof(state));
        *at += len == (size_t)-1 || len == (size_t)-2 ? 1 : len;
        setcchar(ret, L"?", 0, 0, NULL);
        return 1;
    }
    *at += len;
    while (**at) { /* More marks than there is room for are left out. */
        len = mbrtowc(&next, *at, MB_LEN_MAX, &state);
        if (len == (size_t)-1 || len == (size_t)-2 || wcwidth(next) != 0)
            break;
        if (n < CCHARW_MAX - 1)
            wide[n++] = next;
        *at += len;
    }
    setcchar(ret, wide, 0, 0, NULL);
    return wcwidth(wide[0]);
}

/* The end of what fits into `width` columns, and how many of them it takes. */
const char *screen_fit(const char *text, int width, int *used)
{
    const char *at = text, *end;
    int columns, sum = 0;
    cchar_t one;

    for (; *at; at = end, sum += columns) {
        end = at;
        columns = screen_char(&end, &one);
        if (columns > width - sum)
            break;
    }
    if (used)
        *used = sum;
    return at;
}

/* What begins behind the first `width` columns, or one more where a character is in
 * both. */
const char *screen_behind(const char *text, int width)
{
    int used;
    const char *at = screen_fit(text, width, &used);
    cchar_t one;

    if (used < width && *at)
        screen_char(&at, &one);
    return at;
}

/* Draw text in `width` columns from x on, and blanks behind it. */
void screen_text(int y, int x, int width, const char *raw)
{
    char text[4 * HF_KEY_MAX + 1];
    const char *at = text;
    int used = 0, columns;
    cchar_t one;

    cli_clean(raw, text, sizeof(text));
    move(y, x);
    while (*at && used < width) {
        columns = screen_char(&at, &one);
        if (used + columns > width)
            break;
        add_wch(&one);
        used += columns;
    }
    for (; used < width; used++)
        addch(' ');
}

/* The same of a key, a note or an owner id. */
void screen_name(int y, int x, int width, const char *raw)
{
    char text[4 * HF_KEY_MAX + 1];

    cli_show(raw, text, sizeof(text));
    screen_text(y, x, width, text);
}

static attr_t screen_colour(int pair)
{
    return has_colors() && COLOR_PAIRS > pair ? (attr_t)COLOR_PAIR(pair) : 0;
}

/* What is left of the lease, "[#####   ] 12s". */
static void screen_bar(int y, int x, int64_t left, int64_t full)
{
    char ago[32], bar[SCREEN_BAR + 1];
    int filled = 0, pair = PAIR_GREEN;

    if (left < 0) {
        screen_text(y, x, SCREEN_BAR + 9, "");
        return;
    }
    if (full > 0)
        filled = (int)((left * SCREEN_BAR + full - 1) / full);
    filled = filled > SCREEN_BAR ? SCREEN_BAR : filled;
    memset(bar, ' ', SCREEN_BAR);
    memset(bar, '#', (size_t)filled);
    bar[SCREEN_BAR] = '\0';
    if (filled <= SCREEN_BAR / 3)
        pair = PAIR_RED;
    else if (filled <= SCREEN_BAR / 2)
        pair = PAIR_YELLOW;
    attron(screen_colour(pair));
    mvprintw(y, x, "[%s] %-6s", bar, cli_ago(left, ago));
    attroff(screen_colour(pair));
}

static void screen_mode(const struct hf_info *info, char ret[16])
{
    if (info->broken)
        snprintf(ret, 16, "broken");
    else if (info->kept)
        snprintf(ret, 16, "kept");
    else if (info->permits)
        snprintf(ret, 16, "%d/%d", (int)info->holders, (int)info->permits);
    else if (info->shared)
        snprintf(ret, 16, "shared %d", (int)info->holders);
    else
        snprintf(ret, 16, "-");
}

const char *screen_who(const char *note, const char *owner)
{
    return note[0] ? note : owner[0] ? owner : "somebody";
}

/* The columns: age 8, lease 18, waiters 5, mode 11, then key and holder. */
static void screen_row(int y, const struct top_row *row, int64_t lease,
                       bool chosen)
{
    int rest = COLS - 42, key = rest / 2;
    int64_t age = table_age(row);
    char ago[32], number[16] = "", mode[16];

    if (chosen)
        attron(A_REVERSE);
    if (row->info.waiters >= 0)
        snprintf(number, sizeof(number), "%d", (int)row->info.waiters);
    screen_mode(&row->info, mode);
    screen_text(y, 0, COLS, "");
    screen_text(y, 0, 7, age < 0 ? "" : cli_ago(age, ago));
    screen_bar(y, 8, table_left(row), table_lease(row, lease));
    screen_text(y, 26, 4, number);
    screen_text(y, 31, 10, mode);
    screen_name(y, 42, key - 1, row->key);
    screen_name(y, 42 + key, rest - key,
                screen_who(row->info.note, row->info.owner));
    if (chosen)
        attroff(A_REVERSE);
}

static void screen_list(struct top *top)
{
    int rest = COLS - 42;
    size_t rows = screen_rows();

    attron(A_BOLD);
    screen_text(1, 0, COLS, "AGE     LEASE             WAIT MODE");
    screen_text(1, 42, rest / 2 - 1, "KEY");
    screen_text(1, 42 + rest / 2, rest - rest / 2, "HOLDER");
    attroff(A_BOLD);
    if (top->first + rows > top->table.shown) /* No row is left blank. */
        top->first = top->table.shown > rows ? top->table.shown - rows : 0;
    if (top->at < top->first)
        top->first = top->at;
    if (top->at >= top->first + rows)
        top->first = top->at - rows + 1;
    for (size_t i = 0; i < rows; i++) {
        size_t at = top->first + i;

        if (at < top->table.shown)
            screen_row((int)i + 2, &top->table.rows[at], top->lease,
                       at == top->at);
        else
            screen_text((int)i + 2, 0, COLS, "");
    }
}

/* ", 3 waiting"; nothing where the service does not tell that of each lock. */
static void screen_waiting(const struct top_table *table, char ret[40])
{
    int64_t waiting = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < table->count; i++) {
        if (table->rows[i].info.waiters < 0)
            return;
        waiting += table->rows[i].info.waiters;
    }
    snprintf(ret, 40, ", %" PRId64 " waiting", waiting);
}

static void screen_head(const struct top *top)
{
    char line[1024], waiting[40];

    screen_waiting(&top->table, waiting);
    snprintf(line, sizeof(line), "%zu lock%s%s, by %s%s%s%s%s  %s",
             top->table.count, top->table.count == 1 ? "" : "s", waiting,
             table_sort_name(top->table.sort),
             top->table.filter[0] ? ", filter " : "", top->table.filter,
             top->prefix[0] ? ", below " : "", top->prefix, top->endpoint);
    attron(A_BOLD);
    screen_text(0, 0, COLS, line);
    attroff(A_BOLD);
    if (top->paused)
        screen_text(0, COLS > 9 ? COLS - 9 : 0, 9, " [paused]");
}

/* What does not fit goes without the name of the service, which the first line
 * has: of Redlock that alone may be longer than the line. */
static const char *screen_message(const struct top *top, const char *text)
{
    size_t len = strlen(top->endpoint);

    if (strlen(text) < (size_t)COLS || !len)
        return text;
    if (!strncmp(text, top->endpoint, len) && !strncmp(text + len, ": ", 2))
        text += len + 2;
    return text;
}

static void screen_foot(const struct top *top)
{
    char line[2048];

    if (top->asking) {
        attron(A_BOLD | screen_colour(PAIR_RED));
        ask_draw(top);
        attroff(A_BOLD | screen_colour(PAIR_RED));
        return;
    }
    if (top->filtering)
        snprintf(line, sizeof(line), "filter: %s_  (Enter, Esc)",
                 top->table.filter);
    else if (top->breaking)
        snprintf(line, sizeof(line), "breaking fence %" PRIu64 " of '%s' ...",
                 top->ask_fence, top->ask_key);
    else if (top->message[0] || top->trouble[0])
        snprintf(
            line, sizeof(line), "%s",
            screen_message(top, top->message[0] ? top->message : top->trouble));
    else if (top->view == VIEW_DETAILS)
        snprintf(line, sizeof(line), "q back  arrows choose  b break");
    else
        snprintf(line, sizeof(line),
                 "q quit  s sort  / filter  Enter details  b break  p pause");
    screen_text(LINES - 1, 0, COLS - 1, line);
}

bool screen_draw(struct top *top)
{
    if (LINES < 4 || COLS < 44) {
        erase();
        mvaddnstr(0, 0, "too small", COLS);
        refresh();
        return false;
    }
    screen_head(top);
    if (top->view == VIEW_DETAILS)
        details_draw(top);
    else
        screen_list(top);
    screen_foot(top);
    refresh();
    return true;
}
