# SPDX-License-Identifier: MIT
"""A program that uses the types; mypy must have nothing to say about it."""
import asyncio
from datetime import timedelta
from typing import Dict, List, Optional

import holdfast


def threads(client: holdfast.Client) -> int:
    with client.lock("k", ttl=30, timeout=timedelta(seconds=5), shared=True) as lock:
        fence: int = lock.fence
        slot: Optional[int] = lock.slot
        if lock.lost.wait(0.1):
            reason: Optional[str] = lock.loss
            print(reason, slot)
    got = client.try_lock("k", permits=3, note="n")
    if got is not None:
        with got:
            handle: holdfast.Handle = got.detach()
            client.attach(str(handle), ttl=5).release()
    with client.lock_all(["a", "b"], max_hold=60) as (a, b):
        a.extend(10)
        b.downgrade()
    found: Dict[str, holdfast.Info] = client.list("prefix")
    holders: List[holdfast.Info] = client.holders("k")
    for change in client.observe("k"):
        print(change.info.note, change.leader)
    return fence + len(found) + len(holders)


async def tasks(client: holdfast.AsyncClient) -> None:
    async with client.lock("k", ttl=30) as lock:
        print(lock.fence, await lock.lost.wait())
    async with client.election("k", "me") as term:
        print(await term.leader())
        async for leader in term.leaders():
            print(leader)
    got = await client.try_lock("k")
    if got:
        await got.release()
    await asyncio.gather(client.lock("a").acquire(), client.lock("b").acquire())
    try:
        await client.check("k", 1)
    except (holdfast.Unavailable, holdfast.Denied) as error:
        print(error.status, error.errno)
