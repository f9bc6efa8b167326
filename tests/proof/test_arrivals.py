"""Arrivals and death: whatever is killed whenever, each line is in the log once, and what was acknowledged is there."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from heliograph import disk as disks
from heliograph.admin.verify import verify
from heliograph.engine.relayed import Relayed
from heliograph.station import Station, open_station
from tests.arrivals import HOST2, Identity, doubled, foreign, identities, identity, keyed, line, lines, members, stored
from tests.faults import Died, FaultyDisk, PowerDisk
from tests.proof.tools import Child

CHANNEL = "alerts"
# The thread that gives kept locks back dies of the dead disk, too.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class QuickFaultyDisk(FaultyDisk):
    """The page cache survives a killed process: what is counted as a sync need not be one."""

    def fdatasync(self, fd: int) -> None:
        self._call("fdatasync", lambda _: None, fd)

    def sync_directory(self, path: Any) -> None:
        self._call("sync_directory", lambda _: None, path)


def relayed(station: Station) -> Relayed:
    return station.engine.relayed


def opened(root: Path, disk: FaultyDisk, **more: Any) -> Station:
    return open_station(root, name="host1", segment_bytes=4096, sync_interval_ms=60_000, disk=disk, **more)


def bury(station: Station, disk: FaultyDisk) -> None:
    """The process is gone: nothing of it goes on, and the kernel closes its files."""
    station._upkeep.close()
    station.engine._committers.close()
    if station.engine._syncer is not None:
        station.engine._syncer._stop.set()
    station.engine.abandon()
    disk.bury()


# -- one death, at every call of the disk ---------------------------------------------------------------------------


def first_lines(station: Station) -> None:
    relayed(station).arrive(CHANNEL, lines(100, 110))


def more_lines(station: Station) -> None:
    """Enough to begin a new segment."""
    for seq in range(100, 130, 6):
        relayed(station).arrive(CHANNEL, lines(seq, seq + 6))


def mixed_lines(station: Station) -> None:
    station.publish_many(CHANNEL, [1, 2, 3])
    relayed(station).arrive(CHANNEL, [keyed(seq, f"key-{seq}") for seq in range(100, 110)])
    station.publish(CHANNEL, 4)
    relayed(station).arrive(CHANNEL, lines(95, 120))


def own_beyond_the_end(station: Station) -> None:
    mine = f"host1.{station.channel(CHANNEL).incarnation}"
    relayed(station).arrive(CHANNEL, [line(500, mine), line(501, mine), *lines(100, 105)])


def trimmed(station: Station) -> None:
    relayed(station).arrive(CHANNEL, lines(100, 130))
    station.alter_channel(CHANNEL, retention_bytes=5000)
    station.trim()
    relayed(station).arrive(CHANNEL, lines(0, 131))


STORIES: list[Callable[[Station], None]] = [first_lines, more_lines, mixed_lines, own_beyond_the_end, trimmed]


def prepare(root: Path, durability: str) -> None:
    with opened(root, QuickFaultyDisk(), durability=durability) as station:
        station.create_channel(CHANNEL, partitions=2)
        relayed(station).arrive(CHANNEL, lines(0, 20))
        station.publish(CHANNEL, "own")


def check(root: Path, before: set[Identity], durability: str) -> None:
    """After a death: open, look, send everything again, look again."""
    with opened(root, QuickFaultyDisk(), durability=durability) as station:
        assert not doubled(root)
        seen = members(relayed(station).seen(CHANNEL))
        assert before <= seen, "what was acknowledged is forgotten"
        assert set(foreign(identities(root))) <= seen
        relayed(station).arrive(CHANNEL, lines(0, 131))
        assert not doubled(root)
        assert verify(station).ok
        now = members(relayed(station).seen(CHANNEL))
        assert {(HOST2, 0, seq) for seq in range(131)} <= now
        read = [identity(message.raw) for message in station.read(CHANNEL)]
        left = identities(root)  # perhaps with a segment that was about to be deleted
        assert len(read) == len(set(read)) <= len(left)
        assert set(read) <= set(left)


def die_at_every_call(tmp_path: Path, story: Callable[[Station], None], durabilities: tuple[str, ...]) -> None:
    for durability in set(durabilities):
        prepare(tmp_path / durability, durability)
    for number in range(1, 2000):
        durability = durabilities[number % len(durabilities)]
        before = set(foreign(identities(tmp_path / durability)))
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / durability, root)
        disk = QuickFaultyDisk()
        station = opened(root, disk, durability=durability)
        disk.kill_at(number)
        with contextlib.suppress(Died):
            story(station)
        finished = not disk.fired
        bury(station, disk)
        check(root, before, durability)
        shutil.rmtree(root)
        if finished:
            assert number > 5
            return
    raise AssertionError("the story never ends")


@pytest.fixture
def _saved_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.limits.SEEN_SAVE_BYTES", 3000)


@pytest.mark.usefixtures("_saved_often")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_death_at_every_call_of_the_disk(tmp_path: Path, story: Callable[[Station], None]) -> None:
    die_at_every_call(tmp_path, story, ("always", "interval"))


@pytest.mark.prove
@pytest.mark.usefixtures("_saved_often")
@pytest.mark.parametrize("durability", ["always", "interval"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_death_at_every_call_of_the_disk_in_each_durability(
    tmp_path: Path, story: Callable[[Station], None], durability: str
) -> None:
    die_at_every_call(tmp_path, story, (durability,))


@pytest.mark.parametrize("number", range(1, 40, 3))
def test_the_power_fails_while_lines_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    luck = random.Random(number)
    root = tmp_path / "data"
    root.mkdir()
    acknowledged: set[Identity] = set()
    at = 0
    for life in range(3):
        boot = os.urandom(16)
        monkeypatch.setattr(disks, "boot_id", lambda boot=boot: boot)
        disk = PowerDisk(root)
        disk.everything_is_durable()
        station = opened(root, disk, durability=luck.choice(["always", "interval"]))
        if not life:
            station.create_channel(CHANNEL, retention_bytes=20_000)
        assert acknowledged <= members(relayed(station).seen(CHANNEL)), "lost"
        assert not doubled(root)
        disk.kill_at(number + luck.randrange(20))
        with contextlib.suppress(Died):
            while True:
                some = lines(max(0, at - luck.randrange(5)), at + luck.randrange(1, 9))
                relayed(station).arrive(CHANNEL, some)
                acknowledged.update(map(identity, some))
                at += len(some) // 2
                if luck.random() < 0.1:
                    station.trim()
        bury(station, disk)
        disk.cut(luck if number % 2 else None)
    with opened(root, QuickFaultyDisk()) as station:
        assert acknowledged <= members(relayed(station).seen(CHANNEL)), "lost"
        relayed(station).arrive(CHANNEL, lines(0, at + 50))
        assert not doubled(root)
        assert {(HOST2, 0, seq) for seq in range(at + 50)} == members(relayed(station).seen(CHANNEL))


# -- processes that are killed while others go on ---------------------------------------------------------------------

RECEIVER = """
    import random, sys
    from heliograph.station import open_station
    from tests.arrivals import lines
    luck = random.Random(int(sys.argv[2]))
    station = open_station(sys.argv[1], name="host1", durability=luck.choice(["always", "interval"]))
    at = 0
    while at < 4000:
        sent = lines(max(0, at - luck.randrange(50)), at + luck.randrange(1, 100))
        station.engine.relayed.arrive("alerts", sent)
        if luck.random() < 0.3:
            station.publish_many("alerts", [1, 2, 3])
        at += luck.randrange(len(sent) + 1)
        print(at, flush=True)
    station.close()
"""


def kills(root: Path, seed: int, rounds: int) -> None:
    luck = random.Random(seed)
    for _ in range(rounds):
        with Child(RECEIVER, root, luck.randrange(1000)) as one, Child(RECEIVER, root, luck.randrange(1000)) as two:
            for _ in range(luck.randrange(1, 12)):
                one.line()
            one.signal(signal.SIGKILL)
            two.line()
            two.signal(signal.SIGKILL)
    with open_station(root, name="host1") as station:
        assert not doubled(root)
        assert verify(station).ok
        found = set(foreign(identities(root)))
        assert found == set(foreign(members(relayed(station).seen(CHANNEL))))
        relayed(station).arrive(CHANNEL, lines(0, 4200))
        assert set(foreign(identities(root))) == found | {(HOST2, 0, seq) for seq in range(4200)}
        assert not doubled(root)


def test_receivers_are_killed_while_others_go_on(tmp_path: Path) -> None:
    kills(tmp_path / "data", 1, 2)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(2, 40))
def test_receivers_are_killed_while_others_go_on_many_times(tmp_path: Path, seed: int) -> None:
    kills(tmp_path / "data", seed, 6)


# -- anything in any order --------------------------------------------------------------------------------------------

SEQUENCES = st.lists(st.integers(0, 60), min_size=1, max_size=25)


class ArrivalsMachine(RuleBasedStateMachine):
    """Two stations on one directory, killed, trimmed, restored; and a hub that has everything there ever was."""

    @initialize(partitions=st.sampled_from([1, 2]), durability=st.sampled_from(["always", "interval"]))
    def begin(self, partitions: int, durability: str) -> None:
        self.place = Path(tempfile.mkdtemp(prefix="helio-arrivals-"))
        self.root = self.place / "data"
        self.durability = durability
        self.stations: list[tuple[Station, QuickFaultyDisk]] = []
        self.hub: dict[Identity, bytes] = {}
        self.ever: set[Identity] = set()
        self.copy: set[Identity] | None = None
        self._station(0).create_channel(CHANNEL, partitions=partitions, retention_bytes=9000)

    def teardown(self) -> None:
        if hasattr(self, "place"):
            for station, disk in self.stations:
                bury(station, disk)
            shutil.rmtree(self.place)

    def _station(self, number: int) -> Station:
        while len(self.stations) <= number:
            disk = QuickFaultyDisk()
            self.stations.append((opened(self.root, disk, durability=self.durability), disk))
        return self.stations[number][0]

    def _look(self) -> None:
        """Take note of what is in the log; nothing is there twice, and nothing is there again."""
        assert not doubled(self.root)
        now = {identity(one): one for one in stored(self.root)}
        gone = self.ever - self.present
        assert not gone & now.keys(), "what was trimmed is stored again"
        assert all(self.hub.get(who, one) == one for who, one in now.items()), "a line changed"
        self.hub.update(now)
        self.ever |= now.keys()
        self.present = set(now)

    present: set[Identity] = set()

    @rule(
        sequences=SEQUENCES, origin=st.sampled_from([HOST2, "host3.bbbbbb"]), who=st.integers(0, 1), key=st.booleans()
    )
    def arrive(self, sequences: list[int], origin: str, who: int, key: bool) -> None:
        made = [keyed(seq, f"key-{seq}") if key and origin == HOST2 else line(seq, origin) for seq in sequences]
        sent = [self.hub.setdefault(identity(one), one) for one in made]
        arrival = relayed(self._station(who)).arrive(CHANNEL, sent)
        new = set(map(identity, sent)) - self.ever
        assert (arrival.appended, arrival.appended + arrival.duplicates) == (len(new), len(sent))
        self._look()
        assert new <= self.ever

    @precondition(lambda self: self.hub)
    @rule(numbers=st.lists(st.integers(0, 10_000), min_size=1, max_size=20), who=st.integers(0, 1))
    def come_back(self, numbers: list[int], who: int) -> None:
        """Anything that ever was, own lines too. Chosen by numbers: how many there are depends on who died when."""
        known = sorted(self.hub)
        some = [known[number % len(known)] for number in numbers]
        relayed(self._station(who)).arrive(CHANNEL, [self.hub[one] for one in some])
        self._look()
        assert set(some) <= self.ever

    @rule(count=st.integers(1, 5), who=st.integers(0, 1))
    def publish(self, count: int, who: int) -> None:
        self._station(who).publish_many(CHANNEL, list(range(count)))
        self._look()

    @rule(who=st.integers(0, 1))
    def trim(self, who: int) -> None:
        self._station(who).trim()
        self._look()

    @rule(at=st.integers(1, 40), sequences=SEQUENCES, who=st.integers(0, 1), trim=st.booleans())
    def die(self, at: int, sequences: list[int], who: int, trim: bool) -> None:
        """In the middle of an arrival, or of trimming; the other station lives on."""
        station = self._station(who)
        disk = self.stations[who][1]
        disk.kill_at(at)
        with contextlib.suppress(Died):
            if trim:
                station.trim()
            relayed(station).arrive(CHANNEL, [self.hub.setdefault((HOST2, 0, seq), line(seq)) for seq in sequences])
        bury(station, disk)
        del self.stations[who]
        if self.durability == "interval":  # what a dead process wrote without a word is settled by the next
            relayed(self._station(0)).seen(CHANNEL)
        relayed(self._station(0)).seen(CHANNEL)
        self._look()

    @rule()
    def close(self) -> None:
        for station, _ in self.stations:
            station.close()
        self.stations.clear()

    @rule(lost=st.booleans())
    def reboot(self, lost: bool) -> None:
        for station, disk in self.stations:
            bury(station, disk)
        self.stations.clear()
        trimmed = self.ever != self.present
        if lost and not trimmed:  # it cannot be made again once something was trimmed
            (self.root / "seen" / f"{CHANNEL}.json").unlink(missing_ok=True)

    @rule()
    def keep_a_copy(self) -> None:
        self.close()
        shutil.rmtree(self.place / "copy", ignore_errors=True)
        shutil.copytree(self.root, self.place / "copy")
        self.copy = set(self.ever)

    @precondition(lambda self: self.copy is not None)
    @rule()
    def go_back_to_the_copy(self) -> None:
        self.close()
        shutil.rmtree(self.root)
        shutil.copytree(self.place / "copy", self.root)
        assert self.copy is not None
        self.ever = set(self.copy)
        self.present = set(identities(self.root))

    @invariant()
    def what_was_seen_is_what_was_appended(self) -> None:
        if not hasattr(self, "place"):
            return
        seen = members(relayed(self._station(0)).seen(CHANNEL))
        assert set(foreign(seen)) == set(foreign(self.ever))
        assert self.ever <= seen
        assert not (self.hub.keys() - self.ever) & seen, "claims what it has not"


def _run(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        ArrivalsMachine,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_anything_in_any_order_is_stored_once() -> None:
    _run(20, 20)


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_anything_in_any_order_is_stored_once_for_long() -> None:
    _run(1_000, 60)
