/* SPDX-License-Identifier: MIT
 *
 * fleet.c - a cluster for tests; see fleet.h.
 */
#include "fleet.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

/* The starter's only task is to say what there is, and to wait for the end. */
static void fleet_exec(const char *server, const char *tls, int in, int out)
{
    dup2(in, 9); /* The shell takes a background command's stdin. */
    dup2(out, STDOUT_FILENO);
    setenv("TMPDIR", t_tmpdir(), 1);
    if (server)
        setenv("HF_TEST_SERVER", server, 1);
    if (tls)
        setenv("HF_TEST_TLS", tls, 1);
    execl(HF_TEST_SOURCE "/../servers/redis-cluster", "redis-cluster", "sh",
          "-c",
          "echo $HF_TEST_URL; echo $HF_TEST_NODES; exec cat <&9 >/dev/null",
          NULL);
    _exit(127);
}

static void fleet_parse(struct fleet *f, char *line)
{
    char *rest = NULL, *word = strtok_r(line, " \n", &rest);
    int i;

    for (i = 0; i < FLEET_NODES; i++, word = strtok_r(NULL, " \n", &rest)) {
        struct rt_server *s = &f->node[i];

        CHECK(word != NULL);
        CHECK_EQ(sscanf(word, "%d:%d:%159s", &s->pid, &s->port, s->dir), 3);
    }
}

static void fleet_launch(struct fleet *f, const char *server, const char *tls)
{
    char line[2048];
    int in[2], out[2];
    FILE *said;

    *f = (struct fleet){0};
    CHECK_EQ(pipe2(in, O_CLOEXEC), 0);
    CHECK_EQ(pipe2(out, O_CLOEXEC), 0);
    f->pid = fork();
    CHECK_GE(f->pid, 0);
    if (f->pid == 0)
        fleet_exec(server, tls, in[0], out[1]);
    close(in[0]);
    close(out[1]);
    f->in = in[1];
    said = fdopen(out[0], "re");
    if (!fgets(f->url, sizeof(f->url), said) ||
        !fgets(line, sizeof(line), said))
        t_fail(__FILE__, __LINE__, "the cluster does not start");
    f->url[strcspn(f->url, "\n")] = '\0';
    fclose(said);
    fleet_parse(f, line);
}

void fleet_start(struct fleet *f, const char *server)
{
    fleet_launch(f, server, NULL);
}

void fleet_start_tls(struct fleet *f, const char *dir)
{
    fleet_launch(f, NULL, dir);
}

void fleet_stop(struct fleet *f)
{
    int i;

    for (i = 0; i < FLEET_NODES; i++)
        if (f->node[i].pid) /* One that is stopped would not end. */
            kill(f->node[i].pid, SIGCONT);
    close(f->in);
    CHECK_EQ(waitpid(f->pid, NULL, 0), f->pid);
}

void fleet_crash(struct fleet *f, int node)
{
    rt_signal(&f->node[node], SIGKILL);
    f->node[node].pid = 0;
}

bool fleet_is_master(struct fleet *f, int node)
{
    redisReply *reply =
        f->node[node].pid ? rt_try(&f->node[node], "CLUSTER NODES") : NULL;
    const char *at = reply && reply->str ? strstr(reply->str, "myself,") : NULL;
    bool master = at && !strncmp(at, "myself,master", 13);

    if (reply)
        freeReplyObject(reply);
    return master;
}

/* ---- keys -------------------------------------------------------------- */

int fleet_home(const char *key)
{
    char name[300];
    const unsigned char *at = (const unsigned char *)name;
    unsigned crc = 0, bit;

    snprintf(name, sizeof(name), "holdfast:%s", key);
    for (; *at; at++) {
        crc ^= (unsigned)*at << 8;
        for (bit = 0; bit < 8; bit++)
            crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
    }
    crc %= 16384;
    return crc < 5461 ? 0 : crc < 10923 ? 1 : 2;
}

const char *fleet_key(int node, int n)
{
    static _Thread_local char names[8][32];
    static _Thread_local unsigned next;
    char *name = names[next++ % 8];
    int i;

    for (i = 0; n >= 0; i++) {
        snprintf(name, sizeof(names[0]), "key%d", i);
        n -= fleet_home(name) == node;
    }
    return name;
}

void fleet_check_clean(struct fleet *f)
{
    int i;

    for (i = 0; i < FLEET_NODES; i++)
        if (f->node[i].pid)
            rt_check_clean(&f->node[i]);
}

hf_client *fleet_open(struct fleet *f, const char *more)
{
    hf_client *client = NULL;
    char url[1100];

    snprintf(url, sizeof(url), "%s%s", f->url, more);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

/* ---- slots that move --------------------------------------------------- */

static const char *node_id(struct fleet *f, int node)
{
    return rt_text(&f->node[node], "CLUSTER MYID");
}

long long fleet_slot(struct fleet *f, const char *key)
{
    return rt_int(&f->node[0], "CLUSTER KEYSLOT holdfast:%s", key);
}

void fleet_move_begin(struct fleet *f, long long slot, int from, int to)
{
    rt_do(&f->node[to], "CLUSTER SETSLOT %lld IMPORTING %s", slot,
          node_id(f, from));
    rt_do(&f->node[from], "CLUSTER SETSLOT %lld MIGRATING %s", slot,
          node_id(f, to));
}

void fleet_move_key(struct fleet *f, int from, int to, const char *name)
{
    rt_do(&f->node[from], "MIGRATE 127.0.0.1 %d %b 0 5000", f->node[to].port,
          name, strlen(name));
}

void fleet_move_rest(struct fleet *f, long long slot, int from, int to)
{
    redisReply *keys;
    size_t i, n;

    do {
        keys = rt_ask(&f->node[from], "CLUSTER GETKEYSINSLOT %lld 100", slot);
        n = keys->elements;
        for (i = 0; i < n; i++)
            fleet_move_key(f, from, to, keys->element[i]->str);
        freeReplyObject(keys);
    } while (n);
    rt_do(&f->node[to], "CLUSTER SETSLOT %lld NODE %s", slot, node_id(f, to));
    rt_do(&f->node[from], "CLUSTER SETSLOT %lld NODE %s", slot, node_id(f, to));
}
