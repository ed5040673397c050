/* SPDX-License-Identifier: MIT
 *
 * session.pml - one key whose grants hang on sessions, two clients, a service,
 * and a network that loses, delays and reorders messages.
 *
 * It models src/backend/session.h (1), (2) and src/core/sweep.c (1), (2), and what
 * etcd, ZooKeeper and Consul have in common: a grant lasts as long as the session
 * that carries it, one message renews the session with all that hangs on it, and a
 * handle that was given away is taken up by another client in one step.  What
 * happens to a try without an answer is in claim.pml.
 *
 * TIME  as in claim.pml: a tick may come between any two steps.  A client counts a
 * session from the sending of the request, the service from the moment it serves
 * it.  A server that was deposed may answer a renewal from memory; its answers
 * name an older term.
 *
 * PROMISES  numbered as in test/sim; H and W are of handles and sweeps
 *   S1  no two clients believe at once that they hold
 *   S3  who believes is the one whom the service has, on its own session
 *   S4  a lock that was lost is not held again
 *   H   a handle that nobody took up stands until its lease is over
 *   W   what counts as swept is not in the service
 *
 * BUGS  each breaks one of them
 *   1  a session counts as alive from the answer                        S3
 *   2  a claim is kept on a dead session, and lives on with the next    S3, S4
 *   3  a sweep counts before the service has answered                   W
 *   4  a sweep does not wait for the end of the lease                   H
 *   5  a sweep compares neither token nor session                       S3
 *   6  the answer of a deposed server is believed                       S3
 *   7  a handle that was taken up counts from the lease of its giver    S3
 *   8  a late answer revives a session that had lapsed here             S4
 */
#ifndef BUG
#define BUG 0
#endif
#ifndef END
#define END 6   /* ticks */
#endif
#ifndef TTL
#define TTL 2   /* of a session, and of what hangs on it */
#endif
#ifndef KEEPS
#define KEEPS 3 /* renewals of each client */
#endif
#ifndef OPENS
#define OPENS 2 /* sessions of each client */
#endif
#ifndef TRIES
#define TRIES 2 /* of each client */
#endif
#define DELAY TTL
#define SLOTS 3
#define NONE  99

mtype = { OPEN, KEEP, TRY, MOVE, RELEASE, SWEEP };
mtype = { OK, BUSY, GONE };
mtype = { IDLE, HELD, LEFT, SWEPT };

byte now = 0;

typedef request {
    mtype kind;    /* 0: this slot is free */
    byte who, session, sent;
    bool current   /* the client waits for its answer */
}
request net[SLOTS];

typedef answer {
    mtype said;    /* 0: nothing yet */
    bool older     /* it names an older term */
}
answer back[2];

/* The service.  A token is the number of its client. */
byte owner = NONE;   /* the token that has the key */
byte carrier = NONE; /* the client whose session carries it */
byte living[2];      /* the session of each client; 0: none */
byte ends[2];        /* when it lapses */

/* The handle of client 0's grant: 1 it was given away, 2 taken up. */
byte handle = 0;
byte until = 0; /* its lease */

typedef client {
    mtype pending; /* the kind of the request that it waits for; 0: none */
    mtype phase;   /* of its claim */
    byte session;  /* 0: none */
    byte proven;   /* it is relied on before that */
    byte deadline; /* the lock is believed before that */
    byte sent;
    byte opens, keeps, tries;
    bool doubt;    /* a try or a move had no answer */
    bool lost
}
client c[2];

#define BELIEVES(i) (c[i].deadline > now)

inline check() {
    assert(!(BELIEVES(0) && BELIEVES(1)));                           /* S1 */
    assert(!BELIEVES(0) || (owner == 0 && carrier == 0));            /* S3 */
    assert(!BELIEVES(1) || (owner == 1 && carrier == 1));
    assert(!(c[0].lost && BELIEVES(0)));                             /* S4 */
    assert(!(c[1].lost && BELIEVES(1)));
    assert(!(handle == 1 && now < until) || owner == 0);             /* H */
    assert(!(c[0].phase == SWEPT && owner == 0))                     /* W */
}

inline clear(n) {
    net[n].kind = 0; net[n].who = 0; net[n].session = 0; net[n].sent = 0;
    net[n].current = false
}

/* ---- the service and the network ------------------------------------------ */

#define WHO     net[n].who
#define ITS_OWN (living[WHO] != 0 && living[WHO] == net[n].session)

inline free_key() {
    owner = NONE;
    carrier = NONE
}

inline take_key() {
    owner = WHO;
    carrier = WHO;
    said = OK
}

inline serve(n) {
    if
    :: net[n].kind == OPEN && net[n].session > living[WHO] ->
        if /* what hung on the one before goes with it */
        :: carrier == WHO -> free_key()
        :: else
        fi;
        living[WHO] = net[n].session;
        ends[WHO] = now + TTL;
        said = OK
    :: net[n].kind == OPEN && net[n].session <= living[WHO] -> said = GONE
    :: net[n].kind == KEEP && ITS_OWN -> ends[WHO] = now + TTL; said = OK
    :: net[n].kind == TRY && ITS_OWN && (owner == NONE || owner == WHO) ->
        take_key()
    :: net[n].kind == TRY && ITS_OWN && owner != NONE && owner != WHO ->
        said = BUSY
    :: net[n].kind == MOVE && ITS_OWN && owner == 0 && handle == 1 ->
        handle = 2;
        take_key()
    :: net[n].kind == MOVE && ITS_OWN && owner == 1 -> said = OK
    :: net[n].kind == MOVE && ITS_OWN && !(owner == 0 && handle == 1) &&
       owner != 1 -> said = GONE
    :: (net[n].kind == KEEP || net[n].kind == TRY || net[n].kind == MOVE) &&
       !ITS_OWN -> said = GONE
    :: net[n].kind == RELEASE ->
        said = OK;
        if
        :: owner == WHO -> free_key()
        :: else
        fi
    :: net[n].kind == SWEEP ->
        said = OK;
        if
        :: BUG == 5 || (owner == WHO && carrier == WHO) -> free_key()
        :: else
        fi
    fi;
    if
    :: net[n].current -> back[WHO].said = said; back[WHO].older = false
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
        :: net[n].kind == KEEP && net[n].current -> /* a deposed server */
            back[WHO].said = OK;
            back[WHO].older = true
        :: true /* the request is lost */
        fi;
        clear(n);
        n = 0;
        check()
       }
    od
}

inline lapse(i) {
    if
    :: living[i] != 0 && ends[i] <= now ->
        living[i] = 0;
        ends[i] = 0;
        if
        :: carrier == i -> free_key()
        :: else
        fi
    :: else
    fi;
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
        lapse(0);
        lapse(1);
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
    c[me].pending = what;
    back[me].said = 0;
    back[me].older = false;
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
    net[slot].session = c[me].session;
    net[slot].current = true;
    net[slot].sent = now;
    slot = 0
}

/* session.h (2): it is not used again, and no claim is kept on it. */
inline session_died() {
    c[me].proven = 0;
    if
    :: c[me].phase == HELD && BUG != 2 ->
        c[me].deadline = 0;
        c[me].lost = true;
        c[me].phase = IDLE
    :: else
    fi
}

/* session.h (1) */
inline session_proven() {
    if
    :: BUG == 1 -> c[me].proven = now + TTL
    :: else -> c[me].proven = c[me].sent + TTL
    fi;
    if /* and what hangs on it, unless that was lost */
    :: c[me].phase == HELD && (BELIEVES(me) || BUG == 2 || BUG == 8) ->
        c[me].deadline = c[me].proven
    :: else
    fi
}

inline granted() {
    if
    :: c[me].proven > now && !c[me].lost ->
        c[me].phase = HELD;
        c[me].deadline = c[me].proven;
        if
        :: BUG == 7 && c[me].pending == MOVE -> c[me].deadline = until
        :: else
        fi
    :: else /* too late: claim.pml */
    fi
}

#define READY(i) (c[i].pending == 0 && now < END)
#define SWEEPING(n) (net[n].kind == SWEEP)

proctype user(byte me) {
    byte slot = 0;
    do
    :: atomic { READY(me) && c[me].proven == 0 && c[me].opens > 0 ->
        c[me].opens--;
        c[me].session++;
        post(OPEN);
        check()
       }
    :: atomic { READY(me) && c[me].proven > 0 && c[me].keeps > 0 ->
        c[me].keeps--;
        post(KEEP);
        check()
       }
    :: atomic { READY(me) && c[me].proven > now && c[me].phase == IDLE &&
       c[me].tries > 0 && !c[me].lost ->
        c[me].tries--;
        if
        :: me == 1 && handle != 0 -> post(MOVE)
        :: post(TRY)
        fi;
        check()
       }
    :: atomic { READY(me) && c[me].phase == HELD ->
        if
        :: me == 0 && BELIEVES(me) && !c[me].doubt -> /* hf_detach() */
            until = c[me].deadline;
            handle = 1;
            c[me].deadline = 0;
            c[me].phase = LEFT
        :: c[me].deadline = 0;
            c[me].phase = IDLE;
            c[me].lost = true; /* one claim of each client */
            post(RELEASE)
        fi;
        check()
       }
    :: atomic { READY(me) && c[me].phase == LEFT &&
       (now >= until || BUG == 4) && !SWEEPING(0) && !SWEEPING(1) &&
       !SWEEPING(2) ->
        post(SWEEP); /* sweep.c (1) */
        if
        :: BUG == 3 -> c[me].phase = SWEPT
        :: else
        fi;
        check()
       }
    :: atomic { c[me].pending != 0 && back[me].said != 0 ->
        if
        :: c[me].pending == OPEN && back[me].said == OK -> session_proven()
        :: c[me].pending == KEEP && back[me].said == OK &&
           (!back[me].older || BUG == 6) -> session_proven()
        :: (c[me].pending == KEEP || c[me].pending == TRY ||
           c[me].pending == MOVE) && back[me].said == GONE -> session_died()
        :: (c[me].pending == TRY || c[me].pending == MOVE) &&
           back[me].said == OK -> granted()
        :: c[me].pending == SWEEP && c[me].phase == LEFT ->
            c[me].phase = SWEPT /* sweep.c (2) */
        :: else
        fi;
        back[me].said = 0;
        back[me].older = false;
        c[me].pending = 0;
        check()
       }
    :: atomic { c[me].pending != 0 && back[me].said == 0 -> /* no answer */
        if
        :: c[me].pending == TRY || c[me].pending == MOVE -> c[me].doubt = true
        :: else
        fi;
        c[me].pending = 0;
        check()
       }
    :: now >= END -> break
    od
}

init {
    atomic {
        c[0].phase = IDLE; c[0].opens = OPENS; c[0].keeps = KEEPS;
        c[0].tries = TRIES;
        c[1].phase = IDLE; c[1].opens = OPENS; c[1].keeps = KEEPS;
        c[1].tries = TRIES;
        run user(0);
        run user(1)
    }
}
