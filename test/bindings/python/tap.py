# SPDX-License-Identifier: MIT
"""The tests of the Python package: points of TAP from functions and coroutines.

    PROGRAM URL     with @test before each function of it

`fresh()` gives a key that nobody has used.  A point fails when it raises, or when it
lasts longer than a minute.
"""
import asyncio
import contextlib
import faulthandler
import inspect
import os
import signal
import sys
import time
import traceback
import uuid

PATIENCE = 60
POINTS = []
URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("HF_TEST_URL", "mem:tests")


class Skip(Exception):
    """The point does not apply here."""


def test(function):
    POINTS.append(function)
    return function


def fresh():
    return "t/" + uuid.uuid4().hex


def until(what, *arguments):
    """Poll until what() is true."""
    end = time.monotonic() + PATIENCE / 2
    while not what(*arguments):
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


async def until_async(what, *arguments):
    end = time.monotonic() + PATIENCE / 2
    while not await what(*arguments):
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.002)


@contextlib.contextmanager
def frozen():
    """The server answers nothing meanwhile."""
    if "HF_TEST_MEMBERS" not in os.environ:
        raise Skip("there is no server to freeze")
    with open(os.path.join(os.environ["HF_TEST_MEMBERS"], "1", "pid")) as file:
        pid = int(file.read())
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def raises(kind, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kind as error:
        return error
    raise AssertionError("no %s came" % kind.__name__)


def run_one(point):
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        if inspect.iscoroutinefunction(point):
            asyncio.run(asyncio.wait_for(point(), PATIENCE - 5))
        else:
            point()
    finally:
        faulthandler.cancel_dump_traceback_later()


def run():
    failed = 0
    only = sys.argv[2:]
    points = [p for p in POINTS if not only or p.__name__ in only]
    print("1..%d" % len(points))
    for number, point in enumerate(points, 1):
        name = "%d - %s" % (number, point.__name__)
        try:
            run_one(point)
            print("ok", name)
        except Skip as reason:
            print("ok", name, "# SKIP", reason)
        except BaseException:
            failed += 1
            for line in traceback.format_exc().splitlines():
                print("#", line)
            print("not ok", name)
        sys.stdout.flush()
    sys.exit(bool(failed))
