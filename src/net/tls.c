/* SPDX-License-Identifier: MIT
 *
 * tls.c - what TLS needs before its handshake: certificates and who is
 * expected; see tls.h.
 */
#include "tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include "base/alloc.h"

#include "base/banned.h"

hf_status hfi_tls_fail(struct hf_error *err, hf_status st, const char *what)
{
    unsigned long code = ERR_peek_last_error();
    const char *why = code ? ERR_reason_error_string(code) : NULL;

    ERR_clear_error();
    return hfi_fail(err, st, "tls: %s: %s", what,
                    why ? why : "no reason was given");
}

/* What the URL names, to be read again. */
struct tls_files {
    char *ca, *cert, *key;
};

static void tls_files_free(struct tls_files *files)
{
    if (!files)
        return;
    hfi_free(files->ca);
    hfi_free(files->cert);
    hfi_free(files->key);
    hfi_free(files);
}

static struct tls_files *tls_files_new(const char *ca, const char *cert,
                                       const char *key)
{
    struct tls_files *files = hfi_alloc(sizeof(*files));

    if (!files)
        return NULL;
    files->ca = hfi_strdup(ca);
    files->cert = hfi_strdup(cert);
    files->key = hfi_strdup(key);
    if ((!ca || files->ca) && (!cert || files->cert) && (!key || files->key))
        return files;
    tls_files_free(files);
    return NULL;
}

hf_status hfi_tls_new(SSL_CTX **ret, const struct hfi_url *url,
                      struct hf_error *err)
{
    const char *ca = hfi_url_param(url, "ca", NULL);
    const char *cert = hfi_url_param(url, "cert", NULL);
    const char *key = hfi_url_param(url, "key", cert);
    const char *verify = hfi_url_param(url, "verify", "yes");
    struct tls_files *files;
    SSL_CTX *ctx;
    hf_status st = HF_OK;

    if (strcmp(verify, "yes") != 0 && strcmp(verify, "no") != 0)
        return hfi_fail(err, HF_INVALID, "url: verify= is yes or no");
    files = tls_files_new(ca, cert, key);
    ctx = files ? SSL_CTX_new(TLS_client_method()) : NULL;
    if (!ctx || !SSL_CTX_set_app_data(ctx, files)) {
        tls_files_free(files);
        SSL_CTX_free(ctx);
        return hfi_nomem(err);
    }
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE |
                              SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                              SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_verify(
        ctx, strcmp(verify, "no") ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    if (ca ? !SSL_CTX_load_verify_locations(ctx, ca, NULL)
           : !SSL_CTX_set_default_verify_paths(ctx))
        st = hfi_tls_fail(err, HF_INVALID, "the certificates of ca=");
    else if (cert && SSL_CTX_use_certificate_chain_file(ctx, cert) != 1)
        st = hfi_tls_fail(err, HF_INVALID, "the certificate of cert=");
    else if (cert &&
             SSL_CTX_use_PrivateKey_file(ctx, key, SSL_FILETYPE_PEM) != 1)
        st = hfi_tls_fail(err, HF_INVALID, "the private key of key=");
    if (st)
        hfi_tls_free(ctx);
    else
        *ret = ctx;
    return st;
}

void hfi_tls_free(SSL_CTX *ctx)
{
    tls_files_free(SSL_CTX_get_app_data(ctx));
    SSL_CTX_free(ctx);
}

bool hfi_tls_is_verified(const SSL_CTX *ctx)
{
    return ctx && SSL_CTX_get_verify_mode(ctx) & SSL_VERIFY_PEER;
}

/* Those whom the file names now. */
static bool tls_load_ca(SSL *ssl, const char *ca)
{
    X509_STORE *store = X509_STORE_new();
    bool ok = store && X509_STORE_load_locations(store, ca, NULL) == 1 &&
              SSL_set1_verify_cert_store(ssl, store) == 1;

    X509_STORE_free(store);
    return ok;
}

/* One connection's state, with what stands in the files by now.  While they are
 * being replaced they may not fit each other: then with what was read before.
 * */
static SSL *tls_new(SSL_CTX *ctx)
{
    const struct tls_files *files = SSL_CTX_get_app_data(ctx);
    SSL *ssl = SSL_new(ctx);

    if (!ssl || !files)
        return ssl;
    if ((!files->ca || tls_load_ca(ssl, files->ca)) &&
        (!files->cert ||
         (SSL_use_certificate_chain_file(ssl, files->cert) == 1 &&
          SSL_use_PrivateKey_file(ssl, files->key, SSL_FILETYPE_PEM) == 1)))
        return ssl;
    ERR_clear_error();
    SSL_free(ssl);
    return SSL_new(ctx);
}

/* OpenSSL's own sockets raise SIGPIPE, which is not ours to raise in somebody's
 * program; these do not. */
static int bio_write(BIO *bio, const char *from, int len)
{
    int fd = (int)(intptr_t)BIO_get_data(bio);
    ssize_t done = send(fd, from, (size_t)len, MSG_NOSIGNAL);

    BIO_clear_retry_flags(bio);
    if (done < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)done;
}

static int bio_read(BIO *bio, char *to, int size)
{
    int fd = (int)(intptr_t)BIO_get_data(bio);
    ssize_t got = recv(fd, to, (size_t)size, 0);

    BIO_clear_retry_flags(bio);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        BIO_set_retry_read(bio);
    return (int)got;
}

static long bio_control(BIO *bio, int command, long number, void *ptr)
{
    (void)bio;
    (void)number;
    (void)ptr;
    return command == BIO_CTRL_FLUSH;
}

static BIO_METHOD *bio_quiet;

static void bio_make(void)
{
    bio_quiet = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(),
                             "quiet socket");
    if (bio_quiet) {
        BIO_meth_set_write(bio_quiet, bio_write);
        BIO_meth_set_read(bio_quiet, bio_read);
        BIO_meth_set_ctrl(bio_quiet, bio_control);
    }
}

static bool tls_set_fd(SSL *ssl, int fd)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    BIO *bio;

    pthread_once(&once, bio_make);
    bio = bio_quiet ? BIO_new(bio_quiet) : NULL;
    if (!bio)
        return false;
    BIO_set_data(bio, (void *)(intptr_t)fd);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    return true;
}

/* The name in the certificate must be the one that is connected to: what the
 * user wrote, or what a server that was verified has named. */
static bool tls_expect(SSL *ssl, const char *host)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);

    if (X509_VERIFY_PARAM_set1_ip_asc(param, host))
        return true;
    return SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
}

SSL *hfi_tls_begin(SSL_CTX *ctx, int fd, const char *host)
{
    SSL *ssl = tls_new(ctx);

    if (ssl && tls_set_fd(ssl, fd) && tls_expect(ssl, host))
        return ssl;
    SSL_free(ssl);
    return NULL;
}
