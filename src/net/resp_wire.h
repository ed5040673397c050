/* SPDX-License-Identifier: MIT
 *
 * resp_wire.h - one connection to a server that speaks RESP; what resp_link.c
 * is made of.  Everything here wants the mutex of the mux, unless the link is
 * known to nobody else yet.
 */
#ifndef HFI_MUX_LINK_H
#define HFI_MUX_LINK_H

#include "resp.h"
#include "resp_link.h"

struct mux_link {
    struct hfi_shared_link base;
    struct hfi_mux *mux;
    struct hfi_endpoint to;
    redisReader *reader;
    int64_t used_at; /* when its last call ended */
    int64_t slow_ms; /* how long the slowest answer took, of late */
};

struct mux_link *mux_link_new(struct hfi_mux *);
void mux_link_free(struct mux_link *);

/* For struct hfi_protocol. */
void mux_link_feed(struct hfi_shared_link *, const char *bytes, size_t len);
const char *mux_link_end(const struct hfi_shared_link *, int sys_errno,
                         const char *what);

#endif
