/* SPDX-License-Identifier: MIT
 *
 * redlock.pml - the fence over majorities: three nodes, and clients each of
 * which makes one claim, in one or more tries with the same token.
 *
 * It models src/backend/redlock/redlock.c (4), acquire.c, rule.c and node.lua
 * (A and W): a try asks all nodes, the largest proposal of a majority that has
 * said yes is to be confirmed, and the grant is returned when a majority has
 * confirmed it.
 *
 * TIME  There is none.  A request is served at any later moment or never, in
 * any order; its answer arrives, or is lost.  A key may expire at any moment,
 * also at once: so exclusion is not promised here, and a release, or a take-back
 * that arrives late, does nothing that an expiry does not do.  A node's clock
 * may say anything: node 0 proposes up to CLOCK more than it must.
 *
 * PROMISES
 *   S2  a fence is greater than that of every grant that was returned before
 *       its confirmation began
 *   U   no two grants that are returned have the same fence
 *   P   a node that said yes, and still has the token, confirms the fence
 *
 * BUGS  each breaks one of them
 *   1  a node confirms without comparing                              U
 *   2  a minority confirms                                            U
 *   3  the smallest proposal is to be confirmed, not the largest      P
 *   4  a node confirms for a token that it does not have              P
 *   5  a later try may have the fence of an earlier one               P
 *   6  a node that has confirmed this fence says yes to any token     U
 */
#ifndef BUG
#define BUG 0
#endif
#ifndef CLIENTS
#define CLIENTS 3
#endif
#ifndef TRIES
#define TRIES 2  /* of client 0; the others have OTHERS */
#endif
#ifndef OTHERS
#define OTHERS 1
#endif
#ifndef CLOCK
#define CLOCK 1
#endif
#define NODES    3
#define MAJORITY 2
#define NOBODY   15
#define MOST     14 /* the greatest fence */

mtype = { NEXT, TAKING, CONFIRMING, DONE };

typedef node {
    byte holder;     /* of the key */
    byte confirmed;  /* c: the largest fence */
    byte whose       /* k */
}
node nodes[NODES];

/* Requests that were sent and not served, of each client to each node.  The
 * confirmation of an earlier try is `old`.  Two tries say the same to a node, so
 * it is enough to count them; the answer of the latest is waited for. */
typedef wire {
    byte take, confirm, old;
    bool current  /* the answer to `take`, or to `confirm`, is waited for */
}
typedef client {
    mtype state;
    byte tries;
    byte fence;      /* the one to be confirmed */
    byte floor;
    byte votes;      /* how many nodes have said yes, or have confirmed */
    byte owners;     /* of them had confirmed `own` for this claim */
    byte own;
    byte shown;      /* the greatest that was returned when it began */
    wire to[NODES];
    bool steady[NODES] /* it has voted, and the key has stayed since */
}
client c[CLIENTS];

byte shown = 0;  /* the greatest fence that was returned */

hidden byte x;

/* The key of node n is gone. */
inline expire(n) {
    c[nodes[n].holder].steady[n] = false;
    nodes[n].holder = NOBODY
}

inline vote(i, n, proposal) {
    c[i].votes++;
    c[i].steady[n] = true;
    if
    :: proposal < c[i].floor -> x = c[i].floor
    :: else -> x = proposal
    fi;
    if
    :: BUG != 3 && x > c[i].fence -> c[i].fence = x
    :: BUG == 3 && (c[i].fence == 0 || x < c[i].fence) -> c[i].fence = x
    :: else
    fi;
    x = 0;
    if
    :: nodes[n].whose == i && nodes[n].confirmed >= c[i].floor &&
       nodes[n].confirmed > 0 ->
        if
        :: nodes[n].confirmed > c[i].own ->
            c[i].own = nodes[n].confirmed;
            c[i].owners = 1
        :: nodes[n].confirmed == c[i].own -> c[i].owners++
        :: else
        fi
    :: else
    fi
}

/* A grant that was returned is forgotten at once: its keys may expire now, and
 * what is still under way for it is refused without them. */
inline forget(i) {
    for (m : 0 .. NODES - 1) {
        c[i].to[m].take = 0;
        c[i].to[m].old = 0;
        if
        :: nodes[m].holder == i -> nodes[m].holder = NOBODY
        :: else
        fi
    }
    m = 0
}

/* What client i asked for is not waited for any more. */
inline hear_no_more(i) {
    for (m : 0 .. NODES - 1) {
        c[i].to[m].current = false
    }
    m = 0
}

/* The try of client i is over. */
inline try_ends(i) {
    c[i].votes = 0;
    c[i].owners = 0;
    c[i].own = 0;
    for (m : 0 .. NODES - 1) {
        c[i].to[m].current = false;
        c[i].steady[m] = false;
        if
        :: c[i].to[m].confirm > 0 ->
            c[i].to[m].old = c[i].to[m].confirm; /* one older is lost */
            c[i].to[m].confirm = 0
        :: else
        fi
    }
    m = 0
}

inline returned(i, number) {
    assert(number != shown);                                         /* U */
    assert(number > c[i].shown);                                     /* S2 */
    if
    :: number > shown -> shown = number
    :: else
    fi;
    try_ends(i);
    forget(i);
    c[i].state = DONE;
    c[i].fence = 0;
    c[i].floor = 0;
    c[i].tries = 0;
    c[i].shown = 0
}

inline serve_take(i, n) {
    c[i].to[n].take--;
    if
    :: nodes[n].holder == NOBODY -> nodes[n].holder = i
    :: else
    fi;
    if /* it says yes, and that is heard */
    :: nodes[n].holder == i && c[i].state == TAKING && c[i].to[n].current &&
       nodes[n].confirmed + 1 + CLOCK <= MOST ->
        c[i].to[n].current = false;
        if
        :: vote(i, n, nodes[n].confirmed + 1)
        :: n == 0 -> vote(i, n, nodes[n].confirmed + 1 + CLOCK)
        fi;
        if
        :: c[i].votes == MAJORITY -> hear_no_more(i)
        :: else
        fi
    :: true
    fi;
    if
    :: c[i].to[n].take == 0 -> c[i].to[n].current = false
    :: else
    fi
}

inline serve_confirm(i, n, number, now) {
    if
    :: nodes[n].holder != i && BUG != 4 -> said = false
    :: else ->
        if
        :: nodes[n].confirmed == number ->
            said = nodes[n].whose == i || BUG == 1 || BUG == 6
        :: nodes[n].confirmed > number && BUG != 1 -> said = false
        :: else ->
            said = true;
            nodes[n].confirmed = number;
            nodes[n].whose = i
        fi
    fi;
    if
    :: now && c[i].state == CONFIRMING && c[i].to[n].current ->
        assert(said || !c[i].steady[n]);                             /* P */
        c[i].to[n].current = false;
        if
        :: said -> /* it is heard */
            c[i].votes++;
            if
            :: c[i].votes >= MAJORITY || BUG == 2 -> returned(i, c[i].fence)
            :: else
            fi
        :: true
        fi
    :: else
    fi;
    said = false
}

/* What may happen between client i and node n. */
proctype link(byte i, n) {
    byte m = 0;
    bool said = false;
    do
    :: atomic { c[i].to[n].take > 0 -> serve_take(i, n) }
    :: atomic { c[i].to[n].confirm > 0 ->
        x = c[i].to[n].confirm;
        c[i].to[n].confirm = 0;
        serve_confirm(i, n, x, true);
        x = 0
       }
    :: atomic { c[i].to[n].old > 0 ->
        x = c[i].to[n].old;
        c[i].to[n].old = 0;
        serve_confirm(i, n, x, false);
        x = 0
       }
    :: atomic { nodes[n].holder == i -> expire(n) }
    od
}

inline try() {
    c[me].tries--;
    c[me].state = TAKING;
    if
    :: c[me].fence > 0 && BUG != 5 -> c[me].floor = c[me].fence + 1
    :: else
    fi;
    c[me].fence = 0;
    c[me].shown = shown;
    for (m : 0 .. NODES - 1) {
        c[me].to[m].take++;
        c[me].to[m].current = true
    }
    m = 0
}

proctype user(byte me) {
    byte m = 0;
    do
    :: atomic { c[me].state == NEXT -> try() }
    :: atomic { c[me].state == TAKING && c[me].votes == MAJORITY ->
        if
        :: c[me].owners == MAJORITY -> returned(me, c[me].own)
        :: else ->
            c[me].state = CONFIRMING;
            c[me].votes = 0;
            c[me].owners = 0;
            c[me].own = 0;
            c[me].shown = shown;
            for (m : 0 .. NODES - 1) {
                c[me].to[m].confirm = c[me].fence;
                c[me].to[m].current = true
            }
            m = 0
        fi
       }
    :: atomic { c[me].state != NEXT && c[me].tries > 0 ->
        try_ends(me); /* too few: it fails, and begins again */
        try()
       }
    :: c[me].state == DONE -> break
    od
}

init {
    byte i = 0, n = 0;
    atomic {
        for (n : 0 .. NODES - 1) {
            nodes[n].holder = NOBODY;
            nodes[n].whose = NOBODY
        }
        for (i : 0 .. CLIENTS - 1) {
            c[i].state = NEXT;
            c[i].tries = (i == 0 -> TRIES : OTHERS);
            run user(i);
            run link(i, 0);
            run link(i, 1);
            run link(i, 2)
        }
        i = 0;
        n = 0
    }
}
