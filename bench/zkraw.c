/* SPDX-License-Identifier: MIT
 *
 * zkraw.c - a bare session of ZooKeeper; see zkraw.h.
 */
#include "zkraw.h"

#include "bench.h"

#include <poll.h>
#include <stdlib.h>

#define SESSION_MS 600000

static void nothing(zhandle_t *handle, int type, int state, const char *path,
                    void *ctx)
{
    (void)handle, (void)type, (void)state, (void)path, (void)ctx;
}

int zkraw_turn(zhandle_t *zh)
{
    struct timeval tv = {0, 0};
    struct pollfd pfd = {.fd = -1};
    int interest = 0;

    zookeeper_interest(zh, &pfd.fd, &interest, &tv);
    pfd.events = (short)((interest & ZOOKEEPER_READ ? POLLIN : 0) |
                         (interest & ZOOKEEPER_WRITE ? POLLOUT : 0));
    poll(&pfd, 1, (int)(tv.tv_sec * 1000 + tv.tv_usec / 1000 + 1));
    zookeeper_process(zh, (pfd.revents & ~POLLOUT ? ZOOKEEPER_READ : 0) |
                              (pfd.revents & POLLOUT ? ZOOKEEPER_WRITE : 0));
    return pfd.fd;
}

zhandle_t *zkraw_open(void)
{
    zhandle_t *zh;

    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    zh = zookeeper_init(getenv("HF_ZK_HOSTS"), nothing, SESSION_MS, NULL, NULL,
                        0);
    if (!zh)
        bench_die("zk: no connection");
    zoo_set_servers_resolution_delay(zh, -1);
    while (zoo_state(zh) != ZOO_CONNECTED_STATE)
        zkraw_turn(zh);
    return zh;
}
