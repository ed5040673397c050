# SPDX-License-Identifier: MIT
"""Arguments, moments and orders that nobody should choose, and somebody does."""
import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import holdfast
from tap import URL, Skip, fresh, frozen, raises, run, test, until

client = holdfast.Client(URL)
NUL = "a\0b"


@test
def a_nul_never_cuts_a_text():
    for call in (client.inspect, client.list, client.holders, client.try_lock):
        raises(holdfast.Invalid, call, NUL)
    raises(holdfast.Invalid, client.check, NUL, 1)
    raises(holdfast.Invalid, client.break_lock, NUL, 1)
    raises(holdfast.Invalid, client.lock_all(["x", NUL]).acquire)
    raises(holdfast.Invalid, client.try_lock, "x", note=NUL)
    raises(holdfast.Invalid, client.try_lock, "x", owner=NUL)
    raises(holdfast.Invalid, holdfast.Client, "mem:" + NUL)
    with client.lock(fresh()) as lock:
        raises(holdfast.Invalid, lock.transfer, NUL)


@test
def what_is_no_handle_is_refused():
    for wrong in (None, 1, b"handle", [], object()):
        for call in (client.attach, client.extend, client.release):
            raises(TypeError, call, wrong)


@test
def one_key_is_not_taken_for_several():
    for mine in client, holdfast.AsyncClient(URL):
        for wrong in ("abc", "", b"abc"):
            raises(TypeError, mine.lock_all, wrong)


@test
def what_is_no_logger_is_refused():
    for wrong in ("holdfast", 1, object(), logging):
        raises(TypeError, holdfast.Client, URL, logger=wrong)
        raises(TypeError, asyncio.run, holdfast.AsyncClient(URL, logger=wrong).inspect("k"))
    logger = logging.LoggerAdapter(logging.getLogger("holdfast"), {})
    holdfast.Client(URL, logger=logger).close()


@test
def a_fence_is_never_cut():
    with client.lock(fresh()) as lock:
        for fence in (lock.fence + 2**64, -1, lock.fence - 2**64):
            raises(holdfast.Invalid, client.check, lock.key, fence)
            raises(holdfast.Invalid, client.break_lock, lock.key, fence)
        assert lock.held
        raises(TypeError, client.check, lock.key, "1")
        raises((OverflowError, holdfast.Invalid), client.try_lock, "x", permits=2**32 + 1)


@test
def what_is_no_bool_is_no_flag():
    with client.lock(fresh()) as lock, holdfast.Client(URL) as another:
        for no in ("no", "", 0, 1, None, []):
            raises(TypeError, another.break_lock, lock.key, lock.fence, force=no)
            raises(TypeError, another.collect, 7 * 86400, dry_run=no)
            raises(TypeError, another.observe, lock.key, prefix=no)
        for name in ("shared", "manual", "fair", "poll"):
            raises(TypeError, another.try_lock, fresh(), **{name: "no"})
        assert another.try_lock(lock.key) is None
        assert lock.held


@test
def a_key_of_any_length_and_bytes_is_taken_or_refused():
    raises(holdfast.Invalid, client.try_lock, "")
    raises(holdfast.Invalid, client.try_lock, "k" * 1025)
    raises(holdfast.Invalid, client.try_lock, "k" * 10**7)
    raises(TypeError, client.try_lock, b"bytes")
    key = fresh() + b"\xff\xfe".decode("utf-8", "surrogateescape")
    with client.lock(key, note=b"\xff".decode("utf-8", "surrogateescape")):
        assert key in client.list("t/")


@test
def an_exception_of_a_logger_stops_nothing():
    class Bad(logging.Handler):
        def emit(self, record):
            called.set()
            raise RuntimeError("a handler that fails")

    called = threading.Event()
    logger = logging.getLogger("hostile")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Bad())
    logger.propagate = False
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with holdfast.Client(URL, logger=logger) as told:
            with told.lock(fresh(), ttl=5):
                pass
            assert called.wait(30)
            with told.lock(fresh(), ttl=5) as lock:
                assert lock.held
    finally:
        sys.unraisablehook = hook


@test
def a_client_that_is_forgotten_with_its_waits_goes_away():
    """Its requests refer to it, and it refers to them."""
    key = fresh()

    async def leave():
        mine = holdfast.AsyncClient(URL)
        lock = await mine.lock(key).acquire()
        waits = asyncio.ensure_future(mine.lock(key).acquire())
        while not (await mine.stats()).waiting:
            await asyncio.sleep(0.001)
        return weakref.ref(mine), lock, waits

    loop = asyncio.new_event_loop()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    gone, lock, waits = loop.run_until_complete(leave())
    loop.close()
    del lock, waits, loop
    until(lambda: gc.collect() >= 0 and gone() is None)
    until(lambda: not client.inspect(key).held)


@test
def a_closed_loop_is_no_crash():
    async def use():
        return await mine.lock(key).acquire()

    key, mine = fresh(), holdfast.AsyncClient(URL)
    lock = asyncio.run(use())
    assert lock.held  # The keeper needs no loop.
    asyncio.run(mine.aclose())
    assert not lock.held


@test
def another_interpreter_is_refused():
    """The types are shared, so only one interpreter of a process may have them."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent("""
            import sys
            import holdfast
            try:
                import _xxsubinterpreters as interpreters
            except ImportError:
                print("none")
                sys.exit()
            client = holdfast.Client(sys.argv[1])
            lock = client.lock("sub").acquire()
            for _ in range(3):
                it = interpreters.create()
                try:
                    interpreters.run_string(it, "import holdfast")
                    print("imported")
                except Exception as error:
                    assert "ImportError" in str(error), error
                interpreters.destroy(it)
            for name in [name for name in sys.modules if name.startswith("holdfast")]:
                del sys.modules[name]
            import holdfast  # again, in the same one
            assert isinstance(client._raw, holdfast._holdfast.Client)
            assert lock.held
            lock.release()
            client.close()
            print("fine")
            """), URL], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    if done.stdout == "none\n":
        raise Skip("this Python has no module for that")
    assert done.returncode == 0 and done.stdout == "fine\n", done


@test
def every_service_names_its_page():
    for kind in holdfast.services():
        assert kind.missing or kind.page.startswith("holdfast-"), kind


@test
def waiters_are_told():
    with holdfast.Client(URL) as other, client.lock(fresh()) as lock:
        thread = threading.Thread(
            target=lambda: other.lock(lock.key, note="next", timeout=60).acquire().release())
        thread.start()
        until(lambda: [one.note for one in client.waiters(lock.key)] == ["next"])
        assert client.waiters(lock.key)[0].place == 1
        lock.release()
        thread.join()
    raises(holdfast.Invalid, client.waiters, NUL)


@test
def a_timeout_holds_while_the_service_is_silent():
    with holdfast.Client(URL, timeout=20) as mine, frozen():
        for lock in mine.lock(fresh(), timeout=0.5), mine.lock_all([fresh()], timeout=0.5):
            began = time.monotonic()
            raises((holdfast.Timeout, holdfast.Uncertain, holdfast.Unavailable), lock.acquire)
            assert time.monotonic() - began < 10
        mine.cancel()


@test
async def a_task_is_cancelled_while_the_service_is_silent():
    async with holdfast.AsyncClient(URL, timeout=5) as mine:
        held = await mine.lock(fresh(), ttl=60).acquire()
        with frozen():
            for call in mine.lock(fresh()).acquire, held.release, lambda: mine.inspect("k"):
                began = time.monotonic()
                try:
                    await asyncio.wait_for(call(), 0.2)
                    raise AssertionError("the server answered")
                except asyncio.TimeoutError:
                    assert time.monotonic() - began < 4
    with holdfast.Client(URL) as other:
        other.lock(held.key, timeout=30).acquire().release()


@test
async def many_questions_to_a_silent_service_end_soon():
    async with holdfast.AsyncClient(URL, timeout=1) as mine:
        await mine.inspect("k")
        began = time.monotonic()
        with frozen():
            ends = await asyncio.gather(
                *[mine.inspect("k") for _ in range(200)], return_exceptions=True)
        assert all(isinstance(end, holdfast.Error) for end in ends)
        assert time.monotonic() - began < 20  # one after the other they take 50


@test
def threads_and_the_main_thread_take_each_others_events():
    mine, key, ends, last = holdfast.Client(URL), fresh(), [], threading.Event()

    def work():
        for _ in range(30):
            with mine.lock(key, timeout=60):
                pass
        ends.append(1)

    def observe():
        for change in mine.observe(key):
            if change.info.held and last.is_set():
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    threads.append(threading.Thread(target=observe))
    for thread in threads:
        thread.start()
    while len(ends) < 4:
        with mine.lock(key, timeout=60), mine.lock(fresh(), timeout=60):
            pass
    last.set()
    with mine.lock(key, timeout=60):  # it is told of, for it stays
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
    mine.close()


@test
def ctrl_c_at_any_moment_leaves_nothing_held():
    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with holdfast.Client(URL) as mine:
            for i in range(300):
                lock = mine.lock(fresh())
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.00002 + i % 30 * 0.00001)
                    lock.acquire()
                    lock.release()
                    while True:
                        time.sleep(0.001)
                except Stop:
                    pass
                if lock.held:  # it came between the two calls
                    lock.release()
                until(lambda: not client.inspect(lock.key).held)
    finally:
        signal.signal(signal.SIGALRM, before)


@test
def close_may_come_at_any_moment():
    for _ in range(20):
        mine, key = holdfast.Client(URL), fresh()

        def work():
            try:
                while True:
                    with mine.lock(key) as lock:
                        lock.extend()
                        mine.stats(), mine.inspect(key)
            except holdfast.Error:
                pass

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        mine.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        raises(holdfast.Invalid, mine.stats)
        raises(holdfast.Invalid, mine.stats_text)


run()
