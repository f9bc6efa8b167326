"""Files that others leave in a data directory, bytes that rot in our small ones, and disks that are not mounted."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.admin.backup import backup
from heliograph.admin.verify import verify
from heliograph.station import upkeep
from tests.proof.tools import eventually

STRAYS = (".DS_Store", "notes.txt", "old~", "lost+found/", "copy of alerts/")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A station with one of everything."""
    root = tmp_path / "data"
    with hg.open(root, name="host1", segment_bytes=4096) as station:
        station.create_channel("alerts", retention_bytes=8192)
        station.register("com.example.n.v1", int)
        for _ in range(20):
            station.publish("alerts", "x" * 1000)
        station.publish("numbers", 1, type="com.example.n.v1")
        station.subscribe("alerts", lambda _: None, name="group", group=True, start="first", paused=True).close()
        station.subscribe("alerts", lambda _: None, name="plain", start="new").close()
        station.subscribe(">", lambda _: None, name="wild", start="new").close()
        station.queue("numbers", "work", start="first").close()
        with station.producer("importer") as producer:
            producer.publish("numbers", 2)
        station.forget("alerts", "group")
        with station.atomic() as step:
            step.publish("numbers", 3)
            step.publish("alerts", 3)
        station.publish("numbers", 4, delay=3600)
    return root


def directories(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_dir())


def test_files_of_others_anywhere_in_the_directory_disturb_nobody(root: Path, tmp_path: Path) -> None:
    for directory in [root, *directories(root)]:
        for stray in STRAYS:
            if stray.endswith("/"):
                (directory / stray).mkdir()
            else:
                (directory / stray).write_bytes(b"\0\0\0\1Bud1")
    for moved in (False, True):
        if moved:
            root = Path(shutil.copytree(root, tmp_path / "copy"))
        with hg.open(root) as station:
            assert sorted(info.name for info in station.channels()) == ["alerts", "numbers"]
            assert {one.name for one in station.subscriptions()} == {"plain", "wild", "work"}
            assert len(station.queues()) == len(station.producers()) == len(station.types()) == 1
            assert station.stats().scheduled == 1
            station.publish("alerts", "x" * 1000)
            station.subscribe("alerts", lambda _: None, name="plain").close()
            station.subscribe(">", lambda _: None, name="wild").close()
            station.trim()
            assert station.channel("alerts").bytes < 16_384
            assert verify(station).ok
            backup(station, tmp_path / f"backup-{moved}")


@pytest.mark.parametrize("lost", ["alerts/channel.json", "numbers/channel.json"])
def test_a_directory_that_was_moved_opens_though_a_channel_has_lost_its_description(root: Path, lost: str) -> None:
    copy = Path(shutil.copytree(root, root.parent / "copy"))
    (copy / "channels" / lost).unlink()
    with hg.open(copy) as station:
        assert not verify(station).ok
        assert verify(station, repair=True).ok
        assert verify(station).ok
        assert len(list(station.read("numbers"))) == 3


@pytest.mark.parametrize(
    "path",
    [
        "channels/numbers/channel.json",
        "subscriptions/numbers/work/0.json",
        "subscriptions/numbers/work/kind.json",
        "patterns/wild.json",
    ],
)
def test_a_text_that_is_not_utf_8_any_more_is_damage_like_any_other(root: Path, path: str) -> None:
    data = (root / path).read_bytes()
    at = data.index(b":", data.index(b'"', 30) if b"name" in data else 0)
    at = data.index(b'"', at) + 1
    (root / path).write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    with hg.open(root) as station:
        for work in (
            lambda: station.queue("numbers", "work").close(),
            lambda: station.subscribe(">", lambda _: None, name="wild").close(),
            lambda: station.seek("numbers", "work", "first"),
            station.stats,
            station.trim,
            lambda: verify(station, repair=True),
        ):
            with contextlib.suppress(hg.HeliographError):  # and nothing else
                work()


def test_upkeep_goes_on_whatever_happened_to_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "INTERVAL_S", 0.05)
    turns, again = [0], threading.Event()

    def tidy(self: upkeep.Upkeep, only: str | None = None) -> list[hg.Trimmed]:
        turns[0] += 1
        if turns[0] == 1:
            raise ValueError("nobody thought of this")
        again.set()
        return []

    monkeypatch.setattr(upkeep.Upkeep, "tidy", tidy)
    with hg.open(root):
        assert again.wait(30)


def test_positions_outlive_that_the_channels_are_not_there(root: Path) -> None:
    aside = root.parent / "not mounted"
    (root / "channels").rename(aside)
    (root / "channels").mkdir()
    with hg.open(root) as station:
        assert station.channels() == []
    (root / "channels").rmdir()
    aside.rename(root / "channels")
    with hg.open(root) as station:
        assert {one.name for one in station.subscriptions()} == {"plain", "wild", "work"}
        assert [info.last for info in station.producers()] == [1]


def test_positions_go_with_the_last_channel_though_its_deletion_was_killed(root: Path) -> None:
    with hg.open(root) as station:
        for info in station.channels():
            if info.name != "alerts":
                station.delete_channel(info.name)
        forget = station.engine.positions.forget_channel
        station.engine.positions.forget_channel = _die  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            station.delete_channel("alerts")
        station.engine.positions.forget_channel = forget  # type: ignore[method-assign]
    with hg.open(root) as station:
        assert (station.channels(), station.subscriptions()) == ([], [])
        assert not list((root / "trash").iterdir())
        station.publish("alerts", 1)
        assert verify(station).ok


def _die(_: str) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("channels/alerts/channel.json", b"{"),
        ("channels/alerts/channel.json", None),
        ("subscriptions/alerts/plain/0.json", b"{"),
        ("subscriptions/numbers/work/kind.json", b"{"),
        ("subscriptions/numbers/work/queue.sqlite3", b"garbage" * 1000),
    ],
)
def test_who_looks_at_everything_sees_what_is_not_damaged(
    root: Path, caplog: pytest.LogCaptureFixture, path: str, content: bytes | None
) -> None:
    if content is None:
        (root / path).unlink()
    else:
        (root / path).write_bytes(content)
    with hg.open(root) as station:
        assert "numbers" in [info.name for info in station.channels()]
        assert "numbers" in [one.channel for one in station.stats().channels]
        station.queues()
        if "subscriptions" in path:  # whoever asks for these alone is told
            with contextlib.suppress(hg.Damaged):
                station.subscriptions()
        else:
            assert "numbers" in [one.channel for one in station.subscriptions()]
        assert station.get(next(station.read("numbers")).id) is not None
        heard: list[object] = []
        with station.subscribe(">", lambda message: heard.append(message.data)):
            station.publish("numbers", "new")
            eventually(lambda: heard)
        if not path.endswith("0.json"):  # nobody had to look at that one
            assert (root / path).name in caplog.text, "nothing is left out without a word"


def test_a_channel_that_has_lost_its_description_is_not_said_to_be_made_by_publishing(root: Path) -> None:
    (root / "channels" / "alerts" / "channel.json").unlink()
    with hg.open(root) as station:
        for work in (lambda: station.publish("alerts", 1), lambda: list(station.read("alerts"))):
            with pytest.raises(hg.Damaged, match=r"is missing.*verify --repair"):
                work()
        report = backup(station, root.parent / "backup")
        assert report.left_out == ["alerts"]
        assert "is missing" in report.warnings[0]
        assert verify(station, repair=True).ok
        station.publish("alerts", 1)
