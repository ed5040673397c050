/* SPDX-License-Identifier: MIT
 *
 * zk_touch.c - what the leader has heard of a session, and what that proves.
 *
 * Sessions are ended by the leader, and it counts from when it last heard of
 * them.  A client is connected to some server, which need not be the leader.  A
 * follower notes whom it hears, and reports that in its answers to the leader's
 * pings, which come twice a tick.  Requests that it passes on to the leader
 * travel on the same connection, but they do not count as a sign of life there.
 * So an answer proves something about an earlier request only:
 *
 *     client     X ----.  answered at a            Y ----.        answered
 *     follower          f1                                f2 --.
 *     ping's answer            | r: tells of X |               |
 *     leader                       l >= r: X is counted from l  y
 *
 *  - X was received at f1 <= a.  Y was sent at least T after a, so it was
 *    received, and passed on, at f2 >= f1 + T.
 *  - The follower answers a ping once in T at least.  So it did at some r
 *    between f1 and f2, and told of X then at the latest.
 *  - The leader reads r's report before Y: one connection, in order.  So when
 *    it answers Y it has counted from some l >= r >= f1 >= the sending of X.
 *
 * Pings come every half tick, and a session lasts two ticks at least unless the
 * servers were told otherwise (minSessionTimeout): half a tick is a quarter of
 * the session at most.  T is three tenths of it.  A session that connects, for
 * the first time or again, is reported to the leader there and then, so that
 * counts like an X that is told of already.
 *
 * A leader that was deposed may go on answering a sync, and its successor
 * counts anew: from its own beginning, which is after everything that a
 * majority agreed to under the old one.  So nothing is proven beyond the last
 * such write (zk_prove() sees that it is recent).
 *
 * A server that stands alone is its own leader: its answers prove all.
 *
 * INVARIANTS
 *  (1) `known_at` is the sending of a request that the leader knows of by
 *      proof; it rises only.
 *  (2) A session that is up sends something every ninth of its time if it has
 *      places, every sixth if not.  So known_at is never much older than T.
 */
#include "zk.h"

#include "../banned.h"

/* Between two requests, if nobody has any. */
static int64_t touch_spread(const struct zk_session *ses)
{
    return ses->got_ms / (hfi_link_alone(&ses->places) ? 6 : 9);
}

/* What lies between X and Y. */
static int64_t touch_delay(const struct zk_session *ses)
{
    return ses->got_ms * 3 / 10 + 1;
}

/* It is connected: the leader was asked. */
void zk_touch_begin(struct zk_session *ses)
{
    ses->ntouches = 0;
    ses->asked_at = hfi_now();
    if (ses->try_at > ses->known_at)
        ses->known_at = ses->try_at;
}

/* Those that come in quick succession are worth one. */
void zk_touched(struct zk_session *ses, int64_t sent)
{
    struct zk_touch *last =
        &ses->touches[(ses->ntouches + ZK_TOUCHES - 1) % ZK_TOUCHES];

    if (ses->ntouches && sent < last->sent + ses->got_ms / 36)
        return;
    ses->touches[ses->ntouches++ % ZK_TOUCHES] =
        (struct zk_touch){sent, hfi_now()};
}

/* zk_touch.c (1) */
void zk_touch_passed(struct zk_session *ses, int64_t sent)
{
    size_t n = ses->ntouches < ZK_TOUCHES ? ses->ntouches : ZK_TOUCHES, i;
    const struct zk_touch *touch;

    for (i = 0; i < n; i++) {
        touch = &ses->touches[i];
        if (touch->answered + touch_delay(ses) <= sent &&
            touch->sent > ses->known_at)
            ses->known_at = touch->sent;
    }
}

/* zk_touch.c (2) */
int64_t zk_touch_due(const struct zk_session *ses)
{
    return ses->sole ? HFI_NEVER : ses->asked_at + touch_spread(ses);
}

void zk_proof(const struct zk_session *ses, struct hfi_proof *proof)
{
    if (ses->sole)
        return;
    proof->since =
        ses->known_at < ses->proven_at ? ses->known_at : ses->proven_at;
    proof->ms = ses->got_ms;
}
