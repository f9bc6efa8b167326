"""The lines of a task from a hub, over a connection of its own: while some are decoded, the next are on their way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from heliograph.client.inquirer import Inquirer
from heliograph.client.pages import end_of
from heliograph.errors import NotFound
from heliograph.federation import ranges
from heliograph.federation.asking import PAGE_BYTES
from heliograph.log.cursor import Missing
from heliograph.spark.appends import Appends
from heliograph.spark.hub import too_old
from heliograph.spark.reading import ENDED, Lines, changed, handy
from heliograph.spark.remote import Remote
from heliograph.spark.rows import Piece
from heliograph.spark.splits import Split, Stretch

PAGE_BYTES_MIN: Final = 64 * 1024
PAGE_BYTES_MAX: Final = 1 << 20
"""What becomes one Arrow batch: larger answers take longer to be handled, and come no sooner."""
QUICK_S: Final = 0.5
"""An answer that came within this may be larger; one that took several times as long has to be smaller: while a
large frame is on a slow line nothing else comes, and a line without a sign of life is cut."""
SLOW_S: Final = 3.0


class Fetched(NamedTuple):
    """The lines of a hub."""

    hub: Remote
    appends: bool = False  # whether it is asked when they were appended

    @contextlib.contextmanager
    def open(self, split: Split) -> Iterator[Lines]:
        """Those of a split."""
        with self.hub.inquire() as line:
            yield _FetchedLines(line, split, Appends() if self.appends else None)


class _Asked:
    """A request that is under way."""

    def __init__(self, line: Inquirer, split: Split, stretch: Stretch, first: int, size: int, *, appends: bool) -> None:
        self.first = first
        self.size = size
        self._appends = appends
        self._split = split
        self._stretch = stretch
        self._line = line
        self._began = time.monotonic()
        self._ended: float | None = None
        self._future = line.start(ranges.LINES, self._head, ranges.Lined)
        self._future.add_done_callback(self._end)

    def _head(self, lost: int) -> ranges.Lines:
        """After each cut less is asked for: it may be all that such a line takes."""
        self.size = max(self.size // 2, PAGE_BYTES_MIN) if lost else self.size
        return ranges.Lines(
            channel=self._split.channel, partition=self._split.partition, incarnation=self._split.incarnation,
            first=self.first, next=self._stretch.next, bytes=self.size, appends=self._appends,
        )  # fmt: skip

    def _end(self, _: Any) -> None:
        self._ended = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it took, or has taken."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    def answer(self) -> tuple[ranges.Lined, bytes]:
        """What came."""
        try:
            return self._line.answer(self._future)
        except NotFound as error:
            raise too_old(self._line.hub, ranges.LINES) from error


class _FetchedLines:
    """Those of one split."""

    def __init__(self, line: Inquirer, split: Split, appends: Appends | None) -> None:
        self._line = line
        self._split = split
        self._appends = appends
        self._bytes = PAGE_BYTES
        self._coming: _Asked | None = None
        self._life: str | None = None

    def lives(self) -> bool:
        """Whether the channel is the one that it was when the split was planned, by the last answer."""
        if self._life is None:
            self._ask(0, self._split.stretches[0].first)
            assert self._coming is not None
            self._life = self._coming.answer()[0].incarnation
        return self._life == self._split.incarnation

    def appends(self) -> Appends | None:
        """What the hub tells of the lines that it sent last."""
        return self._appends

    def pieces(self, stretch: Stretch) -> Iterator[Piece | Missing]:
        """The lines of a stretch."""
        number, at = self._split.stretches.index(stretch), stretch.first
        while at < stretch.next:
            head, lines = self._take(number, at)
            self._life = head.incarnation
            if not self.lives():
                raise changed(self._split)
            if head.next <= at:
                yield Missing(at, stretch.next, ENDED)
                return
            at = head.next
            if self._appends is not None:
                self._appends.know(head.appends)
            self._ask(number, at)
            yield from _pieces(head, lines)

    def _ask(self, number: int, at: int) -> None:
        """Ask for what comes next: more of a stretch, or the beginning of the one behind it."""
        stretches = self._split.stretches
        if at >= stretches[number].next:
            if number + 1 == len(stretches):
                return
            number, at = number + 1, stretches[number + 1].first
        self._coming = _Asked(
            self._line, self._split, stretches[number], at, self._bytes, appends=self._appends is not None
        )

    def _take(self, number: int, at: int) -> tuple[ranges.Lined, bytes]:
        """The lines from an offset on, which are on their way, or here already."""
        if self._coming is None or self._coming.first != at:
            self._ask(number, at)
        assert self._coming is not None
        asked, self._coming = self._coming, None
        found = asked.answer()
        if asked.size < self._bytes:
            self._bytes = asked.size
        elif asked.seconds < QUICK_S:
            self._bytes = min(2 * self._bytes, PAGE_BYTES_MAX)
        elif asked.seconds > SLOW_S:
            self._bytes = max(self._bytes // 2, PAGE_BYTES_MIN)
        return found


def _pieces(head: ranges.Lined, lines: bytes) -> Iterator[Piece | Missing]:
    """What an answer holds."""
    if len(head.runs) == 1:
        yield from handy(head.runs[0][0], lines)
    else:
        for first, count in head.runs:
            end = end_of(lines, count)
            yield from handy(first, lines[:end])
            lines = lines[end:]
    for lack in head.lacks:
        yield Missing(*lack)
