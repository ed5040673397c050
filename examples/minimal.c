/* SPDX-License-Identifier: MIT
 *
 * minimal.c - take a lock, work while it is yours, give it back.
 *
 *     minimal [URL [KEY]]
 *
 * This is the shape of nearly every program that uses holdfast.  The work is
 * cut into steps, and hf_held() is asked before each of them: it costs a
 * reading of the clock, so it can be asked often.  A step must be shorter than
 * the lease, or carry the fence to a resource that checks it (see fence.c).
 */
#include <holdfast.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* One step of the job: short enough to be finished within the lease. */
static void work(int step, uint64_t fence)
{
    printf("step %d under fence %" PRIu64 "\n", step, fence);
    usleep(20 * 1000);
}

static int fail(const struct hf_error *err)
{
    fprintf(stderr, "minimal: %s: %s\n", hf_status_name(err->status),
            err->text);
    return EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    const char *url = argc > 1 ? argv[1] : getenv("HOLDFAST_URL");
    const char *key = argc > 2 ? argv[2] : "example";
    hf_client *client = NULL;
    hf_lock *lock = NULL;
    struct hf_error err;
    int step;

    if (hf_open(url, NULL, &client, &err))
        return fail(&err);

    if (hf_acquire(client, key, 5000, NULL, &lock, &err)) {
        hf_close(client);
        return fail(&err);
    }

    for (step = 1; step <= 3 && hf_held(lock); step++)
        work(step, hf_fence(lock));

    /* HF_OK says that the lock was ours to the end, so the work counts. */
    if (hf_release(lock, &err)) {
        hf_close(client);
        return fail(&err);
    }
    hf_close(client);
    return EXIT_SUCCESS;
}
