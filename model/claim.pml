/* SPDX-License-Identifier: MIT
 *
 * claim.pml - one key, two clients, a service, and a network that loses, delays
 * and reorders messages.
 *
 * It models src/core/acquire.c, grant.c and reaper.c: a claim is tried with one
 * token until it is granted, it is renewed, it is lost or released, and it is
 * taken back where an answer is missing.
 *
 * TIME  `now` counts ticks.  A tick may come between any two steps, so every
 * pause of a process and every delay of a message is covered.  A client counts
 * its lease from the sending of the request; the service counts from the moment
 * it serves it.  A request is in the network for at most DELAY ticks: the
 * reaper relies on that when it ends a claim whose try had no answer.
 *
 * PROMISES  numbered as in test/sim
 *   S1  no two clients believe at once that they hold
 *   S2  a grant has a greater fence than every one that was returned before
 *   S3  who believes is the one whom the service has
 *   S4  a lock that was lost is not held again
 *   S6  when a claim is done, nothing of it is in the service or arrives there
 *
 * BUGS  each breaks one of them
 *   1  the lease counts from the answer                              S1
 *   2  a late answer to a renewal revives a lost lock                S4
 *   3  a release does not compare the token                          S3
 *   4  a try without an answer is forgotten                          S6
 *   5  a renewal makes the key again if it has lapsed                S6
 *   6  "not there" ends a claim although a try of it may arrive      S6
 *   7  the fence is not raised when the service grants               S2
 *   8  a try that finds its own claim granted does not extend it     S3
 *   9  the last release of a claim in doubt is dated by its answer   S6
 */
#ifndef BUG
#define BUG 0
#endif
#ifndef END
#define END 8    /* ticks */
#endif
#ifndef CLAIMS
#define CLAIMS 2 /* of each client, one after the other */
#endif
#ifndef TRIES
#define TRIES 3  /* and renewals, of each claim */
#endif
#ifndef TTL
#define TTL 3
#endif
#define DELAY   TTL
#define SLOTS   3 /* requests that may be in the network */
#define NONE    99
#define LAST    (END - TTL) /* a claim begins before that */

mtype = { TRY, RENEW, RELEASE };
mtype = { OK, BUSY, GONE };
mtype = { IDLE, TRYING, HELD, RENEWING, RELEASING };

byte now = 0;

typedef request {
    mtype kind;     /* 0: this slot is free */
    byte who, token, sent;
    bool current   /* the client waits for its answer */
}
request net[SLOTS];

/* What came back for the request that a client waits for.  An answer to any
 * older request is thrown away, so it is not kept. */
typedef answer {
    mtype said;     /* 0: nothing yet */
    byte fence
}
answer back[2];

/* The service. */
byte owner = NONE; /* the token that has the key */
byte fence = 0;    /* of the last grant */
byte ends = 0;     /* of the lease */
byte shown = 0;    /* the greatest fence that a client was given */

typedef client {
    mtype state;
    byte token, fence;
    byte deadline;  /* it believes before that */
    byte sent;      /* its last request */
    byte claims;    /* still to be made */
    byte tries;     /* and how many tries and renewals of this one */
    byte answered;  /* the first answer to a release; END + 1: none */
    bool doubt;     /* a try had no answer */
    bool lost, done
}
client c[2];

#define BELIEVES(i) (c[i].deadline > now)
/* To send a release again before the last one is served or lost shows nothing
 * new, and makes the search longer. */
#define UNDER_WAY(n) (net[n].kind == RELEASE && net[n].who == me)

inline check() {
    assert(!(BELIEVES(0) && BELIEVES(1)));                           /* S1 */
    assert(!BELIEVES(0) || owner == c[0].token);                     /* S3 */
    assert(!BELIEVES(1) || owner == c[1].token);
    assert(!(c[0].lost && BELIEVES(0)));                             /* S4 */
    assert(!(c[1].lost && BELIEVES(1)));
    assert(!(c[0].done && owner == c[0].token));                     /* S6 */
    assert(!(c[1].done && owner == c[1].token))
}

inline clear(n) {
    net[n].kind = 0; net[n].who = 0; net[n].token = 0; net[n].sent = 0;
    net[n].current = false
}

/* ---- the service and the network ------------------------------------------ */

inline serve(n) {
    if
    :: net[n].kind == TRY && owner == NONE ->
        owner = net[n].token;
        if
        :: BUG != 7 -> fence++
        :: else
        fi;
        ends = now + TTL;
        said = OK
    :: net[n].kind == TRY && owner == net[n].token -> /* backend.h (3), (4) */
        if
        :: BUG != 8 -> ends = now + TTL
        :: else
        fi;
        said = OK
    :: net[n].kind == TRY && owner != NONE && owner != net[n].token ->
        said = BUSY
    :: net[n].kind == RENEW && owner == net[n].token ->
        ends = now + TTL;
        said = OK
    :: net[n].kind == RENEW && owner != net[n].token ->
        said = GONE;
        if
        :: BUG == 5 && owner == NONE ->
            owner = net[n].token;
            ends = now + TTL;
            said = OK
        :: else
        fi
    :: net[n].kind == RELEASE ->
        if
        :: owner != NONE && (owner == net[n].token || BUG == 3) ->
            owner = NONE;
            said = OK
        :: else -> said = GONE
        fi
    fi;
    if
    :: net[n].current ->
        back[net[n].who].said = said;
        back[net[n].who].fence = fence
    :: true     /* the answer is lost */
    fi;
    said = 0
}

active proctype network() {
    mtype said = 0;
    byte n = 0;
    do
    :: atomic {
        if
        :: net[0].kind != 0 -> n = 0
        :: net[1].kind != 0 -> n = 1
        :: net[2].kind != 0 -> n = 2
        fi;
        if
        :: serve(n)
        :: true /* the request is lost */
        fi;
        clear(n);
        n = 0;
        check()
       }
    od
}

inline expire(i) {
    if /* hf_held() is a function of the clock */
    :: c[i].deadline != 0 && c[i].deadline <= now ->
        c[i].deadline = 0;
        c[i].lost = true
    :: else
    fi
}

active proctype clock() {
    byte n = 0;
    do
    :: atomic {
        now < END ->
        now++;
        for (n : 0 .. SLOTS - 1) {
            if
            :: net[n].kind != 0 && net[n].sent + DELAY <= now -> clear(n)
            :: else
            fi
        }
        n = 0;
        if
        :: owner != NONE && ends <= now -> owner = NONE
        :: else
        fi;
        expire(0);
        expire(1);
        check()
       }
    od
}

/* ---- a client --------------------------------------------------------------- */

inline post(what) {
    for (slot : 0 .. SLOTS - 1) {
        if
        :: net[slot].who == me -> net[slot].current = false
        :: else
        fi
    }
    c[me].sent = now;
    back[me].said = 0;
    back[me].fence = 0;
    if
    :: net[0].kind == 0 -> slot = 0
    :: else ->
        if
        :: net[1].kind == 0 -> slot = 1
        :: else -> slot = 2 /* what is there is lost, if anything is */
        fi
    fi;
    clear(slot);
    net[slot].kind = what;
    net[slot].who = me;
    net[slot].token = c[me].token;
    net[slot].current = true;
    net[slot].sent = now;
    slot = 0
}

inline try() {
    c[me].tries--;
    c[me].state = TRYING;
    post(TRY)
}

inline give_back() {
    c[me].deadline = 0;
    c[me].state = RELEASING;
    post(RELEASE)
}

inline finish() {
    c[me].deadline = 0;
    c[me].fence = 0;
    c[me].doubt = false;
    c[me].done = true;
    c[me].answered = END + 1;
    c[me].tries = 0;
    c[me].sent = 0;
    c[me].state = IDLE
}

/* The answer that was waited for is read, whatever it is. */
inline read_answer() {
    said = back[me].said;
    back[me].said = 0
}

proctype user(byte me) {
    byte slot = 0;
    mtype said = 0;
    do
    :: atomic { c[me].state == IDLE && c[me].claims > 0 && now < LAST ->
        c[me].claims--;
        c[me].tries = TRIES;
        c[me].token = me * 10 + c[me].claims;
        c[me].lost = false;
        c[me].done = false;
        try();
        check()
       }
    :: atomic { c[me].state == TRYING && back[me].said != 0 ->
        read_answer();
        if
        :: said == OK ->
            if
            :: BUG == 1 -> c[me].deadline = now + TTL
            :: else -> c[me].deadline = c[me].sent + TTL
            fi;
            if
            :: c[me].deadline > now ->
                assert(back[me].fence > shown);                      /* S2 */
                shown = back[me].fence;
                c[me].state = HELD
            :: else -> /* too late: asked again, or taken back */
                c[me].deadline = 0;
                if
                :: c[me].tries > 0 -> try()
                :: else -> give_back()
                fi
            fi
        :: else ->  /* busy */
            if
            :: c[me].tries > 0 -> try()
            :: !c[me].doubt -> finish()
            :: c[me].doubt -> give_back()
            fi
        fi;
        said = 0;
        check()
       }
    :: atomic { c[me].state == TRYING && back[me].said == 0 -> /* no answer */
        if
        :: c[me].tries > 0 -> c[me].doubt = true; try()
        :: BUG != 4 -> c[me].doubt = true; give_back()
        :: BUG == 4 -> finish()
        fi;
        check()
       }
    :: atomic { c[me].state == HELD ->
        if
        :: BELIEVES(me) && c[me].tries > 0 ->
            c[me].tries--;
            c[me].state = RENEWING;
            post(RENEW)
        :: give_back()
        fi;
        check()
       }
    :: atomic { c[me].state == RENEWING && back[me].said != 0 ->
        read_answer();
        if
        :: said == OK ->
            if
            :: BELIEVES(me) || BUG == 2 -> c[me].deadline = c[me].sent + TTL
            :: else
            fi;
            c[me].state = HELD
        :: else ->  /* it is gone */
            if
            :: BELIEVES(me) -> c[me].lost = true
            :: else
            fi;
            give_back()
        fi;
        said = 0;
        check()
       }
    :: atomic { c[me].state == RENEWING && back[me].said == 0 -> /* no answer */
        c[me].state = HELD;
        check()
       }
    :: atomic { c[me].state == RELEASING && back[me].said != 0 ->
        read_answer();
        if
        :: c[me].answered > END -> c[me].answered = now
        :: else
        fi;
        if /* in doubt it is released for a whole lease from then on; the last
            * release was sent, not answered, after that */
        :: c[me].doubt && BUG != 6 &&
           (BUG == 9 -> now : c[me].sent) < c[me].answered + TTL -> give_back()
        :: else -> finish()
        fi;
        said = 0;
        check()
       }
    :: atomic { c[me].state == RELEASING && back[me].said == 0 && now < END &&
       !UNDER_WAY(0) && !UNDER_WAY(1) && !UNDER_WAY(2) -> /* no answer */
        give_back();
        check()
       }
    :: now >= END -> break
    od
}

init {
    atomic {
        c[0].state = IDLE; c[0].claims = CLAIMS; c[0].token = 90;
        c[0].answered = END + 1;
        c[1].state = IDLE; c[1].claims = CLAIMS; c[1].token = 91;
        c[1].answered = END + 1;
        run user(0);
        run user(1)
    }
}
