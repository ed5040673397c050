/* SPDX-License-Identifier: MIT
 *
 * channel.c - the names of the channels on which a client is told things;
 * see wait.c.
 */
#include "redis.h"

#include "base/banned.h"

/* The name ends in an `s`, which is no digit of an id, if it is sharded.  A
 * prefix with half a tag would take the channel elsewhere, and is left out. */
void redis_channel_name(struct redis_conn *rc, int slot, bool sharded,
                        char ret[REDIS_CHANNEL_MAX])
{
    const char *end = sharded ? "s" : "";
    unsigned number;

    if (slot < 0) {
        snprintf(ret, REDIS_CHANNEL_MAX, "%swake:%s%s", rc->prefix, rc->id,
                 end);
        return;
    }
    number = redis_slot_number((unsigned)slot);
    snprintf(ret, REDIS_CHANNEL_MAX, "%swake:{%u}:%s%s", rc->prefix, number,
             rc->id, end);
    if (redis_slot(ret) != (unsigned)slot)
        snprintf(ret, REDIS_CHANNEL_MAX, "{%u}:wake:%s%s", number, rc->id, end);
}

bool redis_is_sharded(struct redis_conn *rc)
{
    return !(atomic_load(&rc->lacks) & REDIS_SHARDED);
}

void redis_channel(struct redis_conn *rc, const char *key,
                   char ret[REDIS_CHANNEL_MAX])
{
    redis_channel_name(rc, rc->cluster ? (int)redis_key_slot(rc, key) : -1,
                       redis_is_sharded(rc), ret);
}
