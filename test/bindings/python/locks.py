# SPDX-License-Identifier: MIT
"""Client and its locks: exceptions, threads, signals, the GIL, what is left over."""
import ctypes
import gc
import os
import signal
import sys
import threading
import time
import warnings

import holdfast
from holdfast import Trait
from tap import URL, Skip, fresh, raises, run, test, until

client = holdfast.Client(URL)
other = holdfast.Client(URL)


def need(*traits):
    for trait in traits:
        if not client.service.traits & trait:
            raise Skip("the service has no " + trait.name)


def in_thread(call, *arguments):
    """A thread that runs call(); join() gives its result or raises."""
    outcome = []

    def work():
        try:
            outcome.append((call(*arguments), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()

    def join():
        thread.join(30)
        assert not thread.is_alive(), "the thread goes on"
        value, error = outcome[0]
        if error is not None:
            raise error
        return value

    join.ended = lambda: not thread.is_alive()
    return join


def waiting(key, count=1):
    """Wait until so many wait for the key, where the service can tell."""
    if client.inspect(key).waiters is not None:
        until(lambda: client.inspect(key).waiters == count)


# -- holding -------------------------------------------------------------------


@test
def a_block_holds_the_lock_and_gives_it_back():
    key = fresh()
    with client.lock(key, ttl=20) as lock:
        assert lock.held and lock and lock.key == key and lock.fence > 0
        assert 0 < lock.remaining and lock.slot is None and lock.loss is None
        assert other.try_lock(key) is None
        fence = lock.fence
    assert not lock.held and lock.fence == fence and not lock.lost.is_set()
    with other.lock(key) as lock:
        assert lock.fence > fence or lock.fence == 0


@test
def statuses_are_exceptions():
    key = fresh()
    with client.lock(key):
        busy = raises(holdfast.Busy, other.lock(key, timeout=0).acquire)
        assert busy.status == "busy" and isinstance(busy, holdfast.Error) and str(busy)
        late = raises(holdfast.Timeout, other.lock(key, timeout=0.01).acquire)
        assert isinstance(late, TimeoutError)
    raises(holdfast.Invalid, client.lock("").acquire)
    raises(ValueError, client.lock("nul\0").acquire)
    raises(holdfast.Invalid, holdfast.Client, "nothing:")
    raises(holdfast.Invalid, holdfast.Client, "")
    raises(TypeError, client.lock(fresh(), speed=3).acquire)
    raises(TypeError, client.lock(3).acquire)
    raises(holdfast.Invalid, client.lock, fresh(), timeout=-2)
    raises(holdfast.Invalid, lambda: client.lock(fresh()).fence)


@test
def an_exception_in_a_block_passes_and_the_lock_is_released():
    key = fresh()

    def work():
        with client.lock(key):
            raise KeyError("mine")

    raises(KeyError, work)
    assert other.try_lock(key).release() is None


@test
def a_lock_object_is_used_again_but_by_one_at_a_time():
    lock = client.lock(fresh())
    for _ in range(2):
        with lock:
            raises(holdfast.Invalid, lock.acquire)
            raises(holdfast.Invalid, lock.__enter__)
            assert lock.held
    raises(holdfast.Invalid, lock.release)


@test
def try_lock_gives_a_lock_that_a_block_releases():
    key = fresh()
    lock = client.try_lock(key)
    assert lock is not None
    with lock:
        assert other.try_lock(key) is None
    assert other.try_lock(key).release() is None


@test
def keys_are_any_text():
    need(Trait.NOTED)
    for text in ("ключ", "a b/c", "\udcff\udc80", "x" * 900):
        key = fresh() + text
        with client.lock(key):
            assert key in client.list(key[:30])


# -- losing --------------------------------------------------------------------


@test
def a_lost_lock_ends_its_block_with_lost_and_the_reason():
    need(Trait.BREAK)
    key = fresh()

    def work():
        with client.lock(key) as lock:
            assert not lock.lost.wait(0)
            other.break_lock(key, lock.fence)
            assert lock.lost.wait(30) and lock.lost and not lock.held
            assert lock.loss == "broken"

    assert raises(holdfast.Lost, work).reason == "broken"


@test
def an_exception_is_not_replaced_by_the_loss():
    need(Trait.BREAK)
    key = fresh()

    def work():
        with client.lock(key) as lock:
            other.break_lock(key, lock.fence)
            lock.lost.wait(30)
            raise KeyError("mine")

    raises(KeyError, work)


@test
def a_wait_for_the_loss_ends_with_the_release():
    lock = client.lock(fresh()).acquire()
    join = in_thread(lock.lost.wait)
    until(lambda: lock._lost is not None)
    lock.release()
    assert join() is False
    assert lock.lost.wait() is False


@test
def a_manual_lock_expires_and_extend_renews_it():
    lock = client.lock(fresh(), ttl=30, manual=True).acquire()
    lock.extend(60)
    assert lock.remaining > 30
    lock.extend(0.05)
    assert lock.lost.wait(30) and lock.loss == "expired"
    assert raises(holdfast.Lost, lock.extend).reason == "expired"
    raises(holdfast.Lost, lock.release)


# -- sharing and several ---------------------------------------------------------


@test
def readers_share_and_a_writer_becomes_one():
    need(Trait.SHARED)
    key = fresh()
    with client.lock(key) as writer:
        assert other.try_lock(key, shared=True) is None
        writer.downgrade()
        with other.lock(key, shared=True, timeout=20):
            assert len(client.holders(key)) == 2 and client.inspect(key).shared
            assert other.try_lock(key) is None


@test
def permits_have_different_slots():
    need(Trait.PERMITS)
    key = fresh()
    locks = [c.lock(key, permits=3).acquire() for c in (client, other, client)]
    assert sorted(lock.slot for lock in locks) == [0, 1, 2]
    assert client.inspect(key).permits == 3
    assert other.try_lock(key, permits=3) is None
    for lock in locks:
        lock.release()


@test
def several_keys_are_taken_all_or_none():
    a, b, c = fresh(), fresh(), fresh()
    with client.lock_all([a, b]) as (first, second):
        assert first.key == a and second.key == b and first.held and second.held
        raises(holdfast.Busy, other.lock_all([c, b], timeout=0).acquire)
        assert other.try_lock(c).release() is None
        join = in_thread(other.lock_all([c, b, a], timeout=30).acquire)
        waiting(min(a, b))
    locks = join()
    assert len(locks) == 3 and locks.held and locks[0].key == c
    locks.release()
    raises(holdfast.Invalid, client.lock_all([a, a]).acquire)
    raises(holdfast.Invalid, client.lock_all([]).acquire)


@test
def a_detached_lock_is_taken_up_by_its_handle():
    need(Trait.DETACH)
    key = fresh() + " é."
    lock = client.lock(key, ttl=40, owner="o.1").acquire()
    handle = lock.detach()
    assert not lock.held and handle.ttl == 40 and handle.fence == lock.fence
    word = str(handle)
    assert holdfast.Handle.parse(word) == handle and len(word.split(".")) == 8
    other.extend(word)
    again = other.attach(word)
    assert again.held and again.fence == handle.fence and again.key == key
    again.release()
    raises(holdfast.Lost, other.release, handle)
    raises(holdfast.Invalid, other.attach, "hf1.nonsense")
    raises(TypeError, holdfast.Handle.parse, 1.5)


@test
def an_election_has_one_leader_with_a_value():
    need(Trait.NOTED)
    key = fresh()
    campaign = client.election(key, "host-a:80")
    assert campaign.leader() is None
    with campaign as term:
        assert term.held and term.value == "host-a:80"
        rival = other.election(key, "host-b", timeout=0)
        raises(holdfast.Busy, rival.acquire)
        assert rival.leader() == "host-a:80"
    assert rival.leader() is None


@test
def locks_of_others_are_seen_checked_and_broken():
    need(Trait.BREAK, Trait.NOTED)
    key = fresh()
    assert not client.inspect(key).held and client.holders(key) == []
    with client.lock(key, note="hé", ttl=20) as lock:
        info = other.inspect(key)
        assert info.held and info.note == "hé" and info.holders == 1
        assert info.fence == lock.fence and not info.shared and info.permits is None
        assert info.left is None or 0 < info.left <= 20
        assert list(other.list(key)) == [key] and other.list("none/") == {}
        assert other.check(key, lock.fence) and not other.check(key, lock.fence + 1)
        raises(holdfast.Lost, other.break_lock, key, lock.fence + 1)
    assert client.service.scheme in client.service.endpoint
    names = {kind.name for kind in holdfast.services()}
    assert {"mem", "file"} <= names


@test
def an_observer_tells_of_every_holder_and_of_nobody():
    need(Trait.NOTED)
    key = fresh()
    with client.observe(key) as changes:
        assert not changes.wait(30).info.held
        assert changes.wait(0.01) is None
        with other.lock(key, note="first") as lock:
            change = changes.wait(30)
            assert change.key == key and change.info.note == "first" == change.leader
            assert change.info.fence == lock.fence
        assert not changes.wait(30).info.held
        campaign = other.election(key, "second")
        leaders = campaign.leaders()
        assert next(leaders) is None
        with campaign:
            assert next(leaders) == "second" == changes.wait(30).leader
        leaders.close()
    assert changes.wait() is None and list(changes) == []
    with client.lock(key + "/a"), client.observe(key, prefix=True) as changes:
        assert next(changes).key == key + "/a"


@test
def closing_ends_observers_in_other_threads():
    key = fresh()
    one = holdfast.Client(URL)
    changes, more = one.observe(key), one.observe(key)
    joins = [in_thread(lambda: len(list(changes))), in_thread(lambda: len(list(more)))]
    changes.close()
    assert joins[0]() <= 1
    one.close()
    assert joins[1]() <= 1


@test
def a_lock_is_transferred_to_a_waiter():
    key, order = fresh(), []

    def work(note):
        with other.lock(key, note=note, fair=True, timeout=60):
            order.append(note)

    with client.lock(key) as lock:
        joins = []
        for note in ("first", "second", "third"):
            joins.append(in_thread(work, note))
            waiting(key, len(joins))
        try:
            lock.transfer("third")
        except holdfast.Unsupported:
            order.append("unsupported")
        raises((holdfast.Invalid, holdfast.Unsupported), lock.transfer, "nobody")
    for join in joins:
        join()
    assert order[0] in ("third", "unsupported") and len(order) in (3, 4)


@test
def what_free_keys_left_behind_is_collected():
    with client.lock(fresh()):
        pass
    try:
        seen = client.collect(86400, dry_run=True)
    except holdfast.Unsupported:
        raise Skip("the service leaves nothing behind")
    assert seen.looked_at >= seen.removed + seen.kept >= 0


# -- threads, signals, the interpreter --------------------------------------------


@test
def other_threads_run_while_one_waits():
    key = fresh()
    with client.lock(key):
        join = in_thread(other.lock(key, timeout=30).acquire)
        waiting(key)
        # This loop would not turn if the waiter kept the interpreter.
        began, turns = time.monotonic(), 0
        while time.monotonic() - began < 0.05:
            turns += 1
        assert turns > 100
    join().release()


@test
def all_threads_get_their_turn():
    key, seen = fresh(), []

    def work(number):
        with client.lock(key, timeout=60):
            seen.append(number)
            inside.append(number)
            assert len(inside) == 1
            inside.pop()

    inside = []
    with client.lock(key):
        joins = [in_thread(work, number) for number in range(20)]
    work(20)
    for join in joins:
        join()
    assert sorted(seen) == list(range(21))


@test
def ctrl_c_ends_a_wait_and_leaves_nothing_behind():
    key = fresh()
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with client.lock(key):
            for wait in (other.lock(key).acquire, other.lock_all([key]).acquire):
                main = threading.main_thread().ident
                stop = threading.Timer(
                    0.05, lambda: signal.pthread_kill(main, signal.SIGINT))
                stop.start()
                raises(KeyboardInterrupt, wait)
                stop.join()
                waiting(key, 0)
        assert other.try_lock(key).release() is None
    finally:
        signal.signal(signal.SIGINT, old)


@test
def a_signal_handler_runs_while_the_main_thread_waits():
    key, ran = fresh(), []
    lock = client.lock(key).acquire()

    def handler(number, frame):
        ran.append(number)
        lock.release()

    old = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with other.lock(key, timeout=30) as got:
            assert ran == [signal.SIGUSR1] and got.held
    finally:
        signal.signal(signal.SIGUSR1, old)


@test
def two_releases_at_once_are_one():
    for _ in range(50):
        lock = client.lock(fresh()).acquire()
        joins = [in_thread(lock.release), in_thread(lock.release), in_thread(lock.extend)]
        ends = []
        for join in joins:
            try:
                ends.append(join())
            except holdfast.Error as error:
                ends.append(error.status)
        assert ends[:2].count(None) == 1 and ends[:2].count("invalid") == 1, ends
        assert ends[2] in (None, "invalid", "lost"), ends


@test
def close_ends_waits_and_what_is_held():
    key = fresh()
    with client.lock(key):
        one = holdfast.Client(URL)
        held = one.lock(fresh()).acquire()
        joins = [in_thread(one.lock(key).acquire) for _ in range(3)]
        waiting(key, client.inspect(key).waiters and 1)
        threading.Timer(0.05, one.close).start()
        raises(holdfast.Canceled, one.lock(key).acquire)
        for join in joins:
            raises((holdfast.Canceled, holdfast.Invalid), join)
        one.close()
        one.close()
        assert not held.held and held.loss == "closed"
        raises(holdfast.Lost, held.release)
        raises(holdfast.Invalid, one.lock(key).acquire)
        raises(holdfast.Invalid, one.inspect, key)


@test
def cancel_ends_the_waits_of_a_client():
    key = fresh()
    with client.lock(key):
        join = in_thread(other.lock(key).acquire)
        # One that comes before the wait begins has no effect.
        until(lambda: other.cancel() or join.ended())
        raises(holdfast.Canceled, join)
        with other.lock(fresh()):
            pass


@test
def a_lock_that_is_forgotten_is_released():
    key = fresh()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        client.lock(key).acquire()
        gc.collect()
    assert [one.category for one in seen] == [ResourceWarning], seen
    assert key in str(seen[0].message)
    with other.lock(key, timeout=30):
        pass


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
        "uordblks", "fordblks", "keepcost")]


def used():
    """Bytes that malloc() has given out, blocks of Python's objects, descriptors."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    return (mallinfo2().uordblks, sys.getallocatedblocks(),
            len(os.listdir("/proc/self/fd")))


@test
def nothing_leaks():
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        raise Skip("malloc() is another one")
    key = fresh()

    def everything():
        with client.lock(key, ttl=5, owner="o", note="n") as lock:
            lock.lost.wait(0)
            lock.extend()
            try:
                other.lock(key, timeout=0.001).acquire()
            except holdfast.Timeout:
                pass
            client.inspect(key), client.holders(key), client.list(key), client.service
        with client.lock_all([key, key + "2"]):
            pass

    for _ in range(100):
        everything()
    before = used()
    for _ in range(300):
        everything()
    after = used()
    # A lock is over 500 bytes, and an object at least one block.
    assert after[0] - before[0] < 300 * 100, (before, after)
    assert after[1] - before[1] < 300, (before, after)
    assert after[2] == before[2], (before, after)


run()
