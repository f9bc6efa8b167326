"""Laying messages aside at a hub, from many processes, until one of them publishes all of a batch, once.

Everything here may be done again, after a cut or by another process: the hub recognises it.
"""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from heliograph.client.asker import Asker
from heliograph.client.threads import Loop
from heliograph.errors import Busy, NotFound, OutcomeUnknown, ProtocolError, StationClosed, Unreachable
from heliograph.federation.batches import ABORT, COMMIT, STAGE, Abort, Commit, Committed, File, Stage, Staged
from heliograph.federation.errands import Nothing
from heliograph.limits import SPARK_HUB_S
from heliograph.names import check_ownable
from heliograph.staging.queries import ALONE

HEAD_BYTES: Final = 1024
"""What a request has beside its events, at most."""


class AsyncStaging:
    """What is laid aside under one client's name. ``patience_s``: how long to wait for a hub that is away, or slow."""

    def __init__(self, asker: Asker, patience_s: float = SPARK_HUB_S) -> None:
        self._asker = asker
        self._patience_s = patience_s

    async def _ask(self, name: str, ask: msgspec.Struct, kind: type[Any], lines: bytes = b"") -> tuple[Any, bytes]:
        try:
            return await self._asker.ask(name, ask, kind, lines, patience_s=self._patience_s)
        except NotFound as error:
            if f"no request {name!r}" not in str(error):
                raise
            raise ProtocolError(
                f"the hub does not know the request '{name}': it is older than this, and messages cannot be laid aside "
                "there. Upgrade the hub"
            ) from error

    async def bytes_max(self) -> int:
        """How many bytes of events the hub takes at once."""
        return await self._asker.body_bytes_max() - HEAD_BYTES

    async def check(self, channel: str) -> None:
        """Raise what is in the way of publishing to a channel, as far as that is known now."""
        ask = Stage(batch="0", name="0", channel=check_ownable(channel))
        await self._ask(STAGE, ask, Staged)

    async def stage(self, batch: str, name: str, channel: str, lines: bytes, *, query: str = ALONE) -> File:
        """Lay events aside, each a line, under a name in a batch. When this returns they are on the hub's disk."""
        ask = Stage(query=query, batch=batch, name=name, channel=check_ownable(channel))
        staged: Staged = (await self._ask(STAGE, ask, Staged, lines))[0]
        return File(name, staged.crc)

    async def commit(self, batch: str, files: list[File], *, query: str = ALONE) -> int | None:
        """Publish a batch, which these files are all of, unless that was done before.

        Batches of a query have numbers, which only grow; those of no query have names, which come once. Returns the
        number of the query's newest batch, if the hub tells.
        """
        ask, answer = Commit(query=query, batch=batch, files=files), Committed(done=False)
        moved = time.monotonic()
        while not answer.done:
            try:
                answer = (await self._ask(COMMIT, ask, Committed))[0]
            except (Unreachable, StationClosed) as error:
                raise OutcomeUnknown(
                    f"batch {batch} was laid aside at the hub, but whether it is published is not known: {error}. "
                    "What has begun the hub finishes by itself; asking again is safe"
                ) from error
            if not answer.waiting:
                moved = time.monotonic()
            elif time.monotonic() - moved > self._patience_s:
                raise Busy(
                    f"somebody else has been publishing a batch of '{query}' at the hub for {self._patience_s:g} s"
                )
        return answer.newest

    async def abort(self, batch: str, *, query: str = ALONE) -> None:
        """Remove what is laid aside for a batch, unless it has begun to be published."""
        await self._ask(ABORT, Abort(query=query, batch=batch), Nothing)


class Staging:
    """The same for threads."""

    def __init__(self, loop: Loop, inner: AsyncStaging) -> None:
        self._loop = loop
        self._inner = inner

    def bytes_max(self) -> int:
        """How many bytes of events the hub takes at once."""
        return self._loop.run(self._inner.bytes_max())

    def check(self, channel: str) -> None:
        """Raise what is in the way of publishing to a channel, as far as that is known now."""
        self._loop.run(self._inner.check(channel))

    def stage(self, batch: str, name: str, channel: str, lines: bytes, *, query: str = ALONE) -> File:
        """Lay events aside, each a line, under a name in a batch. When this returns they are on the hub's disk."""
        return self._loop.run(self._inner.stage(batch, name, channel, lines, query=query))

    def commit(self, batch: str, files: list[File], *, query: str = ALONE) -> int | None:
        """Publish a batch, which these files are all of, unless that was done before; the query's newest."""
        return self._loop.run(self._inner.commit(batch, files, query=query))

    def abort(self, batch: str, *, query: str = ALONE) -> None:
        """Remove what is laid aside for a batch, unless it has begun to be published."""
        self._loop.run(self._inner.abort(batch, query=query))
