/* SPDX-License-Identifier: MIT
 *
 * rights.c - who we are to a Redis server, and what we may do there.
 *
 * A password may come from a file, and may change.
 */
#include "rt.h"

#include <unistd.h>

static const char secret[] = "s3cret";

/* ---- who we are -------------------------------------------------------- */

TEST(a_user_without_a_password_is_that_user_and_not_another)
{
    struct rt_server s = {0};
    hf_client *client = NULL;
    char url[128];

    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER open on nopass ~* &* +@all");
    rt_do(&s, "ACL SETUSER shut on >%s ~* &* +@all", secret);
    snprintf(url, sizeof(url), "redis://open@127.0.0.1:%d", s.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK(strstr(rt_text(&s, "CLIENT LIST"), "user=open") != NULL);
    hf_close(client);
    snprintf(url, sizeof(url), "redis://shut@127.0.0.1:%d", s.port);
    rt_check_refused(url, HF_DENIED, "no password");
    rt_end(&s);
}

static const char *write_password(const char *text)
{
    static char path[200];
    FILE *file;

    snprintf(path, sizeof(path), "%s/password", t_tmpdir());
    file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "%s\n", text);
    CHECK_EQ(fclose(file), 0);
    return path;
}

TEST(a_password_in_a_file_may_change_while_a_lock_is_held)
{
    struct rt_server s = {.password = "s3cret-1"};
    hf_client *client = NULL;
    const char *path = write_password("s3cret-1");
    char url[300];
    hf_lock *lk;

    rt_start(&s, "--requirepass", "s3cret-1", NULL);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d?password_file=%s", s.port,
             path);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    lk = rt_lock(client, "k", 0, 2000, 0);
    rt_do(&s, "CONFIG SET requirepass s3cret-2");
    s.password = "s3cret-2";
    write_password("s3cret-2");
    rt_do(&s, "CLIENT KILL TYPE normal SKIPME yes");
    t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 2000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    write_password("s3cret-wrong");
    rt_check_refused(url, HF_DENIED, "WRONGPASS");
    write_password("");
    rt_check_refused(url, HF_INVALID, "password_file=");
    CHECK_EQ(unlink(path), 0);
    rt_check_refused(url, HF_SYSTEM, "password_file=");
    snprintf(url, sizeof(url), "redis://:s3cret@127.0.0.1:%d?password_file=%s",
             s.port, path);
    rt_check_refused(url, HF_INVALID, "password_file=");
    rt_end(&s);
}

T_MAIN
