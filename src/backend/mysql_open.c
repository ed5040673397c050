/* SPDX-License-Identifier: MIT
 *
 * mysql_open.c - a connection, its settings, and what is refused.
 *
 * REFUSED  A server that is read only is a replica.  On Galera a row lock is
 *   known to one node only, so strategy=row is refused there; lease and
 *   version go by what is certified at commit: of two nodes that grant at
 *   once, one is told of a deadlock and asks again.
 */
#include "mysql.h"

#include <fcntl.h>

#include "../mem.h"

#include "../banned.h"

/* ---- parameters -------------------------------------------------------- */

static bool param_is(const struct hfi_url *url, const char *name,
                     const char *value)
{
    return !strcmp(hfi_url_param(url, name, ""), value);
}

hf_status my_params(struct my_conn *mc, const struct hfi_url *url,
                    struct hf_error *err)
{
    const char *database = url->path[0] == '/' ? url->path + 1 : url->path;
    const char *password =
        url->password ? url->password : secure_getenv("MYSQL_PWD");
    const char *const values[MY_PARAMS] = {
        [MY_HOST] = url->nhosts ? url->hosts[0].name : NULL,
        [MY_USER] = url->user,
        [MY_PASSWORD] = password,
        [MY_DATABASE] = database,
        [MY_SOCKET] = hfi_url_param(url, "socket", NULL),
        [MY_SSL_CA] = hfi_url_param(url, "ssl_ca", NULL),
        [MY_SSL_CERT] = hfi_url_param(url, "ssl_cert", NULL),
        [MY_SSL_KEY] = hfi_url_param(url, "ssl_key", NULL)};
    int i;

    if (url->nhosts > 1)
        return hfi_fail(err, HF_INVALID, "url: mysql: takes one host");
    if (!*database)
        return hfi_fail(err, HF_INVALID,
                        "url: mysql: needs a database, as in mysql://host/db");
    mc->port = url->nhosts ? (unsigned)url->hosts[0].port : 0;
    mc->tls = param_is(url, "ssl", "yes") || values[MY_SSL_CA];
    mc->tls_unchecked = param_is(url, "ssl_verify", "no");
    for (i = 0; i < MY_PARAMS; i++) {
        mc->params[i] = hfi_strdup(values[i]);
        if (values[i] && !mc->params[i])
            return hfi_nomem(err);
    }
    return HF_OK;
}

void my_params_free(struct my_conn *mc)
{
    int i;

    for (i = 0; i < MY_PARAMS; i++) {
        if (mc->params[i])
            explicit_bzero(mc->params[i], strlen(mc->params[i]));
        hfi_free(mc->params[i]);
        mc->params[i] = NULL;
    }
}

/* ---- connecting -------------------------------------------------------- */

static void my_options(struct my_conn *mc, MYSQL *my)
{
    unsigned seconds = (unsigned)(mc->sql.timeout_ms / 1000 + 1);
    my_bool yes = 1, no = 0;

    mysql_options(my, MYSQL_OPT_NONBLOCK, NULL);
    mysql_options(my, MYSQL_OPT_CONNECT_TIMEOUT, &seconds);
    mysql_options(my, MYSQL_SET_CHARSET_NAME, "utf8mb4");
    mysql_options(my, MYSQL_OPT_LOCAL_INFILE, &(unsigned){0});
    if (mc->params[MY_HOST] && mc->port) /* "localhost" would mean a socket. */
        mysql_options(my, MYSQL_OPT_PROTOCOL, &(unsigned){MYSQL_PROTOCOL_TCP});
    if (mc->tls) {
        mysql_options(my, MYSQL_OPT_SSL_ENFORCE, &yes);
        mysql_options(my, MYSQL_OPT_SSL_VERIFY_SERVER_CERT,
                      mc->tls_unchecked ? &no : &yes);
    }
    if (mc->params[MY_SSL_CA])
        mysql_options(my, MYSQL_OPT_SSL_CA, mc->params[MY_SSL_CA]);
    if (mc->params[MY_SSL_CERT])
        mysql_options(my, MYSQL_OPT_SSL_CERT, mc->params[MY_SSL_CERT]);
    if (mc->params[MY_SSL_KEY])
        mysql_options(my, MYSQL_OPT_SSL_KEY, mc->params[MY_SSL_KEY]);
}

static void my_library(void)
{
    mysql_library_init(0, NULL, NULL);
}

hf_status my_connect(struct my_session *ms, int64_t deadline,
                     struct hf_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct my_conn *mc = (struct my_conn *)ms->base.conn;
    MYSQL *ret = NULL;
    hf_status st;
    int status;

    pthread_once(&once, my_library); /* Two at once are not safe. */
    ms->my = mysql_init(NULL);
    if (!ms->my)
        return hfi_nomem(err);
    my_options(mc, ms->my);
    status = mysql_real_connect_start(
        &ret, ms->my, mc->params[MY_HOST], mc->params[MY_USER],
        mc->params[MY_PASSWORD], mc->params[MY_DATABASE], mc->port,
        mc->params[MY_SOCKET], CLIENT_FOUND_ROWS);
    while (status) {
        /* The library does not, and there is no earlier moment. */
        fcntl(mysql_get_socket(ms->my), F_SETFD, FD_CLOEXEC);
        status = my_wait(ms->my, status, deadline);
        if (!status)
            return hfi_fail(err, HF_UNAVAILABLE, "connect: no answer in time");
        status = mysql_real_connect_cont(&ret, ms->my, status);
    }
    if (ret) {
        fcntl(mysql_get_socket(ms->my), F_SETFD, FD_CLOEXEC);
        return HF_OK;
    }
    st = my_error(ms, err);
    return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
}

/* ---- what is refused --------------------------------------------------- */

struct judged {
    bool read_only, galera, lazy;
};

static bool judge_is(const struct sql_cell *cell, const char *text)
{
    return cell->data && cell->len == strlen(text) &&
           !strncasecmp(cell->data, text, cell->len);
}

static void judge_row(struct sql_answer *answer, const struct sql_cell *cells,
                      int n)
{
    struct judged *judged = answer->arg;

    if (n != 2)
        return;
    if (judge_is(&cells[0], "read_only"))
        judged->read_only = !judge_is(&cells[1], "OFF");
    else if (judge_is(&cells[0], "wsrep_on"))
        judged->galera = judge_is(&cells[1], "ON");
    else if (judge_is(&cells[0], "innodb_flush_log_at_trx_commit"))
        judged->lazy = !judge_is(&cells[1], "1");
}

static hf_status my_judge(struct my_session *ms, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_conn *conn = ms->base.conn;
    struct judged judged = {0};
    struct sql_answer answer = {.row = judge_row, .arg = &judged};
    hf_status st = my_exec(ms,
                           "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
                           "('read_only','wsrep_on',"
                           "'innodb_flush_log_at_trx_commit')",
                           &answer, deadline, err);

    if (st)
        return st;
    if (judged.read_only)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "this server is read only, as a replica is: name the "
                        "primary");
    if (judged.galera && conn->strategy == SQL_ROW)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "strategy=row: on Galera a row lock excludes nobody "
                        "on the other nodes; use lease or version");
    if (judged.galera)
        st = my_exec(ms, "SET SESSION wsrep_sync_wait=1", NULL, deadline, err);
    if (judged.galera && conn->strategy == SQL_LEASE)
        snprintf(
            conn->base.warning, sizeof(conn->base.warning),
            "Galera: a lease goes by the clock of the node that is asked, "
            "so the nodes' clocks must agree; strategy=version needs none");
    else if (judged.lazy)
        snprintf(conn->base.warning, sizeof(conn->base.warning),
                 "innodb_flush_log_at_trx_commit is not 1: a crash of the "
                 "server may forget grants of the last second");
    return st;
}

hf_status my_settle(struct my_session *ms, bool first, int64_t deadline,
                    struct hf_error *err)
{
    static const char *const settings[] = {
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        "SET time_zone='+00:00',autocommit=1,sql_mode='STRICT_TRANS_TABLES'"};
    bool mariadb = strstr(mysql_get_server_info(ms->my), "MariaDB") != NULL;
    long long ms_max = (long long)ms->base.conn->timeout_ms;
    char text[128];
    hf_status st = first ? my_judge(ms, deadline, err) : HF_OK;
    size_t i;

    for (i = 0; !st && i < 2; i++)
        st = my_exec(ms, settings[i], NULL, deadline, err);
    snprintf(text, sizeof(text), "SET innodb_lock_wait_timeout=%lld",
             ms_max / 1000 + 1);
    if (mariadb)
        snprintf(text + strlen(text), sizeof(text) - strlen(text),
                 ",max_statement_time=%lld", ms_max / 1000 + 1);
    if (!st)
        st = my_exec(ms, text, NULL, deadline, err);
    return st;
}
