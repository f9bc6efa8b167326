"""Batches that are laid aside, without Spark and without a hub: published once, in however many steps and lives."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import google_crc32c
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import heliograph as hg
from heliograph.errors import Busy, Damaged, DiskFull, NotFound, OutcomeUnknown
from heliograph.limits import SPARK_APPEND_BYTES
from heliograph.log import packed
from heliograph.log.beginnings import Beginning
from heliograph.log.lines import intact, origin_of
from heliograph.log.stamping import sums_of
from heliograph.staging import appending, publishing
from heliograph.staging.files import Section, discard_through, folder, make_folder, size_of, sweep
from heliograph.staging.publishing import Publishing, Record, load, publish_batch, tidy
from heliograph.station.producer import Producer

Q = "6f1e"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.create_channel("out", partitions=2)
    return tmp_path / "data"


def lay(root: Path, batch: str, *numbers: int, name: str = "t", query: str = Q, partition: int = 0) -> list[Section]:
    head = '{"specversion":"1.0","id":"i%d","source":"s","type":"t","time":"2026-11-15T20:30:01Z","channel":"out"'
    data = "".join(f'{head % n},"data":{n}\n' for n in numbers).encode()
    (make_folder(root, query, batch) / f"{name}.lines").write_bytes(data)
    file = f"{query}/{batch}/{name}.lines"
    return [Section(file, "out", partition, len(numbers), 0, len(data), google_crc32c.value(data), (1, 1))]


def beginning_apart(root: Path, section: Section) -> Section:
    """The same as tasks of Spark lay it aside: how its bodies begin is said once, and ids count on."""
    path = root / "spark" / "staged" / section.file
    head = b'","source":"s","type":"t","time":"2026-11-15T20:30:01Z","channel":"out"'
    data = b"".join(line.partition(head)[2] + b"\n" for line in path.read_bytes().splitlines())
    path.write_bytes(data)
    begin = Beginning('{"specversion":"1.0","id":"019a8f6e-', 0xFFFE + section.count, head.decode())
    crc = google_crc32c.value(data)
    return msgspec.structs.replace(section, length=len(data), crc=crc, begin=begin)


def numbers(root: Path) -> list[int]:
    with hg.open(root, read_only=True) as station:
        return sorted(message.data for message in station.read("out"))


class Died(BaseException):
    """Nothing catches it, as nothing runs in a killed process."""


class _Mortal:
    """Dies before the nth thing that changes the disk."""

    def __init__(self) -> None:
        self.left = -1
        self._save, self._publish = publishing._save, Producer.publish_encoded

    def _step(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Died

    def __enter__(self) -> Self:
        def save(*args: Any) -> None:
            self._step()
            self._save(*args)
            self._step()

        def publish(*args: Any, **more: Any) -> int:
            self._step()
            return self._publish(*args, **more)

        publishing._save = save
        Producer.publish_encoded = publish  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        publishing._save = self._save
        Producer.publish_encoded = self._publish  # type: ignore[method-assign]


@contextlib.contextmanager
def _steps_of(size: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(appending, "SPARK_APPEND_BYTES", size)
        yield


attempts = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 6), st.integers(1, 3)), min_size=1, max_size=6)
step_bytes = st.sampled_from([SPARK_APPEND_BYTES, 300, 1])
"""All in one step, some messages in each, one in each; with less than a batch in a step another thread reads ahead."""


@settings(max_examples=25, deadline=None)
@given(attempts, step_bytes, st.sets(st.sampled_from("ab")))
def test_whatever_dies_and_however_it_is_cut_into_steps_each_batch_is_there_once(
    plan: list[tuple[int, int, int]], size: int, apart: set[str]
) -> None:
    """Each is tried some times, each time laid aside anew, and dies somewhere or does some steps."""
    with tempfile.TemporaryDirectory() as directory, _Mortal() as mortal, _steps_of(size):
        root = Path(directory) / "data"
        with hg.open(root, name="host1", durability="os") as station:
            for batch in range(3):
                for more, deaths, steps in [*plan, (0, -1, 100)]:
                    first = batch * 100
                    laid = lay(root, str(batch), *range(first, first + 3), name=f"a{more}{deaths}{steps}")
                    laid += lay(root, str(batch), first + 3, name=f"b{more}{deaths}{steps}", partition=0)
                    laid = [
                        beginning_apart(root, one) if name in apart else one
                        for name, one in zip("ab", laid, strict=True)
                    ]
                    mortal.left = deaths
                    left = iter(range(steps))
                    try:
                        with Publishing(root, Q, station=station) as turn:
                            done = turn.publish(
                                str(batch), lambda laid=laid: laid, lambda left=left: next(left, -1) < 0
                            )  # type: ignore[misc]
                    except Died:
                        done = False
                    mortal.left = -1
                assert done
        assert numbers(root) == sorted(n for batch in range(3) for n in range(batch * 100, batch * 100 + 4))
        assert not list((root / "spark").rglob("*.lines"))


def stored(root: Path, partition: int = 0) -> list[bytes]:
    files = sorted((root / "channels" / "out" / str(partition)).glob("*.jsonl"))
    return b"".join(file.read_bytes() for file in files).splitlines()


@pytest.mark.parametrize("size", [SPARK_APPEND_BYTES, 1])
def test_others_who_publish_in_between_disturb_nobody(root: Path, size: int) -> None:
    """Lines are finished before it is their turn, for places that others may get."""
    real = Producer.publish_encoded
    with hg.open(root) as other, _steps_of(size), pytest.MonkeyPatch.context() as patch:

        def publish(*args: Any, **more: Any) -> int:
            if args[2] == 0:
                other.publish("out", -1, key="a")
                other.publish("out", -1, key="d")  # each goes to another partition
            return real(*args, **more)

        patch.setattr(Producer, "publish_encoded", publish)
        laid = lay(root, "0", *range(700), name="a") + lay(root, "0", *range(700, 710), name="b")
        publish_batch(str(root), Q, "0", laid)
    assert [one for one in numbers(root) if one >= 0] == list(range(710))
    for partition in (0, 1):
        for offset, line in enumerate(stored(root, partition)):
            assert intact(line)
            place = origin_of(line)
            assert place is not None
            assert (place.partition, place.offset) == (partition, offset)


def test_small_sections_of_a_partition_are_appended_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    real = Producer.publish_encoded

    def publish(*args: Any, **more: Any) -> int:
        calls.append((args[2], len(args[3])))
        return real(*args, **more)

    monkeypatch.setattr(Producer, "publish_encoded", publish)
    laid = [section for at in range(50) for section in lay(root, "0", at, name=f"t{at}", partition=at % 2)]
    publish_batch(str(root), Q, "0", laid)
    assert calls == [(0, 25), (1, 25)]
    assert numbers(root) == list(range(50))
    with hg.open(root, read_only=True) as station:
        assert [message.data for message in station.read("out") if message.partition == 0] == list(range(0, 50, 2))


def test_no_thread_is_left_behind(root: Path) -> None:
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "staging" in thread.name]

    laid = lay(root, "0", *range(100))
    during: list[str] = []
    with _steps_of(1):
        with Publishing(root, Q) as turn:
            assert not turn.publish("0", lambda: laid, lambda: during.extend(threads()) or True)
        assert len(during) == 1
        assert not threads()
        with _Mortal() as mortal, Publishing(root, Q) as turn, pytest.raises(Died):
            mortal.left = 5
            turn.finished()
        assert not threads()
        publish_batch(str(root), Q, "0", [])
    assert not threads()
    assert numbers(root) == list(range(100))


def with_sums(root: Path, section: Section) -> Section:
    """As tasks of Spark lay it aside: the checksums of its bodies beside it, here behind those of another section."""
    path = root / "spark" / "staged" / section.file
    bodies = path.read_bytes()
    sums = sums_of(bodies, section.runs())
    path.with_suffix(".sums").write_bytes(b"1234" + sums)
    return msgspec.structs.replace(section, sums=(4, google_crc32c.value(sums)))


@pytest.mark.parametrize("size", [SPARK_APPEND_BYTES, 90_000])
@pytest.mark.parametrize("count", [3, 600])
def test_checksums_that_were_laid_aside_are_those_of_the_lines(
    root: Path, monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    laid = lay(root, "0", *range(count), name="a") + lay(root, "0", *range(count, 2 * count), name="b")
    sections = [with_sums(root, section) for section in laid]
    monkeypatch.setattr(packed, "sums_of", None)
    with _steps_of(size):
        publish_batch(str(root), Q, "0", sections)
    assert numbers(root) == list(range(2 * count))
    assert all(intact(line) for line in stored(root))
    assert not list((root / "spark").rglob("*.sums"))


def test_a_batch_of_which_some_has_no_checksums_is_published(root: Path) -> None:
    """A record that another version left may name such."""
    first, second = lay(root, "0", *range(600), name="a") + lay(root, "0", *range(600, 1200), name="b")
    publish_batch(str(root), Q, "0", [with_sums(root, first), second])
    assert numbers(root) == list(range(1200))
    assert all(intact(line) for line in stored(root))


@pytest.mark.parametrize("size", [SPARK_APPEND_BYTES, 90_000, 20_000])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("count", [3, 600])
def test_how_bodies_begin_may_be_said_once_for_all_of_them(root: Path, size: int, known: bool, count: int) -> None:
    names = "abcd"
    laid = [lay(root, "0", *range(at * count, (at + 1) * count), name=names[at])[0] for at in range(4)]
    laid = [laid[0], *(beginning_apart(root, one) for one in laid[1:])]
    sections = [with_sums(root, one) for one in laid] if known else laid
    with _steps_of(size):
        publish_batch(str(root), Q, "0", sections)
    assert numbers(root) == list(range(4 * count))
    lines = stored(root)
    assert all(intact(line) for line in lines)
    ids = [msgspec.json.decode(line)["id"] for line in lines]
    begun = 0xFFFE + count
    assert ids == [f"i{n}" for n in range(count)] + 3 * [f"019a8f6e-{n:08x}" for n in range(begun, begun + count)]


def test_a_step_has_bodies_that_are_whole_or_bodies_that_are_not(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = Producer.publish_encoded

    def publish(*args: Any, **more: Any) -> int:
        calls.append(len(args[3]))
        return real(*args, **more)

    monkeypatch.setattr(Producer, "publish_encoded", publish)
    laid = [lay(root, "0", at, name=f"t{at}")[0] for at in range(6)]
    publish_batch(str(root), Q, "0", [*laid[:3], *(beginning_apart(root, one) for one in laid[3:])])
    assert calls == [3, 3]
    assert numbers(root) == list(range(6))


def test_steps_are_as_large_as_what_is_appended(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How bodies begin is not in the file, and is in the log."""
    sizes: list[int] = []
    real = Producer.publish_encoded

    def publish(*args: Any, **more: Any) -> int:
        sizes.append(args[3].size())
        return real(*args, **more)

    monkeypatch.setattr(Producer, "publish_encoded", publish)
    with _steps_of(20_000):
        publish_batch(str(root), Q, "0", [beginning_apart(root, lay(root, "0", *range(1000))[0])])
    assert max(sizes) <= 20_000
    assert sum(sizes) > 100_000
    assert numbers(root) == list(range(1000))


@pytest.mark.parametrize(("kept", "passing"), [(200_000, False), (100_000, True)])
def test_what_a_large_batch_appends_is_not_kept_in_memory(
    root: Path, monkeypatch: pytest.MonkeyPatch, kept: int, passing: bool
) -> None:
    """Else it would take the place of what others read."""
    said: list[bool] = []
    real = Producer.publish_encoded

    def publish(*args: Any, **more: Any) -> int:
        said.append(more["passing"])
        return real(*args, **more)

    monkeypatch.setattr(Producer, "publish_encoded", publish)
    monkeypatch.setattr(appending, "SPARK_KEPT_BYTES", kept)
    with _steps_of(50_000):
        publish_batch(str(root), Q, "0", lay(root, "0", *range(1000)))
    assert set(said) == {passing}
    assert numbers(root) == list(range(1000))


@pytest.mark.parametrize("harm", ["gone", "short", "changed", "empty"])
def test_checksums_that_are_damaged_are_made_anew(root: Path, harm: str) -> None:
    """They are not synced, and a line with a wrong one would be damaged for ever."""
    sections = [with_sums(root, lay(root, "0", *range(at, at + 600), name=f"t{at}")[0]) for at in (0, 600)]
    path = (root / "spark" / "staged" / sections[1].file).with_suffix(".sums")
    data = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes({"short": data[:-1], "changed": data[:-1] + bytes([data[-1] ^ 1]), "empty": b""}[harm])
    publish_batch(str(root), Q, "0", sections)
    assert numbers(root) == list(range(1200))
    assert all(intact(line) for line in stored(root))


@pytest.mark.parametrize("size", [SPARK_APPEND_BYTES, 1])
def test_what_comes_before_a_damaged_section_is_there_once_when_it_is_mended(root: Path, size: int) -> None:
    sections = [lay(root, "0", *range(at, at + 600), name=f"t{at}")[0] for at in (0, 600)]
    path = root / "spark" / "staged" / sections[1].file
    data = path.read_bytes()
    path.write_bytes(data[:-3] + b"8" + data[-2:])
    with _steps_of(size):
        with pytest.raises(Damaged, match="is damaged, though the batch"):
            publish_batch(str(root), Q, "0", sections)
        assert numbers(root) in ([], list(range(600)))
        path.write_bytes(data)
        publish_batch(str(root), Q, "0", [])
    assert numbers(root) == list(range(1200))


@pytest.mark.parametrize("query", [None, Q])
@pytest.mark.parametrize("harm", ["swept", "elsewhere", "short"])
def test_a_batch_of_which_something_is_not_there_does_not_happen(root: Path, query: str | None, harm: str) -> None:
    """Swept while its last task ran for a day, or on the disk of a machine that does not share the directory."""
    name = query or "batches"
    laid = lay(root, "1", 1, query=name, name="a") + lay(root, "1", 2, query=name, name="b")
    path = root / "spark" / "staged" / laid[1].file
    if harm == "swept":
        shutil.rmtree(path.parent.parent)
    elif harm == "elsewhere":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(NotFound, match=r"1/[ab]\.lines is not there .*Nothing of the batch is published"):
        publish_batch(str(root), query, "1", laid)
    assert load(root, name) is None
    publish_batch(str(root), query, "1", lay(root, "1", 3, query=name, name="c"))
    publish_batch(str(root), query, "2", lay(root, "2", 4, query=name))
    assert numbers(root) == [3, 4], "it is tried again, and others are not held up"


@pytest.mark.parametrize("query", [None, Q])
def test_a_batch_that_a_full_disk_stopped_is_told_to_have_happened(
    root: Path, monkeypatch: pytest.MonkeyPatch, query: str | None
) -> None:
    """Who took it for one of which nothing is there would write it again, and have its messages twice."""
    name, real, left = query or "batches", Producer.publish_encoded, [1]

    def publish(*args: Any, **more: Any) -> int:
        if left.pop() == 0:
            raise DiskFull("no space left")
        left.append(0)
        return real(*args, **more)

    laid = lay(root, "1", *range(50), query=name) + lay(root, "1", *range(50, 60), query=name, name="b", partition=1)
    with monkeypatch.context() as patched:
        patched.setattr(Producer, "publish_encoded", publish)
        with pytest.raises(OutcomeUnknown, match=r"\(no space left\).* next publishes what is left.*do not write"):
            publish_batch(str(root), query, "1", laid)
        patched.setattr(Producer, "publish_encoded", lambda *_, **__: publish())
        left[:] = [0]
        with pytest.raises(DiskFull, match=r"^no space left$"):  # of which nothing is there, and never will be
            publish_batch(str(root), query, "2", lay(root, "2", 99, query=name))
    assert numbers(root) == list(range(50))
    publish_batch(str(root), query, "3", lay(root, "3", 60, query=name))
    assert numbers(root) == list(range(61))


def test_a_section_that_does_not_have_its_lines_is_damaged(root: Path) -> None:
    (section,) = lay(root, "0", 1, 2)
    with pytest.raises(Damaged, match="is damaged"):
        publish_batch(str(root), Q, "0", [msgspec.structs.replace(section, count=3)])
    assert numbers(root) == []


def test_sigkill_in_the_middle_of_the_steps_neither_loses_nor_doubles_a_message(root: Path) -> None:
    """Each time another one goes on, with others publishing in between; the last one is not killed."""
    chance, kills = random.Random(7), 0
    laid = [lay(root, "0", *range(at, at + 2_000), name=f"t{at}")[0] for at in range(0, 20_000, 2_000)]
    laid = [with_sums(root, beginning_apart(root, one) if at % 2 else one) for at, one in enumerate(laid)]
    sections = msgspec.json.encode(laid).decode()
    command = [sys.executable, str(Path(__file__).parent / "publishing_process.py"), str(root), Q, "0", sections]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with hg.open(root) as other:
        for turn in range(8):
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
            assert process.stdout is not None
            with process.stdout:
                assert process.stdout.readline() == "running\n"
            if turn == 7:
                assert process.wait() == 0
                break
            before = len(stored(root))
            while process.poll() is None and len(stored(root)) <= before + chance.randrange(1_500):
                other.publish("out", -1, key="d")
            process.kill()
            kills += process.wait() != 0
    assert kills
    assert [one for one in numbers(root) if one >= 0] == list(range(20_000))
    for offset, line in enumerate(stored(root)):
        place = origin_of(line)
        assert intact(line)
        assert place is not None
        assert place.offset == offset


def test_another_query_of_the_same_name_at_once_waits_or_is_told(root: Path) -> None:
    with Publishing(root, Q), pytest.raises(Busy, match="has been locked"):
        Publishing(root, Q, wait_s=0.01)
    with Publishing(root, Q, wait_s=0.01):
        pass


def test_a_batch_that_is_done_takes_those_before_it_along(root: Path) -> None:
    lay(root, "3", 3)
    lay(root, "10", 10)
    publish_batch(str(root), Q, "9", lay(root, "9", 9))
    assert [path.name for path in (root / "spark" / "staged" / Q).iterdir()] == ["10"]
    lay(root, "4", 4, query="batches")
    publish_batch(str(root), None, "5", lay(root, "5", 5, query="batches"))
    assert [path.name for path in (root / "spark" / "staged" / "batches").iterdir()] == ["4"], "names have no order"
    assert numbers(root) == [5, 9]


def test_names_of_single_batches_are_remembered(root: Path) -> None:
    for name in ("a", "b", "a"):
        publish_batch(str(root), None, name, lay(root, name, ord(name), query="batches"))
    assert numbers(root) == [97, 98]
    assert load(root, "batches") == Record("b", True, before=["a"])


def test_a_record_that_cannot_be_read_stops_nobody_else(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_batch(str(root), "broken", "0", lay(root, "0", 1, query="broken"))
    (root / "spark" / "broken.json").write_text("{")
    lay(root, "1", 2, query="broken")
    with _Mortal() as mortal:
        mortal.left = 3
        with pytest.raises(Died):
            publish_batch(str(root), Q, "0", lay(root, "0", 3))
    for batch in (root / "spark" / "staged").glob("*/*"):
        os.utime(batch, (0, 0))
    assert tidy(root) == []
    assert numbers(root) == [1, 3]
    assert folder(root, "broken", "1").is_dir(), "it may be what the record names"


def test_what_somebody_is_publishing_is_not_swept(root: Path) -> None:
    with _Mortal() as mortal:
        mortal.left = 3
        with pytest.raises(Died):
            publish_batch(str(root), Q, "0", lay(root, "0", 3))
    os.utime(folder(root, Q, "0"), (0, 0))
    with Publishing(root, Q):
        assert tidy(root) == []
    publish_batch(str(root), Q, "0", [])
    assert numbers(root) == [3]


def test_sweeping_says_what_went(root: Path) -> None:
    lay(root, "0", 1)
    lay(root, "1", 2)
    os.utime(folder(root, Q, "0"), (0, 0))
    (swept,) = sweep(root, 60, frozenset())
    assert (swept.query, swept.batch, swept.size) == (Q, "0", 4096)
    os.utime(folder(root, Q, "1"), (0, 0))
    assert sweep(root, 60, frozenset([f"{Q}/1"])) == []
    assert sweep(root, 60, frozenset([Q])) == []
    assert len(sweep(root, 60, frozenset())) == 1
    assert not folder(root, Q, "1").parent.exists()


def test_folders_are_made_whoever_removes_the_one_above(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([FileNotFoundError(), None])
    mkdir = Path.mkdir

    def unlucky(self: Path, *arguments: Any, **more: Any) -> None:
        error = next(turns, None)
        if error is not None:
            raise error
        mkdir(self, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", unlucky)
    assert make_folder(root, Q, "0").is_dir()


@given(st.lists(st.integers(0, 20), max_size=8, unique=True), st.integers(0, 20))
def test_what_is_discarded_with_a_batch(there: list[int], batch: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for one in there:
            make_folder(root, Q, str(one))
        discard_through(root, Q, str(batch))
        left: Iterator[Path] = (root / "spark" / "staged" / Q).glob("*")
        assert sorted(int(path.name) for path in left) == sorted(one for one in there if one > batch)
        assert size_of(root) == 0
