/* SPDX-License-Identifier: MIT
 *
 * quarantine.c - when a node that was restarted may vote again.
 *
 * A node that restarts without its data has forgotten for whom it voted.  So it
 * must not vote before the longest lease is over that any client may have had,
 * and which one that is cannot be seen from here.  It is therefore agreed on:
 *
 *  (1) quarantine= is the longest lease that any client of these nodes asks
 *      for, a minute unless it is given.  This client asks for no longer one:
 *      that is refused before anything is sent.
 *  (2) Each client writes its own quarantine= down on each node when it
 *      connects, if that is more than what stands there, and obeys the largest
 *      that it has read from any node.  So clients that were not given the same
 *      value obey the largest of them, as long as one node is left that
 *      remembers it.
 *  (3) A node that says that it has everything on disk (appendonly with fsync
 *      always) waits like any other.  That it has some data from before its
 *      restart does not prove that it has the newest: its disk may be that of
 *      an hour ago, from a backup or from before appendonly was turned off.
 *
 * The note of a node is the hash that a lock with an empty key would have,
 * which no lock is: q is the longest lease in milliseconds.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

#define QUARANTINE_MS INT64_C(60000)

hf_status redlock_quarantine_open(struct redlock_conn *rl,
                                  const struct hfi_url *url,
                                  struct hf_error *err)
{
    const char *text = hfi_url_param(url, "quarantine", "on");
    int64_t ttl_ms = 0;
    hf_status st = hfi_url_duration(url, "ttl", &ttl_ms, err);

    rl->lease_max = QUARANTINE_MS;
    rl->quarantine = strcmp(text, "off") != 0;
    if (!st && rl->quarantine && strcmp(text, "on") != 0)
        st = hfi_url_duration(url, "quarantine", &rl->lease_max, err);
    rl->longest_ttl = rl->lease_max;
    return st ? st : redlock_check_ttl(rl, ttl_ms, err);
}

/* quarantine.c (1) */
hf_status redlock_check_ttl(const struct redlock_conn *rl, int64_t ttl_ms,
                            struct hf_error *err)
{
    if (!rl->quarantine || ttl_ms <= rl->lease_max)
        return HF_OK;
    return hfi_fail(err, HF_INVALID,
                    "redlock: a lease of %" PRId64
                    " ms is longer than quarantine=, which is %" PRId64
                    " ms: give the longest lease of all clients there, in the "
                    "URL of each of them",
                    ttl_ms, rl->lease_max);
}

/* With what the node has said: quarantine.c (2) */
static void quarantine_read(struct redlock_node *node, const redisReply *reply)
{
    struct redlock_conn *rl = node->rl;
    int64_t longest = redlock_item(reply, 0);

    pthread_mutex_lock(&rl->mu);
    if (longest > rl->longest_ttl && longest <= HFI_TTL_MAX)
        rl->longest_ttl = longest;
    pthread_mutex_unlock(&rl->mu);
}

hf_status redlock_quarantine_hello(struct redlock_node *node,
                                   struct mux_link *link, int64_t deadline,
                                   struct hf_error *err)
{
    struct redlock_conn *rl = node->rl;
    struct redis_names names;
    char longest[24];
    const char *argv[] = {"EVALSHA",
                          rl->script_id,
                          "2",
                          names.text[REDIS_MAIN],
                          names.text[REDIS_META],
                          "Q",
                          "",
                          longest};
    redisReply *reply;
    hf_status st;

    if (!rl->quarantine)
        return HF_OK;
    redis_name(&node->rc, "", &names);
    snprintf(longest, sizeof(longest), "%" PRId64, rl->lease_max);
    st = redlock_hello_may(node, link, 8, argv, &reply, deadline, err);
    if (reply) {
        quarantine_read(node, reply);
        freeReplyObject(reply);
    }
    return st;
}

int64_t redlock_quarantine_left(struct redlock_node *node)
{
    struct redlock_conn *rl = node->rl;
    int64_t left = 0;

    if (!rl->quarantine)
        return 0;
    pthread_mutex_lock(&rl->mu);
    left = node->born + rl->longest_ttl - hfi_now();
    pthread_mutex_unlock(&rl->mu);
    return left > 0 ? left : 0;
}
