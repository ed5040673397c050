/* SPDX-License-Identifier: MIT
 *
 * scene.h - what the tests of the SQL services share: the URL under test, an
 * operator's SQL shell beside it, and a proxy that cuts connections.
 *
 * The environment is set by test/servers/NAME; $HF_SQL_STRATEGY names the
 * strategy, lease if it is not set.
 */
#ifndef TEST_SQL_SCENE_H
#define TEST_SQL_SCENE_H

#include "../t.h"

#include <stdio.h>

bool scene_is_postgres(void);
bool scene_is_mysql(void);  /* and not MariaDB */
bool scene_is_sqlite(void); /* there is no server */
bool scene_is(const char *strategy);

/* The URL under test, with a port of its own (0: the server's) and more
 * options ("": none). */
const char *scene_url(int port, const char *more);
hf_client *scene_open(int port, const char *more);

/* The URL under test with another strategy and a table of its own. */
const char *scene_url_of(const char *strategy, const char *table);

/* A name that no other test uses. */
const char *scene_key(const char *suffix);

/* Let the operator run SQL; the number in the last column of its answer. */
int64_t scene_sql(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The key in the server's hex, as 'deadbeef'. */
const char *scene_hex(const char *key);

/* start, stop, kill the server. */
void scene_server(const char *command);

/* Have it started with these options from now on. */
void scene_options(const char *options);

/* Let the server's clock be `seconds` ahead; skip the test where it cannot be. */
void scene_set_clock(int64_t seconds);
void scene_set_clock_ns(int64_t seconds, int64_t ns);

/* Let the operator end all our sessions. */
void scene_end_sessions(void);

/* An operator's session that stays open: tell it what to run next, without
 * hearing of it; end it. */
FILE *scene_operator(const char *text);
void scene_operator_runs(FILE *, const char *text);

/* What is known of the key, and how many requests the client has sent. */
struct hf_info scene_inspected(hf_client *, const char *key);
uint64_t scene_requests(hf_client *);

/* The URL must be refused with this status, and the text say `word`. */
void scene_refused(const char *url, hf_status want, const char *word);

/* A proxy to the server: `up.port` is where it listens.  After scene_cut(n)
 * the n-th piece of data that passes from then on, in either direction, is
 * swallowed and its connection is reset, once. */
struct scene_proxy {
    struct t_peer peer;
    int port;
};
struct scene_proxy scene_proxy(void);
void scene_cut(struct scene_proxy *, int64_t n);
void scene_proxy_end(struct scene_proxy *);

#endif
