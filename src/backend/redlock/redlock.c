/* SPDX-License-Identifier: MIT
 *
 * redlock.c - a majority of independent Redis servers.
 *
 * ON THE WIRE  The same token is given to all nodes at once, and whoever has it
 *   on a majority has the lock.  On each node the lock is a plain string key
 *   with an expiry, as node-redlock and redsync have it, so they and holdfast
 *   exclude each other on the same nodes and keys.  Each step on a node is one
 *   command or script (script.c); a node has a small limit of its own to
 *   answer (node_call.c) and is connected in the background (node.c).
 *
 * INVARIANTS
 *  (1) Two majorities share a node, and a node has one holder at a time.  The
 *      lease is counted from before the first node was asked, and what may run
 *      apart between clocks is taken off, so it ends here before it ends on the
 *      first node.
 *  (2) No step changes the key without having compared it.
 *  (3) On each node, what we say is served in the order in which we said it, so
 *      a late SET never lands after its release.  On one connection Redis sees
 *      to that, and a call that is not waited for any longer is left behind
 *      without giving the connection up: its release follows it there.  When a
 *      connection does end with answers owed, by a fault or after a second of
 *      silence, bytes of it may still lie with the server.  So the next one
 *      first has the server end it (CLIENT KILL by id), after which they are
 *      never read, and then repeats every release that had no answer
 *      (pending_release.c), before anybody else may use it.  Where CLIENT KILL
 *      is forbidden such a key can stay until it expires: it delays others, and
 *      never harms them.  See also (7).
 *  (4) The fence.  A node confirms a fence, for the token that it has, only if
 *      it is larger than every one that it has confirmed before.  A grant is
 *      returned only after a majority has confirmed its fence.
 *        Let G, with fence F, be a grant that was returned, and H one whose
 *      confirmation began after that.  Both were confirmed by majorities, which
 *      share a node; that node confirmed F first, and would not have confirmed
 *      H's fence had it not been larger.  So fences rise over all grants that
 *      are returned, whichever majorities gave them, however late a message
 *      arrives and whatever the clocks say; one that was never returned is only
 *      a gap.
 *        That says which fences are refused.  For one to be accepted, each node
 *      that says yes proposes one more than the largest that it has confirmed,
 *      or its clock in microseconds if that is larger, and the largest proposal
 *      of a majority is the one to be confirmed.  It is enough: a node of that
 *      majority has proposed more than it had confirmed, and confirms nothing
 *      for others while the token has it.
 *        A node that has lost its data confirms anything and proposes its clock.
 *      For a later fence to be smaller, every node that the two majorities share
 *      must have lost F, and every node that proposes must have lost it or never
 *      have known it, with a clock behind the one from which F came.
 *  (5) A renewal counts a node that has our token and has seen no later fence
 *      confirmed.  A node that lost the key is given it again only while others
 *      confirm the grant, and counts from the next renewal on.
 *  (6) Restarts.  A node that was started less than the longest lease of any
 *      client ago may have forgotten a grant that stands, so it may not vote
 *      for a new one or for whoever takes up a handle, whatever it has on disk.
 *      A restart ends our connection, so it is enough to ask for the run id
 *      when a connection begins; one that does not tell its run id counts as
 *      restarted each time.  How long the longest lease is, see quarantine.c.
 *  (7) A try that failed is taken back and repeated with the same token.  What
 *      takes it back may arrive after a later try was granted, where CLIENT
 *      KILL is forbidden.  So it says the largest fence that the claim had
 *      tried to have confirmed by then, and a node that has confirmed a larger
 *      one for the claim refuses it.  If it had no answer, the next grant has a
 *      larger fence, also where there are none (fence=off): a majority has
 *      confirmed that before the grant is returned, and keeps it.
 *  (8) A shorter lease may arrive on a node after a longer one that was asked
 *      for later, where CLIENT KILL is forbidden, also if a majority without
 *      that node had confirmed it.  So the shorter leases of a grant are
 *      numbered, and every renewal says how many there were.  A node carries
 *      out none of which a renewal has told it before.  A lease is believed
 *      because a majority has answered the renewal that asked for it, and each
 *      node of that majority refuses every shorter lease that was sent earlier.
 *      The number is part of the handle, so it counts for the bearer as well.
 *  (9) Readers.  A node has one writer or any number of readers, each with its
 *      own token, fence and lease (readers.lua); whoever has a majority holds
 *      the lock.  A reader and a writer that both held would share a node, by
 *      (1).  On a node the key is there while one of its readers has a lease,
 *      so a writer needs no other request than without readers.
 *        A node confirms the fence of a reader if it is larger than every
 *      exclusive one that it has confirmed, and no other reader there has it;
 *      and that of a writer if it is larger than all.  So by the argument of
 *      (4) a writer's is larger than that of every earlier grant, a reader's
 *      than that of every earlier exclusive one; readers that come together do
 *      not refuse each other.
 *        Readers stand in no line.  A writer that waits and has met readers leaves a
 *      mark on all nodes that answer, with a lease of its own which its tries
 *      renew.  No node accepts a new reader meanwhile, so nobody gets a majority
 *      while a majority has the mark; and those who are in leave one by one.  It
 *      is taken away when the writer gives up or releases, and lapses with a
 *      writer that died.
 * (10) Downgrade.  It is one step on each node, and done when a majority says
 *      so.  From the first request on the grant counts as shared, whatever is
 *      heard: a node that has taken the step accepts readers.  They need a
 *      majority of such nodes, and each of those has the old holder as a reader,
 *      so no writer comes in between.  A node that has not heard of it still
 *      has the holder alone, which excludes more, and is told by the next
 *      renewal.
 *
 * (11) Keeping.  A node forgets a fence only when its own clock is past it: by
 *      keep= at least, from the end of the lease and from the fence, whichever is
 *      later, so also if the clock was set back or the fence came from a node
 *      whose clock is ahead; or by a day, where collect.c removes it.  What it
 *      proposes then is its clock, so (4) holds as if it had not forgotten,
 *      unless its clock is set back by more than that.
 *
 * LEASE  The expiry of the key on a majority.  A minority that fails never ends
 *   a lock.  Release goes to all; on a node that cannot be reached it is
 *   repeated in the background until the lease is over.
 *
 * LIMITS  Expiry follows the wall clocks of the servers: a majority whose
 *   clocks leap forward within one lease grants early, and its fence is still
 *   larger.  The queue is an advice of one node (wait.c): it says who asks next,
 *   and whoever asks at the right moment gets the lock.
 */
#include "redlock.h"

#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

#define REDLOCK_PORT 6379

/* How long hf_open() waits for the rest when a majority is there. */
#define STRAGGLER_MS 100

/* ---- opening ----------------------------------------------------------- */

static hf_status open_options(struct redlock_conn *rl,
                              const struct hfi_url *url, struct hf_error *err)
{
    const char *prefix = hfi_url_param(url, "prefix", "holdfast:");
    const char *fence = hfi_url_param(url, "fence", "on");
    hf_status st;

    rl->fenced = strcmp(fence, "off") != 0;
    if (rl->fenced && strcmp(fence, "on") != 0)
        return hfi_fail(err, HF_INVALID, "url: fence= is on or off");
    st = redlock_quarantine_open(rl, url, err);
    if (!st)
        st = hfi_url_duration(url, "node", &rl->node_ms, err);
    if (!st && rl->node_ms > 60000)
        st = hfi_fail(err, HF_INVALID, "url: node= is at most a minute");
    if (!st)
        st = redis_url_keep(url, &rl->keep_ms, err);
    if (!st && strlen(prefix) >= sizeof(rl->nodes[0].rc.prefix))
        st = hfi_fail(err, HF_INVALID, "url: prefix= is too long");
    if (!rl->fenced)
        rl->base.traits &=
            ~(unsigned)(HF_TRAIT_FENCED | HF_TRAIT_BREAK | HF_TRAIT_NOTED);
    return st;
}

static hf_status open_count(struct redlock_conn *rl, const struct hfi_url *url,
                            struct hf_error *err)
{
    if (url->nhosts < REDLOCK_MIN)
        return hfi_fail(err, HF_INVALID,
                        "url: redlock: takes %d to %d hosts: with fewer than "
                        "%d, one that fails leaves no majority",
                        REDLOCK_MIN, REDLOCK_MAX, REDLOCK_MIN);
    if (url->nhosts > REDLOCK_MAX)
        return hfi_fail(err, HF_INVALID,
                        "url: redlock: takes %d to %d hosts: more are slower "
                        "and no safer",
                        REDLOCK_MIN, REDLOCK_MAX);
    rl->n = (int)url->nhosts;
    rl->majority = rl->n / 2 + 1;
    if (rl->n % 2 == 0)
        snprintf(rl->base.warning, sizeof(rl->base.warning),
                 "%d nodes stand no more failures than %d do", rl->n,
                 rl->n - 1);
    return HF_OK;
}

/* One number for all, or one for each host with commas in between. */
static hf_status open_db(struct redlock_conn *rl, const struct hfi_url *url,
                         struct hf_error *err)
{
    const char *path = url->path + (url->path[0] == '/');
    const char *at = *path ? path : hfi_url_param(url, "db", "0");
    char *end = NULL;
    int i;

    for (i = 0; i < rl->n && (!i || *at == ','); i++, at = end) {
        long n = strtol(at + (i > 0), &end, 10);

        if (end == at + (i > 0) || n < 0 || n > 1 << 20)
            break;
        rl->nodes[i].rc.db = (int)n;
    }
    if (*at || (i != 1 && i != rl->n))
        return hfi_fail(err, HF_INVALID,
                        "url: the database must be a number from 0 to %d, or "
                        "one for each host with commas in between",
                        1 << 20);
    for (; i < rl->n; i++)
        rl->nodes[i].rc.db = rl->nodes[0].rc.db;
    return HF_OK;
}

/* A node's own password, that of all in a file, which is read for each
 * connection (backend/redis/handshake.c), or REDISCLI_AUTH, as redis-cli has
 * it. */
static hf_status open_secrets(struct redis_conn *rc,
                              const struct hfi_host *host, const char *file,
                              struct hf_error *err)
{
    const char *user = host->user && *host->user ? host->user : NULL;
    const char *password = host->password;
    char secret[REDIS_SECRET_MAX];
    hf_status st = HF_OK;

    if (file && password)
        return hfi_fail(err, HF_INVALID,
                        "url: has a password and password_file=");
    if (!password && !file)
        password = secure_getenv("REDISCLI_AUTH");
    if (file)
        st = redis_secret(file, "password_file=", secret, err);
    explicit_bzero(secret, sizeof(secret));
    if (st)
        return st;
    rc->user = hfi_strdup(user);
    rc->password = hfi_strdup(password);
    rc->password_file = hfi_strdup(file);
    if ((user && !rc->user) || (password && !rc->password) ||
        (file && !rc->password_file))
        return hfi_nomem(err);
    return HF_OK;
}

static hf_status open_node(struct redlock_conn *rl, int i,
                           const struct hfi_url *url, struct hf_error *err)
{
    struct redis_conn *rc = &rl->nodes[i].rc;
    const struct hfi_host *host = &url->hosts[i];
    hf_status st =
        open_secrets(rc, host, hfi_url_param(url, "password_file", NULL), err);

    if (st)
        return st;
    snprintf(rc->prefix, sizeof(rc->prefix), "%s",
             hfi_url_param(url, "prefix", "holdfast:"));
    rc->nends = 1;
    snprintf(rc->ends[0].host, sizeof(rc->ends[0].host), "%s", host->name);
    rc->ends[0].port = host->port ? host->port : REDLOCK_PORT;
    rc->ends[0].tls = rl->tls;
    rc->ends[0].alive_ms = 15000;
    rc->ends[0].spin_us = HFI_SPIN_US;
    rc->ends[0].traffic = &rl->base.traffic;
    hfi_endpoint_name(&rc->ends[0], rc->base.endpoint,
                      sizeof(rc->base.endpoint));
    return HF_OK;
}

/* The first node to which a password goes where others can read it. */
static void open_warn(const struct redlock_conn *rl, const struct hfi_url *url,
                      char *ret, size_t size)
{
    int i;

    for (i = 0; i < rl->n; i++)
        if ((rl->nodes[i].rc.password || rl->nodes[i].rc.password_file) &&
            !hfi_url_is_here(url->hosts[i].name)) {
            hfi_warn_password(ret, size, url->hosts[i].name,
                              hfi_tls_is_verified(rl->tls));
            return;
        }
}

/* The first node that would throw locks away. */
static void open_evicts(struct redlock_conn *rl, char *ret, size_t size)
{
    int i;

    pthread_mutex_lock(&rl->mu);
    for (i = 0; i < rl->n && !rl->nodes[i].evicts; i++)
        continue;
    if (i < rl->n)
        snprintf(ret, size,
                 "%.60s evicts keys when it is full, and locks are keys: set "
                 "maxmemory-policy to noeviction",
                 rl->nodes[i].rc.base.endpoint);
    pthread_mutex_unlock(&rl->mu);
}

static void open_names(struct redlock_conn *rl, const struct hfi_url *url)
{
    size_t len, size = sizeof(rl->base.endpoint);
    int i;

    len = (size_t)snprintf(rl->base.endpoint, size, "%s:", url->scheme);
    for (i = 0; i < rl->n && len < size; i++)
        len += (size_t)snprintf(rl->base.endpoint + len, size - len, "%s%s",
                                i ? "," : "", rl->nodes[i].rc.base.endpoint);
}

/* Wait until each node is connected or has failed; a little only, once there is
 * a majority that has answered.  How many are up. */
static int open_wait(struct redlock_conn *rl, int64_t deadline)
{
    int64_t until = deadline;
    int i, up, trying;

    redlock_await_majority(rl, deadline);
    pthread_mutex_lock(&rl->mu);
    for (;;) {
        for (i = up = trying = 0; i < rl->n; i++) {
            up += rl->nodes[i].state == REDLOCK_UP;
            trying += rl->nodes[i].state == REDLOCK_TRYING;
        }
        if (up >= rl->majority && until == deadline)
            until = hfi_now() + STRAGGLER_MS;
        until = until < deadline ? until : deadline;
        if (!trying || !hfi_left_ms(until))
            break;
        hfi_cond_wait(&rl->changed, &rl->mu, until);
    }
    pthread_mutex_unlock(&rl->mu);
    return up;
}

/* What is to be said of the nodes after the first attempt.  A twin is refused
 * whatever the others are. */
static hf_status open_judge(struct redlock_conn *rl, int up,
                            struct hf_error *err)
{
    hf_status st = HF_OK;
    int i, bad = -1;

    pthread_mutex_lock(&rl->mu);
    for (i = 0; i < rl->n; i++) {
        hf_status one = rl->nodes[i].why.status;

        if (rl->nodes[i].state == REDLOCK_UP)
            continue;
        if (bad < 0 || (one && one != HF_UNAVAILABLE && one != HF_UNCERTAIN))
            bad = i;
        if (one == HF_INVALID)
            break;
    }
    if (bad >= 0) {
        struct redlock_node *node = &rl->nodes[bad];
        const char *why =
            node->why.text[0] ? node->why.text : "no answer in time";

        st = node->why.status && node->why.status != HF_UNCERTAIN
                 ? node->why.status
                 : HF_UNAVAILABLE;
        if (up >= rl->majority && st != HF_INVALID) {
            snprintf(rl->base.warning, sizeof(rl->base.warning),
                     "only %d of %d nodes are there: %.60s: %.120s", up, rl->n,
                     node->rc.base.endpoint, why);
            st = HF_OK;
        } else {
            hfi_fail(err, st, "only %d of %d nodes are there: %.60s: %.120s",
                     up, rl->n, node->rc.base.endpoint, why);
        }
    }
    pthread_mutex_unlock(&rl->mu);
    return st;
}

static hf_status redlock_open(struct hfi_conn *conn, const struct hfi_url *url,
                              int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    char warning[sizeof(rl->base.warning)] = "";
    size_t len;
    hf_status st;
    int i;

    pthread_mutex_init(&rl->mu, NULL);
    pthread_mutex_init(&rl->subscriber_mu, NULL);
    hfi_cond_init(&rl->changed);
    hfi_cond_init(&rl->subscriber_changed);
    atomic_init(&rl->subscriber_poll, -1);
    for (i = 0; i < REDLOCK_MAX; i++)
        redlock_node_init(rl, i);
    rl->connect_ms = hfi_left_ms(deadline);
    rl->opened = true;
    st = open_options(rl, url, err);
    if (!st)
        st = open_count(rl, url, err);
    if (!st)
        st = redlock_subscriber_init(rl, err);
    rl->script = st ? NULL : redlock_script_make(rl->keep_ms);
    if (!st && !rl->script)
        st = hfi_nomem(err);
    if (!st)
        redis_script_digest(rl->script, rl->script_id);
    if (!st)
        st = open_db(rl, url, err);
    if (!st && !strcmp(url->scheme, "redlocks"))
        st = hfi_tls_new(&rl->tls, url, err);
    for (i = 0; !st && i < rl->n; i++)
        st = open_node(rl, i, url, err);
    if (st)
        return st;
    open_names(rl, url);
    open_warn(rl, url, warning, sizeof(warning));
    st = open_judge(rl, open_wait(rl, deadline), err);
    if (!*warning)
        open_evicts(rl, warning, sizeof(warning));
    len = strlen(rl->base.warning);
    if (*warning)
        snprintf(rl->base.warning + len, sizeof(rl->base.warning) - len, "%s%s",
                 len ? "; " : "", warning);
    return st;
}

static void redlock_close(struct hfi_conn *conn)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    int i;

    if (!rl->opened)
        return;
    pthread_mutex_lock(&rl->mu);
    rl->closing = true;
    hfi_cond_wake(&rl->changed);
    pthread_mutex_unlock(&rl->mu);
    tracker_free(atomic_load(&rl->tracker));
    for (i = 0; i < REDLOCK_MAX; i++)
        redlock_node_fini(&rl->nodes[i]);
    redlock_subscriber_fini(rl);
    if (rl->tls)
        hfi_tls_free(rl->tls);
    hfi_cond_fini(&rl->changed);
    hfi_cond_fini(&rl->subscriber_changed);
    pthread_mutex_destroy(&rl->mu);
    pthread_mutex_destroy(&rl->subscriber_mu);
    hfi_free(rl->script);
    rl->opened = false;
}

static void redlock_after_fork_child(struct hfi_conn *conn)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    int i;

    for (i = 0; i < REDLOCK_MAX; i++)
        hfi_mux_after_fork_child(&rl->nodes[i].rc.mux);
    redlock_subscriber_after_fork_child(rl);
    tracker_after_fork_child(atomic_load(&rl->tracker));
}

static const char *const redlock_schemes[] = {"redlock", "redlocks", NULL};
static const char *const redlock_options[] = {
    "prefix",        "fence", "quarantine", "node", "keep",   "db",
    "password_file", "ca",    "cert",       "key",  "verify", NULL};

const struct hfi_backend hfi_backend_redlock = {
    .schemes = redlock_schemes,
    .options = redlock_options,
    .users = true,
    .conn_size = sizeof(struct redlock_conn),
    .grant_size = sizeof(struct redlock_grant),
    .observation_size = sizeof(struct tracker_watch),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_NOTIFY |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_MACHINES | HF_TRAIT_NOTED | HF_TRAIT_SHARED,
    .varies = HF_TRAIT_FENCED | HF_TRAIT_BREAK | HF_TRAIT_NOTED,
    .page = "redlock",
    .tested = "Redis 7.0",
    .no_permits = "three holders with majorities of five fit into two permits "
                  "of each server",
    .no_min_hold = "a server that was restarted forgets what is kept, and "
                   "nobody is left to restore it",
    .open = redlock_open,
    .close = redlock_close,
    .after_fork_child = redlock_after_fork_child,
    .try_acquire = redlock_try_acquire,
    .renew = redlock_renew,
    .release = redlock_release,
    .downgrade = redlock_downgrade,
    .watch = redlock_watch,
    .unwatch = redlock_unwatch,
    .poll_fd = redlock_poll_fd,
    .dispatch = redlock_dispatch,
    .detach = redlock_detach,
    .attach = redlock_attach,
    .take_over = redlock_take_over,
    .inspect = redlock_inspect,
    .inspect_several = redlock_inspect_several,
    .list = redlock_list,
    .collect = redlock_collect,
    .holders = redlock_holders,
    .waiters = redlock_waiters,
    .break_grant = redlock_break,
    .free_grant = redlock_free,
    .observe = redlock_observe,
    .unobserve = redlock_unobserve,
};
