/* SPDX-License-Identifier: MIT
 *
 * pairs.c - what a pair takes in C, as a binding uses the library.
 *
 *     bench-pairs URL [calls]
 *
 * Acquire and release one key from an event loop that does nothing else, or with
 * blocking calls, and answer the question `pairs N KEY` of bench/cand/cand.h.
 * bench/bindings compares the bindings with it.
 */
#include <holdfast.h>

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static int64_t pairs_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static struct hf_event pairs_event(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;
    struct pollfd fd = {.fd = hf_events_fd(client), .events = POLLIN};

    while (!hf_next_event(client, &event))
        poll(&fd, 1, -1);
    return event;
}

static bool pairs_by_events(hf_client *client, const char *key)
{
    hf_request *request;
    struct hf_event event;
    struct hf_error err;

    if (hf_acquire_start(client, key, -1, NULL, NULL, &request, &err))
        return false;
    event = pairs_event(client);
    if (event.type != HF_GRANTED)
        return false;
    hf_release_start(event.lock, NULL, &request);
    pairs_event(client);
    return true;
}

static bool pairs_by_calls(hf_client *client, const char *key)
{
    struct hf_error err;
    hf_lock *lk;

    return !hf_acquire(client, key, -1, NULL, &lk, &err) &&
           !hf_release(lk, &err);
}

int main(int argc, char **argv)
{
    bool calls = argc == 3 && !strcmp(argv[2], "calls");
    struct hf_error err;
    hf_client *client;
    char key[64];
    int n;

    if (argc < 2 || hf_open(argv[1], NULL, &client, &err))
        return fprintf(stderr, "usage: bench-pairs URL [calls]\n"), 64;
    printf("ready %s\n", hf_version());
    fflush(stdout);
    while (scanf(" pairs %d %63s", &n, key) == 2) {
        printf("ok");
        for (; n > 0; n--) {
            int64_t begin = pairs_now();

            if (!(calls ? pairs_by_calls : pairs_by_events)(client, key))
                return 1;
            printf(" %" PRId64, pairs_now() - begin);
        }
        printf("\n");
        fflush(stdout);
    }
    hf_close(client);
    return 0;
}
