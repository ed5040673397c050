#!/usr/bin/python3
# SPDX-License-Identifier: MIT
#
# gone.py - holdfast serve says that a service does not answer, soon, whether its
# connections were closed or it is silent, and that it does again.
#
# $HOLDFAST is the command, $HF_TEST_URL a service whose servers are those of
# $HF_TEST_MEMBERS/*/pid.  Its lease is so long that serve by itself would not ask
# before the test is over.  Prints TAP.

import glob
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

from tap import check, finish, result, start, stop

HOLDFAST, URL, MEMBERS = os.environ["HOLDFAST"], os.environ["HF_TEST_URL"], os.environ["HF_TEST_MEMBERS"]


def get(path):
    try:
        return urllib.request.urlopen(address + path, timeout=60).read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


def says(up, seconds):
    """Do metrics and table say so, in time?"""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        metrics = [line.split()[-1] for line in get("metrics").splitlines() if line.startswith("holdfast_service_up{")]
        if metrics == ["1" if up else "0"] and ('"up":true' if up else '"up":false') in get("api/locks"):
            print("# after %.1f s" % (time.monotonic() - begin), flush=True)
            return True
        time.sleep(0.05)
    return False


def each(signo):
    for name in glob.glob(MEMBERS + "/*/pid"):
        with open(name) as file:
            os.kill(int(file.read()), signo)


try:
    server, line = start(HOLDFAST, "serve", "-u", URL + ("&" if "?" in URL else "?") + "ttl=1h", "-l", "127.0.0.1:0")
    address = line.rsplit(" ", 1)[-1]
    check(says(True, 60), "a service that answers is up")
    time.sleep(2)  # It has begun to observe.
    each(signal.SIGSTOP)
    check(says(False, 120), "one that is silent is not")
    each(signal.SIGCONT)
    check(says(True, 60), "and is when it goes on")
    time.sleep(2)
    each(signal.SIGKILL)
    check(says(False, 20), "one that is gone is not")
    for name in glob.glob(MEMBERS + "/*/run"):
        subprocess.run([name], check=True)
    check(says(True, 60), "and is when it is there again")
    check(stop(server) == 0, "it ends when it is told to")
finally:
    finish()
result()
