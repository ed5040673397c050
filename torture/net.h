/* SPDX-License-Identifier: MIT
 *
 * net.h - a network that misbehaves on demand.
 *
 * A net listens on ports of the loopback interface and carries what comes there
 * to one server each.  What it does to the bytes is said in words, one command
 * at a time, while it runs:
 *
 *     SCOPE [DIRECTION] VERB [NUMBER...]
 *
 *   SCOPE      all | port N | conn N    ports and connections count from 1, and
 *              conn N may be said before that connection exists
 *   DIRECTION  up | down | both         to the server, to the client; both is
 *              what is meant if nothing is said
 *   VERB       pass                     as if nothing had ever been said
 *              delay MS [JITTER]        every byte is late; none overtakes
 *              throttle N               N bytes a second
 *              slice                    one byte at a time
 *              cut N                    N bytes more, then the end; once
 *              drop                     what is sent vanishes, nobody is told; who
 *                                       lost something gets RST when it would
 *                                       pass again
 *              drop-reply K             the K-th answer from now on vanishes,
 *                                       whole; once.  The connection gets RST
 *                                       when the server says more
 *              lie-reset P              P of 100 answers are not carried: the server
 *                                       has done what it was asked, and both
 *                                       sides get RST
 *              lie-http P               the same, and the client is told 503,
 *                                       then FIN
 *              lie-grpc P               the same, and each request that waits is
 *                                       told UNAVAILABLE, then FIN
 *              hold                     nothing moves; it goes on after pass
 *              half                     the end of this direction; the other
 *                                       goes on
 *              reset                    both sides get RST
 *              close                    both sides get FIN
 *              refuse | accept          of a port: new connections get RST
 *     stat                              prints `connections C open O up U down D
 *                                       cuts K dropped R`
 *
 * A connection obeys the command for it alone if there was one, else that of
 * its port.  What counts down (cut, drop-reply) counts for all connections that
 * obey the same command.  An answer is everything that the server says between
 * two things that the client says.
 */
#ifndef NET_H
#define NET_H

#include <stdbool.h>
#include <stddef.h>

struct net;

/* A net without ports, whose thread runs; NULL: errno says why. */
struct net *net_new(void);
void net_free(struct net *net);

/* Another port, which leads to `host` and `service`; its TCP number, or -1.
 * The first is `port 1`. */
int net_port(struct net *net, const char *host, const char *service);

/* Carry out one command.  The answer is "ok", a line of figures, or "error: "
 * and why; true unless it is an error.  Any thread. */
bool net_tell(struct net *net, const char *command, char *answer, size_t size);

#endif
