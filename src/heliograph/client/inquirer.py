"""Requests to a hub from threads, and nothing besides: for those who know what to ask and what to do with answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from heliograph.client.asker import ASKED_MAX
from heliograph.client.awaited import TIMEOUT_S
from heliograph.client.keeper import Keeper, address_of
from heliograph.client.settings import TlsLike, tls_files
from heliograph.client.threads import Loop
from heliograph.errors import HeliographError, StationClosed, Unreachable
from heliograph.federation.questions import Lost

Head = msgspec.Struct | Callable[[int], msgspec.Struct]
"""What is asked; or what is asked after so many connections were lost over it: less, perhaps."""
TRIES: Final = 50


class Inquirer:
    """A connection to a hub that is made again when it is lost. Close it, or use it as a context manager."""

    def __init__(self, url: str, tls: TlsLike | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._loop = Loop()
        try:
            self._keeper, self._turns = self._loop.run(_connected(url, tls, timeout_s))
        except BaseException:
            self._loop.close()
            raise

    @property
    def hub(self) -> str:
        """The hub's name, by its certificate."""
        return self._keeper.hub

    def start(self, name: str, head: Head, kind: type[Any]) -> Future[tuple[Any, bytes]]:
        """Ask, whatever else is under way; after a cut it is asked again. See ``answer``."""
        return self._loop.start(self._ask(name, head, kind))

    async def _ask(self, name: str, head: Head, kind: type[Any]) -> tuple[Any, bytes]:
        loop = asyncio.get_running_loop()
        for lost in range(TRIES):
            until = loop.time() + self._timeout_s
            async with self._turns:
                line = await self._keeper.line(until)
                said = head(lost) if callable(head) else head
                try:
                    async with asyncio.timeout_at(until + self._timeout_s):
                        return await line.ask(name, said, kind)
                except Lost:
                    continue
                except TimeoutError as error:
                    if isinstance(error, HeliographError):
                        raise
                    raise Unreachable(f"the hub did not answer within {2 * self._timeout_s:g} s") from None
        raise Unreachable(f"the connection to the hub was lost {TRIES} times before it answered '{name}'")

    def answer(self, asked: Future[tuple[Any, bytes]]) -> tuple[Any, bytes]:
        """What came of it, and the lines behind that."""
        try:
            return asked.result()
        except CancelledError:
            raise StationClosed("the client is closed") from None

    def ask(self, name: str, head: Head, kind: type[Any]) -> Any:
        """Ask, and wait for the answer."""
        return self.answer(self.start(name, head, kind))[0]

    def close(self) -> None:
        """Leave. Safe to call again."""
        try:
            self._loop.run(self._keeper.close())
        except StationClosed:
            return
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _connected(url: str, tls: TlsLike | None, timeout_s: float) -> tuple[Keeper, asyncio.Semaphore]:
    address = address_of(url)
    files = await asyncio.to_thread(tls_files, tls)
    keeper = Keeper(address, files)
    try:
        await keeper.line(asyncio.get_running_loop().time() + timeout_s)
    except BaseException:
        await keeper.close()
        raise
    return keeper, asyncio.Semaphore(ASKED_MAX)
