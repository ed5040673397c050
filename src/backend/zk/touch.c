/* SPDX-License-Identifier: MIT
 *
 * touch.c - what the leader has heard of a session, and what that proves.
 *
 * Sessions are ended by the leader, and it counts from when it last heard of
 * them.  A client is connected to some server, which need not be the leader.  A
 * follower notes whom it hears, and reports that in its answers to the leader's
 * pings, which come twice a tick.  Requests that it passes on to the leader
 * travel on the same connection, but they do not count as a sign of life there.
 * So an answer proves something about an earlier request X only, and only by
 * the order of messages: bytes between the two servers may be late, in either
 * direction, for longer than any limit that we could assume.  Three requests
 * that pass the leader follow X, each sent after the one before was answered:
 *
 *     client    X-.  .a     A--.       .a    B--.       .a    C--.       .a
 *     follower     f            \     /           \  r  /          \     /
 *     leader                     lA                 p  lB           lC
 *
 *  - X was received at f, and answered at X.a >= f.
 *  - A was sent at least H after X.a, where H is the time between two pings.
 *    The leader answered it at lA, so it was running then, and a ping that is
 *    later than X.a had been sent or was due.
 *  - B was sent a while after A.a, so lB is that much later than lA.  The
 *    leader was running at both times, so by lB it had sent a ping that was due
 *    at lA: there is a ping p with X.a <= p <= lB.
 *  - The leader's answer to B travels behind p on the connection to the
 *    follower, which takes both in order.  So the follower took p at some r with
 *    X.a <= p <= r <= B.a, and in its answer, or in an earlier one, it told of
 *    X.  If p is late, then B.a is.
 *  - C was sent after B.a, so the follower passed it on after r, on the
 *    connection on which it answers pings.  So the leader has read the report of
 *    X before C, and when C is answered it has counted from some time that is
 *    not before f >= the sending of X.  If the report is late, then C.a is.
 *
 * No delay of a message is assumed.  Two things are, of the leader alone.
 * Pings are due every half tick, and a session lasts two ticks at least unless
 * the servers were told otherwise (minSessionTimeout): half a tick is a quarter
 * of the session at most.  H is three tenths of it.  And a leader that was seen
 * running twice, a thirty-sixth of the session's time apart, has in between run
 * the thread whose ping was due.  Nothing that a client is told depends on a
 * ping, so that cannot be seen.  A leader that was stopped and goes on is
 * covered: A is answered after that.
 *
 * A session that connects, for the first time or again, is reported to the
 * leader there and then, so that counts like an X that is told of already.
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
 *  (2) A session that is up sends an X every ninth of its time if it has
 *      nodes, every sixth if not; that is an A for an earlier one.  B and C
 *      follow as soon as they may (`chase_at`).  They are no X themselves, so
 *      nothing follows upon them.
 */
#include "zk.h"

#include "base/mutant.h"

#include "base/banned.h"

/* Between two requests, if nobody has any. */
static int64_t touch_spread(const struct zk_session *ses)
{
    if (HFI_MUTANT(answer_of_a_follower))
        return ses->got_ms; /* renewals will do */
    return ses->got_ms / (hfi_link_alone(&ses->nodes) ? 6 : 9);
}

/* H: what lies between X and A. */
static int64_t touch_delay(const struct zk_session *ses)
{
    return ses->got_ms * 3 / 10 + 1;
}

/* What lies between two requests that are worth noting; between A and B. */
static int64_t touch_apart(const struct zk_session *ses)
{
    return ses->got_ms / 36 + 1;
}

/* It is connected: the leader was asked. */
void zk_touch_begin(struct zk_session *ses)
{
    ses->ntouches = 0;
    ses->chase_at = HFI_NEVER;
    ses->asked_at = hfi_now();
    if (ses->try_at > ses->known_at)
        ses->known_at = ses->try_at;
}

/* Those that come in quick succession are worth one. */
void zk_touched(struct zk_session *ses, int64_t sent)
{
    struct zk_touch *last =
        &ses->touches[(ses->ntouches + ZK_TOUCHES - 1) % ZK_TOUCHES];

    if (ses->ntouches && sent < last->sent + touch_apart(ses))
        return;
    ses->touches[ses->ntouches++ % ZK_TOUCHES] =
        (struct zk_touch){sent, hfi_now() + touch_delay(ses), 0};
}

/* A, B or C was answered.  The clock counts whole milliseconds: what is sent in
 * the one of an answer may be from before it. */
static void touch_advance(struct zk_session *ses, struct zk_touch *touch)
{
    touch->passed++;
    touch->after = hfi_now() + (touch->passed == 1 ? touch_apart(ses) : 1);
    if (touch->passed == 3)
        ses->known_at = touch->sent;
}

/* touch.c (1), (2) */
void zk_touch_passed(struct zk_session *ses, int64_t sent)
{
    size_t n = ses->ntouches < ZK_TOUCHES ? ses->ntouches : ZK_TOUCHES, i;
    int64_t next = HFI_NEVER;
    struct zk_touch *touch;

    if (ses->standalone)
        return;
    if (HFI_MUTANT(answer_of_a_follower)) {
        ses->known_at = sent > ses->known_at ? sent : ses->known_at;
        return;
    }
    for (i = 0; i < n; i++) {
        touch = &ses->touches[i];
        if (touch->sent > ses->known_at && sent >= touch->after)
            touch_advance(ses, touch);
    }
    for (i = 0; i < n; i++) {
        touch = &ses->touches[i];
        if (touch->sent > ses->known_at && touch->passed && touch->after < next)
            next = touch->after;
    }
    if (next < ses->chase_at)
        hfi_notifier_notify(&ses->notifier);
    ses->chase_at = next;
}

/* When the next X is. */
static int64_t touch_next(const struct zk_session *ses)
{
    return ses->asked_at + touch_spread(ses);
}

/* touch.c (2) */
int64_t zk_touch_due(const struct zk_session *ses)
{
    int64_t next = touch_next(ses);

    if (ses->standalone)
        return HFI_NEVER;
    return next < ses->chase_at ? next : ses->chase_at;
}

/* It is sent: true if it is an X. */
bool zk_touch_sent(struct zk_session *ses)
{
    int64_t now = hfi_now();
    bool counts = now >= touch_next(ses);

    ses->chase_at = HFI_NEVER;
    if (counts)
        ses->asked_at = now;
    return counts;
}

void zk_proof(const struct zk_session *ses, struct hfi_proof *proof)
{
    if (ses->standalone)
        return;
    proof->since =
        ses->known_at < ses->proven_at ? ses->known_at : ses->proven_at;
    proof->ms = ses->got_ms;
}
