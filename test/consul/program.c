/* SPDX-License-Identifier: MIT
 *
 * program.c - the real `consul lock`, kept between its two requests; see
 * program.h.
 */
#include "program.h"

#include "front.h"
#include "peer.h"

#include <stdio.h>
#include <string.h>

void program_looks(const char *key)
{
    const char *address = front_url() + strlen("consul://");

    front_catch("acquire=", 1, FRONT_PAUSE);
    CHECK_EQ(
        sh("cd %s; rm -f ran ended; (CONSUL_HTTP_ADDR=http://%s $HF_TEST_CONSUL "
           "lock %s 'touch ran' >/dev/null 2>&1; touch ended) &",
           t_tmpdir(), address, key),
        0);
    t_poll_until(front_held() == 1, 20000);
}

bool program_ran(void)
{
    return sh("test -e %s/ran", t_tmpdir()) == 0;
}

void program_is_kept_out(const char *key)
{
    char flags[64];

    snprintf(flags, sizeof(flags), "%s", flags_of(key));
    front_let_go();
    CHECK_STR(flags_of(key), flags);
    CHECK(!program_ran());
}

void program_ends(void)
{
    t_poll_until(sh("test -e %s/ended", t_tmpdir()) == 0, 60000);
    front_end();
}
