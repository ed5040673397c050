# SPDX-License-Identifier: MIT
"""Signals, forks, other threads and the collector, at any moment of a call that waits."""
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time

import holdfast
from holdfast import Trait
from tap import URL, fresh, raises, run, test, until

client = holdfast.Client(URL)
PACKAGE = os.path.dirname(holdfast.__file__)


class Stop(BaseException):
    pass


def stop(*_):
    raise Stop


@contextlib.contextmanager
def handler(what):
    """SIGALRM calls this."""
    before = signal.signal(signal.SIGALRM, what)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def restless():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def signal_when_waiting(key):
    """Send SIGALRM when somebody waits for the key.  True if the wait went on."""
    ended, went_on = threading.Event(), []
    held = client.lock(key).acquire()
    tells = client.inspect(key).waiters is not None

    def send():
        if tells:
            until(lambda: client.inspect(key).waiters)
        else:
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGALRM)
        if not ended.wait(10):
            went_on.append(True)
        held.release()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not went_on, "the signal did not end the wait"


def stop_at(count):
    """Raise at an instruction of the package: there a signal handler could."""
    left = count

    def trace(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Stop
        return trace

    sys.settrace(trace)


def at_every_instruction(call, after):
    """Stop call() at its first instruction, its second, ..., and do after()."""
    count, stopped = 0, True
    while stopped:
        count += 1
        stopped = False
        stop_at(count)
        try:
            call()
        except Stop:
            stopped = True
        finally:
            sys.settrace(None)
        after()
    assert count > 2


@test
def an_exception_at_any_instruction_leaves_an_observer_that_works():
    with holdfast.Client(URL) as mine:
        key = fresh()
        changes = mine.observe(key)

        def works():
            with client.lock(key):
                while not changes.wait(20).info.held:
                    pass
            while changes.wait(20).info.held:
                pass

        assert not changes.wait(20).info.held
        at_every_instruction(lambda: changes.wait(0.001), works)


@test
def an_exception_at_any_instruction_leaves_no_lock():
    gc.collect()
    with holdfast.Client(URL) as mine, client.lock(fresh()) as held:
        def free():
            until(lambda: not mine.stats().held and not mine.stats().waiting)

        def wait():
            with contextlib.suppress(holdfast.Timeout):
                mine.lock(held.key, timeout=0.21).acquire()

        key = fresh()
        at_every_instruction(lambda: mine.lock(key, timeout=30).acquire().release(), free)
        at_every_instruction(lambda: mine.lock_all([key], timeout=30).acquire().release(), free)
        at_every_instruction(wait, free)
        with mine.lock(key) as lock:
            at_every_instruction(lambda: lock.lost.wait(0.001), lambda: lock.lost.wait(0))


@test
def one_signal_at_any_moment_of_a_wait_ends_it():
    with holdfast.Client(URL) as mine, client.lock(fresh()) as held, handler(stop):
        for _ in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0008))
                mine.lock(held.key, timeout=30).acquire()
                raise AssertionError("the lock was held")
            except Stop:
                pass
        raises(holdfast.Timeout, mine.lock(held.key, timeout=0.3).acquire)
        until(lambda: not mine.stats().waiting)


@test
def a_storm_of_signals_is_told_as_such_and_leaves_nothing():
    def maybe(*_):
        if armed:
            raise Stop

    armed, mine = False, holdfast.Client(URL)
    with handler(maybe):
        for turn in range(400):
            held = client.lock(fresh()).acquire()
            lock = mine.lock(held.key if turn % 2 else fresh(), timeout=30)
            try:
                try:
                    signal.setitimer(
                        signal.ITIMER_REAL, random.uniform(0.00001, 0.002),
                        random.uniform(0.00003, 0.0006))
                    armed = True
                    lock.acquire()
                    armed = False
                finally:
                    armed = False
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                pass
            armed = False
            held.release()
            if lock.held:
                lock.release()
            del lock
            until(lambda: not mine.stats().held and not mine.stats().waiting)
    mine.close()


@test
def a_signal_ends_a_wait_with_any_options():
    with handler(stop):
        for options in {"tries": 10**6}, {"tries": 10**6, "poll": True, "retry": 0.1}:
            key = fresh()
            with holdfast.Client(URL) as mine:
                with signal_when_waiting(key):
                    raises(Stop, mine.lock(key, **options).acquire)
                key = fresh()
                with signal_when_waiting(key):
                    raises(Stop, mine.lock_all([key], **options).acquire)


@test
def a_signal_handler_may_close_the_client_that_waits():
    mine, key = holdfast.Client(URL), fresh()
    with handler(lambda *_: mine.close()), signal_when_waiting(key):
        raises(holdfast.Canceled, mine.lock(key).acquire)


@test
def a_signal_handler_may_wait_for_another_lock():
    def other(*_):
        with client.lock(fresh()) as held:
            raises(holdfast.Timeout, mine.lock(held.key, timeout=0.3).acquire)
        with mine.lock(fresh(), timeout=30), mine.observe(fresh()) as changes:
            assert changes.wait(30) is not None
        raise Stop

    mine, key = holdfast.Client(URL), fresh()
    with handler(other), signal_when_waiting(key):
        raises(Stop, mine.lock(key).acquire)
    mine.close()


def ended(pid):
    """The status of a child, which must not last."""
    got = []

    def gone():
        got[:] = os.waitpid(pid, os.WNOHANG)
        return got[0]

    try:
        until(gone)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return got[1]


@test
def a_signal_handler_may_fork():
    def fork(*_):
        children.append(os.fork())
        if children[-1]:
            raise Stop

    mine, key, children = holdfast.Client(URL), fresh(), []
    with handler(fork), signal_when_waiting(key):
        try:
            mine.lock(key).acquire()
            status = 1
        except Stop:
            assert ended(children[0]) == 0
        except holdfast.Canceled:
            status = 0
            mine.close()
        finally:
            if children and not children[0]:
                os._exit(status)
    mine.close()


@test
def a_fork_at_any_moment_leaves_a_client_that_can_be_closed():
    def look():
        with mine.observe(fresh()) as changes:
            while not over.is_set():
                changes.wait(0.0005)

    def close():
        while not over.is_set():
            holdfast.Client(URL).close()

    mine, over = holdfast.Client(URL), threading.Event()
    threads = [threading.Thread(target=what) for what in (look, look, look, look, close)]
    for thread in threads:
        thread.start()
    try:
        with restless():
            for _ in range(80):
                pid = os.fork()
                if pid == 0:
                    try:
                        mine.close()
                        for one in list(holdfast._base.open_clients):
                            one.close()
                    finally:
                        os._exit(0)
                assert ended(pid) == 0
    finally:
        over.set()
        for thread in threads:
            thread.join()
    mine.close()


def together(*calls):
    """Call all of them at once, and return what they raised."""
    def work(call):
        try:
            call()
        except BaseException as error:
            raised.append(error)

    raised = []
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
        assert not thread.is_alive()
    return raised


@test
def a_release_in_another_thread_ends_the_wait_for_the_loss():
    with restless():
        for _ in range(400):
            lock = client.lock(fresh()).acquire()
            raised = together(*[lambda: lock.lost.wait(30)] * 3, lock.release)
            assert not raised, raised


@test
def an_observer_may_be_closed_while_its_client_is():
    with restless():
        for _ in range(100):
            mine = holdfast.Client(URL)
            observers = [mine.observe(fresh()) for _ in range(3)]
            raised = together(
                lambda: list(observers[0]), *[one.close for one in observers[1:]],
                mine.close, mine.close)
            assert not raised, raised


@test
def every_change_is_told_to_one_of_two_who_wait():
    with holdfast.Client(URL) as mine:
        prefix, seen = fresh(), []
        changes = mine.observe(prefix, prefix=True)

        def look():
            for change in changes:
                if change.info.held:
                    seen.append(change.key)

        keys = [prefix + "/%d" % i for i in range(20)]

        def take():
            with client.lock_all(keys, timeout=30):
                until(lambda: set(seen) == set(keys))
            changes.close()

        raised = together(look, look, take)
        assert not raised, raised


@test
def closing_the_client_ends_the_wait_for_a_loss():
    mine = holdfast.Client(URL)
    lock = mine.lock(fresh()).acquire()
    assert not together(lambda: lock.lost.wait(30), mine.close)
    assert lock.loss == "closed"


@test
def a_client_with_a_logger_is_forgotten_by_a_thread_that_logs():
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import faulthandler, gc, holdfast, logging, sys
        faulthandler.dump_traceback_later(30, exit=True)
        logger = logging.getLogger("holdfast")
        logger.setLevel(logging.DEBUG)
        handler = logging.StreamHandler(open("/dev/null", "w"))
        logger.addHandler(handler)
        handler.acquire()  # as in emit(): what the client logs waits for it
        client = holdfast.Client("mem:", logger=logger)
        for _ in range(100):
            with client.lock("k"):
                pass
        del client
        gc.collect()
        handler.release()
        print("fine")
        """)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=60)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done


@test
def the_interpreter_waits_for_clients_that_were_forgotten():
    if not client.service.traits & Trait.PROCESSES:
        return
    key = fresh()
    subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import holdfast, logging, sys
        logging.disable(logging.CRITICAL)
        client = holdfast.Client(sys.argv[1], logger=logging.getLogger("holdfast"))
        raw = client.lock(sys.argv[2], ttl=600).acquire()._raw
        del client
        """), URL, key], check=True, timeout=60)
    with client.lock(key, timeout=0):
        pass


run()
