/* SPDX-License-Identifier: MIT
 *
 * script.c - several statements in one message, which are one transaction.
 *
 * Such a message takes no parameters on PostgreSQL and MySQL, so they are pasted
 * in as hex digits, which no setting of the server and no character set can read
 * as anything else.  In one message no lock waits for this client: the server
 * goes through all of it, or undoes all of it, whether we live or not.
 */
#include "sql.h"

#include "base/alloc.h"

#include "base/banned.h"

#define SCRIPT_PARAMS 11

/* What stands for each parameter. */
struct script_values {
    char *texts[SCRIPT_PARAMS];
};

/* A string of bytes or of text, or its NULL; the caller frees it. */
static char *script_string(const char *const around[2], const char *text)
{
    size_t size = strlen(around[0]) + strlen(around[1]) + 2 * strlen(text) + 1;
    char *ret = hfi_alloc(size), *at;
    int len;

    if (!ret)
        return NULL;
    len = snprintf(ret, size, "%s", around[0]);
    at = sql_hex(ret + len, text);
    snprintf(at, size - (size_t)(at - ret), "%s", around[1]);
    return ret;
}

static char *script_number(int64_t number)
{
    char ret[24];

    snprintf(ret, sizeof(ret), "%lld", (long long)number);
    return hfi_strdup(ret);
}

static void script_fill(const struct sql_driver *driver,
                        const struct sql_call *call, struct script_values *ret)
{
    const char *const strings[SCRIPT_PARAMS] = {[0] = call->key,
                                                [1] = call->token,
                                                [3] = call->owner,
                                                [4] = call->note,
                                                [8] = call->channel};
    const int64_t numbers[SCRIPT_PARAMS] = {
        [2] = call->ttl_ms,  [5] = call->queue, [6] = call->number,
        [7] = call->permits, [9] = call->nth,   [10] = call->place_ms};
    int i;

    for (i = 0; i < SCRIPT_PARAMS; i++) {
        bool is_string = i < 2 || i == 3 || i == 4 || i == 8;

        if (!is_string)
            ret->texts[i] = script_number(numbers[i]);
        else if (strings[i])
            ret->texts[i] = script_string(
                i == 1 || i == 8 ? driver->text : driver->bytes, strings[i]);
        else
            ret->texts[i] = hfi_strdup("NULL");
    }
}

int sql_script_param(const char *at)
{
    static const char digits[] = "123456789ab";
    const char *digit = *at == '$' && at[1] ? strchr(digits, at[1]) : NULL;

    return digit ? (int)(digit - digits) + 1 : 0;
}

/* The value of the parameter that begins at `at`; NULL: there is none. */
static const char *script_value(const struct script_values *values,
                                const char *at)
{
    int n = sql_script_param(at);

    return n ? values->texts[n - 1] : NULL;
}

char *sql_script(const struct sql_conn *conn, enum sql_stmt stmt,
                 const struct sql_call *call)
{
    struct script_values values = {{NULL}};
    const char *text = conn->texts[stmt], *at, *value;
    size_t size = strlen(text) + 1, len = 0;
    char *ret = NULL;
    bool ok = true;
    int i;

    script_fill(conn->driver, call, &values);
    for (i = 0; i < SCRIPT_PARAMS; i++)
        ok = ok && values.texts[i];
    for (at = text; ok && *at; at++)
        if ((value = script_value(&values, at)))
            size += strlen(value);
    if (ok)
        ret = hfi_alloc(size);
    for (at = text; ret && *at; at++) {
        value = script_value(&values, at);
        if (value) {
            len += (size_t)snprintf(ret + len, size - len, "%s", value);
            at++;
        } else {
            ret[len++] = *at;
        }
    }
    for (i = 0; i < SCRIPT_PARAMS; i++)
        hfi_free(values.texts[i]);
    return ret;
}
