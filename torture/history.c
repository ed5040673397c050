/* SPDX-License-Identifier: MIT
 *
 * history.c - writing, merging and reading what happened; see history.h.
 */
#include "history.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const char *const history_words[] = {
#define X(name, meaning) #name,
    HISTORY_WORDS(X)
#undef X
};

/* The kernel is asked directly: the run may have preloaded another clock. */
int64_t history_now(void)
{
    struct timespec ts = {0, 0};

    syscall(SYS_clock_gettime, CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int history_open(const char *dir, int process, int life)
{
    char path[512];

    snprintf(path, sizeof(path), "%s/%d.%d.log", dir, process, life);
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

void history_log(int fd, struct who who, enum what what, int key,
                 uint64_t fence, int64_t number, const char *text)
{
    char line[512];
    int len =
        snprintf(line, sizeof(line), "%lld %d.%d.%d %s %d %llu %lld %s\n",
                 (long long)history_now(), who.process, who.life, who.thread,
                 history_words[what], key, (unsigned long long)fence,
                 (long long)number, text && *text ? text : "-");

    if (write(fd, line, (size_t)len) != len)
        abort(); /* a history with a hole proves nothing */
}

/* ---- reading ----------------------------------------------------------- */

/* The whole file, with a NUL behind it. */
static char *history_slurp(const char *path, size_t *len)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    char *text = NULL;
    size_t have = 0;
    ssize_t got = 0;

    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) == 0)
        text = malloc((size_t)st.st_size + 1);
    while (text && have < (size_t)st.st_size &&
           (got = read(fd, text + have, (size_t)st.st_size - have)) > 0)
        have += (size_t)got;
    if (got < 0) {
        free(text);
        text = NULL;
    }
    if (text)
        text[have] = '\0';
    close(fd);
    *len = have;
    return text;
}

/* The next word of a line, cut off in place. */
static char *history_word(char **at)
{
    char *word = *at + strspn(*at, " ");

    *at = word + strcspn(word, " ");
    if (**at)
        *(*at)++ = '\0';
    return word;
}

static bool history_number(char **at, int64_t *ret)
{
    const char *word = history_word(at);
    char *end;

    *ret = strtoll(word, &end, 10);
    return *word && !*end;
}

static bool history_parse(char *line, struct event *ret)
{
    char *at = line, *who, *what;
    int64_t key, fence;
    int word = 0;

    if (!history_number(&at, &ret->time))
        return false;
    who = history_word(&at);
    if (sscanf(who, "%d.%d.%d", &ret->who.process, &ret->who.life,
               &ret->who.thread) != 3)
        return false;
    what = history_word(&at);
    while (word < W_COUNT && strcmp(what, history_words[word]) != 0)
        word++;
    if (word == W_COUNT || !history_number(&at, &key) ||
        !history_number(&at, &fence) || !history_number(&at, &ret->number))
        return false;
    ret->what = (enum what)word;
    ret->key = (int)key;
    ret->fence = (uint64_t)fence;
    ret->text = at + strspn(at, " ");
    return *ret->text != '\0';
}

/* By time; what was read first stays first. */
static int history_compare(const void *a, const void *b)
{
    const struct event *x = a, *y = b;

    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return x->line < y->line ? -1 : x->line > y->line;
}

/* Add the lines of `text`, which has `copy` beside it.  A last line without an
 * end is what a killed process was about to say: it is left out. */
static bool history_add(struct history *h, size_t *room, char *text,
                        const char *copy, char *why, size_t size)
{
    char *line = text, *end;

    for (; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        if (*line == '#' || !*line)
            continue;
        if (h->count == *room) {
            size_t more = *room ? 2 * *room : 1024;
            struct event *events =
                realloc(h->events, more * sizeof(*h->events));

            if (!events) {
                snprintf(why, size, "no memory");
                return false;
            }
            h->events = events;
            *room = more;
        }
        h->events[h->count].line = copy + (line - text);
        if (!history_parse(line, &h->events[h->count++])) {
            snprintf(why, size, "this is no event: %.200s",
                     h->events[h->count - 1].line);
            return false;
        }
    }
    return true;
}

bool history_load(const char *path, struct history *ret, char *why, size_t size)
{
    struct history h = {0};
    size_t len = 0, room = 0;

    h.text = history_slurp(path, &len);
    h.copies = h.text ? malloc(len + 1) : NULL;
    if (!h.copies) {
        snprintf(why, size, "%.200s: %s", path, strerror(errno));
        history_free(&h);
        return false;
    }
    memcpy(h.copies, h.text, len + 1);
    if (!history_add(&h, &room, h.text, h.copies, why, size)) {
        history_free(&h);
        return false;
    }
    for (char *c = h.copies; (c = strchr(c, '\n')); c++)
        *c = '\0';
    if (h.count)
        qsort(h.events, h.count, sizeof(*h.events), history_compare);
    *ret = h;
    return true;
}

void history_free(struct history *h)
{
    free(h->events);
    free(h->text);
    free(h->copies);
    *h = (struct history){0};
}

/* ---- merging ----------------------------------------------------------- */

struct line {
    int64_t time;
    const char *text;
};

static int line_compare(const void *a, const void *b)
{
    const struct line *x = a, *y = b;

    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return x->text < y->text ? -1 : x->text > y->text;
}

/* All files of the directory, one after the other. */
static char *merge_read_all(const char *dir)
{
    DIR *list = opendir(dir);
    struct dirent *entry;
    char path[1024], *all = calloc(1, 1), *one, *more;
    size_t have = 0, len;

    while (list && all && (entry = readdir(list))) {
        size_t name = strlen(entry->d_name);

        if (name < 4 || strcmp(entry->d_name + name - 4, ".log") != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
        one = history_slurp(path, &len);
        while (one && len && one[len - 1] != '\n')
            len--; /* what a killed process was about to say */
        more = one ? realloc(all, have + len + 1) : NULL;
        if (!more) {
            free(one);
            free(all);
            all = NULL;
            break;
        }
        all = more;
        memcpy(all + have, one, len);
        have += len;
        all[have] = '\0';
        free(one);
    }
    if (list)
        closedir(list);
    return all;
}

static bool merge_write(const struct line *lines, size_t n, const char *path)
{
    FILE *out = fopen(path, "we");

    if (!out)
        return false;
    fprintf(out, "# holdfast-torture history: time who what key fence number "
                 "text; see holdfast-torture(1)\n");
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s\n", lines[i].text);
    return fclose(out) == 0;
}

bool history_merge(const char *dir, const char *path)
{
    char *all = merge_read_all(dir), *at, *end;
    struct line *lines;
    size_t n = 0, i = 0;
    bool ok;

    if (!all)
        return false;
    for (at = all; (at = strchr(at, '\n')); at++)
        n++;
    lines = malloc((n + 1) * sizeof(*lines));
    for (at = all; lines && (end = strchr(at, '\n')); at = end + 1) {
        *end = '\0';
        lines[i].time = strtoll(at, NULL, 10);
        lines[i++].text = at;
    }
    if (lines)
        qsort(lines, n, sizeof(*lines), line_compare);
    ok = lines && merge_write(lines, n, path);
    free(lines);
    free(all);
    return ok;
}
