/* SPDX-License-Identifier: MIT
 *
 * story.c - what happens to a lock, told again and again, with the connection
 * cut at another request each time; afterwards no node of ours is left.
 */
#include "zkt.h"

enum { STEPS = 24 };

void zkt_tell(zkt_story *fn, const char *options, enum zkt_cut cut)
{
    struct zkt_proxy proxy;
    hf_client *client, *other;
    char key[160];
    int step = 0, cuts = 0;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, options));
    other = zkt_open(zkt_url(options));
    for (; step < STEPS && cuts == step; step++) {
        snprintf(key, sizeof(key), "%s-%d", zkt_key("fault"), step);
        atomic_store(&proxy.left, step);
        atomic_store(&proxy.cut, cut);
        fn(client, other, key);
        cuts = atomic_load(&proxy.cuts);
        atomic_store(&proxy.cut, ZKT_NEVER);
        t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
        if (strstr(options, "ephemeral")) {
            struct zkt_node node;

            t_poll_until(!zkt_read(zkt_path(key), &node), 20000);
            t_poll_until(zkt_children_like("/hf-test", "%") == 0, 20000);
        }
    }
    printf("# %d requests\n", cuts);
    CHECK_GT(cuts, 2);
    hf_close(client);
    hf_close(other);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

void zkt_let_go(hf_lock *lk)
{
    hf_status st = hf_release(lk, &t_err);

    if (st != HF_UNCERTAIN)
        t_check_status(__FILE__, __LINE__, "hf_release", st, HF_OK);
}
