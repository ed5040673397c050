/* SPDX-License-Identifier: MIT
 *
 * log.c - what opts.log is told, and by whom.
 *
 * A message is written into a ring, and a thread that does nothing else hands it
 * to the callback.  So the callback runs without a lock of the library, and may
 * take its time: a full pipe or a slow disk behind it delays no renewal and no
 * loss.  Messages that come while the ring is full are left out and counted.
 *
 * INVARIANTS
 *  (1) The mutex of the ring is the last of all: nothing is called and nothing
 *      waited for with it held.  So any thread may log, whatever it holds.
 *  (2) At most RATE messages a second go into the ring.  What is left out is
 *      counted, and the count is told with the next message.
 *  (3) Texts are made of keys and of the texts of errors, which have no
 *      passwords (base/error.h).
 *  (4) After hf_close() the callback is not called any more.
 */
#include "log.h"

#include <stdarg.h>

#include "base/alloc.h"

#include "base/banned.h"

#define SLOTS 64
#define RATE  100

struct hfi_log {
    pthread_mutex_t mu;
    struct hfi_cond cond;
    struct hfi_thread thread;
    hf_log_fn *fn;
    void *arg;
    unsigned first, count; /* in `slots` */
    unsigned left_out;
    int64_t second; /* when this second began, */
    int in_second;  /* and how many messages were in it */
    bool stopping;
    struct {
        hf_log_level level;
        char text[320];
    } slots[SLOTS];
};

/* May there be another?  log.c (2) */
static bool log_has_room(struct hfi_log *log)
{
    int64_t now = hfi_now();

    if (now - log->second >= 1000) {
        log->second = now;
        log->in_second = 0;
    }
    if (log->stopping || log->count == SLOTS || log->in_second == RATE) {
        log->left_out++;
        return false;
    }
    log->in_second++;
    return true;
}

__attribute__((format(printf, 4, 0))) static void log_add(struct hfi_log *log,
                                                          hf_log_level level,
                                                          const char *before,
                                                          const char *fmt,
                                                          va_list args)
{
    char *text;
    size_t size = sizeof(log->slots[0].text), at;
    unsigned slot;

    pthread_mutex_lock(&log->mu);
    if (log_has_room(log)) {
        slot = (log->first + log->count++) % SLOTS;
        log->slots[slot].level = level;
        text = log->slots[slot].text;
        snprintf(text, size, "%s", before);
        at = strlen(text);
        vsnprintf(text + at, size - at, fmt, args);
        hfi_cond_wake(&log->cond);
    }
    pthread_mutex_unlock(&log->mu);
}

void hfi_log(struct hf_client *c, hf_log_level level, const char *fmt, ...)
{
    va_list args;

    if (!hfi_logs(c, level))
        return;
    va_start(args, fmt);
    log_add(c->log, level, "", fmt, args);
    va_end(args);
}

void hfi_log_key(struct hf_client *c, hf_log_level level, const char *key,
                 const char *fmt, ...)
{
    char quoted[HFI_QUOTE_MAX], before[HFI_QUOTE_MAX + 8];
    va_list args;

    if (!hfi_logs(c, level))
        return;
    snprintf(before, sizeof(before),
             "'%s': ", hfi_quote(quoted, sizeof(quoted), key));
    va_start(args, fmt);
    log_add(c->log, level, before, fmt, args);
    va_end(args);
}

/* Hand the first message on, with the mutex let go. */
static void log_tell(struct hfi_log *log)
{
    unsigned left_out = log->left_out;
    hf_log_level level = log->slots[log->first].level;
    char text[sizeof(log->slots[0].text)];
    char more[64];

    memcpy(text, log->slots[log->first].text, sizeof(text));
    log->first = (log->first + 1) % SLOTS;
    log->count--;
    log->left_out = 0;
    pthread_mutex_unlock(&log->mu);
    if (left_out) {
        snprintf(more, sizeof(more), "%u messages were left out", left_out);
        log->fn(log->arg, HF_LOG_WARNING, more);
    }
    log->fn(log->arg, level, text);
    pthread_mutex_lock(&log->mu);
}

static void *log_run(void *arg)
{
    struct hfi_log *log = arg;

    pthread_mutex_lock(&log->mu);
    while (log->count || !log->stopping) {
        if (log->count)
            log_tell(log);
        else
            hfi_cond_wait(&log->cond, &log->mu, HFI_NEVER);
    }
    pthread_mutex_unlock(&log->mu);
    return NULL;
}

hf_status hfi_log_start(struct hf_client *c, const struct hf_client_opts *opts,
                        struct hf_error *err)
{
    struct hfi_log *log;

    if (!opts || !opts->log)
        return HF_OK;
    log = hfi_alloc(sizeof(*log));
    if (!log)
        return hfi_nomem(err);
    log->fn = opts->log;
    log->arg = opts->log_arg;
    hfi_mutex_init(&log->mu);
    hfi_cond_init(&log->cond);
    c->log_level = opts->log_level ? opts->log_level : HF_LOG_WARNING;
    c->log = log;
    return hfi_thread_start(&log->thread, log_run, log)
               ? HF_OK
               : hfi_fail(err, HF_SYSTEM, "no thread could be started");
}

/* Tell what there is to tell, and no more.  log.c (4) */
void hfi_log_stop(struct hf_client *c)
{
    if (!c->log)
        return;
    pthread_mutex_lock(&c->log->mu);
    c->log->stopping = true;
    hfi_cond_wake(&c->log->cond);
    pthread_mutex_unlock(&c->log->mu);
    hfi_thread_join(&c->log->thread);
}

void hfi_log_free(struct hf_client *c)
{
    if (!c->log)
        return;
    hfi_log_stop(c);
    hfi_cond_fini(&c->log->cond);
    pthread_mutex_destroy(&c->log->mu);
    hfi_free(c->log);
}
