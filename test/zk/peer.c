/* SPDX-License-Identifier: MIT
 *
 * peer.c - peer.h says what for.
 */
#include "peer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

const struct peer_kind peer_curator = {"curator-peer", ""};
const struct peer_kind peer_kazoo = {"kazoo-peer", "?layout=kazoo"};
const struct peer_kind peer_curator_rw = {"curator-peer", "?recipe=readwrite"};
const struct peer_kind peer_kazoo_rw = {"kazoo-peer",
                                        "?layout=kazoo&recipe=readwrite"};

void peer_tell(struct peer *peer, const char *text)
{
    fprintf(peer->in, "%s\n", text);
    fflush(peer->in);
}

bool peer_says(struct peer *peer, int ms)
{
    struct pollfd pfd = {.fd = fileno(peer->out), .events = POLLIN};

    return poll(&pfd, 1, ms) > 0;
}

void peer_hear(struct peer *peer, const char *want)
{
    char line[128] = "";

    if (!peer_says(peer, 60000) || !fgets(line, sizeof(line), peer->out))
        t_fail(__FILE__, __LINE__, "the peer does not say '%s'", want);
    line[strcspn(line, "\n")] = 0;
    CHECK_STR(line, want);
}

static struct peer peer_start(const struct peer_kind *kind, const char *key)
{
    int to[2], from[2];
    char program[512];
    struct peer peer;

    snprintf(program, sizeof(program), "%s/%s", getenv("HF_ZK_PEERS"),
             kind->program);
    CHECK_EQ(pipe2(to, O_CLOEXEC), 0);
    CHECK_EQ(pipe2(from, O_CLOEXEC), 0);
    peer.pid = fork();
    if (peer.pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl(program, program, getenv("HF_ZK_HOSTS"), zkt_path(key),
              (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    peer.in = fdopen(to[1], "w");
    peer.out = fdopen(from[0], "r");
    setvbuf(peer.out, NULL, _IONBF, 0);
    peer_hear(&peer, "ready");
    return peer;
}

static void peer_end(struct peer *peer)
{
    fclose(peer->in);
    fclose(peer->out);
    waitpid(peer->pid, NULL, 0);
}

struct peer_scene peer_begin(const struct peer_kind *kind)
{
    struct peer_scene s = {.key = zkt_key("k")};

    s.peer = peer_start(kind, s.key);
    zkt_begin();
    s.a = zkt_open(zkt_url(kind->options));
    s.b = zkt_open(zkt_url(kind->options));
    return s;
}

void peer_finish(struct peer_scene *s)
{
    peer_end(&s->peer);
    t_poll_until(zkt_children(zkt_path(s->key)) == 0, 10000);
    hf_close(s->a);
    hf_close(s->b);
    zkt_end();
}

void peer_do(struct peer *peer, const char *text, const char *want)
{
    peer_tell(peer, text);
    peer_hear(peer, want);
}
