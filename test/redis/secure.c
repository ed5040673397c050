/* SPDX-License-Identifier: MIT
 *
 * secure.c - Sentinel and Cluster over TLS: every connection has it, to those
 * that the URL names and to those that are learned, and who is at its other end
 * is verified by the name that was connected to.  And sentinels that want a
 * password, which is not the servers'.
 *
 * The servers of the tests of TLS have no port without it, and want a
 * certificate of their clients.
 */
#include "ensemble.h"
#include "fleet.h"
#include "tls.h"

/* ---- what all of them do ----------------------------------------------- */

/* A lock is kept for longer than its lease, and handed to a waiter, who is told:
 * `s` has the key. */
static void check_hands_over(hf_client *holder, hf_client *waiter,
                             struct rt_server *s, const char *key)
{
    hf_lock *lk = rt_lock(holder, key, 5000, 1000, 0);
    struct rt_waiter w = rt_waiter(waiter, key, 20000, 60000, 0);
    uint64_t fence = hf_fence(lk);

    rt_wait_start(&w);
    t_poll_until(rt_hears(s, key), 5000);
    t_sleep_ms(1200);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    CHECK_GT(w.fence, fence);
}

/* From now on the server has this certificate, for new connections. */
static void certify(struct rt_server *s, const char *dir, const char *name)
{
    rt_do(s, "CONFIG SET tls-cert-file %s/%s.pem tls-key-file %s/%s.key", dir,
          name, dir, name);
}

/* ---- one server -------------------------------------------------------- */

/* Everything that the client reads is replaced while it runs. */
TEST_TIMEOUT(certificates_are_read_again_for_each_connection, 120)
{
    struct rt_server s = {0};
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char dir[256], next[256], url[1024], command[1024];
    int port;

    snprintf(dir, sizeof(dir), "%s/now", t_tmpdir());
    snprintf(next, sizeof(next), "%s/next", t_tmpdir());
    snprintf(command, sizeof(command), "mkdir %s %s", dir, next);
    CHECK_EQ(system(command), 0);
    tls_make(dir);
    tls_make(next);
    tls_start(&s, dir, "localhost", "yes", &port);
    snprintf(url, sizeof(url), "rediss://localhost:%d?timeout=2s%s", port,
             tls_params(dir));
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    lk = rt_lock(client, "k", 0, 20000, 0);
    rt_do(&s,
          "CONFIG SET tls-cert-file %s/localhost.pem"
          " tls-key-file %s/localhost.key tls-ca-cert-file %s/ca.pem",
          next, next, next);
    snprintf(command, sizeof(command), "cp %s/* %s", next, dir);
    CHECK_EQ(system(command), 0);
    rt_do(&s, "CLIENT KILL TYPE normal");
    t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

TEST_TIMEOUT(without_verification_any_certificate_will_do, 120)
{
    static const char *const versions[] = {"TLSv1.2", "TLSv1.3"};
    const char *dir = t_tmpdir();
    struct rt_server s = {0};
    char url[256];
    int port;

    tls_make(dir);
    tls_start(&s, dir, "elsewhere.test", "no", &port);
    for (int i = 0; i < 2; i++) {
        rt_do(&s, "CONFIG SET tls-protocols %s", versions[i]);
        snprintf(url, sizeof(url), "rediss://localhost:%d?verify=no", port);
        for (int n = 0; n < 5; n++)
            rt_check_works(url);
        snprintf(url, sizeof(url), "rediss://localhost:%d", port);
        rt_check_refused(url, HF_DENIED, "certificate");
    }
    rt_check_refused("rediss://localhost?verify=maybe", HF_INVALID, "verify=");
    rt_end(&s);
}

/* ---- Sentinel ---------------------------------------------------------- */

static const char *sentinel_url(const char *scheme, const char *host, int port,
                                const char *more)
{
    static char url[1024];

    snprintf(url, sizeof(url), "%s://%s:%d/main?timeout=2s%s", scheme, host,
             port, more);
    return url;
}

TEST_TIMEOUT(with_sentinels_locks_are_kept_handed_over_and_follow_the_master,
             120)
{
    struct ensemble e = {.stubborn = true, .tls = t_tmpdir()};
    hf_client *holder, *waiter;
    struct rt_waiter w;
    hf_lock *lk;

    tls_make(e.tls);
    ensemble_start(&e);
    holder = open_listening(&e, "&replicas=1");
    waiter = open_listening(&e, "");
    check_hands_over(holder, waiter, &e.node[0], "k");
    lk = rt_lock(holder, "k", 0, 60000, 0); /* The replica has it. */
    w = rt_waiter(waiter, "k", 60000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_hears(&e.node[0], "k"), 20000);
    depose(&e, 1);
    /* The old master would still serve: they were told to leave. */
    t_poll_until(count_ours(&e.node[0]) == 0, 20000);
    t_poll_until(rt_hears(&e.node[1], "k"), 20000);
    CHECK(is_master(&e.node[0]));
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    check_lands_on(waiter, &e.node[1], "after");
    hf_close(holder);
    hf_close(waiter);
    rt_check_clean(&e.node[1]);
    ensemble_stop(&e);
}

TEST_TIMEOUT(sentinels_and_their_master_are_verified_each_by_its_name, 120)
{
    struct ensemble e = {.tls = t_tmpdir()};
    const char *tls = tls_params(e.tls);
    char stranger[700];
    int port;

    tls_make(e.tls);
    ensemble_start(&e);
    port = e.sentinel[0].port;
    snprintf(stranger, sizeof(stranger), "&ca=%s/no.pem", e.tls);
    rt_check_works(sentinel_url("rediss+sentinel", "localhost", port, tls));
    /* It listens there, and its certificate does not say so. */
    rt_check_refused(sentinel_url("rediss+sentinel", "127.0.0.2", port, tls),
                     HF_DENIED, "certificate");
    rt_check_refused(
        sentinel_url("rediss+sentinel", "127.0.0.1", port, stranger), HF_DENIED,
        "certificate");
    rt_check_refused(sentinel_url("redis+sentinel", "127.0.0.1", port, ""),
                     HF_UNAVAILABLE, "TLS");
    /* The sentinel is well, and the master that it names is not. */
    certify(&e.node[0], e.tls, "elsewhere.test");
    rt_check_refused(sentinel_url("rediss+sentinel", "127.0.0.1", port, tls),
                     HF_DENIED, "certificate");
    ensemble_stop(&e);
}

static const char *secret_file(const char *name, const char *text)
{
    static char path[200];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", t_tmpdir(), name);
    file = fopen(path, "we");
    CHECK(file != NULL);
    fprintf(file, "%s\n", text);
    fclose(file);
    return path;
}

/* The URL of the ensemble with this user of the sentinels, or none, and a file
 * with this password. */
static const char *secret_url(const struct ensemble *e, const char *user,
                              const char *text)
{
    static char url[1400];

    snprintf(url, sizeof(url), "%s%s%s&sentinel_password_file=%s", e->url,
             user ? "&sentinel_user=" : "", user ? user : "",
             secret_file("secret", text));
    return url;
}

/* They are asked and listened to, and the master has no part in it. */
TEST_TIMEOUT(sentinels_with_a_password_are_asked_and_heard, 120)
{
    struct ensemble e = {.stubborn = true, .password = "s3cret-of-sentinels"};
    hf_client *client;
    char more[300];

    ensemble_start(&e);
    snprintf(more, sizeof(more), "&sentinel_password_file=%s",
             secret_file("secret", e.password));
    client = open_listening(&e, more);
    depose(&e, 1);
    t_poll_until(count_ours(&e.node[0]) == 0, 20000);
    check_lands_on(client, &e.node[1], "after");
    hf_close(client);
    ensemble_stop(&e);
}

/* What holdfast-redis(7) says of the rights. */
static void add_users(struct ensemble *e)
{
    int i;

    for (i = 0; i < SENTINELS; i++) {
        rt_do(&e->sentinel[i],
              "ACL SETUSER asker on >s3cret resetchannels &+switch-master "
              "+auth +ping +sentinel|get-master-addr-by-name +sentinel|master "
              "+subscribe");
        rt_do(&e->sentinel[i], "ACL SETUSER idler on >s3cret +auth +ping");
    }
}

TEST_TIMEOUT(a_sentinel_that_refuses_is_told_from_the_server, 120)
{
    struct ensemble e = {.password = "s3cret-of-sentinels"};
    hf_client *client = NULL;

    ensemble_start(&e);
    rt_check_refused(e.url, HF_DENIED, "NOAUTH");
    rt_check_refused(e.url, HF_DENIED, "sentinel 127.0.0.1:");
    rt_check_refused(e.url, HF_DENIED, "sentinel_password_file=");
    rt_check_refused(secret_url(&e, NULL, "s3cret"), HF_DENIED, "WRONGPASS");
    rt_check_refused(secret_url(&e, NULL, "s3cret"), HF_DENIED,
                     "sentinel_password_file=");
    rt_check_refused(secret_url(&e, "nobody", e.password), HF_DENIED,
                     "sentinel_user=");
    rt_check_works(secret_url(&e, NULL, e.password));
    rt_check_works(secret_url(&e, "default", e.password));
    add_users(&e);
    rt_check_refused(secret_url(&e, "idler", "s3cret"), HF_DENIED, "NOPERM");
    CHECK_OK(hf_open(secret_url(&e, "asker", "s3cret"), NULL, &client, &t_err));
    check_lands_on(client, &e.node[0], "k");
    t_poll_until(listened_to(&e) >= 0, 20000);
    hf_close(client);
    ensemble_stop(&e);
}

/* Before anybody is asked. */
TEST(what_is_said_of_the_sentinels_password_must_make_sense)
{
    char url[600], text[1200];

    rt_check_refused("redis+sentinel://127.0.0.1:1/main?sentinel_user=me",
                     HF_INVALID, "sentinel_password_file=");
    rt_check_refused(
        "redis+sentinel://127.0.0.1:1/main?sentinel_password_file=/none",
        HF_SYSTEM, "sentinel_password_file=");
    snprintf(url, sizeof(url), "redis://127.0.0.1:1?sentinel_password_file=%s",
             secret_file("secret", "s3cret"));
    rt_check_refused(url, HF_INVALID, "sentinel_password_file=");
    snprintf(url, sizeof(url),
             "redis+sentinel://127.0.0.1:1/main?sentinel_password_file=%s",
             secret_file("empty", ""));
    rt_check_refused(url, HF_INVALID, "empty");
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    secret_file("empty", text);
    rt_check_refused(url, HF_INVALID, "too long");
}

/* ---- Cluster ----------------------------------------------------------- */

TEST_TIMEOUT(in_a_cluster_locks_are_kept_and_handed_over_on_every_shard, 120)
{
    const char *dir = t_tmpdir(), *key = fleet_key(0, 1);
    struct fleet f;
    hf_client *a, *b;
    struct rt_waiter w;
    hf_lock *lk, *bare;
    hf_client *set;
    long long slot;
    char bare_key[64];
    int node;

    tls_make(dir);
    fleet_start_tls(&f, dir);
    a = fleet_open(&f, "&replicas=1");
    b = fleet_open(&f, "");
    set = fleet_open(&f, "&acquire=set");
    for (node = 0; node < FLEET_MASTERS; node++)
        check_hands_over(a, b, &f.node[node], fleet_key(node, 0));
    /* A slot moves while somebody holds and somebody waits: ASK, then MOVED. */
    slot = fleet_slot(&f, key);
    lk = rt_lock(a, key, 0, 2000, 0);
    w = rt_waiter(b, key, 60000, 2000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_hears(&f.node[0], key), 10000);
    fleet_move_begin(&f, slot, 0, 1);
    snprintf(bare_key, sizeof(bare_key), "x{holdfast:%s}", key);
    bare = rt_lock(set, bare_key, 5000, 2000, 0);
    fleet_move_rest(&f, slot, 0, 1);
    t_poll_until(rt_hears(&f.node[1], key), 10000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(bare, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    hf_close(a);
    hf_close(b);
    hf_close(set);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* The URL of one node, by this name. */
static const char *node_url(struct fleet *f, int node, const char *scheme,
                            const char *host, const char *more)
{
    static char url[1024];

    snprintf(url, sizeof(url), "%s://%s:%d?timeout=2s%s", scheme, host,
             f->node[node].port, more);
    return url;
}

static void check_acquires(const char *url, const char *key, hf_status want)
{
    struct hf_lock_opts opts = rt_opts(2000, 0);
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &lk, &t_err), want);
    if (want)
        CHECK(strstr(t_err.text, "certificate") != NULL);
    else
        CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST_TIMEOUT(nodes_of_a_cluster_are_verified_by_the_name_that_was_told, 120)
{
    const char *dir = t_tmpdir(), *tls = tls_params(dir), *url;
    struct fleet f;

    tls_make(dir);
    fleet_start_tls(&f, dir);
    rt_check_refused(node_url(&f, 0, "redis+cluster", "127.0.0.1", ""),
                     HF_UNAVAILABLE, "TLS");
    certify(&f.node[2], dir, "elsewhere.test");
    url = node_url(&f, 0, "rediss+cluster", "127.0.0.1", tls);
    check_acquires(url, fleet_key(1, 0), HF_OK);
    check_acquires(url, fleet_key(2, 0), HF_DENIED);
    CHECK_EQ(rt_int(&f.node[2], "EXISTS holdfast:%s", fleet_key(2, 0)), 0);
    rt_check_refused(node_url(&f, 2, "rediss+cluster", "127.0.0.1", tls),
                     HF_DENIED, "certificate");
    fleet_stop(&f);
}

/* How many nodes does this one know by that name? */
static int known_by(struct rt_server *s, const char *name)
{
    const char *at = rt_text(s, "CLUSTER NODES");
    int n = 0;

    for (; (at = strstr(at, name)); at += strlen(name))
        n++;
    return n;
}

/* Their certificates have a name, and the cluster speaks of addresses until it
 * is told to speak of names. */
TEST_TIMEOUT(a_cluster_of_names_works_with_certificates_for_names, 120)
{
    const char *dir = t_tmpdir(), *url;
    struct fleet f;
    int i;

    tls_make(dir);
    fleet_start_tls(&f, dir);
    for (i = 0; i < FLEET_NODES; i++)
        certify(&f.node[i], dir, "named");
    url = node_url(&f, 0, "rediss+cluster", "localhost", tls_params(dir));
    rt_check_refused(url, HF_DENIED, "certificate");
    for (i = 0; i < FLEET_NODES; i++)
        rt_do(&f.node[i], "CONFIG SET cluster-announce-hostname localhost "
                          "cluster-preferred-endpoint-type hostname");
    t_poll_until(known_by(&f.node[0], ",localhost ") == FLEET_NODES, 20000);
    for (i = 0; i < FLEET_MASTERS; i++)
        check_acquires(url, fleet_key(i, 0), HF_OK);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

T_MAIN
