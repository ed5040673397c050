/* SPDX-License-Identifier: MIT
 *
 * resp.h - Redis' protocol, with bounds.
 */
#ifndef HFI_RESP_H
#define HFI_RESP_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>

/* A reply larger than this is not one of ours. */
#define HFI_RESP_MAX   (1 << 20)
#define HFI_RESP_ITEMS 65536

/* Somebody else's string may stand where a lock should.  Of one that is longer
 * than the first of these, and not longer than a server allows, the second is
 * kept: that tells that it is not ours. */
#define HFI_RESP_LONG (1 << 16)
#define HFI_RESP_KEPT 256

/* A parser that refuses such replies before it makes room for them. */
redisReader *hfi_resp_reader(void);

/* Give the parser what was received; false once too much is not yet a reply. */
bool hfi_resp_feed(redisReader *, const char *buf, size_t len);

/* The next reply, or NULL if it is not all there; false if it makes no
 * sense. */
bool hfi_resp_next(redisReader *, redisReply **ret);

/* Is there a part of a reply that is not all there? */
bool hfi_resp_has_part(const redisReader *);

/* A command as it is sent: room enough for it, and its bytes. */
size_t hfi_resp_room(int argc, const char *const *argv);
size_t hfi_resp_write(char *to, int argc, const char *const *argv);

#endif
