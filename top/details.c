/* SPDX-License-Identifier: MIT
 *
 * details.c - one lock: all its holders, and the queue behind them.
 *
 * What is told is a page of lines, of which the screen shows a part: two for each
 * holder, one that says how many holders are left out, one for the queue, and one
 * for each waiter.  The part is chosen so that the chosen holder or waiter is seen,
 * and with the last of them the end of the page.
 */
#include "top.h"

#include <curses.h>
#include <inttypes.h>
#include <string.h>

static int details_kept(const struct top_job *job)
{
    return job->nwaiters < JOB_WAITERS ? job->nwaiters : JOB_WAITERS;
}

int details_holders(const struct top_job *job)
{
    return job->count < JOB_HOLDERS ? job->count : JOB_HOLDERS;
}

int details_lines(const struct top *top)
{
    return details_holders(&top->details) + details_kept(&top->details);
}

/* The line of the queue: behind two for each holder, and how many more hold. */
static int details_queue_at(const struct top_job *job)
{
    return 2 * details_holders(job) + (job->count > JOB_HOLDERS);
}

/* The two lines of a holder. */
static void details_holder(int y, const struct top_job *job, int at,
                           bool second)
{
    const struct hf_info *info = &job->holders[at];
    struct top_row row = {.info = *info, .at = job->at};
    char line[128], ago[32], left[32];
    int skip = 2;

    if (!second) {
        snprintf(line, sizeof(line), "fence %" PRIu64 "%s%s  held %s  lease %s",
                 info->fence, info->broken ? "  broken" : "",
                 info->kept ? "  kept" : "",
                 table_age(&row) < 0 ? "?" : cli_ago(table_age(&row), ago),
                 table_left(&row) < 0 ? "-" : cli_ago(table_left(&row), left));
        screen_text(y, 0, COLS, line);
        return;
    }
    snprintf(line, sizeof(line), "  slot %d: ", (int)info->slot);
    if (info->slot >= 0)
        skip = (int)strlen(line);
    screen_text(y, 0, COLS, info->slot >= 0 ? line : "");
    screen_name(y, skip, COLS - skip, screen_who(info->note, info->owner));
}

/* "queue: 3 wait", or why that is not known. */
static void details_queue(int y, const struct top_job *job)
{
    char line[64];

    if (job->queue_st) {
        screen_text(y, 0, COLS, "queue: ");
        screen_text(y, 7, COLS - 7,
                    job->queue_st == HF_UNSUPPORTED ? "not known"
                                                    : job->queue_err.text);
        return;
    }
    snprintf(line, sizeof(line), "queue: %d wait%s", job->nwaiters,
             job->nwaiters > JOB_WAITERS ? ", the first of them:" : "");
    attron(A_BOLD);
    screen_text(y, 0, COLS, job->nwaiters ? line : "queue: nobody waits");
    attroff(A_BOLD);
}

/* "  2. 4s shared  NOTE" */
static void details_waiter(int y, const struct top_job *job, int at)
{
    const struct hf_waiter *waiter = &job->waiters[at];
    char line[96], ago[32] = "", mode[32] = "";
    int len;

    if (waiter->since_ms >= 0)
        cli_ago(waiter->since_ms + cli_now() - job->at, ago);
    if (waiter->permits)
        snprintf(mode, sizeof(mode), "1 of %d", (int)waiter->permits);
    else if (waiter->shared)
        snprintf(mode, sizeof(mode), "shared");
    len = snprintf(line, sizeof(line), "%4d. %-7s %-9s ", (int)waiter->place,
                   ago, mode);
    screen_text(y, 0, COLS, line);
    screen_name(y, len, COLS - len, screen_who(waiter->note, waiter->owner));
}

/* One line of the page; blank behind its end. */
static void details_line(const struct top *top, int y, int line)
{
    const struct top_job *job = &top->details;
    int kept = details_holders(job), queue = details_queue_at(job);
    int waiter = line - queue - 1;
    bool chosen = waiter >= 0 ? top->line == kept + waiter
                              : line == 2 * top->line && line < 2 * kept;
    char more[64];

    if (chosen)
        attron(A_REVERSE);
    snprintf(more, sizeof(more), "and %d more hold it", job->count - kept);
    if (line < 2 * kept)
        details_holder(y, job, line / 2, line % 2);
    else if (line < queue)
        screen_text(y, 0, COLS, more);
    else if (line == queue)
        details_queue(y, job);
    else if (waiter < details_kept(job))
        details_waiter(y, job, waiter);
    else
        screen_text(y, 0, COLS, "");
    if (chosen)
        attroff(A_REVERSE);
}

void details_draw(const struct top *top)
{
    const struct top_job *job = &top->details;
    int rows = (int)screen_rows(), first = 0, free = 0, chosen, i;
    bool asked = !strcmp(job->key, top->chosen);

    attron(A_BOLD);
    screen_name(1, 0, COLS, top->chosen);
    attroff(A_BOLD);
    if (!asked || job->st || !job->count) {
        screen_text(2, 0, COLS,
                    !asked    ? "asking..."
                    : job->st ? job->err.text
                              : "free");
        free = 1;
    }
    chosen = top->line < details_holders(job)
                 ? 2 * top->line + 1
                 : details_queue_at(job) + 1 + top->line - details_holders(job);
    if (top->line == details_lines(top) - 1)
        chosen = details_queue_at(job) + details_kept(job);
    if (chosen >= rows - free)
        first = chosen - (rows - free) + 1;
    for (i = free; i < rows; i++) {
        if (asked && !job->st)
            details_line(top, i + 2, first + i - free);
        else
            screen_text(i + 2, 0, COLS, "");
    }
}
