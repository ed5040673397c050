/* SPDX-License-Identifier: MIT
 *
 * redlock.h - what the parts of the redlock: backend share.
 *
 *   redlock.c          the rules and why they hold; opening
 *   acquire.c          taking: votes and the fence
 *   busy.c             others have it: when to ask again; take.h for both
 *   renew.c            keeping, mending
 *   release.c          giving back
 *   wait.c             wake-ups
 *   handle.c           taking up what was detached
 *   inspect.c          inspect, holders
 *   list.c             list
 *   collect.c          removing what free keys left behind
 *   break.c            break, and free by force
 *   observe.c          being told of keys that are observed
 *   node_call.c        one question to all nodes at once
 *   rule.c             what their answers mean: pure functions
 *   node.c             connecting a node
 *   quarantine.c       when a node that was restarted may vote again
 *   pending_release.c  what must still be given back
 *   share.c            downgrade
 *   node.lua           the steps of one node, readers.lua those of a lock that
 *                      is shared; script.c has them as a string
 *
 * Each node is a small redis: connection of its own, so what is said to one
 * server is said by the code that speaks to one server.
 */
#ifndef HFI_BACKEND_REDLOCK_H
#define HFI_BACKEND_REDLOCK_H

#include "backend/redis/redis.h"
#include "backend/redis/tracker.h"
#include "base/env.h"
#include "base/map.h"
#include "rule.h"

#define REDLOCK_MIN 3
#define REDLOCK_MAX 15

#define REDLOCK_CONTENDED 256

/* `took` is in such parts of a millisecond. */
#define REDLOCK_TOOK_UNIT 64

/* What must still be given back on a node that did not answer. */
struct redlock_pending_release {
    struct redlock_pending_release *next;
    int64_t until;  /* it lapses by itself then */
    uint64_t limit; /* see redlock_give_back() */
    unsigned how;   /* REDLOCK_TELL... */
    char token[HFI_TOKEN_LEN + 1];
    char key[];
};

enum redlock_state {
    REDLOCK_DOWN,   /* the last attempt to connect failed */
    REDLOCK_TRYING, /* being connected for the first time since it was lost */
    REDLOCK_UP
};

struct redlock_node {
    struct redis_conn rc; /* its name, secrets and prefix; and its mux */
    struct redlock_conn *rl;
    int index;
    struct hfi_thread thread; /* connects it, while it is not up */
    bool connecting;          /* the thread runs */
    bool joinable;            /* and was started */
    enum redlock_state state;
    struct hf_error why; /* of the last failure */
    char run_id[48];
    long long client_id;   /* of our last connection there, 0 unknown */
    char client_run[48];   /* the run_id that this is of; "" unknown */
    int64_t born;          /* not before it was started, on our clock */
    int64_t noted;         /* when it was first seen since; quarantine.c */
    int64_t ahead[2];      /* its clock, less ours, in ms: least and most */
    int64_t asked;         /* for that and the longest lease; 0: never */
    bool slow;             /* its last attempt was too short for it */
    _Atomic int64_t heard; /* when it last answered */
    _Atomic int64_t took;  /* how long it takes to answer; node_call.c */
    atomic_bool native;    /* SET takes NX with GET */
    bool evicts;           /* it removes keys when it is full */
    struct redlock_pending_release *pending_releases;
    struct hfi_mux
        subscriber_mux;          /* makes the connection below, and no other */
    struct mux_link *subscriber; /* where it tells of releases, or NULL */
    atomic_int subscriber_fd;    /* of `subscriber`, or -1 */
    bool unsubscribed;           /* it does not let us listen */
    struct hfi_mux observer_mux; /* connects for observe.c, and no other */
};

struct redlock_conn {
    struct hfi_conn base;
    bool opened;
    bool closing;
    bool fenced;
    bool quarantine;
    int64_t lease_max;  /* what this client may ask for, with quarantine */
    int64_t node_ms;    /* limit of one node; 0: from the ttl */
    int64_t connect_ms; /* limit of an attempt to connect one; node.c */
    int n, majority;
    _Atomic int64_t took; /* how long a majority takes to answer */
    int64_t keep_ms; /* what is known of a key outlives its lease by this */
    char *script;
    char script_id[41];
    struct ssl_ctx_st *tls;
    pthread_mutex_t mu; /* guards what is not constant here and in the nodes */
    struct hfi_cond changed;
    int64_t longest_ttl; /* that any client may have, as far as is known */
    int64_t settled;     /* when all were last asked for it together */
    struct redlock_node nodes[REDLOCK_MAX];

    pthread_mutex_t subscriber_mu; /* guards the subscribers and what follows */
    struct hfi_cond subscriber_changed;
    struct hfi_map wants;       /* of struct redlock_want, by key */
    atomic_int subscriber_poll; /* readable when an subscriber is, or -1 */
    char id[17];                /* of this client, among those who wait */
    atomic_bool listening; /* somebody has waited: be connected to listen */
    _Atomic int64_t contended[REDLOCK_CONTENDED]; /* when others stood in line,
                                                   * by a hash of the key */
    _Atomic int64_t pending_at; /* a look waits for no fence before then */
    atomic_uint turn;           /* who is asked first, if not all are */
    _Atomic(struct redis_tracker *) tracker; /* NULL: nothing was observed */
};

enum { REDLOCK_WATCHED_NOT, REDLOCK_WATCHED_NEW, REDLOCK_WATCHED_TOLD };

/* What a claim remembers: receipt->own. */
struct redlock_grant {
    unsigned nodes;        /* that may have it; 0: any may */
    unsigned doubt;        /* the nodes where a try had no answer */
    unsigned char watched; /* REDLOCK_WATCHED_... */
    unsigned char splits;  /* how often in a row nobody got a majority */
    char place[20];        /* in the queue, once it has one */
    unsigned lines;        /* the nodes where it has stood in line */
    char gate;             /* 0: not asked first; else see acquire.c */
    int64_t gate_at;       /* since when it has had that holder */
    bool door;             /* it keeps new readers out; redlock.c (9) */
    bool yielded;          /* it may not be taken up by this claim; handle.c */
    uint64_t tried;        /* the largest fence that was to be confirmed */
    uint64_t floor;        /* the next must be as large; 0: any is */
    unsigned shorter;      /* how many shorter leases were asked for;
                            * redlock.c (8).  A handle has it, too */
};
static inline struct redlock_grant *redlock_own(
    const struct hfi_receipt *receipt)
{
    return receipt->own;
}

/* ---- script.c -------------------------------------------------- */

/* The script that keeps what is known of a key for so long; NULL: no memory. */
char *redlock_script_make(int64_t keep_ms);

/* ---- node.c ---------------------------------------------------- */

void redlock_node_init(struct redlock_conn *, int index);
void redlock_node_fini(struct redlock_node *);

/* See to it that a node which is not connected is being connected. */
void redlock_node_tend(struct redlock_node *);

/* Wait until a majority is connected, or cannot be, or the deadline. */
void redlock_await_majority(struct redlock_conn *, int64_t deadline);

/* The nodes that were asked are too few: wait for another that is being
 * connected for the first time.  False if there is none. */
bool redlock_await_more(struct redlock_conn *, unsigned asked,
                        int64_t deadline);

/* May it be asked?  Not while it owes an answer for longer than `limit`. */
bool redlock_node_is_ready(struct redlock_node *, int64_t limit);

/* The reply to a command on a connection that is being begun.  Where that is not
 * allowed, or is not there, it is HF_OK and no reply. */
hf_status redlock_handshake_may(struct redlock_node *, struct mux_link *,
                                redisReply **reply, int64_t deadline,
                                struct hf_error *);

/* ---- quarantine.c ---------------------------------------------- */

hf_status redlock_quarantine_open(struct redlock_conn *, const struct hfi_url *,
                                  struct hf_error *);

/* Agree with the node on the longest lease, as its connection begins: add the
 * question, and then take the reply to what was `sent`. */
void redlock_quarantine_ask(struct redlock_node *, struct redis_batch *);
hf_status redlock_quarantine_handshake(struct redlock_node *, struct mux_link *,
                                       int64_t sent, int64_t deadline,
                                       struct hf_error *);

/* HF_INVALID if the lease is longer than what was agreed on. */
hf_status redlock_check_ttl(const struct redlock_conn *, int64_t ttl_ms,
                            struct hf_error *);

/* Before nodes vote: ask for the longest lease again, if a quarantine seems to
 * be over. */
void redlock_quarantine_settle(struct redlock_conn *, int64_t deadline);

/* When it may vote: in so many milliseconds; 0 now. */
int64_t redlock_quarantine_left(struct redlock_node *);

/* ---- pending_release.c
 * ---------------------------------------------------- */

/* Remember to give something back there, or forget that.  It is forgotten by
 * itself when the lease is over, unless a try may arrive later than that. */
void redlock_pending_add(struct redlock_node *, const struct hfi_claim *,
                         uint64_t limit, unsigned how, bool lasting);
bool redlock_pending_drop(struct redlock_node *, const struct hfi_claim *);

/* Give it back, on a connection that is being begun. */
hf_status redlock_pending_send(struct redlock_node *, struct mux_link *,
                               int64_t deadline, struct hf_error *);
void redlock_pending_releases_free(struct redlock_node *);

/* ---- wait.c ----------------------------------------------------- */

hf_status redlock_subscriber_init(struct redlock_conn *, struct hf_error *);
void redlock_subscriber_fini(struct redlock_conn *);
void redlock_subscriber_after_fork_child(struct redlock_conn *);

/* Does the node still lack an subscriber?  Give it one: only by its own
 * thread. */
bool redlock_subscriber_lacks(struct redlock_node *);
hf_status redlock_subscriber_connect(struct redlock_node *, int64_t deadline,
                                     struct hf_error *);

/* It has been silent for long: do not count on hearing it. */
void redlock_subscriber_drop(struct redlock_node *);

/* The nodes on which we hear of a key that somebody here waits for; and are these
 * so many that we surely hear of its release, where all of them tell? */
unsigned redlock_subscribers(struct redlock_conn *, const char *key);
bool redlock_subscriber_hears(struct redlock_conn *, const char *key);

/* For how long it is known here that the claim has been released, of those who
 * had the key the last one; -1: it is not. */
int64_t redlock_released_for(struct redlock_conn *, const char *key,
                             const char *token);

/* Have these nodes say something on the channel of the key. */
void redlock_tell(struct redlock_conn *, const struct hfi_claim *,
                  unsigned nodes, const char *word, int64_t deadline);

hf_status redlock_watch(struct hfi_conn *, const struct hfi_claim *,
                        struct hfi_receipt *, int64_t deadline,
                        struct hf_error *);
void redlock_unwatch(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *);
int redlock_poll_fd(struct hfi_conn *);
void redlock_dispatch(struct hfi_conn *);

/* ---- node_call.c ---------------------------------------------------- */

/* One node's part of a question. */
struct redlock_node_call {
    struct hfi_mux_call call;
    bool asked;   /* it was sent there */
    bool waiting; /* and there is no answer yet */
    bool landed;  /* the replies are here */
    bool loaded;  /* the script was sent along */
    hf_status st; /* why it was not asked or is no help */
    redisReply **replies;
    const struct redis_batch *batch;
    struct hf_error err;
};

struct redlock_round {
    struct redlock_conn *rl;
    struct redlock_node_call calls[REDLOCK_MAX];
    int waiting;       /* for how many */
    unsigned readable; /* the nodes that poll(2) has seen something of */
    unsigned silent;   /* those that were waited for in vain */
};

void redlock_round_init(struct redlock_round *, struct redlock_conn *);
void redlock_round_fini(struct redlock_round *);

/* Those who were asked and have not answered. */
unsigned redlock_silent(const struct redlock_round *);

/* Ask one node.  The batch must stay until the round is over. */
void redlock_ask(struct redlock_round *, int node, const struct redis_batch *,
                 int64_t deadline);

/* Throw away the answer of one node and ask it something else. */
void redlock_ask_again(struct redlock_round *, int node,
                       const struct redis_batch *, int64_t deadline);

/* The next node that has answered or failed; -1 at the deadline or when there
 * are none. */
int redlock_hear(struct redlock_round *, int64_t deadline);

/* The key and its hash, in a node. */
void redlock_name(const struct redlock_conn *, const char *key,
                  struct redis_names *);

/* A step of the script. */
void redlock_step(struct redlock_conn *, struct redis_batch *, char op,
                  const char *key, int argc, const char **argv);

/* The channel of a key, and the key of a channel or NULL. */
void redlock_channel(const struct redlock_conn *, const char *key, char *buf,
                     size_t size);
const char *redlock_channel_key(const struct redlock_conn *,
                                const char *channel);

/* The limit of one node for a lease of so long. */
int64_t redlock_limit(const struct redlock_conn *, int64_t ttl_ms);

/* Until when a question that is sent now waits for those who are late: `end`
 * while a majority has answered, `late` while it has not.  Taken before the
 * question is sent, for the sending, and again after it: sending may take long
 * if this process has no processor. */
struct redlock_span {
    int64_t end, late;
};
struct redlock_span redlock_span(const struct redlock_conn *, int64_t ttl_ms,
                                 int64_t deadline);

/* "a:1, b:2": the nodes of a set. */
const char *redlock_names(const struct redlock_conn *, unsigned nodes,
                          char *buf, size_t size);

/* "a:1 no answer in time; b:2 connection refused": why they are not enough. */
hf_status redlock_too_few(struct redlock_round *, int answered, int64_t ttl_ms,
                          struct hf_error *);

/* The only element of an answer, or the one at `i`; NULL if it is none. */
const redisReply *redlock_reply(const struct redlock_node_call *, int i);
int64_t redlock_item(const redisReply *, size_t i);

/* ---- acquire.c ---------------------------------------------------- */

hf_status redlock_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                              struct hfi_receipt *, struct hfi_answer *,
                              int64_t deadline, struct hf_error *);

/* Others stand in line for the key at this node; and where they did of late, or
 * -1, also for another key with the same hash. */
void redlock_line_is(struct redlock_conn *, const char *key, int node,
                     int64_t now);
int redlock_line(struct redlock_conn *, const char *key, int64_t now);
void redlock_line_is_over(struct redlock_conn *, const char *key);

/* ---- renew.c ---------------------------------------------------- */

void redlock_renew(struct hfi_conn *, struct hfi_renewal *, size_t n,
                   int64_t deadline, struct hf_error *);

/* ---- release.c ---------------------------------------------------- */

/* The nodes that may have the grant; more of them; and those where something
 * had no answer, with more of them. */
unsigned redlock_note_nodes(const struct redlock_conn *,
                            const struct hfi_receipt *);
void redlock_note_add(struct hfi_receipt *, unsigned nodes);
unsigned redlock_note_doubt(struct hfi_receipt *, unsigned more);

hf_status redlock_release(struct hfi_conn *, const struct hfi_claim *,
                          struct hfi_receipt *, int64_t deadline,
                          struct hf_error *);

/* What is to be given back, and what came of it. */
struct redlock_give {
    unsigned nodes;   /* that may have it */
    unsigned doubt;   /* those of them where a try may still arrive */
    unsigned lines;   /* where it may have a place in line */
    bool door;        /* new readers were kept out for it */
    bool aloud;       /* tell at all nodes, wherever the line is */
    uint64_t limit;   /* REDLOCK_RELEASE, or see below */
    int had, had_not; /* how many have said so */
};

/* Give back on the nodes of the set.  REDLOCK_RELEASE: it was a grant, so those
 * who wait are told, and whether a majority had it is worth waiting for until
 * the deadline.  Any other limit: it was a try, and a node that has confirmed a
 * larger fence for the claim since keeps it; redlock.c (7).  How many said
 * nothing: that is owed there. */
#define REDLOCK_RELEASE UINT64_MAX
int redlock_give_back(struct redlock_conn *, const struct hfi_claim *,
                      struct redlock_give *, int64_t deadline);

/* "L" and what it says: tell those who wait, leave the line, open the door. */
enum { REDLOCK_TELL = 1, REDLOCK_LINE = 2, REDLOCK_DOOR = 4 };
struct redlock_leave {
    char how[4], number[24];
    const char *argv[3];
    int argc;
};
void redlock_leave_say(struct redlock_leave *, const char *token, unsigned how,
                       uint64_t limit);

/* ---- handle.c -------------------------------------------------- */

void redlock_detach(const struct hfi_receipt *, struct hf_handle *ret);
hf_status redlock_attach(struct hfi_conn *, const struct hfi_claim *,
                         const struct hf_handle *, struct hfi_receipt *,
                         struct hf_error *);
hf_status redlock_take_over(struct hfi_conn *, const struct hfi_claim *,
                            const char *token, struct hfi_receipt *,
                            int64_t deadline, struct hf_error *);

/* ---- share.c ------------------------------------------------------ */

/* What a node has as the value of a lock that is shared. */
#define REDLOCK_SHARED "holdfast:shared"

hf_status redlock_downgrade(struct hfi_conn *, const struct hfi_claim *,
                            struct hfi_receipt *, int64_t deadline,
                            struct hf_error *);

/* ---- inspect.c ---------------------------------------------------- */

/* Looking has no lease to take its limit from. */
#define REDLOCK_LOOK_TTL INT64_C(30000)

/* Ask all that are there and wait for them; how many have answered. */
int redlock_inspect_ask(struct redlock_round *, const struct redis_batch *,
                        int64_t deadline);

/* Look at several keys with one question; it need not be known of each whether
 * it is held. */
hf_status redlock_look(struct redlock_conn *, const char *const *keys, int n,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *);

hf_status redlock_inspect(struct hfi_conn *, const char *key, struct hf_info *,
                          int64_t deadline, struct hf_error *);
hf_status redlock_inspect_several(struct hfi_conn *, const char *const *keys,
                                  int n, hf_list_fn *, void *arg,
                                  int64_t deadline, struct hf_error *);
hf_status redlock_waiters(struct hfi_conn *, const char *key, hf_waiters_fn *,
                          void *arg, int64_t deadline, struct hf_error *);
hf_status redlock_holders(struct hfi_conn *, const char *key, hf_holders_fn *,
                          void *arg, int64_t deadline, struct hf_error *);

/* ---- list.c ------------------------------------------------------- */

hf_status redlock_list(struct hfi_conn *, const char *prefix, hf_list_fn *,
                       void *arg, int64_t deadline, struct hf_error *);

/* ---- collect.c ---------------------------------------------------- */

hf_status redlock_collect(struct hfi_conn *, int64_t older_ms, bool dry_run,
                          struct hf_collected *ret, int64_t deadline,
                          struct hf_error *);

/* ---- observe.c ---------------------------------------------------- */

hf_status redlock_observe(struct hfi_conn *, struct hfi_observation *,
                          int64_t deadline, struct hf_error *);
void redlock_unobserve(struct hfi_conn *, struct hfi_observation *);

/* ---- break.c ------------------------------------------------------ */

hf_status redlock_break(struct hfi_conn *, const char *key, uint64_t fence,
                        int64_t deadline, struct hf_error *);
hf_status redlock_free(struct hfi_conn *, const char *key, uint64_t fence,
                       int64_t deadline, struct hf_error *);

#endif
