/* SPDX-License-Identifier: MIT
 *
 * error.c - names of statuses, and the one way to fill a struct hf_error.
 *
 * Every message goes through error_set(), so a caller who passes NULL costs
 * one test and a text is always cut at the end of the buffer, never past it.
 */
#include "error.h"

#include <errno.h>
#include <stdarg.h>

#include "banned.h"

static const char *const status_names[] = {
    [HF_OK] = "ok",
    [HF_BUSY] = "busy",
    [HF_TIMEOUT] = "timeout",
    [HF_CANCELED] = "canceled",
    [HF_LOST] = "lost",
    [HF_UNCERTAIN] = "uncertain",
    [HF_UNAVAILABLE] = "unavailable",
    [HF_DENIED] = "denied",
    [HF_INVALID] = "invalid",
    [HF_UNSUPPORTED] = "unsupported",
    [HF_PROTOCOL] = "protocol",
    [HF_NOMEM] = "nomem",
    [HF_SYSTEM] = "system",
};

static const char *const loss_names[] = {
    [HF_LOSS_NONE] = "none",         [HF_LOSS_EXPIRED] = "expired",
    [HF_LOSS_STOLEN] = "stolen",     [HF_LOSS_DELETED] = "deleted",
    [HF_LOSS_BROKEN] = "broken",     [HF_LOSS_SESSION] = "session",
    [HF_LOSS_QUORUM] = "quorum",     [HF_LOSS_RESTART] = "restart",
    [HF_LOSS_MAX_HOLD] = "max-hold", [HF_LOSS_CLOSED] = "closed",
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

const char *hf_status_name(hf_status status)
{
    return (unsigned)status < COUNT(status_names) ? status_names[status]
                                                  : "unknown";
}

const char *hf_loss_name(hf_loss reason)
{
    return (unsigned)reason < COUNT(loss_names) ? loss_names[reason]
                                                : "unknown";
}

__attribute__((format(printf, 4, 0))) static void error_set(
    struct hf_error *err, hf_status st, int sys_errno, const char *fmt,
    va_list ap)
{
    if (!err)
        return;
    err->status = st;
    err->sys_errno = sys_errno;
    vsnprintf(err->text, sizeof(err->text), fmt, ap);
}

hf_status hfi_fail(struct hf_error *err, hf_status st, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    error_set(err, st, 0, fmt, ap);
    va_end(ap);
    return st;
}

/* Which answer a failed system call is to the caller. */
static hf_status error_status_of(int sys_errno)
{
    switch (sys_errno) {
    case ENOMEM:
        return HF_NOMEM;
    case EACCES:
    case EPERM:
    case EROFS:
        return HF_DENIED;
    default:
        return HF_SYSTEM;
    }
}

hf_status hfi_fail_errno(struct hf_error *err, hf_status st, int sys_errno,
                         const char *fmt, ...)
{
    va_list ap;
    size_t len;

    if (st == HF_SYSTEM)
        st = error_status_of(sys_errno);
    va_start(ap, fmt);
    error_set(err, st, sys_errno, fmt, ap);
    va_end(ap);
    if (err) {
        len = strlen(err->text);
        snprintf(err->text + len, sizeof(err->text) - len, ": %s",
                 strerrordesc_np(sys_errno));
    }
    return st;
}

hf_status hfi_wrap(struct hf_error *err, hf_status st, const char *fmt, ...)
{
    char old[sizeof(err->text)];
    va_list ap;
    size_t len;

    if (!err)
        return st;
    memcpy(old, err->text, sizeof(old));
    va_start(ap, fmt);
    error_set(err, st, err->sys_errno, fmt, ap);
    va_end(ap);
    len = strlen(err->text);
    snprintf(err->text + len, sizeof(err->text) - len, ": %s", old);
    return st;
}

hf_status hfi_restate(struct hf_error *err, hf_status st)
{
    if (err)
        err->status = st;
    return st;
}

hf_status hfi_nomem(struct hf_error *err)
{
    return hfi_fail(err, HF_NOMEM, "out of memory");
}

const char *hfi_quote(char *buf, size_t size, const char *text)
{
    size_t i;

    for (i = 0; text[i] && i + 1 < size; i++)
        buf[i] = (unsigned char)text[i] < ' ' || text[i] == 127 ? '?' : text[i];
    buf[i] = '\0';
    if (text[i] && size > 4)
        memcpy(buf + size - 4, "...", 4);
    return buf;
}
