/* SPDX-License-Identifier: MIT
 *
 * handover.pml - direct hand-over: one key, two clients, a queue.
 *
 * It models src/core/acquire.c (4), upcall.c (hfi_granted) and hand_over.lua of
 * Redis: a lock that is free goes to the first who waits, for WINDOW, and a
 * message says so, with the number of the try that was last served for that
 * waiter.  The waiter counts from the sending of that try.
 *
 * TIME  as in claim.pml.  A request or a message may stay in the network for any
 * time, may be overtaken, and may be lost.
 *
 * PROMISES
 *   S1  no two clients believe at once that they hold
 *   S2  a grant has a greater fence than every one that was returned before
 *   S3  who believes is the one whom the service has
 *
 * BUGS
 *   1  the lease counts from the receipt of the message               S1, S3
 *   2  the number of the try is not compared                          S1, S3
 *   3  a gift is kept while a newer try goes out                      S1, S3
 *   4  the gift is believed for the whole ttl, not for the window     S1, S3
 *   5  a hand-over does not raise the fence                           S2
 */
#ifndef BUG
#define BUG 0
#endif
#ifndef END
#define END 5
#endif
#ifndef CLAIMS
#define CLAIMS 2
#endif
#ifndef TRIES
#define TRIES 2
#endif
#define TTL    2
#define WINDOW 1
#define NONE   99
#define SLOTS  3

mtype = { TRY, RELEASE };
mtype = { OK, BUSY };
mtype = { IDLE, WAITING, HELD };

byte now = 0;

typedef request { mtype kind; byte who, token, nth }
request net[SLOTS];
typedef message { bool there; byte token, nth, fence }
message told[2];              /* on its way to each client */
typedef entry { byte who, token, nth }
entry queue[2];
byte queued = 0;

byte owner = NONE, fence = 0, ends = 0, shown = 0;

typedef client {
    mtype state;
    byte claims, tries, token, nth;
    byte sent;                /* the last try */
    byte deadline;
    mtype said;               /* the answer to the last try */
    byte fence;               /* of it, or of the gift */
    bool gift;                /* noted while it slept */
    byte since                /* BUG 1: when */
}
client c[2];

#define BELIEVES(i) (c[i].deadline > now)

inline check() {
    assert(!(BELIEVES(0) && BELIEVES(1)));                           /* S1 */
    assert(!BELIEVES(0) || owner == c[0].token);                     /* S3 */
    assert(!BELIEVES(1) || owner == c[1].token)
}

inline clear(n) {
    net[n].kind = 0; net[n].who = 0; net[n].token = 0; net[n].nth = 0
}

inline pop() {
    queue[0].who = queue[1].who;
    queue[0].token = queue[1].token;
    queue[0].nth = queue[1].nth;
    queue[1].who = 0; queue[1].token = 0; queue[1].nth = 0;
    queued--
}

/* The lock is free: the first in line has it, unless that is `but`. */
inline pass_on(but) {
    if
    :: queued > 0 && queue[0].token != but ->
        owner = queue[0].token;
        if
        :: BUG != 5 -> fence++
        :: else
        fi;
        ends = now + WINDOW;
        told[queue[0].who].there = true; /* one before it is lost */
        told[queue[0].who].token = queue[0].token;
        told[queue[0].who].nth = queue[0].nth;
        told[queue[0].who].fence = fence;
        pop()
    :: else
    fi
}

inline leave(which) {
    if
    :: queued > 0 && queue[0].token == which -> pop()
    :: queued > 1 && queue[0].token != which &&
       queue[1].token == which ->
        queue[1].who = 0; queue[1].token = 0; queue[1].nth = 0;
        queued--
    :: else
    fi
}

inline stand_in_line(n) {
    if
    :: queued > 0 && queue[0].token == net[n].token -> queue[0].nth = net[n].nth
    :: queued > 1 && queue[0].token != net[n].token &&
       queue[1].token == net[n].token -> queue[1].nth = net[n].nth
    :: else ->
        if
        :: queued < 2 ->
            queue[queued].who = net[n].who;
            queue[queued].token = net[n].token;
            queue[queued].nth = net[n].nth;
            queued++
        :: else
        fi
    fi
}

inline serve(n) {
    if
    :: net[n].kind == TRY ->
        if
        :: owner == NONE -> pass_on(net[n].token)
        :: else
        fi;
        if
        :: owner == NONE ->
            leave(net[n].token);
            owner = net[n].token;
            fence++;
            ends = now + TTL;
            said = OK
        :: owner == net[n].token ->
            if
            :: ends < now + TTL -> ends = now + TTL
            :: else
            fi;
            said = OK
        :: else ->
            stand_in_line(n);
            said = BUSY
        fi;
        if
        :: c[net[n].who].state == WAITING && c[net[n].who].nth == net[n].nth &&
           c[net[n].who].token == net[n].token ->
            c[net[n].who].said = said;
            if
            :: said == OK -> c[net[n].who].fence = fence
            :: else
            fi
        :: true
        fi;
        said = 0
    :: net[n].kind == RELEASE ->
        if
        :: owner == net[n].token -> owner = NONE; pass_on(NONE)
        :: else -> leave(net[n].token)
        fi
    fi
}

proctype network(byte n) {
    mtype said = 0;
    do
    :: atomic { net[n].kind != 0 -> serve(n); clear(n); check() }
    :: atomic { net[n].kind != 0 -> clear(n) } /* lost */
    od
}

active proctype clock() {
    do
    :: atomic { now < END ->
        now++;
        if
        :: owner != NONE && ends <= now -> owner = NONE
        :: else
        fi;
        if
        :: c[0].deadline <= now -> c[0].deadline = 0
        :: else
        fi;
        if
        :: c[1].deadline <= now -> c[1].deadline = 0
        :: else
        fi;
        check()
       }
    od
}

inline post(what) {
    if
    :: net[0].kind == 0 -> slot = 0
    :: net[0].kind != 0 && net[1].kind == 0 -> slot = 1
    :: net[0].kind != 0 && net[1].kind != 0 -> slot = 2
    fi;
    net[slot].kind = what;
    net[slot].who = me;
    net[slot].token = c[me].token;
    net[slot].nth = c[me].nth;
    slot = 0
}

inline try() {
    c[me].tries--;
    c[me].nth++;
    c[me].sent = now;
    c[me].said = 0;
    if
    :: BUG != 3 -> c[me].gift = false; c[me].fence = 0
    :: else
    fi;
    post(TRY)
}

inline granted(ms) {
    c[me].deadline = c[me].sent + ms;
    if
    :: BUG == 1 && c[me].gift -> c[me].deadline = c[me].since + ms
    :: else
    fi;
    c[me].gift = false;
    c[me].said = 0;
    if
    :: c[me].deadline > now ->
        assert(c[me].fence > shown);                                 /* S2 */
        shown = c[me].fence;
        c[me].state = HELD
    :: else -> c[me].deadline = 0
    fi;
    c[me].fence = 0;
    c[me].since = 0
}

proctype user(byte me) {
    byte slot = 0;
    do
    :: atomic { c[me].state == IDLE && c[me].claims > 0 && now < END - 1 ->
        c[me].claims--;
        c[me].token = me * 10 + c[me].claims;
        c[me].tries = TRIES;
        c[me].nth = 0;
        c[me].state = WAITING;
        try();
        check()
       }
    :: atomic { c[me].state == WAITING && c[me].tries > 0 -> try(); check() }
    :: atomic { told[me].there ->
        if
        :: c[me].state == WAITING && told[me].token == c[me].token &&
           (told[me].nth == c[me].nth || BUG == 2) ->
            c[me].gift = true;
            c[me].fence = told[me].fence;
            c[me].since = (BUG == 1 -> now : 0)
        :: else
        fi;
        told[me].there = false;
        told[me].token = 0; told[me].nth = 0; told[me].fence = 0;
        check()
       }
    :: atomic { c[me].state == WAITING && c[me].gift ->
        granted((BUG == 4 -> TTL : WINDOW));
        check()
       }
    :: atomic { c[me].state == WAITING && c[me].said == OK ->
        granted(TTL);
        check()
       }
    :: atomic { c[me].state == HELD ||
       (c[me].state == WAITING && c[me].tries == 0) -> /* given back, or up */
        c[me].deadline = 0;
        c[me].state = IDLE;
        c[me].said = 0;
        c[me].gift = false;
        c[me].fence = 0;
        c[me].since = 0;
        c[me].sent = 0;
        post(RELEASE);
        check()
       }
    od
}

init {
    atomic {
        c[0].state = IDLE; c[0].claims = CLAIMS; c[0].token = 90;
        c[1].state = IDLE; c[1].claims = CLAIMS; c[1].token = 91;
        run network(0);
        run network(1);
        run network(2);
        run user(0);
        run user(1)
    }
}
