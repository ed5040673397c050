/* SPDX-License-Identifier: MIT
 *
 * job.h - requests of event loops that get no lock; see job.c.
 */
#ifndef HFI_JOB_H
#define HFI_JOB_H

#include "core.h"

enum hfi_job_kind {
    HFI_JOB_RELEASE, /* hf_release_start(), for its outcome only */
    HFI_JOB_INSPECT,
    HFI_JOB_CHECK,
    HFI_JOB_LIST
};

struct hfi_job {
    struct hf_request face; /* what the caller has: client, user, notice, err */
    struct hfi_link link;   /* in client->jobs while it waits for a worker, in
                             * ->at_jobs while one is at it, in ->listings while
                             * the caller reads what was found */
    enum hfi_job_kind kind;
    bool running;        /* a worker is at it */
    atomic_bool over;    /* the event is told */
    bool gone;           /* and taken: the worker frees the job */
    int64_t end;         /* it waits for a connection until then */
    uint64_t fence;      /* HFI_JOB_CHECK */
    struct hf_info *ret; /* HFI_JOB_INSPECT: the caller's */
    struct hf_info info;
    struct hfi_link found; /* HFI_JOB_LIST: of struct hfi_found */
    char key[];            /* or the prefix */
};

/* One lock that a listing has found. */
struct hfi_found {
    struct hfi_link link;
    struct hf_info info;
    char key[];
};

struct hfi_job *hfi_job_new(struct hf_client *, enum hfi_job_kind,
                            const char *key, void *user);
hf_status hfi_job_start(struct hfi_job *, struct hf_error *);
void hfi_job_over(struct hfi_job *, hf_status, const struct hf_error *);
void hfi_job_free(struct hfi_job *);

/* What a listing has found, one by one; NULL: no more, and the job is gone. */
struct hfi_found *hfi_job_next(struct hfi_job *);
void hfi_job_end(struct hfi_job *);

/* release.c */
bool hfi_release_start(struct hf_lock *, struct hfi_job *);

#endif
