/* SPDX-License-Identifier: MIT
 *
 * sharing_peer.c - other libraries at the end of a pipe; see sharing_peer.h.
 */
#include "sharing_peer.h"

#include "bench.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Long enough for a compiler at run time. */
#define WARM_UP "among 8 3000 4"

/* The command runs in a shell, in the directory of the sources. */
static const struct {
    const char *name, *command;
} kinds[] = {
    {"Curator", "exec \"${HF_PEERS:-build/bench/peers}/curator\""},
    {"kazoo", "exec /usr/bin/python3 -B bench/peers/kazoo_lock.py"},
};

/* Its next line; false: it has ended. */
static bool read_line(struct sharing_peer *peer, char *ret, int size)
{
    return fgets(ret, size, peer->from) != NULL;
}

static bool peer_start(struct sharing_peer *peer, const char *command)
{
    int in[2], out[2];
    char line[300];

    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        bench_die_errno("pipe");
    peer->pid = fork();
    if (peer->pid < 0)
        bench_die_errno("fork");
    if (!peer->pid) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(in[0]), close(out[1]);
    peer->to = fdopen(in[1], "w");
    peer->from = fdopen(out[0], "r");
    if (!peer->to || !peer->from)
        bench_die_errno("fdopen");
    return read_line(peer, line, sizeof(line)) && !strncmp(line, "ready", 5);
}

double sharing_peer_ask(struct sharing_peer *peer, const char *question)
{
    double turns, ns;
    char line[300];

    fprintf(peer->to, "%s\n", question);
    fflush(peer->to);
    if (!read_line(peer, line, sizeof(line)) ||
        sscanf(line, "ok %lf %lf", &turns, &ns) != 2)
        bench_die("%s does not answer '%s'", peer->name, question);
    return turns * 1e9 / ns;
}

size_t sharing_peers_start(const char *url, struct sharing_peer *peers,
                           size_t room)
{
    size_t i, n = 0;

    if (strncmp(url, "zk:", 3) != 0)
        return 0;
    for (i = 0; i < sizeof(kinds) / sizeof(*kinds) && n < room; i++) {
        peers[n] = (struct sharing_peer){.name = kinds[i].name};
        if (peer_start(&peers[n], kinds[i].command)) {
            sharing_peer_ask(&peers[n], WARM_UP);
            n++;
            continue;
        }
        printf("%s: left out, it cannot be started\n", kinds[i].name);
        sharing_peers_end(&peers[n], 1);
    }
    return n;
}

void sharing_peers_end(struct sharing_peer *peers, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        fclose(peers[i].to);
        fclose(peers[i].from);
        waitpid(peers[i].pid, NULL, 0);
    }
}
