/* SPDX-License-Identifier: MIT
 *
 * backoff.c - when a connection that failed may be tried again.
 *
 * Twice as long each time, up to a second, and a random part of that, so that
 * not all clients come at once to a server that is back.
 */
#include "backoff.h"

#include "base/env.h"

#include "base/banned.h"

#define BACKOFF_MS     50
#define BACKOFF_MS_MAX 1000

bool hfi_backoff_waits(const struct hfi_backoff *backoff)
{
    return hfi_now() < backoff->until;
}

void hfi_backoff_failed(struct hfi_backoff *backoff)
{
    uint32_t chance;

    backoff->ms = backoff->ms ? backoff->ms * 2 : BACKOFF_MS;
    if (backoff->ms > BACKOFF_MS_MAX)
        backoff->ms = BACKOFF_MS_MAX;
    hfi_random(&chance, sizeof(chance));
    backoff->until =
        hfi_now() + backoff->ms / 2 + chance % (uint32_t)(backoff->ms / 2 + 1);
}

void hfi_backoff_done(struct hfi_backoff *backoff)
{
    backoff->ms = 0;
}
