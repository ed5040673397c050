# SPDX-License-Identifier: MIT
"""AsyncClient: cancellation, loss, many waiters, event loops."""
import asyncio
import os
import sys
import time

import holdfast
from holdfast import Trait
from tap import URL, Skip, fresh, frozen, raises, run, test, until_async

other = holdfast.Client(URL)
AsyncClient = holdfast.AsyncClient


def need(*traits):
    for trait in traits:
        if not other.service.traits & trait:
            raise Skip("the service has no " + trait.name)


async def awaits(kind, awaitable):
    try:
        await awaitable
    except kind as error:
        return error
    raise AssertionError("no %s came" % kind.__name__)


async def waiters(key, count):
    """Wait until so many wait for the key, where the service can tell."""
    async def reached():
        seen = other.inspect(key).waiters
        return seen is None or seen == count
    await until_async(reached)


async def free(key):
    """Wait until nobody holds the key."""
    async def reached():
        return not other.inspect(key).held
    await until_async(reached)


@test
async def a_block_holds_the_lock_and_gives_it_back():
    key = fresh()
    async with AsyncClient(URL) as client:
        async with client.lock(key, ttl=20) as lock:
            assert lock.held and lock.key == key and other.try_lock(key) is None
        assert not lock.held and not lock.lost
        held = await client.try_lock(key)
        assert held and held.held and await client.try_lock(key) is None
        await awaits(holdfast.Busy, client.lock(key, timeout=0).acquire())
        await awaits(holdfast.Timeout, client.lock(key, timeout=0.01).acquire())
        assert (await client.inspect(key)).held and len(await client.holders(key)) == 1
        assert list(await client.list(key)) == [key]
    assert other.try_lock(key).release() is None


@test
async def it_opens_when_it_is_first_used():
    client = AsyncClient(URL)
    locks = await asyncio.gather(*[client.lock(fresh()).acquire() for _ in range(5)])
    assert all(lock.held for lock in locks)
    await client.aclose()
    assert not any(lock.held for lock in locks)
    await awaits(holdfast.Invalid, client.lock(fresh()).acquire())
    bad = AsyncClient("nothing:")
    await awaits(holdfast.Invalid, bad.inspect("k"))
    await awaits(holdfast.Invalid, bad.inspect("k"))


@test
async def a_cancelled_wait_leaves_nothing_behind():
    key = fresh()
    async with AsyncClient(URL) as client:
        with other.lock(key):
            task = asyncio.ensure_future(client.lock(key).acquire())
            await waiters(key, 1)
            task.cancel()
            await awaits(asyncio.CancelledError, task)
            await waiters(key, 0)
        assert other.try_lock(key).release() is None
        await awaits(asyncio.TimeoutError, asyncio.wait_for(hang(client, key), 0.05))
        await free(key)


async def hang(client, key):
    async with client.lock(key):
        async with client.lock(key):
            pass


@test
async def cancelling_at_any_moment_leaves_nothing_behind():
    key = fresh()
    async with AsyncClient(URL) as client:
        for turn in range(100):
            task = asyncio.ensure_future(client.lock(key).acquire())
            for _ in range(turn % 10):
                await asyncio.sleep(0)
            if turn % 3 == 0:
                await asyncio.sleep(0.0005)
            task.cancel()
            try:
                await (await task).release()
            except asyncio.CancelledError:
                pass
        await free(key)
        assert other.try_lock(key).release() is None


@test
async def a_lost_lock_cancels_its_block_with_lost():
    need(Trait.BREAK)
    key = fresh()
    async with AsyncClient(URL) as client:
        async def work():
            async with client.lock(key) as lock:
                await client.break_lock(key, lock.fence)
                await asyncio.sleep(60)

        lost = await awaits(holdfast.Lost, work())
        assert lost.reason == "broken"
        await asyncio.sleep(0)  # Nothing of the cancellation is left.

        async def several():
            async with client.lock_all([key, key + "2"]) as locks:
                await client.break_lock(key, locks[0].fence)
                await asyncio.sleep(60)

        await awaits(holdfast.Lost, several())
        assert other.try_lock(key + "2").release() is None


@test
async def a_cancellation_from_outside_stays_one():
    key = fresh()
    async with AsyncClient(URL) as client:
        async def work():
            async with client.lock(key):
                inside.set()
                await asyncio.sleep(60)

        inside = asyncio.Event()
        task = asyncio.ensure_future(work())
        await inside.wait()
        task.cancel()
        await awaits(asyncio.CancelledError, task)
        assert other.try_lock(key).release() is None


@test
async def a_loss_can_be_waited_for():
    need(Trait.BREAK)
    key = fresh()
    async with AsyncClient(URL) as client:
        lock = await client.lock(key).acquire()
        watch = asyncio.ensure_future(lock.lost.wait())
        await client.break_lock(key, lock.fence)
        assert await watch and lock.loss == "broken" and lock.lost
        await awaits(holdfast.Lost, lock.release())
        lock = await client.lock(key, timeout=30).acquire()
        watch = asyncio.ensure_future(lock.lost.wait())
        await asyncio.sleep(0)
        await lock.release()
        assert await watch is False


# The library has 64 workers at most, where the service answers and cannot keep up,
# and some threads more: far less than what waits.
MOST_THREADS = 80


def threads():
    return len(os.listdir("/proc/self/task"))


@test
async def ten_thousand_locks_wait_without_a_thread_each():
    count, key = 10000, fresh()
    async with AsyncClient(URL) as client:
        async with client.lock(key):
            tasks = [asyncio.ensure_future(client.lock(key).acquire()) for _ in range(count)]
            await asyncio.sleep(0.1)
            assert threads() < MOST_THREADS, threads()
            for task in tasks[10:]:
                task.cancel()
            ends = await asyncio.gather(*tasks[10:], return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        for task in tasks[:10]:
            await (await task).release()
        await free(key)


@test
async def thousands_of_keys_are_held_at_once():
    count, prefix = 2000, fresh()
    async with AsyncClient(URL) as client:
        locks = await asyncio.gather(
            *[client.lock("%s/%d" % (prefix, i)).acquire() for i in range(count)])
        assert all(lock.held for lock in locks)
        assert threads() < MOST_THREADS, threads()
        assert len(await client.list(prefix)) == count
    assert other.list(prefix) == {}


@test
async def closing_ends_the_waits():
    key = fresh()
    with other.lock(key):
        client = AsyncClient(URL)
        tasks = [asyncio.ensure_future(client.lock(key).acquire()) for _ in range(5)]
        await waiters(key, 1)
        await client.aclose()
        for task in tasks:
            await awaits(holdfast.Canceled, task)


@test
def a_client_goes_with_one_loop_after_the_other():
    client, key = AsyncClient(URL), fresh()

    async def use():
        async with client.lock(key):
            pass

    async def elsewhere():
        await client.inspect(key)
        await asyncio.get_running_loop().run_in_executor(
            None, lambda: raises(holdfast.Invalid, asyncio.run, use()))
        await client.aclose()

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(elsewhere())


@test
async def a_detached_lock_is_taken_up_by_its_handle():
    need(Trait.DETACH)
    key = fresh()
    async with AsyncClient(URL) as client:
        handle = await (await client.lock(key).acquire()).detach()
        await client.extend(handle)
        async with await client.attach(str(handle)) as lock:
            assert lock.held and lock.fence == handle.fence
            await lock.extend(60)
            assert await client.check(key, lock.fence)
        await awaits(holdfast.Lost, client.release(handle))


async def ticks(intervals):
    """Note how late the loop comes back from each short sleep."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(0.01)
        intervals.append(time.monotonic() - began)


async def released_during(call, canceled):
    """Release a lock whose server is silent during a call, and watch the loop."""
    intervals = []
    async with AsyncClient(URL, timeout=3) as client:
        lock = await client.lock(fresh(), ttl=60).acquire()
        with frozen():
            other_task = asyncio.ensure_future(call(lock))
            watch = asyncio.ensure_future(ticks(intervals))
            await asyncio.sleep(0.3)
            if canceled:
                other_task.cancel()
            await awaits(holdfast.Error, lock.release())
            watch.cancel()
        await asyncio.gather(other_task, return_exceptions=True)
        await free(lock.key)
    assert not lock.held
    assert len(intervals) > 20 and max(intervals) < 1.5, (len(intervals), max(intervals))


@test
async def a_release_during_another_call_does_not_block_the_loop():
    for canceled in (False, True):
        await released_during(lambda lock: lock.extend(60), canceled)
    await released_during(lambda lock: lock.downgrade(), False)
    await released_during(lambda lock: lock.transfer("nobody"), False)


@test
async def a_canceled_release_during_another_call_goes_on():
    async with AsyncClient(URL, timeout=1) as client:
        lock = await client.lock(fresh(), ttl=60).acquire()
        with frozen():
            extend = asyncio.ensure_future(lock.extend(60))
            await asyncio.sleep(0.2)
            release = asyncio.ensure_future(lock.release())
            await asyncio.sleep(0.05)
            release.cancel()
            await awaits(asyncio.CancelledError, release)
        await asyncio.gather(extend, return_exceptions=True)
        await free(lock.key)


@test
async def an_election_has_one_leader_with_a_value():
    need(Trait.NOTED)
    async with AsyncClient(URL) as client:
        campaign = client.election(fresh(), "host-a")
        async with campaign:
            assert await campaign.leader() == "host-a" == campaign.value
        assert await campaign.leader() is None


@test
async def an_observer_tells_of_every_holder_and_of_nobody():
    need(Trait.NOTED)
    key = fresh()
    async with AsyncClient(URL) as client:
        async with client.observe(key) as changes:
            assert not (await changes.wait()).info.held
            async with client.lock(key, note="first") as lock:
                change = await changes.wait()
                assert change.leader == "first" and change.info.fence == lock.fence
            assert (await changes.wait()).leader is None
        campaign = client.election(key, "second")
        async with campaign:
            async for leader in campaign.leaders():
                assert leader == "second"
                break
        last = client.observe(key)
        rest = asyncio.ensure_future(collect(last))
        await asyncio.sleep(0.01)
    assert len(await rest) <= 1


async def collect(changes):
    return [change async for change in changes]


if sys.version_info >= (3, 11):
    @test
    async def a_limit_of_time_around_a_wait_is_a_timeout():
        key = fresh()
        async with AsyncClient(URL) as client:
            with other.lock(key):
                try:
                    async with asyncio.timeout(0.05):
                        async with client.lock(key):
                            pass
                except TimeoutError as error:
                    assert not isinstance(error, holdfast.Error)
            await free(key)


run()
