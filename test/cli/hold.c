/* SPDX-License-Identifier: MIT
 *
 * hold URL COUNT - hold many locks, and some with hostile names, until stdin ends.
 */
#include <holdfast.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const hostile[] = {
    "<img src=x onerror=document.title='broken'>",
    "\"'><script>document.title='broken'</script>",
    "line\nfeed\x1b[31m",
    "\xff\xfe no text",
    "right\xe2\x80\xae to left",
};

static void take(hf_client *client, const char *key, const char *note)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_error err;
    hf_lock *lock;

    opts.note = note;
    if (hf_acquire(client, key, 60000, &opts, &lock, &err)) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[2]) : 0;
    struct hf_error err;
    hf_client *client;
    char key[32];

    if (argc < 2 || hf_open(argv[1], NULL, &client, &err)) {
        fprintf(stderr, "%s\n", argc < 2 ? "usage: hold URL COUNT" : err.text);
        return 1;
    }
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++)
        take(client, hostile[i], hostile[i]);
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof(key), "order/%06d", i);
        take(client, key, "worker");
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    hf_close(client);
    return 0;
}
