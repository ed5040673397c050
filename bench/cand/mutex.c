/* SPDX-License-Identifier: MIT
 *
 * mutex.c - a pthread mutex, for scale beside mem:.
 */
#include "cand.h"

#include <pthread.h>
#include <stdlib.h>

static void *conn_open(void)
{
    pthread_mutex_t *mutex = bench_alloc(sizeof(*mutex));

    pthread_mutex_init(mutex, NULL);
    return mutex;
}

static void take(void *mutex, const char *key)
{
    (void)key;
    pthread_mutex_lock(mutex);
}

static void give(void *mutex, const char *key)
{
    (void)key;
    pthread_mutex_unlock(mutex);
}

int main(void)
{
    static const struct cand_kind kind = {
        .name = "mutex",
        .open = conn_open,
        .close = free,
        .take = take,
        .give = give,
    };

    return cand_main(&kind);
}
