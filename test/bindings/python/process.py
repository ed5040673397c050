# SPDX-License-Identifier: MIT
"""What a fork and the end of the interpreter do to locks."""
import logging
import math
import os
import socket
import subprocess
import sys
import textwrap
import threading

import holdfast
from holdfast import Trait
from tap import URL, Skip, fresh, raises, run, test

client = holdfast.Client(URL)


def need(*traits):
    for trait in traits:
        if not client.service.traits & trait:
            raise Skip("the service has no " + trait.name)


def in_child(work):
    """Run work() in a forked child; it must be true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert status == 0, status


def script(text, *arguments, status=0):
    """Run a program of Python, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(text), URL, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == status, done
    return done.stdout


@test
def locks_are_dead_in_a_forked_child():
    lock = client.lock(fresh()).acquire()
    changes = client.observe(lock.key)

    def child():
        assert not lock.held
        raises(holdfast.Invalid, changes.wait, 0)
        raises(holdfast.Invalid, lock.lost.wait, 0)
        raises(holdfast.Invalid, client.cancel)
        raises(holdfast.Invalid, client.lock(fresh(), timeout=0).acquire)
        raises(holdfast.Invalid, client.inspect, lock.key)
        raises(holdfast.Invalid, lock.extend)
        client.close()
        return True

    in_child(child)
    assert lock.held
    assert changes.wait().key == lock.key
    changes.close()
    lock.release()


@test
def a_child_that_ends_leaves_the_locks_of_its_parent():
    need(Trait.PROCESSES)
    lock = client.lock(fresh()).acquire()
    assert script("""
        import holdfast, os, sys
        client = holdfast.Client(sys.argv[1])
        lock = client.lock("k" + sys.argv[2]).acquire()
        pid = os.fork()
        if pid == 0:
            sys.exit(0)  # closes the clients, as every interpreter does
        os.waitpid(pid, 0)
        assert lock.held
        other = holdfast.Client(sys.argv[1])
        assert other.try_lock(lock.key) is None
        print("parent")
        """, fresh()) == "parent\n"
    assert lock.held
    lock.release()


@test
def a_child_opens_a_client_of_its_own():
    lock = client.lock(fresh()).acquire()

    def child():
        own = holdfast.Client(URL)
        with own.lock(fresh()):
            return True

    in_child(child)
    lock.release()


@test
def a_fork_while_threads_wait_is_survived():
    key = fresh()
    with client.lock(key):
        thread = threading.Thread(target=lambda: client.lock(key).acquire().release())
        thread.start()
        for _ in range(5):
            in_child(lambda: client.close() is None)
    thread.join(30)
    assert not thread.is_alive()


@test
def the_end_of_the_interpreter_releases_what_is_held():
    need(Trait.PROCESSES)
    key = fresh()
    assert script("""
        import holdfast, sys
        client = holdfast.Client(sys.argv[1])
        lock = client.lock(sys.argv[2], ttl=600).acquire()
        print(lock.held)
        """, key) == "True\n"
    with client.lock(key, timeout=0):
        pass


@test
def an_exception_releases_what_is_held():
    need(Trait.PROCESSES)
    key = fresh()
    script("""
        import holdfast, sys
        client = holdfast.Client(sys.argv[1])
        lock = client.lock(sys.argv[2], ttl=600).acquire()
        raise SystemExit(3)
        """, key, status=3)
    with client.lock(key, timeout=0):
        pass


@test
def a_service_that_comes_later_is_waited_for_and_logged():
    """The port is free until the test listens there, and answers with nonsense."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        url = "redis://127.0.0.1:%d" % server.getsockname()[1]
        lines = []

        class Lines(logging.Handler):
            def emit(self, record):
                lines.append((record.levelno, record.getMessage()))

        logger = logging.getLogger("holdfast.test")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(Lines())
        try:
            late = holdfast.Client(url, connect=math.inf, logger=logger)
        except holdfast.Unsupported:
            raise Skip("this build has no redis:")
        raises((holdfast.Unavailable, holdfast.Timeout), late.lock("k", timeout=0.05).acquire)
        late.close()
        assert lines and all(level <= logging.ERROR for level, _ in lines), lines
        raises(holdfast.Unavailable, holdfast.Client, url)


@test
def the_interpreter_ends_while_a_thread_waits():
    key = fresh()
    script("""
        import holdfast, sys, threading
        client = holdfast.Client(sys.argv[1])
        lock = client.lock(sys.argv[2]).acquire()
        def wait():
            try:
                client.lock(sys.argv[2]).acquire()
            except holdfast.Error:
                pass
        for _ in range(4):
            threading.Thread(target=wait, daemon=True).start()
        """, key)


@test
def the_interpreter_ends_while_an_event_loop_waits():
    need(Trait.PROCESSES)
    key = fresh()
    script("""
        import asyncio, holdfast, sys
        client = holdfast.AsyncClient(sys.argv[1])
        async def main():
            await client.lock(sys.argv[2], ttl=600).acquire()
            asyncio.ensure_future(client.lock(sys.argv[2]).acquire())
            await asyncio.sleep(0.01)
        asyncio.run(main())
        """, key)
    with client.lock(key, timeout=0):
        pass


run()
