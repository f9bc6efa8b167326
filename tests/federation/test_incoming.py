"""What arrives is stored in order: the next is appended while one is synced, and waits for it with everything else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import heliograph as hg
from heliograph.engine.knowledge import Outdated
from heliograph.errors import NotAllowed, NotFound, StorageError
from heliograph.federation import frames, incoming
from heliograph.federation.events import Arrived, Gapped, Opened
from heliograph.federation.inlet import Inlet, Standing, Stored
from heliograph.federation.quota import Quota
from heliograph.federation.receiving import Receiving
from heliograph.federation.rules import Rules
from heliograph.seen import SeenSet
from tests.arrivals import lines as foreign_lines
from tests.arrivals import stored as stored_lines

Call = tuple[int, str]
"""Which batch was to be stored, and in which life."""


class Disk:
    """Stands for an inlet: batches are stored when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.answers: dict[int, list[Callable[[], None]]] = {}
        self.syncing = {first: threading.Event() for first in range(4)}
        self.looking: list[Callable[[], None]] = []

    def standing(self, theirs: object, rules: Rules) -> Standing:
        assert (theirs, rules.peer) == ({}, "host1")
        if self.looking:
            self.looking.pop()()
        return Standing("", SeenSet(), {})

    def store(
        self, items: Sequence[Arrived | Gapped], rules: Rules, written: Callable[[str], None], life: str
    ) -> Stored:
        (item,) = items
        assert isinstance(item, Arrived)
        assert rules.peer == "host1"
        self.calls.append((item.first, life))
        written("life1")
        assert self.syncing[item.first].wait(10)
        for answer in self.answers.get(item.first, [])[:1]:
            self.answers[item.first].pop(0)
            answer()
        return Stored({(item.stream, 0): (item.next, [])}, 1, item.size)


class Line:
    """Stands for a connection."""

    def __init__(self) -> None:
        self.acks: list[int] = []
        self.parked: list[int] = []
        self.channels = {"alerts": 1}
        self.session_peer = "host1"
        self.complaints: list[str] = []
        self.over = asyncio.Event()
        self.shared = SimpleNamespace(station=None)
        self.session: Any = SimpleNamespace(receiving=self)
        self.alarms: Any = None
        self.tasks: set[asyncio.Task[None]] = set()

    def resume(self, *_: object) -> None:
        pass

    def acknowledge(self, stream: int, partition: int, following: int, refused: object) -> None:
        assert (stream, partition, refused) == (self.channels["alerts"], 0, [])
        self.acks.append(following)

    def park(self, *_: object) -> None:
        self.parked.append(len(self.acks))

    def flush(self) -> None:
        pass

    def alarm(self, *_: object, **__: object) -> None:
        pass

    def complain(self, about: str, what: str) -> None:
        self.complaints.append(what)

    def settled(self, about: str) -> None:
        pass

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self.start(function, *arguments)

    def start(self, function: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(None, function, *arguments)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(0)


def in_a_loop(test: Callable[[pytest.MonkeyPatch], Coroutine[Any, Any, None]]) -> Callable[[pytest.MonkeyPatch], None]:
    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        asyncio.run(test(monkeypatch))

    return run


async def wait_for(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for happens in threads
            await asyncio.sleep(0.001)


def arrived(first: int, stream: int = 1) -> Arrived:
    body = b"x" * incoming.STORE_BYTES
    return Arrived(
        stream=stream, channel="alerts", partition=0, first=first, count=1, size=len(body), packed=False, body=body
    )


async def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[Line, Disk, incoming.Storer]:
    disk, line = Disk(), Line()
    monkeypatch.setattr(incoming, "Inlet", lambda *_: disk)
    storer = incoming.Storer(line, Rules("host1", ["alerts"]), Quota(messages_per_s=0, bytes_per_s=0))  # type: ignore[arg-type]
    await storer.resume(Opened(stream=1, channel="alerts", partitions=1, ends={}))
    return line, disk, storer


@in_a_loop
async def test_one_is_appended_while_the_one_before_is_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    line, disk, storer = await begun(monkeypatch)
    for first in range(4):
        storer.arrived(arrived(first))
    await wait_for(lambda: len(disk.calls) == 3)
    disk.syncing[1].set()
    await asyncio.sleep(0.02)
    assert disk.calls == [(0, ""), (1, "life1"), (2, "life1")], "two are synced, one appended, no more"
    assert line.acks == [], "acknowledgements keep the order"
    for first in (0, 2, 3):
        disk.syncing[first].set()
    await wait_for(lambda: len(line.acks) == 4)
    assert line.acks == [1, 2, 3, 4]
    assert [first for first, _ in disk.calls] == [0, 1, 2, 3]


@in_a_loop
async def test_what_comes_while_one_is_synced_is_appended_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    line, disk, storer = await begun(monkeypatch)
    woken: list[object] = []
    loop = asyncio.get_running_loop()
    call_soon = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: (woken.append(call[0]), call_soon(*call))[1])
    storer.arrived(arrived(0))
    await wait_for(lambda: disk.calls == [(0, "")])
    await asyncio.sleep(0.01)
    assert woken == []  # nobody waits for it: the sync begins undisturbed
    storer.arrived(arrived(1))
    await wait_for(lambda: disk.calls == [(0, ""), (1, "life1")])
    assert line.acks == []
    for first in (0, 1):
        disk.syncing[first].set()
    await wait_for(lambda: line.acks == [1, 2])


@in_a_loop
async def test_a_connection_that_is_over_waits_for_what_is_at_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    line, disk, storer = await begun(monkeypatch)
    storer.arrived(arrived(0))
    await wait_for(lambda: bool(disk.calls))
    assert not line.tasks, "what comes alone has the interpreter to itself"
    line.over.set()
    storer.close()
    await asyncio.sleep(0.01)
    assert any(not task.done() for task in line.tasks), "the next connection would begin beside it"
    disk.syncing[0].set()
    await wait_for(lambda: all(task.done() for task in line.tasks))
    assert line.acks == []


@in_a_loop
async def test_a_failure_of_one_has_all_wait_that_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> None:
        raise StorageError("the disk is gone")

    def outdated() -> None:
        raise Outdated

    line, disk, storer = await begun(monkeypatch)
    disk.answers = {0: [failed], 1: [outdated], 2: [outdated]}
    for first in range(3):
        storer.arrived(arrived(first))
    await wait_for(lambda: len(disk.calls) == 3)
    for first in (2, 1, 0):
        disk.syncing[first].set()
        await asyncio.sleep(0.02)
    await wait_for(lambda: len(line.acks) == 3)
    assert disk.calls == [(0, ""), (1, "life1"), (2, "life1"), (0, ""), (1, ""), (2, "")]
    assert line.acks == [1, 2, 3]


@in_a_loop
async def test_a_failure_of_one_has_the_next_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed() -> None:
        raise StorageError("the disk is gone")

    def outdated() -> None:
        raise Outdated

    line, disk, storer = await begun(monkeypatch)
    disk.answers = {0: [failed, failed], 1: [outdated]}
    storer.arrived(arrived(0))
    storer.arrived(arrived(1))
    await wait_for(lambda: len(disk.calls) == 2)
    disk.syncing[1].set()
    await asyncio.sleep(0.02)
    disk.syncing[0].set()
    await wait_for(lambda: len(line.acks) == 2)
    assert disk.calls == [(0, ""), (1, "life1"), (0, ""), (0, ""), (1, "")]
    assert line.acks == [1, 2]
    assert len(line.complaints) == 2


@in_a_loop
async def test_what_is_not_allowed_parks_after_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def denied() -> None:
        raise NotAllowed("not yours")

    line, disk, storer = await begun(monkeypatch)
    disk.answers = {1: [denied]}
    storer.arrived(arrived(0))
    storer.arrived(arrived(1))
    disk.syncing[1].set()
    await wait_for(lambda: len(disk.calls) == 2)
    await asyncio.sleep(0.02)
    assert not line.parked
    disk.syncing[0].set()
    await wait_for(lambda: bool(line.parked))
    assert (line.parked, line.acks) == ([1], [1])


def gapped(first: int, following: int, *, never: bool = False) -> Gapped:
    gaps = SeenSet()
    gaps.add("host1.k", 0, first, following)
    return Gapped(stream=1, channel="alerts", gaps=gaps, reason="", never=never)


class Told(Disk):
    """The same, and gaps are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps: list[Gapped] = []

    def store(
        self, items: Sequence[Arrived | Gapped], rules: Rules, written: Callable[[str], None], life: str
    ) -> Stored:
        self.gaps += [item for item in items if isinstance(item, Gapped)]
        lines = [item for item in items if isinstance(item, Arrived)]
        return super().store(lines, rules, written, life) if lines else Stored({}, 0, 0)


@in_a_loop
async def test_a_compacted_log_may_tell_of_any_number_of_gaps_while_the_disk_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, _, _ = await begun(monkeypatch)
    disk = Told()
    monkeypatch.setattr(incoming, "Inlet", lambda *_: disk)
    storer = incoming.Storer(line, Rules("host1", ["alerts"]), Quota(messages_per_s=0, bytes_per_s=0))  # type: ignore[arg-type]
    await storer.resume(opened(1))
    storer.arrived(arrived(0))
    await wait_for(lambda: bool(disk.calls))
    for number in range(3):
        storer.arrived(arrived(1 + number))  # until nothing more is taken
    for first in range(0, 50_000, 2):
        storer.arrived(gapped(first, first + 1))
    storer.arrived(gapped(60_000, 60_001, never=True))
    for event in disk.syncing.values():
        event.set()
    await wait_for(lambda: bool(disk.gaps) and disk.gaps[-1].never)
    told = SeenSet()
    for gap in disk.gaps[:-1]:
        told.update(gap.gaps)
    assert told.pieces == 25_000
    assert len(disk.gaps) < 30
    assert line.acks == [1, 2, 3, 4]


@in_a_loop
async def test_gaps_without_end_take_no_memory_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "GAPS_MAX", 100)
    line, _, _ = await begun(monkeypatch)
    disk = Told()
    monkeypatch.setattr(incoming, "Inlet", lambda *_: disk)
    storer = incoming.Storer(line, Rules("host1", ["alerts"]), Quota(messages_per_s=0, bytes_per_s=0))  # type: ignore[arg-type]
    await storer.resume(opened(1))
    for round_ in range(2):  # those that wait count, not those that waited
        disk.gaps.clear()
        for number in range(3):
            disk.syncing[number].clear()
            storer.arrived(arrived(number))
        await wait_for(lambda round_=round_: len(disk.calls) == 3 * (round_ + 1))
        for first in range(0, 1000, 2):
            storer.arrived(gapped(first, first + 1))
        for number in range(3):
            disk.syncing[number].set()
        await wait_for(lambda: bool(disk.gaps))
        assert sum(gap.gaps.pieces for gap in disk.gaps) == 100


def opened(stream: int) -> Opened:
    return Opened(stream=stream, channel="alerts", partitions=1, ends={})


@in_a_loop
async def test_a_look_that_is_late_does_not_disturb_a_channel_that_was_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for end in (lambda: None, _gone):
        line, disk, storer = await begun(monkeypatch)
        late = threading.Event()

        def look(late: threading.Event = late, end: Callable[[], None] = end) -> None:
            assert late.wait(10)
            end()

        disk.looking = [look]
        line.channels = {"alerts": 2}
        looking = asyncio.create_task(storer.resume(opened(2)))
        await wait_for(lambda disk=disk: not disk.looking)
        storer.ended("alerts")
        line.channels = {"alerts": 3}
        await storer.resume(opened(3))
        storer.arrived(arrived(0, 3))
        await wait_for(lambda disk=disk: len(disk.calls) == 1)
        late.set()
        await looking
        storer.arrived(arrived(1, 3))
        for first in range(2):
            disk.syncing[first].set()
        await wait_for(lambda line=line: bool(line.acks) and line.acks[-1] == 2)
        assert (line.acks, line.parked) == ([1, 2], []), "nothing is acknowledged that was not stored"


@in_a_loop
async def test_who_names_channels_that_are_not_here_and_gives_them_up_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line, disk, _ = await begun(monkeypatch)
    rules = Rules("host1", [">"])
    line.session.receiving = receiving = Receiving(lambda *_: None, rules, window=1 << 20, budget=1 << 20)
    line.shared.station = SimpleNamespace(engine=SimpleNamespace(name="hub"))
    line.alarms = SimpleNamespace(calm=lambda: None)
    storer = incoming.Storer(line, rules, Quota(messages_per_s=0, bytes_per_s=0))  # type: ignore[arg-type]
    for number in range(1, 4):
        (event,) = receiving.on_open(frames.Open(stream=number, channel=f"c{number}", partitions=1))
        assert isinstance(event, Opened)
        disk.looking = [_gone]
        await storer.resume(event)
    assert list(receiving.parked) == ["c1", "c2", "c3"]
    del receiving.parked["c1"]  # as it does when the other side withdraws it
    storer.found(["c2"])
    assert (list(receiving.parked), storer._absent) == (["c3"], {"c3"})


def _gone() -> None:
    raise NotFound("there is no channel 'alerts'")


@in_a_loop
async def test_what_was_not_allowed_does_not_park_the_stream_that_was_opened_since(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied() -> None:
        raise NotAllowed("not yours")

    line, disk, storer = await begun(monkeypatch)
    disk.answers = {0: [denied]}
    storer.arrived(arrived(0))
    await wait_for(lambda: bool(disk.calls))
    storer.ended("alerts")
    line.channels = {"alerts": 2}
    await storer.resume(opened(2))
    disk.syncing[0].set()
    await wait_for(lambda: bool(line.tasks) and all(task.done() for task in line.tasks))
    assert not line.parked
    disk.syncing[1].set()
    storer.arrived(arrived(1, 2))
    await wait_for(lambda: line.acks == [2])


def test_nothing_is_appended_behind_what_another_life_may_have_lost(tmp_path: Path) -> None:
    first, second = foreign_lines(0, 2, "host1.aaaaaa")
    lives: list[str] = []
    with hg.open(tmp_path, name="hub") as hub:
        inlet, rules = Inlet(hub, "alerts", "host1"), Rules("host1")
        inlet.store([lone(first, 0)], rules, lives.append)
        with pytest.raises(Outdated):
            inlet.store([lone(second, 1)], rules, lives.append, "another")
        assert stored_lines(tmp_path) == [first]
        inlet.store([lone(second, 1)], rules, lives.append, lives[0])
        assert stored_lines(tmp_path) == [first, second]
    assert len(lives) == 2


def lone(line: bytes, offset: int) -> Arrived:
    body = line + b"\n"
    return Arrived(
        stream=1, channel="alerts", partition=0, first=offset, count=1, size=len(body), packed=False, body=body
    )
