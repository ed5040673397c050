/* SPDX-License-Identifier: MIT
 *
 * snapshot.c - the whole table as one text, which its readers share.
 *
 * The text of a large table has many megabytes, and a slow reader wants it for
 * long.
 *
 * INVARIANTS
 *  (1) There are at most SNAPSHOTS texts, however many read and however slowly.
 *      For one more the oldest goes, and the answers of those who still read it
 *      are cut off.
 *  (2) Writing them takes a tenth of a core at most: one serves everybody who
 *      comes in ten times the time that it took to write.
 */
#include "serve.h"

#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#define SNAPSHOTS   4
#define SNAPSHOT_MS 100 /* one is not younger than that */

struct snapshot {
    char *text;
    size_t len;
    uint64_t number; /* 0: there is none */
    int64_t until;   /* it serves those who come */
};

struct snapshot_reader {
    int slot;
    uint64_t number;
};

static pthread_mutex_t snapshot_mu = PTHREAD_MUTEX_INITIALIZER;
static struct snapshot snapshots[SNAPSHOTS];
static uint64_t snapshot_number;

static void snapshot_locks(FILE *out, bool allow_break)
{
    const struct serve_lock *lock;
    int64_t now = serve_now();
    bool more = false;

    pthread_mutex_lock(&serve_table.mu);
    fputs("{\"services\":", out);
    serve_json_services(out);
    fputs(",\"locks\":[", out);
    for (lock = serve_table.first; lock; lock = lock->next) {
        if (!lock->info.held)
            continue;
        fputs(more ? ",\n" : "\n", out);
        serve_json_lock(out, lock, now);
        more = true;
    }
    fprintf(out, "],\"not_shown\":%zu,\"allow_break\":%s,\"run\":\"%s\"}\n",
            serve_table_not_shown(), allow_break ? "true" : "false", serve_run);
    pthread_mutex_unlock(&serve_table.mu);
}

/* The newest, which may be too old; the mutex is held. */
static struct snapshot *snapshot_newest(void)
{
    struct snapshot *ret = &snapshots[snapshot_number % SNAPSHOTS];

    return ret->number ? ret : NULL;
}

/* Another one, in the place of the oldest (1); the mutex is held. */
static struct snapshot *snapshot_write(bool allow_break)
{
    struct snapshot *ret = &snapshots[(snapshot_number + 1) % SNAPSHOTS];
    int64_t begin = serve_now(), took;
    FILE *out;

    free(ret->text);
    *ret = (struct snapshot){.number = 0};
    out = open_memstream(&ret->text, &ret->len);
    if (!out)
        return NULL;
    snapshot_locks(out, allow_break);
    if (fclose(out)) {
        free(ret->text);
        ret->text = NULL;
        return NULL;
    }
    took = serve_now() - begin;
    ret->number = ++snapshot_number;
    ret->until =
        serve_now() + (10 * took > SNAPSHOT_MS ? 10 * took : SNAPSHOT_MS);
    return ret;
}

static ssize_t snapshot_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    const struct snapshot_reader *reader = cls;
    const struct snapshot *from = &snapshots[reader->slot];
    ssize_t ret = MHD_CONTENT_READER_END_WITH_ERROR;

    pthread_mutex_lock(&snapshot_mu);
    if (from->number == reader->number && pos < from->len) {
        size_t part = from->len - (size_t)pos;

        ret = (ssize_t)(part < max ? part : max);
        memcpy(buf, from->text + pos, (size_t)ret);
    }
    pthread_mutex_unlock(&snapshot_mu);
    return ret;
}

struct MHD_Response *serve_snapshot(bool allow_break)
{
    struct snapshot_reader *reader = malloc(sizeof(*reader));
    struct snapshot *from;
    struct MHD_Response *ret = NULL;

    if (!reader)
        return NULL;
    pthread_mutex_lock(&snapshot_mu);
    from = snapshot_newest();
    if (!from || serve_now() >= from->until)
        from = snapshot_write(allow_break);
    if (from) {
        *reader = (struct snapshot_reader){.slot = (int)(from - snapshots),
                                           .number = from->number};
        ret = MHD_create_response_from_callback(from->len, 32768, snapshot_read,
                                                reader, free);
    }
    pthread_mutex_unlock(&snapshot_mu);
    if (!ret)
        free(reader);
    else
        MHD_add_response_header(ret, "Content-Type", "application/json");
    return ret;
}
