/* SPDX-License-Identifier: MIT
 *
 * names.c - names of nodes and what is written in them.  Pure functions.
 *
 * A key is one level of a path: printable ASCII stands for itself, anything
 * else, '/' and '%' as '%' and two hex digits, so that ordinary keys are the
 * very paths that Curator and kazoo use.
 *
 *                     layout=curator                   layout=kazoo
 *   recipe=sequential
 *     exclusive         _c_UUID-lock-0000000007          UUID__lock__0000000007
 *     shared            _c_UUID-shared-lock-0000000007   UUID-shared__lock__0...
 *   recipe=latch
 *     exclusive         _c_UUID-latch-0000000007         (as sequential)
 *     shared            _c_UUID-shared-latch-0000000007
 *   recipe=readwrite
 *     exclusive         _c_UUID-__WRIT__0000000007       UUID__lock__0000000007
 *     shared            _c_UUID-__READ__0000000007       UUID__rlock__0000000007
 *
 * UUID is the token of the claim.  With an owner id a tag made from it follows
 * the UUID, -o or, of one who shares, -O and a hash: clients that know nothing
 * of shared locks join whom they find with -o.  Both peers look only at what
 * stands at the end.
 *
 * No name serves all kinds of a peer's locks: a mutex does not see the nodes
 * of a read-write lock or a latch on the same path, nor the other way round,
 * because each looks for its own word alone.  So the recipe tells which of them
 * others use.  With recipe=sequential a mutex of theirs waits for our shared nodes as
 * for any other; with recipe=readwrite their readers and ours hold together.
 *
 * INVARIANTS
 *  (1) A contender is any child whose name ends in the word of a lock, as we,
 *      Curator or kazoo write it, and a sequence number: peers with another
 *      layout are waited for, too.  A key of another URL may be a child, or
 *      something else that ends in digits: these are no contenders.
 *  (2) Numbers are compared as the server counts them, in 32 bits that wrap:
 *      INT32_MAX comes before INT32_MIN.  Such an order has a beginning only
 *      as seen from one number, so all are compared with our own: of two
 *      nodes at least one finds the other before itself, whatever other
 *      numbers somebody made up.
 *  (3) Which mode a contender is in, is said by its name alone, so who reads the
 *      children knows all that counts (rank.c).
 *  (4) Names can be read and imitated.  Our own node is known by its full name,
 *      from the answer to its create, or by its ephemeralOwner.
 */
#include "zk.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/escape.h"

#include "base/banned.h"

char *zk_join(const char *parent, const char *name)
{
    size_t size = strlen(parent) + strlen(name) + 2;
    char *path = hfi_alloc(size);

    if (path)
        snprintf(path, size, "%s/%s", parent, name);
    return path;
}

static bool name_is_plain(unsigned char c)
{
    return c > ' ' && c < 0x7f && c != '/' && c != '%';
}

/* The node of a key; NULL: no memory. */
char *zk_key_path(const struct zk_conn *zc, const char *key)
{
    static const char digits[] = "0123456789ABCDEF";
    /* "." and ".." are no names, and the server keeps /zookeeper to itself. */
    bool reserved = !strcmp(key, ".") || !strcmp(key, "..") ||
                    (!*zc->root && !strcmp(key, "zookeeper"));
    size_t at = strlen(zc->root);
    char *path = hfi_alloc(at + 3 * strlen(key) + 2);
    const unsigned char *from = (const unsigned char *)key;

    if (!path)
        return NULL;
    memcpy(path, zc->root, at);
    path[at++] = '/';
    for (; *from; from++) {
        if (name_is_plain(*from) && !reserved) {
            path[at++] = (char)*from;
            continue;
        }
        path[at++] = '%';
        path[at++] = digits[*from >> 4];
        path[at++] = digits[*from & 15];
    }
    return path;
}

/* With permits: where those wait, and where those are who hold (leases.c). */
char *zk_queue_path(const struct zk_conn *zc, const char *key_path)
{
    size_t size = strlen(key_path) + 16;
    char *path = hfi_alloc(size);

    if (path)
        snprintf(path, size, "%s%s", key_path,
                 zc->kazoo ? "-__lock__" : "/locks");
    return path;
}

char *zk_leases_path(const struct zk_conn *zc, const char *key_path)
{
    return zc->kazoo ? hfi_strdup(key_path) : zk_join(key_path, "leases");
}

/* No key's node has such a name: a '%' there stands before two digits. */
char *zk_mark_path(const struct zk_conn *zc, int64_t czxid)
{
    char name[32];

    snprintf(name, sizeof(name), "%%move-%016llx", (unsigned long long)czxid);
    return zk_join(zc->root, name);
}

/* The same for what stands beside a holder's node, ephemeral.c (4); NULL: no
 * memory, or `token` is none of ours. */
char *zk_companion_path(const struct zk_conn *zc, const char *token)
{
    char name[HFI_TOKEN_LEN + 8];

    if (strlen(token) != HFI_TOKEN_LEN ||
        strspn(token, "0123456789abcdef") != HFI_TOKEN_LEN)
        return NULL;
    snprintf(name, sizeof(name), "%%hold-%s", token);
    return zk_join(zc->root, name);
}

/* The key of a child of the root, in place; false if it cannot be one. */
bool zk_key_of_name(char *name)
{
    return hfi_unescape(name) && *name && strlen(name) <= HF_KEY_MAX;
}

static uint64_t name_hash(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return hash;
}

/* What the names of all nodes of a token begin with. */
void zk_name_start(const struct zk_conn *zc, char ret[ZK_NAME_MAX],
                   const char *t)
{
    if (zc->kazoo)
        snprintf(ret, ZK_NAME_MAX, "%.32s", t);
    else
        snprintf(ret, ZK_NAME_MAX, "_c_%.8s-%.4s-%.4s-%.4s-%.12s", t, t + 8,
                 t + 12, t + 16, t + 20);
}

/* The word of a lock, and what stands before it. */
static const char *name_word(const struct zk_conn *zc, bool shared)
{
    if (zc->kazoo && zc->readwrite)
        return shared ? "__rlock__" : "__lock__";
    if (zc->kazoo)
        return shared ? "-shared__lock__" : "__lock__";
    if (zc->readwrite)
        return shared ? "-__READ__" : "-__WRIT__";
    if (zc->latch)
        return shared ? "-shared-latch-" : "-latch-";
    return shared ? "-shared-lock-" : "-lock-";
}

/* The same with the tag of the owner id, if the claim has one. */
void zk_owner_prefix(const struct zk_conn *zc, char ret[ZK_NAME_MAX],
                     const struct hfi_claim *claim)
{
    size_t len;

    zk_name_start(zc, ret, claim->token);
    len = strlen(ret);
    if (claim->owner)
        snprintf(ret + len, ZK_NAME_MAX - len, "%s%016llx",
                 claim->shared ? "-O" : "-o",
                 (unsigned long long)name_hash(claim->owner));
}

/* What the names of this claim begin with, up to the number. */
void zk_node_prefix(const struct zk_conn *zc, char ret[ZK_NAME_MAX],
                    const struct hfi_claim *claim)
{
    char start[ZK_NAME_MAX];

    zk_owner_prefix(zc, start, claim);
    snprintf(ret, ZK_NAME_MAX, "%.80s%s", start, name_word(zc, claim->shared));
}

bool zk_name_is(const char *name, const char *prefix)
{
    return !strncmp(name, prefix, strlen(prefix));
}

const char *zk_name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* "_c_8-4-4-4-12" or 32 digits; those of a peer look alike. */
bool zk_name_token(const char *name, char ret[HFI_TOKEN_LEN + 1])
{
    size_t n = 0;

    if (!strncmp(name, "_c_", 3))
        name += 3;
    for (; *name && n < HFI_TOKEN_LEN; name++)
        if (*name != '-')
            ret[n++] = *name;
    ret[n] = '\0';
    return n == HFI_TOKEN_LEN;
}

/* What the name says of the owner id: 16 digits, or NULL. */
static const char *name_owner(const char *name)
{
    const char *tag = strstr(name, "-o");

    if (!tag)
        tag = strstr(name, "-O");
    return tag && strlen(tag) >= 18 ? tag + 2 : NULL;
}

/* Do both have a tag, and the same?  A hint: the data decides. */
bool zk_name_owned_alike(const char *a, const char *b)
{
    const char *one = name_owner(a), *two = name_owner(b);

    return one && two && !strncmp(one, two, 16);
}

static bool name_parse(const char *text, int32_t *ret)
{
    char *end;
    long value;

    if (*text != '-' && (*text < '0' || *text > '9'))
        return false;
    errno = 0;
    value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < INT32_MIN || value > INT32_MAX)
        return false;
    *ret = (int32_t)value;
    return true;
}

/* The last `word` in the name, or NULL.  One that begins with a letter must not
 * be the end of a longer one. */
static const char *name_last(const char *name, const char *word)
{
    const char *found = NULL, *at = name;

    while ((at = strstr(at, word))) {
        if (*word == '_' || at == name || at[-1] == '-')
            found = at;
        at++;
    }
    return found;
}

/* Does what stands before `at` say that the lock is shared? */
static bool name_tagged(const char *name, const char *at)
{
    static const char tag[] = "-shared";
    size_t len = sizeof(tag) - 1;

    if (at > name && at[-1] == '-')
        at--;
    return (size_t)(at - name) >= len && !strncmp(at - len, tag, len);
}

/* The sequence number at the end of a name, and the mode; false if there is no
 * number, or if what stands before it is not the word of a lock.
 * names.c (1), (3) */
bool zk_contender(const char *name, int32_t *number, bool *shared)
{
    /* Ours and Curator's, its LeaderLatch's, kazoo's, and those of Curator's
     * read-write locks. */
    static const struct {
        const char *text;
        bool shared;
    } words[] = {{"lock-", false},    {"latch-", false},  {"__lock__", false},
                 {"__rlock__", true}, {"__READ__", true}, {"__WRIT__", false}};
    const char *at, *text;
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        at = name_last(name, words[i].text);
        text = at ? at + strlen(words[i].text) : "";
        if (strlen(text) >= 10 && name_parse(text, number)) {
            *shared = words[i].shared || name_tagged(name, at);
            return true;
        }
    }
    return false;
}

bool zk_number(const char *name, int32_t *ret)
{
    bool shared;

    return zk_contender(name, ret, &shared);
}

/* ---- data -------------------------------------------------------------- */

static const char data_magic[] = "holdfast\n";
static const char data_keep[] = " !#$&()*+,-./:;<=>?@[]^_{|}~";

void zk_data_write(char ret[ZK_DATA_MAX], const struct hfi_claim *claim,
                   int64_t session_ms, uint64_t fence, uint64_t used)
{
    char owner[3 * HF_OWNER_MAX + 1] = "", note[3 * HF_NOTE_MAX + 1] = "";
    int len;

    if (claim->owner)
        hfi_escape(owner, sizeof(owner), claim->owner, data_keep);
    if (claim->note)
        hfi_escape(note, sizeof(note), claim->note, data_keep);
    len = snprintf(ret, ZK_DATA_MAX,
                   "%stoken=%s\nowner=%s\nnote=%s\nsession=%lld\n", data_magic,
                   claim->token, owner, note, (long long)session_ms);
    if (fence)
        len += snprintf(ret + len, ZK_DATA_MAX - (size_t)len, "fence=%llu\n",
                        (unsigned long long)fence);
    if (used && used < fence)
        snprintf(ret + len, ZK_DATA_MAX - (size_t)len, "used=%llu\n",
                 (unsigned long long)used);
}

/* What Curator writes into the node of a holder that it asks to let go. */
static const char data_revoke[] = "__REVOKE__";

/* The same text with the mark of a break.  Other programs' data is replaced by
 * the one word of this kind that some of them know. */
void zk_data_mark(char ret[ZK_DATA_MAX + 32], const char *text, uint64_t fence)
{
    if (text && !strncmp(text, data_magic, strlen(data_magic)) &&
        strlen(text) < ZK_DATA_MAX)
        snprintf(ret, ZK_DATA_MAX + 32, "%sbroken=%llu\n", text,
                 (unsigned long long)fence);
    else
        snprintf(ret, ZK_DATA_MAX + 32, "%s", data_revoke);
}

/* The value of `name` in the text, unescaped, if it has one that fits. */
static bool data_field(const char *text, const char *name, char *ret,
                       size_t size)
{
    char line[3 * HF_NOTE_MAX + 1];
    size_t skip = strlen(name);
    const char *at = strchr(text, '\n'), *end;

    for (; at; at = end) {
        at++;
        end = strchr(at, '\n');
        if (!end || strncmp(at, name, skip) != 0)
            continue;
        if ((size_t)(end - at) - skip >= sizeof(line))
            return false;
        snprintf(line, sizeof(line), "%.*s", (int)((size_t)(end - at) - skip),
                 at + skip);
        if (!hfi_unescape(line) || strlen(line) >= size)
            return false;
        memcpy(ret, line, strlen(line) + 1);
        return true;
    }
    return false;
}

/* Another program's data: show it if it is text. */
static void data_foreign(const char *text, struct hf_info *ret)
{
    const unsigned char *at = (const unsigned char *)text;

    for (; *at; at++)
        if (*at < ' ' || *at == 0x7f)
            return;
    snprintf(ret->note, sizeof(ret->note), "%.256s", text);
}

void zk_data_read(const char *text, struct hf_info *ret, uint64_t *fence,
                  char token[HFI_TOKEN_LEN + 1])
{
    char number[24];

    token[0] = '\0';
    ret->takeover_ms = 0;
    ret->broken = text && !strcmp(text, data_revoke);
    ret->owner[0] = ret->note[0] = '\0';
    if (!text)
        return;
    if (strncmp(text, data_magic, strlen(data_magic)) != 0) {
        data_foreign(text, ret);
        return;
    }
    data_field(text, "token=", token, HFI_TOKEN_LEN + 1);
    data_field(text, "owner=", ret->owner, sizeof(ret->owner));
    if (!ret->owner[0])
        snprintf(ret->owner, sizeof(ret->owner), "%s", token);
    data_field(text, "note=", ret->note, sizeof(ret->note));
    ret->broken = data_field(text, "broken=", number, sizeof(number));
    if (data_field(text, "session=", number, sizeof(number)))
        ret->takeover_ms = strtoll(number, NULL, 10);
    if (data_field(text, "fence=", number, sizeof(number)))
        *fence = strtoull(number, NULL, 10);
}

uint64_t zk_data_age(const char *text, uint64_t czxid)
{
    char number[24];
    uint64_t age = czxid, used;

    if (!text || strncmp(text, data_magic, strlen(data_magic)) != 0)
        return age;
    if (data_field(text, "fence=", number, sizeof(number)))
        age = strtoull(number, NULL, 10);
    if (data_field(text, "used=", number, sizeof(number))) {
        used = strtoull(number, NULL, 10);
        age = used && used < age ? used : age;
    }
    return age;
}
