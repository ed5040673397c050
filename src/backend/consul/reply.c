/* SPDX-License-Identifier: MIT
 *
 * reply.c - what comes back, and what it means.
 *
 * Nothing here believes what it is told: a reply has a maximum, a number that
 * is none is zero, and what cannot be parsed has no tree.
 */
#include "consul.h"

#include <strings.h>

#include "base/alloc.h"

#include "base/banned.h"

#define REPLY_MAX ((size_t)64 << 20)

/* ---- as libcurl hands it on --------------------------------------------- */

size_t hfi_consul_reply_body(char *data, size_t one, size_t n, void *arg)
{
    struct consul_reply *reply = arg;
    size_t size = reply->size ? reply->size : 1024;
    char *grown;

    (void)one;
    if (n > REPLY_MAX - reply->len)
        return 0;
    while (size < reply->len + n + 1)
        size *= 2;
    if (size != reply->size) {
        grown = hfi_realloc(reply->data, size);
        if (!grown)
            return 0;
        reply->data = grown;
        reply->size = size;
    }
    memcpy(reply->data + reply->len, data, n);
    reply->len += n;
    reply->data[reply->len] = '\0';
    return n;
}

size_t hfi_consul_reply_header(char *line, size_t one, size_t n, void *arg)
{
    static const char name[] = "X-Consul-Index:";
    struct consul_reply *reply = arg;
    char number[32] = "";

    (void)one;
    /* libcurl takes a connection that ends among the headers for a whole answer
     * without a body.  Headers end with an empty line, and those of an interim
     * answer (100) are followed by others. */
    reply->headed = n == 2 && !memcmp(line, "\r\n", n);
    if (n > sizeof(name) && !strncasecmp(line, name, sizeof(name) - 1)) {
        line += sizeof(name) - 1;
        n -= sizeof(name) - 1;
        memcpy(number, line, n < sizeof(number) - 1 ? n : sizeof(number) - 1);
        reply->index = strtoull(number, NULL, 10);
        n += sizeof(name) - 1;
    }
    return n;
}

/* jansson refuses numbers beyond 2^63, which Flags of others may be: those of a
 * semaphore become the signed number of the same bits, any others -1, which is
 * nobody's. */
static void reply_tame_numbers(char *text)
{
    bool quoted = false;
    size_t len;

    for (; *text; text++) {
        if (*text == '"')
            quoted = !quoted;
        else if (quoted && *text == '\\' && text[1])
            text++;
        else if (!quoted && *text >= '0' && *text <= '9') {
            len = strspn(text, "0123456789");
            if (len == strlen(CONSUL_SEMAPHORE_TEXT) &&
                !memcmp(text, CONSUL_SEMAPHORE_TEXT, len)) {
                memcpy(text, "-2236430652612194848", len);
            } else if (len > 19 ||
                       (len == 19 &&
                        memcmp(text, "9223372036854775807", len) > 0)) {
                memset(text, ' ', len);
                memcpy(text, "-1", 2);
            }
            text += len - 1;
        }
    }
}

bool hfi_consul_reply_parse(struct consul_reply *reply)
{
    if (reply->json) /* A refused transaction was read already. */
        return true;
    if (!reply->data)
        return false;
    reply->json = json_loadb(reply->data, reply->len, 0, NULL);
    if (!reply->json) {
        reply_tame_numbers(reply->data);
        reply->json = json_loadb(reply->data, reply->len, 0, NULL);
    }
    return reply->json;
}

void hfi_consul_reply_fini(struct consul_reply *reply)
{
    json_decref(reply->json);
    hfi_free(reply->data);
    *reply = (struct consul_reply){0};
}

/* ---- what an answer means ----------------------------------------------- */

static bool reply_says(const struct consul_reply *reply, const char *text)
{
    return reply->data && strstr(reply->data, text);
}

/* What the service's own words, as one line, are in a message. */
static hf_status reply_refuse(const struct consul_conn *cc,
                              const struct consul_reply *reply, hf_status st,
                              struct hf_error *err)
{
    char text[160];

    return hfi_fail(err, st, "%s: %s (%ld)", cc->base.endpoint,
                    hfi_quote(text, sizeof(text),
                              reply->data ? reply->data : "no reason given"),
                    reply->status);
}

/* Does the answer prove that nothing was done?  Consul's own words do: there
 * was no server or no leader to send the request to.  A bare status does not,
 * since something between us and the agent may have made it when it lost the
 * answer; only 429 is said instead of passing a request on. */
static bool reply_not_done(const struct consul_reply *reply)
{
    return reply->status == 429 || reply_says(reply, "No cluster leader") ||
           reply_says(reply, "not ready to serve") ||
           reply_says(reply, "failed to get conn") ||
           reply_says(reply, "No known Consul servers");
}

/* HF_OK also for 404 and 409, which are answers. */
hf_status hfi_consul_status(const struct consul_conn *cc,
                            const struct consul_request *rq,
                            const struct consul_reply *reply,
                            struct hf_error *err)
{
    const char *range;
    char text[64];

    if (reply->status == 200 || reply->status == 404 || reply->status == 409)
        return HF_OK;
    if (reply->status == 401 || reply->status == 403 ||
        reply_says(reply, "Permission denied") ||
        reply_says(reply, "ACL not found"))
        return hfi_fail(err, HF_DENIED,
                        "%s: the ACL token is missing or does not allow this",
                        cc->base.endpoint);
    if (reply_says(reply, "Invalid Session TTL")) {
        range = strstr(reply->data, "must be");
        return hfi_fail(
            err, HF_INVALID, "%s: the ttl is out of the server's range: it %s",
            cc->base.endpoint,
            hfi_quote(text, sizeof(text), range ? range : "refused it"));
    }
    if (reply_not_done(reply) ||
        (!rq->write && (reply->status >= 500 || reply->status == 408)))
        return reply_refuse(cc, reply, HF_UNAVAILABLE, err);
    if (reply->status >= 500 || reply->status == 408)
        return reply_refuse(cc, reply, HF_UNCERTAIN, err);
    return reply_refuse(cc, reply, HF_PROTOCOL, err);
}
