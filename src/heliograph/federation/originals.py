"""Lines of a channel by their places, for whoever needs many: each stretch of the log is read once.

Whoever looks each up by itself finds it by counting lines from the beginning of the batch that it was published in.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from heliograph.log.cursor import Chunk, LogCursor, LogCut

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine

NEAR_LINES: Final = 1_000
"""What is no further ahead than this is read up to, and not looked for."""


class _Stretch(NamedTuple):
    first: int
    next: int
    lines: dict[int, bytes]


class Originals:
    """The lines of one channel. Close it, or use it as a context manager."""

    def __init__(self, engine: FilesEngine, channel: str) -> None:
        self._engine = engine
        self._channel = channel
        self._cursors: dict[int, LogCursor] = {}
        self._stretches: dict[int, _Stretch] = {}

    def line(self, partition: int, offset: int) -> bytes | None:
        """The stored line at an offset, blank if it was removed; None if it was trimmed, or cannot be read."""
        stretch = self._stretches.get(partition)
        if stretch is None or not stretch.first <= offset < stretch.next:
            try:
                stretch = self._read(partition, offset)
            except LogCut:  # repaired meanwhile: where the cursor stood is another place now
                self._forget(partition)
                stretch = self._read(partition, offset)
        return None if stretch is None else stretch.lines.get(offset)

    def _read(self, partition: int, offset: int) -> _Stretch | None:
        """Read the stretch that an offset is in."""
        cursor = self._cursors.get(partition)
        if cursor is None:
            log = self._engine.log(self._channel, partition)
            cursor = self._cursors[partition] = LogCursor(log, offset, self._engine.disk)
        elif not 0 <= offset - cursor.offset <= NEAR_LINES:
            cursor.seek(offset)
        while (chunk := cursor.read()) is not None:
            if offset < chunk.next:
                stretch = self._stretches[partition] = _Stretch(chunk.first, chunk.next, _numbered(chunk))
                return stretch
        return None

    def _forget(self, partition: int) -> None:
        self._stretches.pop(partition, None)
        self._cursors.pop(partition).close()

    def close(self) -> None:
        """Let go of the files."""
        for partition in list(self._cursors):
            self._forget(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _numbered(chunk: Chunk) -> dict[int, bytes]:
    if chunk.numbered is not None:
        return dict(chunk.numbered)
    return dict(enumerate(chunk.data.split(b"\n")[:-1], chunk.first))
