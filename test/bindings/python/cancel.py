# SPDX-License-Identifier: MIT
"""AsyncClient: a cancellation, a loss, a closed loop or a close at the wrong moment."""
import asyncio
import contextlib
import time

import holdfast
from holdfast import Trait
from tap import URL, Skip, fresh, run, test, until, until_async

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


async def free(key):
    async def reached():
        return not other.inspect(key).held
    await until_async(reached)


async def lost_lock(client):
    """A lock that is held by this client, and lost."""
    lock = await client.try_lock(fresh())
    other.break_lock(lock.key, lock.fence)
    await lock.lost.wait()
    return lock


@test
async def closing_a_client_ends_the_blocks_that_rely_on_its_locks():
    for many in False, True:
        client = AsyncClient(URL)
        key, inside = fresh(), asyncio.Event()

        async def work():
            async with client.lock_all([key]) if many else client.lock(key):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        await inside.wait()
        await client.aclose()
        await awaits(holdfast.Lost, task)
        client = AsyncClient(URL)
        lock = await client.lock(fresh()).acquire()
        waits = asyncio.ensure_future(lock.lost.wait())
        await asyncio.sleep(0)
        await client.aclose()
        assert await waits
        await awaits(holdfast.Lost, lock.release())


@test
async def a_cancellation_is_told_although_the_wait_failed_just_now():
    """The loop finds the event and the timer in the same turn, in this order."""
    loop = asyncio.get_running_loop()
    async with AsyncClient(URL) as client:
        with other.lock(fresh()) as held:
            for call in client.lock, lambda key, timeout: client.lock_all([key], timeout=timeout):
                task = asyncio.ensure_future(call(held.key, timeout=0.02).acquire())
                for _ in range(5):
                    await asyncio.sleep(0)
                loop.call_later(0.03, task.cancel)
                time.sleep(0.4)
                await awaits(asyncio.CancelledError, task)


@test
async def a_cancellation_is_told_although_the_lock_is_granted_just_now():
    loop = asyncio.get_running_loop()
    async with AsyncClient(URL) as client:
        key = fresh()
        task = asyncio.ensure_future(client.lock(key).acquire())
        for _ in range(5):
            await asyncio.sleep(0)
        loop.call_later(0.03, task.cancel)
        time.sleep(0.4)
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).release()  # the loop was faster
        await free(key)


@test
async def a_lock_that_is_lost_already_begins_no_block():
    need(Trait.BREAK)
    async with AsyncClient(URL) as client:
        for await_something in (False, True):
            lock = await lost_lock(client)

            async def work():
                async with lock:
                    if await_something:
                        await asyncio.sleep(60)

            error = await awaits(holdfast.Lost, work())
            assert error.reason == "broken" and not lock.held
            await asyncio.sleep(0)  # Nothing of a cancellation is left.
            async with client.lock(lock.key, timeout=30):  # and it can be used again
                pass


@test
async def locks_that_are_lost_already_begin_no_block():
    """They are granted and lost while the loop is busy with something else."""
    async with AsyncClient(URL) as client:
        await client.inspect("k")

        async def work():
            async with client.lock_all([fresh(), fresh()], manual=True, ttl=0.05):
                await asyncio.sleep(30)

        task = asyncio.ensure_future(work())
        for _ in range(3):
            await asyncio.sleep(0)
        time.sleep(0.5)
        await awaits(holdfast.Lost, task)


@test
async def a_cancelled_detach_or_attach_leaves_nothing_behind():
    need(Trait.DETACH)
    async with AsyncClient(URL) as client:
        keys = []
        for turn in range(60):
            lock = await client.lock(fresh(), ttl=600).acquire()
            keys.append(lock.key)
            call = lock.detach()
            if turn % 2:
                call = client.attach(await call)
            task = asyncio.ensure_future(call)
            for _ in range(1 + turn // 6):
                await asyncio.sleep(0)
            if turn % 3 == 2:
                await asyncio.sleep(0.001)
            task.cancel()
            try:
                got = await task
            except asyncio.CancelledError:
                continue
            if isinstance(got, holdfast.Handle):
                await client.release(got)
            else:
                await got.release()
        for key in keys:
            await free(key)


@test
async def closing_waits_for_what_was_cancelled():
    need(Trait.DETACH)
    for _ in range(10):
        async with AsyncClient(URL) as client:
            lock = await client.lock(fresh(), ttl=600).acquire()
            task = asyncio.ensure_future(lock.detach())
            await asyncio.sleep(0)
            task.cancel()
            await awaits(asyncio.CancelledError, task)
        assert not other.inspect(lock.key).held


@test
async def closing_while_it_connects_closes():
    for turn in range(20):
        client, key = AsyncClient(URL), fresh()
        tasks = [asyncio.ensure_future(client.lock(key).acquire()) for _ in range(3)]
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        await client.aclose()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, (holdfast.Canceled, holdfast.Invalid)), outcome
        await awaits(holdfast.Invalid, client.inspect(key))
        assert not other.inspect(key).held


@test
async def a_close_that_is_cancelled_ends_the_waits():
    client = AsyncClient(URL)
    with other.lock(fresh()) as held:
        waits = asyncio.ensure_future(client.lock(held.key).acquire())
        while not (await client.stats()).waiting:
            await asyncio.sleep(0.001)
        close = asyncio.ensure_future(client.aclose())
        await asyncio.sleep(0)
        close.cancel()
        await awaits(asyncio.CancelledError, close)
        await awaits(holdfast.Canceled, asyncio.wait_for(waits, 30))


@test
async def tasks_start_an_observer_once_and_close_it_while_it_starts():
    async with AsyncClient(URL) as client:
        key = fresh()
        changes = client.observe(key)
        tasks = [asyncio.ensure_future(changes.wait()) for _ in range(2)]
        async with client.lock(key):
            await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert all(change.key == key for change in await asyncio.gather(*tasks))
        changes.close()
        changes = client.observe(key)
        task = asyncio.ensure_future(changes.wait())
        for _ in range(3):
            await asyncio.sleep(0)
        changes.close()
        assert await task is None


@test
async def closing_waits_for_what_is_being_released():
    for turn in range(20):
        client = AsyncClient(URL)
        locks = [await client.try_lock(fresh()) for _ in range(5)]
        tasks = [asyncio.ensure_future(lock.release()) for lock in locks]
        for _ in range(1 + turn % 3):
            await asyncio.sleep(0)
        await client.aclose()
        assert await asyncio.gather(*tasks) == [None] * 5


async def collect(changes):
    return [change async for change in changes]


@test
async def closing_a_client_ends_an_observer_that_starts():
    for turn in range(20):
        client = AsyncClient(URL)
        await client.inspect(fresh())
        changes = client.observe(fresh())
        task = asyncio.ensure_future(collect(changes))
        for _ in range(turn % 4):
            await asyncio.sleep(0)
        await client.aclose()
        try:
            await asyncio.wait_for(task, 20)
        except holdfast.Invalid:  # it began after the end
            assert turn % 4 == 0


@test
async def a_block_whose_coroutine_is_closed_releases_its_lock():
    async with AsyncClient(URL) as client:
        async def work(locks):
            async with locks:
                inside.append(True)
                await asyncio.sleep(60)

        key, inside = fresh(), []
        for locks in client.lock(key), client.lock_all([key]):
            block = work(locks)
            step = None
            while not inside:  # as a task does it
                step = block.send(None)
                if not inside and step is not None:
                    step._asyncio_future_blocking = False
                    await asyncio.wait([step])
            inside.clear()
            block.close()
            await free(key)


@test
def a_loop_that_is_closed_with_tasks_does_not_disturb_the_next():
    client, kept, told = AsyncClient(URL), [], []
    held = [other.lock(fresh()).acquire() for _ in range(3)]

    async def first():
        lock = client.lock(fresh(), ttl=1, manual=True)
        kept.append(await lock.acquire())

        async def in_a_block():
            async with client.lock(fresh(), ttl=1, manual=True):
                await asyncio.sleep(60)

        waits = [client.lock(one.key).acquire() for one in held]
        waits += [lock.lost.wait(), client.observe(held[0].key).__anext__(), in_a_block()]
        kept.extend(map(asyncio.ensure_future, waits))
        while (await client.stats()).waiting < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)

    async def use(_):
        async with client.lock(fresh(), timeout=30):
            pass

    async def second():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        await client.inspect("k")
        tasks = [asyncio.ensure_future(use(i)) for i in range(20)]
        await asyncio.sleep(0)
        for one in held:
            one.release()
        time.sleep(0.3)
        await asyncio.wait_for(asyncio.gather(*tasks), 40)
        async with client.lock(fresh(), timeout=30):
            await asyncio.sleep(1.5)  # what the first loop held is lost meanwhile
        for one in held:
            await free(one.key)
        assert not kept[0].held and kept[0].lost
        await client.aclose()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(first())
    loop.close()
    asyncio.run(second())
    assert not told, told
    for task in kept[1:]:
        task._log_destroy_pending = False


@test
async def an_event_that_fails_does_not_lose_the_others():
    """It comes before them, while the loop is busy with something else."""
    told = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
    held = [other.lock(fresh()).acquire() for _ in range(3)]
    async with AsyncClient(URL) as client:
        bad = await client.lock(fresh(), ttl=0.1, manual=True).acquire()
        loss, bad.lost, bad.at_risk = bad.lost, None, None  # somebody spoils the object
        tasks = [asyncio.ensure_future(client.lock(one.key).acquire()) for one in held]
        while (await client.stats()).waiting < 3:
            await asyncio.sleep(0)
        until(lambda: not bad.held)
        time.sleep(0.1)
        for one in held:
            one.release()
        time.sleep(0.3)
        await asyncio.wait_for(asyncio.gather(*tasks), 30)
        bad.lost = loss
        await awaits(holdfast.Lost, bad.release())
    assert told


run()
