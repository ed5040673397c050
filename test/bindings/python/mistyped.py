# SPDX-License-Identifier: MIT
"""A program full of mistakes, one to a line; mypy must find each of them."""
import holdfast


def threads(client: holdfast.Client) -> None:
    client.lock(3)  # wrong
    client.lock("k", speed=3)  # wrong
    client.lock("k", ttl="long")  # wrong
    client.try_lock("k").release()  # wrong
    client.inspect("k").ttl  # wrong
    lock: int = client.lock("k")  # wrong
    client.lock("k").fence = 3  # wrong


async def tasks(client: holdfast.AsyncClient) -> None:
    with client.lock("k"):  # wrong
        pass
    client.inspect("k").held  # wrong
