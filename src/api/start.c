/* SPDX-License-Identifier: MIT
 *
 * start.c - the entry points for what an event loop asks for that is no lock:
 * to release, to inspect, to check, to list.
 */
#include "check.h"

#include "base/alloc.h"
#include "core/job.h"

#include "base/banned.h"

void hf_release_start(hf_lock *lk, void *user, hf_request **ret)
{
    struct hfi_job *job = NULL;

    if (ret)
        *ret = NULL;
    if (hfi_check_lock(lk, NULL))
        return;
    if (ret)
        job = hfi_job_new(lk->client, HFI_JOB_RELEASE, "", user);
    if (job)
        *ret = &job->face;
    if (hfi_release_start(lk, job) || !job)
        return;
    *ret = NULL; /* The client is being closed. */
    hfi_job_free(job);
}

static hf_status start_check(struct hf_client *c, const void *request,
                             struct hf_error *err)
{
    hf_status st = hfi_check_client(c, err);

    if (!st && !request)
        st = hfi_fail(err, HF_INVALID, "no place for the request was given");
    return st;
}

/* Begin a job that was made, if it was. */
static hf_status start(struct hfi_job *job, hf_request **request,
                       struct hf_error *err)
{
    hf_status st = job ? hfi_job_start(job, err) : hfi_nomem(err);

    if (!st)
        *request = &job->face;
    return st;
}

hf_status hf_inspect_start(hf_client *c, const char *key, struct hf_info *ret,
                           void *user, hf_request **request,
                           struct hf_error *err)
{
    hf_status st = start_check(c, request, err);
    struct hfi_job *job;

    if (!st && !ret)
        st = hfi_fail(err, HF_INVALID, "no place for the answer was given");
    if (!st)
        st = hfi_check_size(ret, "hf_info", err);
    if (!st)
        st = hfi_check_key(key, err);
    if (st)
        return st;
    job = hfi_job_new(c, HFI_JOB_INSPECT, key, user);
    if (job)
        job->ret = ret;
    return start(job, request, err);
}

hf_status hf_check_start(hf_client *c, const char *key, uint64_t fence,
                         void *user, hf_request **request, struct hf_error *err)
{
    hf_status st = start_check(c, request, err);
    struct hfi_job *job;

    if (!st)
        st = hfi_check_key(key, err);
    if (st)
        return st;
    job = hfi_job_new(c, HFI_JOB_CHECK, key, user);
    if (job)
        job->fence = fence;
    return start(job, request, err);
}

hf_status hf_list_start(hf_client *c, const char *prefix, void *user,
                        hf_request **request, struct hf_error *err)
{
    hf_status st = start_check(c, request, err);

    return st ? st
              : start(hfi_job_new(c, HFI_JOB_LIST, prefix ? prefix : "", user),
                      request, err);
}

bool hf_list_next(hf_request *request, struct hf_change *ret)
{
    struct hf_change full = HF_CHANGE_INIT;
    struct hfi_found *found;

    if (!request || !ret || hfi_check_client(request->client, NULL) ||
        hfi_check_size(ret, "hf_change", NULL))
        return false;
    found = hfi_job_next(request->job);
    if (!found)
        return false;
    snprintf(full.key, sizeof(full.key), "%s", found->key);
    full.info = found->info;
    hfi_free(found);
    hfi_struct_write(ret, &full, sizeof(full));
    return true;
}

void hf_list_end(hf_request *request)
{
    if (request && !hfi_check_client(request->client, NULL))
        hfi_job_end(request->job);
}
