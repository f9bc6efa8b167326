"""Workers of a group that do one thing at a time: real members, leases and positions on real files, and no threads.

Everything but the thread that calls the handler is the real thing: ``Member``, ``Membership``, ``Parts``,
``Positions``, the log and the files. Each worker has a disk of its own, which can die at any of its calls.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from heliograph.clock import SYSTEM_CLOCK
from heliograph.delivery.control import Control
from heliograph.delivery.member import Member
from heliograph.delivery.parts import Parts
from heliograph.delivery.positions import Positions
from heliograph.delivery.statistics import Counters
from heliograph.engine.files import FilesEngine
from heliograph.engine.groups import Bells, Membership
from heliograph.engine.port import Bounds, Position
from heliograph.engine.positions import Positions as PositionFiles
from heliograph.log.locks import FileLock
from heliograph.message import Gap
from tests.faults import FaultyDisk

CHANNEL, GROUP = "readings", "sums"
FATAL = ("write", "pwrite", "ftruncate", "rename", "unlink", "mkdir", "rmdir", "flock")
"""Before any of these calls a worker may die; the others change nothing that a killed process could leave behind."""


class View:
    """What one worker reaches: the log as everybody does, the files of the group through a disk of its own."""

    def __init__(self, engine: FilesEngine, root: Path, name: str) -> None:
        self.name = name
        self.disk = FaultyDisk()
        self._engine = engine
        self._files = PositionFiles(root, self.disk)

    def join_group(self, channel: str, name: str) -> Membership:
        bells = Bells(None)  # type: ignore[arg-type] - nobody listens: looking is a step of the story
        return Membership(self._files, self.disk, SYSTEM_CLOCK, bells, channel, name, self.name)

    def partition_count(self, channel: str) -> int:
        return self._engine.partition_count(channel)

    def bounds(self, channel: str, partition: int) -> Bounds:
        return self._engine.bounds(channel, partition)

    def incarnation(self, channel: str) -> str:
        return self._engine.incarnation(channel)

    def load_position(self, channel: str, name: str, partition: int) -> Position | None:
        return self._files.load(channel, name, partition)

    def save_position(self, channel: str, name: str, partition: int, position: Position) -> None:
        self._files.save(channel, name, partition, position)

    def fit_position(self, channel: str, partition: int, position: Position) -> tuple[int, Gap | None]:
        return self._engine.fit_position(channel, partition, position)

    def subscription_lease(self, channel: str, name: str) -> FileLock:
        return self._files.lease(channel, name)

    def forget_position(self, channel: str, name: str) -> None:
        self._files.forget(channel, name)


class StepPart:
    """The delivery of one partition, a message whenever it is told to."""

    def __init__(
        self, view: View, partition: int, allowed: Callable[[], bool] | None, on_ended: Callable[[StepPart], None]
    ) -> None:
        stored = view.load_position(CHANNEL, GROUP, partition)
        assert stored is not None, f"partition {partition} was taken before the group had a position there"
        self.partition = partition
        self.offset, gap = view.fit_position(CHANNEL, partition, stored)
        assert gap is None
        self.stopping = False
        self.control = Control(paused=False)
        self._on_ended = on_ended
        terms: Any = SimpleNamespace(
            channel=CHANNEL, partition=partition, incarnation=view.incarnation(CHANNEL), control=self.control,
            now_us=lambda: SYSTEM_CLOCK.time_ns() // 1000,
        )  # fmt: skip
        lanes: Any = self
        engine: Any = view
        self.positions = Positions(engine, terms, lanes, name=GROUP, saved=stored.offset, allowed=allowed)

    def committed(self) -> int:
        return self.offset

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self.stopping = True

    def counted(self) -> Counters:
        return Counters()

    def end(self) -> None:
        """As the thread of a part ends: saved, sealed, told."""
        self.positions.save()
        self.positions.seal()
        self._on_ended(self)


def make_step_part(
    plan: Any, number: int, _start: int, *, paused: bool, on_ended: Any, allowed: Callable[[], bool] | None = None
) -> StepPart:
    """In place of ``make_part``."""
    return StepPart(plan.engine, number, allowed, on_ended)


class Steps(Member):
    """A member that looks at its group when it is told to."""

    def begin(self, parts: Parts) -> None:
        self._parts = parts
        self._look_safely()

    def look(self) -> None:
        self._look_safely()
        assert not self._troubles, "what a look met was swallowed"


class Worker:
    """One worker of the group, alive until it leaves or its disk dies."""

    def __init__(self, engine: FilesEngine, root: Path, name: str, start: Callable[[int], int]) -> None:
        self.name = name
        self.view = View(engine, root, name)
        self._start = start
        self.member: Steps | None = None
        self.parts: Parts | None = None

    def join(self) -> None:
        view: Any = self.view
        turns = SimpleNamespace(join=lambda: None, leave=lambda: None)
        plan: Any = SimpleNamespace(engine=view, channel=CHANNEL, name=GROUP, turns=turns)
        self.member = Steps(view, CHANNEL, GROUP, self._start, SYSTEM_CLOCK)
        self.member.prepare()
        self.parts = Parts(plan, self.member, paused=False, own_loop=None)
        self.member.begin(self.parts)

    def leave(self) -> list[StepPart]:
        """As ``Subscription.close``; which parts have ended by that."""
        assert self.parts is not None
        ended = self.delivering()
        self.parts.stop()
        for part in ended:
            part.end()
        self.parts.finish()
        return ended

    def delivering(self) -> list[StepPart]:
        now: Any = self.parts.now() if self.parts is not None else []
        return list(now)

    def part(self, partition: int) -> StepPart:
        return next(part for part in self.delivering() if part.partition == partition)
