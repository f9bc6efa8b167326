"""A disk that says no: fail the Nth call for N = 1, 2, 3 … until a whole story passes without a failure."""

from __future__ import annotations

import contextlib
import errno
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.station import Station, open_station
from tests.faults import MUTATING, READING, FaultyDisk
from tests.proof.tools import Child, checked_log, eventually

CHANNEL = "events"
CODES = [errno.ENOSPC, errno.EIO, errno.EMFILE]


class Book:
    """What was acknowledged, refused, and left open, by the payload's number."""

    def __init__(self) -> None:
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()
        self.unknown: set[int] = set()
        self.errors: list[hg.HeliographError] = []
        self._numbers = itertools.count()

    def publish(self, station: Station, size: int = 20) -> None:
        number = next(self._numbers)
        self._note({number}, lambda: station.publish(CHANNEL, {"n": number, "pad": "x" * size}))

    def publish_many(self, station: Station, count: int, size: int = 20) -> None:
        numbers = [next(self._numbers) for _ in range(count)]
        batch = [{"n": number, "of": numbers, "pad": "x" * size} for number in numbers]
        self._note(set(numbers), lambda: station.publish_many(CHANNEL, batch))

    def _note(self, numbers: set[int], publish: Callable[[], Any]) -> None:
        try:
            publish()
        except hg.OutcomeUnknown as error:
            self.unknown |= numbers
            self.errors.append(error)
        except hg.HeliographError as error:
            self.refused |= numbers
            self.errors.append(error)
        else:
            self.acknowledged |= numbers

    def check(self, root: Path) -> None:
        """Acknowledged: there, once. Refused: not there. Batches whole."""
        stored = [envelope["data"] for envelope in checked_log(root, CHANNEL).values()]
        numbers = [data["n"] for data in stored]
        assert len(numbers) == len(set(numbers)), "stored twice"
        assert self.acknowledged <= set(numbers), f"lost {self.acknowledged - set(numbers)}"
        assert not self.refused & set(numbers), f"refused, and there: {self.refused & set(numbers)}"
        for data in stored:
            assert set(data.get("of", [])) <= set(numbers), "half a batch"


def story(station: Station, book: Book) -> None:
    """Publishing across rotations, in batches and one by one, with sizes that fit the old segment and that do not."""
    book.publish(station)
    book.publish_many(station, 3)
    book.publish(station, 3900)
    book.publish(station)
    book.publish_many(station, 4, 1000)
    book.publish(station)
    book.publish(station, 2500)


@contextlib.contextmanager
def told_when_closing(durability: str) -> Iterator[None]:
    """Who did not wait for syncs is told of a failed one at the latest by close."""
    try:
        yield
    except hg.OutcomeUnknown:
        assert durability != "always"


def explained(error: BaseException) -> bool:
    """It is ours, and says what happened and to what; a long enough text says what to do, too."""
    return isinstance(error, hg.HeliographError) and len(str(error)) > 40


def is_fenced(station: Station) -> bool:
    return any(info.fenced for info in station.channels())


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("durability", ["always", "interval"])
def test_whichever_call_of_publishing_fails_nothing_is_lost_doubled_or_half_visible(
    tmp_path: Path, durability: str, code: int
) -> None:
    for number in itertools.count(1):
        root = tmp_path / str(number)
        disk, book = FaultyDisk(), Book()
        station = open_station(root, name="host1", durability=durability, segment_bytes=4096, disk=disk)
        with told_when_closing(durability), station:
            book.publish(station)
            disk.fail_at(number, code)
            story(station, book)
            fired = list(disk.fired)
            disk.heal()
            assert all(explained(error) for error in book.errors), f"{fired}: {book.errors}"
            assert len(book.errors) <= (1 if not is_fenced(station) else len(book.errors)), f"{fired}: {book.errors}"
            if not is_fenced(station):
                before = len(book.errors)
                story(station, book)
                assert len(book.errors) == before, f"{fired}: publishing did not resume: {book.errors[-1]}"
            else:
                assert any(call.startswith("fdatasync") for call in fired), f"{fired} fenced the log"
        book.check(root)
        with open_station(root, name="host1") as again:
            readable = {message.data["n"] for message in again.read(CHANNEL)}
            # A failed sync may take back what was acknowledged before it was synced.
            assert book.acknowledged <= readable or (durability == "interval" and is_fenced(again))
            assert not book.refused & readable
        if not fired:
            break
    assert number > 15


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_a_disk_that_stays_sick_refuses_at_once_and_publishing_resumes_when_it_is_well(
    tmp_path: Path, code: int
) -> None:
    kinds = tuple(kind for kind in MUTATING if kind not in ("fdatasync", "ftruncate"))
    for number in itertools.count(1):
        root = tmp_path / str(number)
        disk, book = FaultyDisk(), Book()
        with open_station(root, name="host1", segment_bytes=4096, disk=disk) as station:
            book.publish(station)
            disk.fail_at(number, code, kinds, for_ever=True)
            story(station, book)
            fired = list(disk.fired)
            disk.heal()
            assert all(explained(error) for error in book.errors), f"{fired}: {book.errors}"
            before = len(book.errors)
            story(station, book)
            assert len(book.errors) == before, f"{fired}: publishing did not resume: {book.errors[-1]}"
        book.check(root)
        if not fired:
            break
    assert number > 10


def test_full_disk_is_called_full_and_a_short_write_leaves_nothing_behind(tmp_path: Path) -> None:
    disk, book = FaultyDisk(), Book()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        book.publish(station)
        for short in (0, 1, 100, 180):
            disk.fail("pwrite", short=short, path=".jsonl")
            disk.fail("pwrite", errno.ENOSPC, at=2, path=".jsonl")
            book.publish(station)
            book.publish_many(station, 3)
            assert isinstance(book.errors[-1], hg.DiskFull)
            assert "space" in str(book.errors[-1])
            disk.heal()
            book.publish(station)
        assert len(book.errors) == 4
    book.check(tmp_path)


def test_a_short_write_that_can_go_on_is_no_error(tmp_path: Path) -> None:
    disk, book = FaultyDisk(), Book()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        disk.fail("pwrite", short=50, times=3, path=".jsonl")
        book.publish(station)
        book.publish_many(station, 3)
        assert not book.errors
    book.check(tmp_path)


def test_a_short_write_that_cannot_be_undone_is_not_half_visible(tmp_path: Path) -> None:
    """The rest of the batch fails, and so does cutting it off again: the lines that did arrive must not appear."""
    disk, book = FaultyDisk(), Book()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        book.publish(station)
        disk.fail("pwrite", short=900, path=".jsonl")
        disk.fail("pwrite", errno.EIO, at=2, path=".jsonl")
        disk.fail("ftruncate", errno.EIO, path=".jsonl")
        book.publish_many(station, 5, 200)
        assert book.refused or book.unknown
        disk.heal()
        book.publish(station)
    book.check(tmp_path)


def test_a_shared_write_that_cannot_be_undone_is_not_called_refused(tmp_path: Path) -> None:
    """Some lines did arrive whole: whoever comes next keeps them, so nobody may say that they are not there."""
    from tests.log.test_commit import SlowDisk, held_up

    disk, book = SlowDisk(), Book()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        book.publish(station)
        leader = held_up(station, disk)
        others = [threading.Thread(target=book.publish, args=(station, 200), daemon=True) for _ in range(4)]
        for thread in others:
            thread.start()
        eventually(lambda: station.stats().pending_bytes > 1500)
        disk.fail("pwrite", short=1000, path=".jsonl")
        disk.fail("pwrite", errno.EIO, at=2, path=".jsonl")
        disk.fail("ftruncate", errno.EIO, path=".jsonl")
        disk.gate.set()
        for thread in [leader, *others]:
            thread.join(30)
        disk.heal()
        assert len(book.unknown) == 4
        book.publish(station)
    stored = [message["data"] for message in checked_log(tmp_path, CHANNEL).values()]
    assert book.acknowledged <= {data["n"] for data in stored if data != "leader"}


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.EACCES], ids=errno.errorcode.get)
def test_whichever_call_of_reading_fails_the_error_is_ours_and_reading_resumes(tmp_path: Path, code: int) -> None:
    with open_station(tmp_path, name="host1", segment_bytes=4096) as station:
        receipts = [station.publish(CHANNEL, {"n": number, "pad": "x" * 300}) for number in range(40)]
        station.subscribe(CHANNEL, print, name="worker", start="first", paused=True).close()
    doors: list[Callable[[Station], Any]] = [
        lambda station: list(station.read(CHANNEL)),
        lambda station: list(station.read(CHANNEL, start=20)),
        lambda station: list(station.read(CHANNEL, start="-5m")),
        lambda station: station.get(receipts[30].id),
        lambda station: station.channels(),
        lambda station: station.channel(CHANNEL),
        lambda station: station.subscriptions(),
        lambda station: station.stats(),
        lambda station: station.seek(CHANNEL, "worker", 3, dry_run=True),
    ]
    kinds = ("open", "pread", "listdir", "scandir", "stat", "fstat", "lseek")
    for door in doors:
        for number in itertools.count(1):
            disk = FaultyDisk()
            with open_station(tmp_path, name="host1", disk=disk) as station:
                disk.fail_at(number, code, kinds)
                try:
                    answer = door(station)
                except hg.HeliographError as error:
                    assert explained(error), error  # noqa: PT017
                else:
                    assert disk.fired or answer is not None
                fired = list(disk.fired)
                disk.heal()
                door(station)
            if not fired:
                break


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
def test_whichever_call_of_opening_fails_the_error_is_ours_and_the_next_open_works(tmp_path: Path, code: int) -> None:
    """Also in the same process: a failed open must not keep its locks."""
    with open_station(tmp_path / "first", name="host1", segment_bytes=4096) as station:
        for number in range(20):
            station.publish(CHANNEL, {"n": number, "pad": "x" * 300})
    (tmp_path / "first" / "channels" / CHANNEL / "0" / "head").unlink()
    for number in itertools.count(1):
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
        disk = FaultyDisk()
        disk.fail_at(number, code, (*MUTATING, *READING, "flock"))
        try:
            open_station(tmp_path / "copy", name="host1", disk=disk).close()
        except hg.HeliographError as error:
            assert explained(error), error  # noqa: PT017
        fired = list(disk.fired)
        disk.heal()
        with open_station(tmp_path / "copy", name="host1", disk=disk, busy_timeout_s=5) as station:
            assert [message.data["n"] for message in station.read(CHANNEL)] == list(range(20)), fired
            assert station.publish(CHANNEL, {"n": 20}).offset == 20
        shutil.rmtree(tmp_path / "copy")
        if not fired:
            break
    assert number > 15


ADMINISTRATION: list[tuple[str, Callable[[Station, list[hg.Receipt]], Any]]] = [
    ("create", lambda station, _: station.create_channel("other")),
    ("alter", lambda station, _: station.alter_channel(CHANNEL, retention_bytes=10_000_000)),
    ("redact", lambda station, receipts: station.redact(receipts[3].id)),
    ("redact active", lambda station, receipts: station.redact(receipts[-1].id)),
    ("trim", lambda station, _: station.trim()),
    ("delete", lambda station, _: station.delete_channel("doomed")),
    ("seek", lambda station, _: station.seek(CHANNEL, "worker", 3)),
    ("forget", lambda station, _: station.forget(CHANNEL, "worker")),
    ("subscribe", lambda station, _: station.subscribe(CHANNEL, print, name="fresh", paused=True).close()),
]


@pytest.mark.parametrize(("name", "act"), ADMINISTRATION, ids=[name for name, _ in ADMINISTRATION])
def test_whichever_call_of_administration_fails_the_error_is_ours_and_nothing_else_is_lost(
    tmp_path: Path, name: str, act: Callable[[Station, list[hg.Receipt]], Any]
) -> None:
    settings: dict[str, Any] = {"name": "host1", "segment_bytes": 4096, "compress": True, "retention_bytes": 8000}
    with open_station(tmp_path / "first", **settings) as station:
        receipts = [station.publish(CHANNEL, {"n": number, "pad": "x" * 300}) for number in range(40)]
        station.publish("doomed", 1)
        station.subscribe(CHANNEL, print, name="worker", start="first", paused=True).close()
        station.seek(CHANNEL, "worker", 25)
    for number in itertools.count(1):
        shutil.copytree(tmp_path / "first", tmp_path / "copy")
        disk = FaultyDisk()
        with open_station(tmp_path / "copy", disk=disk, **settings) as station:
            disk.fail_at(number, errno.EIO)
            try:
                act(station, receipts)
            except hg.HeliographError as error:
                assert explained(error), error  # noqa: PT017
            fired = list(disk.fired)
            disk.heal()
            fenced = is_fenced(station)
            with contextlib.suppress(hg.NotFound, hg.AlreadyExists, hg.Fenced):
                act(station, receipts)  # again: whatever was left half done is finished, or was done
            if not fenced:
                assert station.publish(CHANNEL, {"n": 40}).offset == 40, fired
            gaps: list[hg.Gap] = []
            numbers = [message.data["n"] for message in station.read(CHANNEL, start=25, on_gap=gaps.append)]
            assert not gaps, (fired, gaps)
            redacted = {"redact active": {39}}.get(name, set())
            assert set(range(25, 40)) - set(numbers) <= redacted, (fired, numbers)
            assert not fenced or any(call.startswith("fdatasync") for call in fired), fired
        with open_station(tmp_path / "copy", **settings) as station:
            assert [message.data["n"] for message in station.read(CHANNEL, start=25)] == numbers, fired
        shutil.rmtree(tmp_path / "copy")
        if not fired:
            break
    assert number > 2


# -- rule 6: a failed sync ----


@pytest.mark.parametrize("durability", ["always", "interval"])
def test_a_failed_sync_leaves_the_outcome_unknown_and_fences_every_process(tmp_path: Path, durability: str) -> None:
    disk = FaultyDisk()
    other = """
        import sys, heliograph as hg
        station = hg.open(sys.argv[1], name="host1", busy_timeout_s=5)
        print(station.publish("events", 1).offset, flush=True)
        sys.stdin.readline()
        for _ in range(2):
            try:
                station.publish("events", 2)
            except hg.HeliographError as error:
                print(type(error).__name__, flush=True)
        print(station.channel("events").fenced, flush=True)
        print(len(list(station.read("events"))), flush=True)
    """
    with (
        told_when_closing(durability),
        open_station(tmp_path, name="host1", durability=durability, sync_interval_ms=60_000, disk=disk) as station,
        Child(other, tmp_path) as child,
    ):
        station.publish(CHANNEL, 0)
        station.sync()
        assert child.line() == "1"
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown, match="fenced"):
            station.publish(CHANNEL, "perhaps")
            station.sync()
        disk.heal()
        for _ in range(2):
            with pytest.raises(hg.Fenced, match="repair"):
                station.publish(CHANNEL, "never")
            with pytest.raises(hg.Fenced):
                station.publish_many(CHANNEL, ["never", "never"])
        assert station.channel(CHANNEL).fenced
        child.tell()
        assert [child.line(), child.line(), child.line()] == ["Fenced", "Fenced", "True"]
        assert int(child.line()) >= 2  # reading goes on


def test_a_failed_sync_stays_a_fence_when_everybody_has_left_and_come_back(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        station.publish(CHANNEL, 0)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, 1)
        disk.heal()
    for _ in range(2):
        with open_station(tmp_path, name="host1") as station:
            with pytest.raises(hg.Fenced):
                station.publish(CHANNEL, 2)
            assert [message.data for message in station.read(CHANNEL)][:1] == [0]


def test_readers_do_not_see_what_a_failed_sync_may_have_lost(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        station.publish(CHANNEL, 0)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish(CHANNEL, 1)
        disk.heal()
        assert [message.data for message in station.read(CHANNEL)] == [0]


def test_a_failed_sync_in_a_rotation_fences_too(tmp_path: Path) -> None:
    disk, book = FaultyDisk(), Book()
    with open_station(tmp_path, name="host1", segment_bytes=4096, disk=disk) as station:
        book.publish(station, 3000)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        book.publish(station, 3000)
        disk.heal()
        assert isinstance(book.errors[0], hg.StorageError)
        assert station.channel(CHANNEL).fenced
        with pytest.raises(hg.Fenced):
            station.publish(CHANNEL, 2)
    book.check(tmp_path)


def test_a_fenced_channel_does_not_stop_the_others(tmp_path: Path) -> None:
    disk = FaultyDisk()
    settings: dict[str, Any] = {"segment_bytes": 4096, "retention_bytes": 8000, "segment_age_s": 3600}
    with open_station(tmp_path, name="host1", disk=disk, **settings) as station:
        station.publish("a", 0)
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        with pytest.raises(hg.OutcomeUnknown):
            station.publish("a", 1)
        disk.heal()
        for _ in range(20):
            station.publish("b", "x" * 1000)
        assert [trimmed.channel for trimmed in station.trim()] == ["b"]
        assert [info.fenced for info in station.channels()] == [True, False]


def test_everybody_in_a_group_commit_learns_of_a_failed_sync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_station(tmp_path, name="host1", disk=disk) as station:
        station.publish(CHANNEL, "first")
        disk.fail("fdatasync", errno.EIO, path=".jsonl")
        outcomes: list[str] = []

        def publish(number: int) -> None:
            try:
                station.publish(CHANNEL, number)
                outcomes.append("acknowledged")
            except hg.HeliographError as error:
                outcomes.append(type(error).__name__)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(outcomes) == 16
        assert "OutcomeUnknown" in outcomes
        assert set(outcomes) <= {"OutcomeUnknown", "Fenced"}
