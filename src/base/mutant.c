/* SPDX-License-Identifier: MIT
 *
 * mutant.c - which deliberate bug is in force; only in builds with
 * -Dmutants=true.  See mutant.h.
 */
#include "mutant.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

bool hfi_mutant(const char *name)
{
    const char *chosen = getenv("HF_MUTANT");

    return chosen && !strcmp(chosen, name);
}

static struct {
    const void *who;
    int64_t number;
} mutant_notes[256];

static pthread_mutex_t mutant_mu = PTHREAD_MUTEX_INITIALIZER;

void hfi_mutant_note(const void *who, int64_t number)
{
    int spare = -1;

    pthread_mutex_lock(&mutant_mu);
    for (int i = 0; i < 256; i++) {
        if (mutant_notes[i].who == who) {
            spare = -1;
            break;
        }
        if (!mutant_notes[i].who)
            spare = i;
    }
    if (spare >= 0) {
        mutant_notes[spare].who = who;
        mutant_notes[spare].number = number;
    }
    pthread_mutex_unlock(&mutant_mu);
}

int64_t hfi_mutant_take(const void *who)
{
    int64_t number = 0;

    pthread_mutex_lock(&mutant_mu);
    for (int i = 0; i < 256; i++)
        if (mutant_notes[i].who == who) {
            number = mutant_notes[i].number;
            mutant_notes[i].who = NULL;
        }
    pthread_mutex_unlock(&mutant_mu);
    return number;
}
