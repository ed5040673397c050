/* SPDX-License-Identifier: MIT
 *
 * options.c - what the URL and the environment say about Consul.
 *
 * An option of the URL goes before the variable that Consul's own tools read.
 * The token comes from a file or a variable, never from the URL, and leaves
 * this process as a header only: not in a path, a message or a process title.
 * The file is read again when the service refuses the token, and certificates
 * for every connection, so that both can be changed while locks are held.
 * A set-user-id program does not listen to the environment.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

#define TOKEN_MAX      1024
#define KEEP_MS        (INT64_C(7) * 24 * 3600 * 1000)
#define LOCK_DELAY_MAX INT64_C(60000) /* The service would cut it silently. */

const char *const hfi_consul_options[] = {
    "token_file", "lock_delay", "layout", "queue", "checks",
    "cacert",     "capath",     "cert",   "key",   "server_name",
    "verify",     "keep",       NULL};

/* An option, else a variable, else NULL; nothing is not an answer. */
static const char *options_text(const struct hfi_url *url, const char *option,
                                const char *variable)
{
    const char *text = hfi_url_param(url, option, NULL);

    if (!text && variable)
        text = secure_getenv(variable);
    return text && *text ? text : NULL;
}

/* Keep a copy; false: no memory. */
static bool options_keep(char **ret, const char *text)
{
    if (text)
        *ret = hfi_strdup(text);
    return !text || *ret;
}

/* ---- the token ---------------------------------------------------------- */

/* What every request bears.  A request under way may use an older list, so none
 * is freed before the end. */
struct consul_headers {
    struct curl_slist *list;
    struct consul_headers *older;
};

static void headers_free(struct consul_headers *headers)
{
    struct consul_headers *older;
    struct curl_slist *at;

    for (; headers; headers = older) {
        older = headers->older;
        for (at = headers->list; at; at = at->next)
            explicit_bzero(at->data, strlen(at->data));
        curl_slist_free_all(headers->list);
        hfi_free(headers);
    }
}

/* Send the header `line` from now on, or none if it is "". */
static bool headers_set(struct consul_options *options, const char *line)
{
    struct consul_headers *headers = hfi_alloc(sizeof(*headers));

    if (!headers)
        return false;
    headers->list = curl_slist_append(NULL, "Expect:");
    if (!headers->list || (*line && !curl_slist_append(headers->list, line))) {
        headers_free(headers);
        return false;
    }
    headers->older = atomic_load(&options->headers);
    atomic_store(&options->headers, headers);
    return true;
}

/* The line that bears the token now. */
static const char *headers_token(const struct consul_options *options)
{
    struct consul_headers *headers = atomic_load(
        (struct consul_headers * _Atomic *)(uintptr_t)&options->headers);

    return headers && headers->list->next ? headers->list->next->data : "";
}

/* Take the token from its file, or from the environment, and send it from now
 * on.  *changed: it is not the one from before.  A header is one line, whatever
 * the file holds. */
static hf_status options_token(struct consul_options *options, bool *changed,
                               struct hf_error *err)
{
    static const char name[] = "X-Consul-Token: ";
    char line[sizeof(name) + TOKEN_MAX] = "";
    char *token = line + sizeof(name) - 1;
    const char *text = secure_getenv("CONSUL_HTTP_TOKEN");
    hf_status st = HF_OK;

    memcpy(line, name, sizeof(name));
    if (options->token_file)
        st = hfi_url_secret(options->token_file, "consul: the token file",
                            token, TOKEN_MAX + 1, err);
    else if (text && strlen(text) <= TOKEN_MAX)
        memcpy(token, text, strlen(text) + 1);
    if (!st && strpbrk(token, "\r\n"))
        st = hfi_fail(err, HF_INVALID, "consul: a token is one line");
    if (!*token)
        line[0] = '\0';
    *changed = !st && (!atomic_load(&options->headers) ||
                       strcmp(line, headers_token(options)) != 0);
    if (*changed && !headers_set(options, line))
        st = hfi_nomem(err);
    explicit_bzero(line, sizeof(line));
    return st;
}

/* The service has refused the token: is there another one in the file by now?
 * Tokens are rotated while locks are held. */
bool hfi_consul_options_reread(struct consul_options *options,
                               pthread_mutex_t *mu)
{
    bool changed;
    hf_status st;

    if (!options->token_file)
        return false;
    pthread_mutex_lock(mu);
    st = options_token(options, &changed, NULL);
    pthread_mutex_unlock(mu);
    return !st && changed;
}

/* Add to the warning what can be read on its way. */
void hfi_consul_options_warn(const struct consul_options *options,
                             char *warning, size_t size)
{
    char host[256];
    const char *at;
    size_t i, len;

    for (i = 0; i < options->nagents && !options->socket; i++) {
        at = strstr(options->agents[i], "://") + 3;
        at += *at == '[';
        len = *(at - 1) == '[' ? strcspn(at, "]") : strcspn(at, ":");
        snprintf(host, sizeof(host), "%.*s", (int)len, at);
        if (hfi_url_is_here(host) ||
            (!options->insecure && !strncmp(options->agents[i], "https:", 6)))
            continue;
        len = strlen(warning);
        if (*headers_token(options))
            snprintf(warning + len, size - len,
                     "%sthe ACL token is sent to %.100s without verified TLS: "
                     "whoever is in between can read it",
                     len ? "; " : "", host);
        else if (options->auth)
            hfi_warn_password(warning, size, host, false);
        return;
    }
}

/* ---- where the agents are ----------------------------------------------- */

static hf_status options_agent(struct consul_options *options,
                               const char *scheme, const char *host, int port,
                               const char *server_name, struct hf_error *err)
{
    const char *open = strchr(host, ':') ? "[" : "", *shut = *open ? "]" : "";
    size_t size = strlen(host) + (server_name ? strlen(server_name) : 0) + 40;
    char *agent;

    if (strpbrk(host, "/?#@ \t\r\n"))
        return hfi_fail(err, HF_INVALID, "url: a malformed host");
    agent = hfi_alloc(size);
    if (!agent)
        return hfi_nomem(err);
    if (server_name) {
        snprintf(agent, size, "::%s%s%s:%d", open, host, shut, port);
        options->connect_to[options->nagents] = curl_slist_append(NULL, agent);
        snprintf(agent, size, "%s://%s:%d", scheme, server_name, port);
    } else {
        snprintf(agent, size, "%s://%s%s%s:%d", scheme, open, host, shut, port);
    }
    options->agents[options->nagents] = agent;
    if (server_name && !options->connect_to[options->nagents++])
        return hfi_nomem(err);
    options->nagents += !server_name;
    return HF_OK;
}

/* $CONSUL_HTTP_ADDR: [http[s]://]host[:port] or unix:///path. */
static hf_status options_from_env(struct consul_options *options, bool tls,
                                  const char *server_name, struct hf_error *err)
{
    const char *addr = secure_getenv("CONSUL_HTTP_ADDR");
    const char *ssl = secure_getenv("CONSUL_HTTP_SSL");
    struct hfi_url url = {0};
    char text[512];
    hf_status st;

    if (!addr || !*addr)
        return options_agent(options, tls ? "https" : "http", "127.0.0.1",
                             tls ? 8501 : 8500, server_name, err);
    snprintf(text, sizeof(text), "%s%s", strstr(addr, "://") ? "" : "http://",
             addr);
    st = hfi_url_parse(&url, text, err);
    if (st)
        return hfi_fail(err, HF_INVALID,
                        "consul: $CONSUL_HTTP_ADDR makes no "
                        "sense");
    tls = tls || !strcmp(url.scheme, "https") ||
          (ssl && (!strcmp(ssl, "true") || !strcmp(ssl, "1")));
    if (!strcmp(url.scheme, "unix"))
        st = options_keep(&options->socket, url.path) ? HF_OK : hfi_nomem(err);
    if (!st)
        st = options_agent(options, tls ? "https" : "http",
                           url.nhosts ? url.hosts[0].name : "localhost",
                           url.nhosts && url.hosts[0].port ? url.hosts[0].port
                                                           : 8500,
                           server_name, err);
    hfi_url_fini(&url);
    return st;
}

static hf_status options_agents(struct consul_options *options,
                                const struct hfi_url *url, struct hf_error *err)
{
    bool tls = !strcmp(url->scheme, "consuls");
    const char *server_name =
        options_text(url, "server_name", "CONSUL_TLS_SERVER_NAME");
    hf_status st = HF_OK;
    size_t i;

    if (server_name && strpbrk(server_name, "/?#@: \t\r\n"))
        return hfi_fail(err, HF_INVALID, "url: server_name= is a host's name");
    if (!strcmp(url->scheme, "consul+unix")) {
        if (url->nhosts || url->path[0] != '/')
            return hfi_fail(err, HF_INVALID,
                            "url: it is written consul+unix:///path");
        if (!options_keep(&options->socket, url->path))
            return hfi_nomem(err);
        return options_agent(options, "http", "localhost", 8500, NULL, err);
    }
    if (!url->nhosts)
        return options_from_env(options, tls, server_name, err);
    for (i = 0; i < url->nhosts && !st; i++)
        st = options_agent(options, tls ? "https" : "http", url->hosts[i].name,
                           url->hosts[i].port ? url->hosts[i].port
                           : tls              ? 8501
                                              : 8500,
                           tls ? server_name : NULL, err);
    return st;
}

/* ---- the rest ----------------------------------------------------------- */

/* "user:password" of the URL or $CONSUL_HTTP_AUTH. */
static bool options_auth(struct consul_options *options,
                         const struct hfi_url *url)
{
    size_t size;

    if (!url->user)
        return options_keep(&options->auth, secure_getenv("CONSUL_HTTP_AUTH"));
    size = strlen(url->user) + 2;
    size += url->password ? strlen(url->password) : 0;
    options->auth = hfi_alloc(size);
    if (options->auth)
        snprintf(options->auth, size, "%s:%s", url->user,
                 url->password ? url->password : "");
    return options->auth;
}

static hf_status options_tls(struct consul_options *options,
                             const struct hfi_url *url, struct hf_error *err)
{
    const char *verify = options_text(url, "verify", NULL);
    const char *env = secure_getenv("CONSUL_HTTP_SSL_VERIFY");

    if (verify && strcmp(verify, "yes") != 0 && strcmp(verify, "no") != 0)
        return hfi_fail(err, HF_INVALID, "url: verify= is yes or no");
    if (verify)
        options->insecure = !strcmp(verify, "no");
    else
        options->insecure = env && (!strcmp(env, "false") || !strcmp(env, "0"));
    if (!options_keep(&options->ca_file,
                      options_text(url, "cacert", "CONSUL_CACERT")) ||
        !options_keep(&options->ca_dir,
                      options_text(url, "capath", "CONSUL_CAPATH")) ||
        !options_keep(&options->cert,
                      options_text(url, "cert", "CONSUL_CLIENT_CERT")) ||
        !options_keep(&options->key,
                      options_text(url, "key", "CONSUL_CLIENT_KEY")))
        return hfi_nomem(err);
    return HF_OK;
}

/* Zero is a duration here, and the default. */
static hf_status options_lock_delay(struct consul_options *options,
                                    const struct hfi_url *url,
                                    struct hf_error *err)
{
    const char *text = hfi_url_param(url, "lock_delay", "0");
    hf_status st;

    if (!strcmp(text, "0") || !strcmp(text, "0s") || !strcmp(text, "0ms"))
        return HF_OK;
    st = hfi_url_duration(url, "lock_delay", &options->lock_delay_ms, err);
    if (!st && options->lock_delay_ms > LOCK_DELAY_MAX)
        st = hfi_fail(err, HF_INVALID, "url: lock_delay= is at most 60s");
    return st;
}

/* How long an entry stays that nobody uses; 0: for ever. */
static hf_status options_retention(struct consul_options *options,
                                   const struct hfi_url *url,
                                   struct hf_error *err)
{
    if (!strcmp(hfi_url_param(url, "keep", ""), "off"))
        return HF_OK;
    options->keep_ms = KEEP_MS;
    return hfi_url_duration(url, "keep", &options->keep_ms, err);
}

static hf_status options_choose(const struct hfi_url *url, const char *option,
                                const char *no, const char *yes, bool *ret,
                                struct hf_error *err)
{
    const char *text = hfi_url_param(url, option, no);

    *ret = !strcmp(text, yes);
    if (*ret || !strcmp(text, no))
        return HF_OK;
    return hfi_fail(err, HF_INVALID, "url: %s= is %s or %s", option, no, yes);
}

/* The path of the URL stands before every key, but for its leading slash. */
static hf_status options_prefix(struct consul_options *options,
                                const struct hfi_url *url, struct hf_error *err)
{
    const char *path = options->socket ? "" : url->path, *c;

    path += *path == '/';
    for (c = path; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
              (*c >= '0' && *c <= '9') || *c == '_' || *c == '-' ||
              (c > path && (*c == '/' || *c == '.') && c[-1] != '/')))
            return hfi_fail(err, HF_INVALID,
                            "url: the path of a consul URL stands before "
                            "every key: letters, digits, '-', '_', '.', '/'");
    if (strlen(path) > 256)
        return hfi_fail(err, HF_INVALID, "url: the path is too long");
    return options_keep(&options->prefix, path) ? HF_OK : hfi_nomem(err);
}

hf_status hfi_consul_options_init(struct consul_options *options,
                                  const struct hfi_url *url,
                                  struct hf_error *err)
{
    hf_status st = options_agents(options, url, err);
    bool changed, barge = false;

    if (!st)
        st = options_prefix(options, url, err);
    if (!st && !options_keep(
                   &options->token_file,
                   options_text(url, "token_file", "CONSUL_HTTP_TOKEN_FILE")))
        st = hfi_nomem(err);
    if (!st)
        st = options_token(options, &changed, err);
    if (!st)
        st = options_tls(options, url, err);
    if (!st)
        st = options_lock_delay(options, url, err);
    if (!st)
        st = options_retention(options, url, err);
    if (!st)
        st = options_choose(url, "layout", "key", "cli", &options->cli, err);
    if (!st)
        st = options_choose(url, "queue", "fair", "barge", &barge, err);
    options->fair = !barge;
    if (!st && !options_auth(options, url))
        st = hfi_nomem(err);
    if (!st &&
        !options_keep(&options->checks, hfi_url_param(url, "checks", "")))
        st = hfi_nomem(err);
    return st;
}

static void options_wipe(char *text)
{
    if (text)
        explicit_bzero(text, strlen(text));
    hfi_free(text);
}

void hfi_consul_options_fini(struct consul_options *options)
{
    size_t i;

    for (i = 0; i < options->nagents; i++) {
        hfi_free(options->agents[i]);
        curl_slist_free_all(options->connect_to[i]);
    }
    headers_free(atomic_load(&options->headers));
    hfi_free(options->token_file);
    options_wipe(options->auth);
    hfi_free(options->socket);
    hfi_free(options->ca_file);
    hfi_free(options->ca_dir);
    hfi_free(options->cert);
    hfi_free(options->key);
    hfi_free(options->prefix);
    hfi_free(options->checks);
    *options = (struct consul_options){0};
}

/* Put all that does not change from request to request on a handle.  False:
 * no memory. */
bool hfi_consul_options_apply(struct consul_options *options, CURL *easy,
                              size_t agent)
{
    CURLcode rc = CURLE_OK;

#if LIBCURL_VERSION_NUM >= 0x075700
    /* Certificates are read for every connection, CAs too. */
    rc = curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, 0L);
#endif
    if (!rc && options->connect_to[agent])
        rc = curl_easy_setopt(easy, CURLOPT_CONNECT_TO,
                              options->connect_to[agent]);
    if (!rc && options->socket)
        rc = curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, options->socket);
    if (!rc)
        rc = curl_easy_setopt(easy, CURLOPT_HTTPHEADER,
                              atomic_load(&options->headers)->list);
    if (!rc && options->auth)
        rc = curl_easy_setopt(easy, CURLOPT_USERPWD, options->auth);
    if (!rc && options->ca_file)
        rc = curl_easy_setopt(easy, CURLOPT_CAINFO, options->ca_file);
    if (!rc && options->ca_dir)
        rc = curl_easy_setopt(easy, CURLOPT_CAPATH, options->ca_dir);
    if (!rc && options->cert)
        rc = curl_easy_setopt(easy, CURLOPT_SSLCERT, options->cert);
    if (!rc && options->key)
        rc = curl_easy_setopt(easy, CURLOPT_SSLKEY, options->key);
    if (!rc && options->insecure) {
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
        curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
    }
    return rc == CURLE_OK;
}
