"""Appends what was laid aside, step by step: while one step is written and synced, the next ones are read and finished.

A step is synced before the next one is written: a power cut must not leave numbers behind a hole. All that can be done
at the same time is what comes before writing, and another thread does that::

    another thread: read, check, finish into lines      step 2   step 3   step 4
    the caller's: write, sync                           step 1   step 2   step 3
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from heliograph.errors import HeliographError
from heliograph.limits import BATCH_MESSAGES_MAX, SPARK_APPEND_BYTES, SPARK_KEPT_BYTES
from heliograph.log.packed import Packed, Spot
from heliograph.staging.files import Section, lost, read, read_sums
from heliograph.station.producer import Producer

AHEAD: Final = 2
"""So many steps are in memory beside the one that is written: one that is ready, and one that is being made so."""


@dataclass(slots=True)
class Step:
    """Sections of one partition that lie behind each other in a batch, and the number of their first message."""

    channel: str
    partition: int
    number: int
    sections: list[Section] = field(default_factory=list)
    messages: int = 0
    size: int = 0

    def takes(self, section: Section, partition: int) -> bool:
        """Whether a section that follows belongs to it."""
        return (
            (self.channel, self.partition) == (section.channel, partition)
            and (self.sections[0].begin is None) == (section.begin is None)
            and self.size + section.size() <= SPARK_APPEND_BYTES
            and self.messages + section.count <= BATCH_MESSAGES_MAX
        )

    def add(self, section: Section) -> None:
        """Put it behind the others."""
        self.sections.append(section)
        self.messages += section.count
        self.size += section.size()

    def times_us(self) -> tuple[int, int]:
        """The smallest and the largest event time."""
        return min(one.times_us[0] for one in self.sections), max(one.times_us[1] for one in self.sections)


class Piece(NamedTuple):
    """What is appended at once: a step, or a part of one that is too large."""

    channel: str
    partition: int
    number: int
    bodies: Packed
    times_us: tuple[int, int]


def publish_sections(
    root: Path, producer: Producer, sections: list[Section], firsts: dict[str, int]
) -> Generator[None, None, None]:
    """Append what is missing of sections, which are ordered by channel and partition. Yields after each step."""
    lasts = {channel: producer.last(channel) for channel in firsts}
    foresight = _Foresight(producer)
    pieces = _pieces(root, _steps(producer, sections, firsts, lasts), foresight)
    size = sum(section.size() for section in sections)
    if size > SPARK_APPEND_BYTES:
        pieces = _ahead(pieces)
    with contextlib.closing(pieces):
        for piece in pieces:
            producer.publish_encoded(
                piece.channel, piece.partition, piece.bodies, seq=piece.number, times_us=piece.times_us,
                passing=size > SPARK_KEPT_BYTES,
            )  # fmt: skip
            foresight.correct(piece)
            yield


def _steps(
    producer: Producer, sections: list[Section], firsts: dict[str, int], lasts: dict[str, int]
) -> Iterator[Step]:
    """What is not there yet, small sections put together: each append costs a sync."""
    numbers = dict(firsts)
    step: Step | None = None
    for section in sections:
        number = numbers[section.channel]
        numbers[section.channel] += section.count
        if not section.count or numbers[section.channel] - 1 <= lasts[section.channel]:
            continue
        # Fewer than there were when it was laid aside, if the channel was made anew since.
        partition = section.partition % producer.partitions(section.channel)
        if step is not None and not step.takes(section, partition):
            yield step
            step = None
        step = step or Step(section.channel, partition, number)
        step.add(section)
    if step is not None:
        yield step


def _pieces(root: Path, steps: Iterator[Step], foresight: _Foresight) -> Generator[Piece, None, None]:
    """What steps append: read, and finished."""
    for step in steps:
        bodies = _bodies(root, step)
        parts = max(-(-step.size // SPARK_APPEND_BYTES), -(-len(bodies) // BATCH_MESSAGES_MAX))
        size = -(-len(bodies) // parts)
        for at in range(0, len(bodies), size):
            part = bodies.part(at, min(at + size, len(bodies)))
            piece = Piece(step.channel, step.partition, step.number + at, part, step.times_us())
            foresight.prepare(piece)
            yield piece


def _bodies(root: Path, step: Step) -> Packed:
    data = [read(root, section) for section in step.sections]
    sums = [read_sums(root, section) for section in step.sections]
    runs = [run for section in step.sections for run in section.runs()]
    bodies = Packed(b"".join(data), b"".join(sums) if all(sums) else b"", runs)
    if len(bodies) != step.messages:
        raise lost(root, step.sections[0], "damaged")
    return bodies


def _ahead(pieces: Iterator[Piece]) -> Generator[Piece, None, None]:
    """The same, made by another thread while the caller is busy with those before."""
    with ThreadPoolExecutor(1, "heliograph-staging") as thread:
        waiting: deque[Future[Piece | None]] = deque()
        try:
            waiting.extend(thread.submit(next, pieces, None) for _ in range(AHEAD))
            while (piece := waiting.popleft().result()) is not None:
                waiting.append(thread.submit(next, pieces, None))
                yield piece
        finally:
            for one in waiting:
                one.cancel()


class _Foresight:
    """Where pieces will stand: in a partition numbers and offsets grow alike, unless somebody comes between."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._known: dict[tuple[str, int], Spot] = {}

    def prepare(self, piece: Piece) -> None:
        """Finish what will be appended."""
        known = self._known.get((piece.channel, piece.partition)) or self._look(piece, piece.number)
        if known is not None:
            ahead = piece.number - known.number
            piece.bodies.prepare(known._replace(number=piece.number, first=known.first + ahead))

    def correct(self, piece: Piece) -> None:
        """A piece was appended: the next one comes behind it."""
        self._look(piece, piece.number + len(piece.bodies))

    def _look(self, piece: Piece, number: int) -> Spot | None:
        """Where a number would stand now; not known, if the channel is just being deleted."""
        found: Spot | None = None
        with contextlib.suppress(HeliographError):
            found = self._producer.foresee(piece.channel, piece.partition, number)
            self._known[piece.channel, piece.partition] = found
        return found
