/* SPDX-License-Identifier: MIT
 *
 * observe.c - observers of mem: are told of each change of holders by whoever
 * makes it, with the table's mutex held.  A lease that lapses is noticed by the
 * next who looks at the key; the core looks when it must be over.
 */
#include "mem.h"

#include "base/banned.h"

static struct mem_observation *mem_own(const struct hfi_observation *obs)
{
    return obs->own;
}

/* The holders of the key are others now. */
void mem_changed(struct mem_table *table, const char *name)
{
    struct mem_observation *mine;
    const char *key;
    struct hfi_link *at;

    for (at = table->observations.next; at != &table->observations;
         at = at->next) {
        mine = hfi_container(at, struct mem_observation, link);
        key = mine->observation->key;
        if (mine->observation->prefix ? !strncmp(name, key, strlen(key))
                                      : !strcmp(name, key))
            hfi_changed(mine->conn, mine->observation, name);
    }
}

hf_status mem_observe(struct hfi_conn *conn, struct hfi_observation *obs,
                      int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_observation *mine = mem_own(obs);

    (void)deadline;
    (void)err;
    mine->conn = conn;
    mine->observation = obs;
    hfi_link_init(&mine->link);
    pthread_mutex_lock(&mc->table->mu);
    hfi_link_append(&mc->table->observations, &mine->link);
    pthread_mutex_unlock(&mc->table->mu);
    return HF_OK;
}

void mem_unobserve(struct hfi_conn *conn, struct hfi_observation *obs)
{
    struct mem_conn *mc = (struct mem_conn *)conn;

    pthread_mutex_lock(&mc->table->mu);
    hfi_link_remove(&mem_own(obs)->link);
    pthread_mutex_unlock(&mc->table->mu);
}
