"""The same station in asyncio: the same names, awaited.

A hundred tasks publish at once; those that wait for the disk at the same time share one sync.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

import heliograph as hg

COUNT = 100


async def main(directory: str) -> None:
    async with hg.open_async(directory, name="host1") as station:
        arrived: list[int] = []
        complete = asyncio.Event()

        async def handle(message: hg.Message) -> None:
            await asyncio.sleep(0.001)  # something worth waiting for
            arrived.append(message.data)
            if len(arrived) == COUNT:
                complete.set()

        # Async handlers run in this event loop, here up to ten at a time; messages of one key stay in order.
        subscription = await station.subscribe("numbers", handle, name="collector", concurrency=10)

        receipts = await asyncio.gather(*(station.publish("numbers", n, key=f"{n % 10}") for n in range(COUNT)))
        print(f"{len(receipts)} published, offsets 0 to {max(receipt.offset for receipt in receipts)}")

        await asyncio.wait_for(complete.wait(), 30)
        await subscription.close()
        print(f"{len(arrived)} arrived, their sum is {sum(arrived)}")

        total = 0
        async for message in station.read("numbers"):
            total += message.data
        print(f"read again from the log, their sum is {total}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="heliograph-")))
