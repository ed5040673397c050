/* SPDX-License-Identifier: MIT
 *
 * rl.c - several real Redis servers; see rl.h.
 */
#include "rl.h"

static void rl_begin(struct rl *rl, const char *more, bool disk,
                     void (*before)(int node))
{
    size_t len = 0;

    memset(rl, 0, sizeof(*rl));
    for (int i = 0; i < RL_N; i++) {
        if (before)
            before(i);
        if (disk)
            rt_start(&rl->nodes[i], "--appendonly", "yes", "--appendfsync",
                     "always", NULL);
        else
            rt_start(&rl->nodes[i], NULL);
        len += (size_t)snprintf(rl->url + len, sizeof(rl->url) - len,
                                "%s127.0.0.1:%d", i ? "," : "redlock://",
                                rl->nodes[i].port);
    }
    snprintf(rl->url + len, sizeof(rl->url) - len, "%s", more);
}

void rl_start(struct rl *rl, const char *more, bool disk)
{
    rl_begin(rl, more, disk, NULL);
}

void rl_start_with(struct rl *rl, const char *more, void (*before)(int node))
{
    rl_begin(rl, more, false, before);
}

void rl_check_clean(struct rl *rl)
{
    t_poll_until(rl_count(rl, "k", NULL) == 0, 8000);
}

void rl_end(struct rl *rl)
{
    for (int i = 0; i < RL_N; i++)
        rt_end(&rl->nodes[i]);
}

hf_client *rl_open(const struct rl *rl)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(rl->url, NULL, &client, &t_err));
    return client;
}

void rl_signal(struct rl *rl, unsigned nodes, int sig)
{
    for (int i = 0; i < RL_N; i++)
        if (nodes & 1U << i)
            rt_signal(&rl->nodes[i], sig);
}

int rl_count(struct rl *rl, const char *key, const char *value)
{
    const char *text;
    int n = 0;

    for (int i = 0; i < RL_N; i++) {
        if (!rl->nodes[i].pid)
            continue;
        text = rt_text(&rl->nodes[i], "GET holdfast:%s", key);
        n += value ? !strcmp(text, value) : *text != '\0';
    }
    return n;
}

long long rl_in_line(struct rl *rl, int node)
{
    return rt_int(&rl->nodes[node], "ZCOUNT {holdfast:k}:queue: -inf (4e15");
}

hf_status rl_try(hf_client *client, const char *key, int64_t ttl_ms,
                 hf_lock **ret)
{
    struct hf_lock_opts opts = rt_opts(ttl_ms, HF_MANUAL);

    return hf_acquire(client, key, 0, &opts, ret, &t_err);
}

uint64_t rl_random(uint64_t *state)
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}
