/* SPDX-License-Identifier: MIT
 *
 * sql_row.h - strategy row, as sql.c and sql_open.c call it.
 */
#ifndef HFI_BACKEND_SQL_ROW_H
#define HFI_BACKEND_SQL_ROW_H

#include "sql.h"

hf_status sql_row_open(struct sql_conn *, struct hf_error *);
void sql_row_close(struct sql_conn *);
hf_status sql_row_try_acquire(struct sql_conn *, const struct hfi_claim *,
                              struct hfi_grant *, struct hfi_busy *,
                              int64_t deadline, struct hf_error *);
void sql_row_renew(struct sql_conn *, struct hfi_renewal **, size_t n,
                   int64_t deadline, struct hf_error *);
hf_status sql_row_release(struct sql_conn *, const struct hfi_claim *,
                          struct hfi_grant *, int64_t deadline,
                          struct hf_error *);

/* Where the sessions that wait are heard; the keeper calls both. */
int sql_row_pump_fd(struct sql_conn *);
void sql_row_pump(struct sql_conn *);

#endif
