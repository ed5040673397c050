/* SPDX-License-Identifier: MIT
 *
 * wait.c - waiting for a lock, and what comes unasked.
 */
#include "zk.h"

#include <unistd.h>

#include "base/banned.h"

hf_status zk_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                   struct hfi_receipt *receipt, int64_t deadline,
                   struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_node *node;

    (void)receipt;
    (void)deadline;
    pthread_mutex_lock(&zc->mu);
    node = zk_node_find(zc, claim->token);
    if (node) {
        node->watched = true;
        if (node->held)
            zk_node_listen(node);
    }
    pthread_mutex_unlock(&zc->mu);
    return node ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: this claim has no node",
                           conn->endpoint);
}

void zk_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                struct hfi_receipt *receipt)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_node *node;

    (void)receipt;
    pthread_mutex_lock(&zc->mu);
    node = zk_node_find(zc, claim->token);
    if (node)
        node->watched = node->listening = false;
    pthread_mutex_unlock(&zc->mu);
}

int zk_poll_fd(struct hfi_conn *conn)
{
    return ((struct zk_conn *)conn)->poll_fd;
}

void zk_dispatch(struct hfi_conn *conn)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    uint64_t times;

    pthread_mutex_lock(&zc->mu);
    zk_hear(zc);
    if (hfi_now() >= zc->timer_due &&
        read(zc->timer_fd, &times, sizeof(times)) > 0)
        zk_nodes_lapse(zc);
    pthread_mutex_unlock(&zc->mu);
}
