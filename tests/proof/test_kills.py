"""SIGKILL at any moment, of any of several writers and readers: nothing acknowledged is lost, doubled or reordered."""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.proof.tools import HERE, Child, checked_log, eventually

CHANNEL = "events"


class Story:
    """Some writers and readers on one directory, and how they die."""

    def __init__(self, directory: Path, durability: str, seed: int) -> None:
        self.directory = directory
        self.root = directory / "data"
        self.durability = durability
        self.luck = random.Random(seed)
        self.lives = 0
        self.kills = 0

    def writer(self, suicide: int, count: int = 0) -> Child:
        self.lives += 1
        acks = self.directory / f"acks-{self.lives}"
        return Child(
            HERE / "writer.py",
            self.root,
            f"w{self.lives}",
            acks,
            self.durability,
            self.luck.randrange(2**32),
            suicide,
            count,
        )

    def reader(self, name: str) -> Child:
        return Child(HERE / "reader.py", self.root, name, self.directory / f"seen-{name}")

    def run(self, kills: int, writers: int = 3, readers: int = 2) -> None:
        """Every second writer dies in a call of the disk, the others and all readers whenever it pleases us."""
        alive = [self._born() for _ in range(writers)]
        reading = [(f"r{number}", self.reader(f"r{number}")) for number in range(readers)]
        while self.kills < kills:
            at = self.luck.randrange(len(alive))
            life, child, dies_alone = alive[at]
            if self.luck.random() < 0.9:  # one in ten may die while it opens the directory
                self._wait_for_progress(life, child)
            time.sleep(self.luck.uniform(0.0, 0.02))
            if not dies_alone or child.process.poll() is not None:
                child.kill()
                self.kills += 1
                alive[at] = self._born()
            if self.luck.random() < 0.1:
                which = self.luck.randrange(len(reading))
                name, child = reading[which]
                child.kill()
                self.kills += 1
                reading[which] = (name, self.reader(name))
        for child in [child for _, child, _ in alive] + [child for _, child in reading]:
            child.kill()
            self.kills += 1

    def _born(self) -> tuple[int, Child, bool]:
        dies_alone = self.lives % 2 == 0
        child = self.writer(self.luck.randint(5, 400) if dies_alone else 0)
        return self.lives, child, dies_alone

    def _wait_for_progress(self, life: int, child: Child) -> None:
        acks = self.directory / f"acks-{life}"
        eventually(lambda: child.process.poll() is not None or (acks.exists() and acks.stat().st_size > 0))

    # -- what must be true afterwards -----------------------------------------------------------------------------

    def acks(self) -> dict[str, list[tuple[int, int, str]]]:
        found: dict[str, list[tuple[int, int, str]]] = {}
        for life in range(1, self.lives + 1):
            path = self.directory / f"acks-{life}"
            if path.exists():
                rows = [line.split() for line in path.read_text().splitlines()]
                found[f"w{life}"] = [(int(n), int(offset), id) for n, offset, id in rows]
        return found

    def check(self) -> int:
        """Everything the log promises; how many messages were acknowledged."""
        with hg.open(self.root, name="host1", durability=self.durability) as station:
            station.publish(CHANNEL, {"w": "last", "n": 0})
            read = list(station.read(CHANNEL))
        stored = checked_log(self.root, CHANNEL)
        assert [message.offset for message in read] == sorted(stored) == list(range(len(stored)))
        assert [message.id for message in read] == [stored[offset]["id"] for offset in sorted(stored)]
        check_acknowledged(self.acks(), stored)
        check_batches(stored)
        self.check_delivered()
        return sum(map(len, self.acks().values()))

    def check_delivered(self) -> None:
        names = sorted(path.name.removeprefix("seen-") for path in self.directory.glob("seen-*"))
        acked = {id for rows in self.acks().values() for _, _, id in rows}
        with hg.open(self.root, name="host1") as station:
            for name in names:
                rest: list[tuple[int, str]] = []
                with station.subscribe(
                    CHANNEL,
                    lambda message, rest=rest: rest.append((message.offset, message.id)),
                    name=name,
                    start="first",
                ) as subscription:
                    end = station.channel(CHANNEL).next
                    eventually(lambda subscription=subscription, end=end: subscription.position >= end)
                lives = [*seen_lives(self.directory / f"seen-{name}"), rest]
                for life in lives:
                    offsets = [offset for offset, _ in life]
                    assert offsets == sorted(offsets), f"{name} got messages out of order"
                delivered = {id for life in lives for _, id in life}
                assert not acked - delivered, f"{name} never got {len(acked - delivered)} messages"


def seen_lives(path: Path) -> list[list[tuple[int, str]]]:
    lives: list[list[tuple[int, str]]] = []
    for line in path.read_text().splitlines():
        if line == "begin":
            lives.append([])
        else:
            offset, id = line.split()
            lives[-1].append((int(offset), id))
    return lives


def check_acknowledged(acks: dict[str, list[tuple[int, int, str]]], stored: dict[int, dict[str, Any]]) -> None:
    by_writer: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for offset, envelope in stored.items():
        by_writer[envelope["data"]["w"]].append((offset, envelope["data"]["n"]))
    for writer, rows in acks.items():
        for number, offset, id in rows:
            assert offset in stored, f"acknowledged and lost: {writer}/{number} at {offset}"
            envelope = stored[offset]
            assert envelope["id"] == id, f"{writer}/{number} is not at offset {offset}"
            assert (envelope["data"]["w"], envelope["data"]["n"]) == (writer, number)
    for writer, found in by_writer.items():
        numbers = [number for _, number in sorted(found)]
        assert numbers == list(range(len(numbers))), f"{writer}'s messages are out of order or doubled: {numbers}"
        beyond = len(numbers) - len(acks.get(writer, []))
        assert writer == "last" or 0 <= beyond <= 6, f"{beyond} messages of {writer} were never acknowledged"


def check_batches(stored: dict[int, dict[str, Any]]) -> None:
    batches: dict[tuple[str, int], list[int]] = defaultdict(list)
    sizes: dict[tuple[str, int], int] = {}
    for offset, envelope in stored.items():
        data = envelope["data"]
        if "b" in data:
            batches[data["w"], data["b"]].append(offset)
            sizes[data["w"], data["b"]] = data["of"]
    for which, offsets in batches.items():
        assert len(offsets) == sizes[which], f"{len(offsets)} of {sizes[which]} messages of batch {which} are there"
        assert sorted(offsets) == list(range(min(offsets), min(offsets) + len(offsets)))


@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_sixty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, durability: str) -> None:
    story = Story(tmp_path, durability, seed=len(durability))
    story.run(kills=20)
    assert story.check() > 0


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("durability", ["always", "interval", "os"])
def test_hundreds_of_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, durability: str, seed: int) -> None:
    story = Story(tmp_path, durability, seed=seed)
    story.run(kills=100, writers=2 + seed % 4, readers=1 + seed % 3)
    assert story.check() > 0


# -- the checkers themselves: each must see what it is there for ----


@pytest.fixture
def small(tmp_path: Path) -> Story:
    story = Story(tmp_path, "os", seed=1)
    for _ in range(2):
        story.writer(suicide=0, count=40).finish()
    return story


def test_the_check_passes_where_nobody_was_killed(small: Story) -> None:
    assert small.check() >= 80


def test_the_check_sees_a_lost_message(small: Story) -> None:
    segment = max((small.root / "channels" / CHANNEL / "0").glob("*.jsonl"))
    before = max(path for path in segment.parent.glob("*.jsonl") if path != segment)
    segment.write_bytes(b"")
    lines = before.read_bytes().splitlines(keepends=True)
    before.write_bytes(b"".join(lines[:-1]))
    with pytest.raises((AssertionError, hg.HeliographError)):
        small.check()


def test_the_check_sees_a_doubled_message(small: Story) -> None:
    segment = min((small.root / "channels" / CHANNEL / "0").glob("*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0], *lines]))
    with pytest.raises(AssertionError):
        checked_log(small.root, CHANNEL)


def test_the_check_sees_an_acknowledgement_of_nothing(small: Story) -> None:
    with (small.directory / "acks-1").open("a") as file:
        file.write("999 999 made-up\n")
    with pytest.raises(AssertionError, match="acknowledged and lost"):
        small.check()


def test_the_check_sees_half_a_batch(small: Story) -> None:
    stored = checked_log(small.root, CHANNEL)
    inside = next(offset for offset, envelope in stored.items() if "b" in envelope["data"])
    del stored[inside]
    with pytest.raises(AssertionError, match="of batch"):
        check_batches(stored)


def test_the_check_sees_a_message_that_was_never_delivered(small: Story) -> None:
    (small.directory / "seen-r0").write_text("begin\n")
    with hg.open(small.root, name="host1") as station:
        station.subscribe(CHANNEL, print, name="r0", start="first", paused=True).close()
        station.seek(CHANNEL, "r0", 5)
    with pytest.raises(AssertionError, match="never got"):
        small.check_delivered()


def test_writers_do_kill_themselves_in_the_middle(tmp_path: Path) -> None:
    story = Story(tmp_path, "always", seed=1)
    child = story.writer(suicide=40)
    assert child.process.wait() == -9
    child.kill()
    assert os.path.getsize(tmp_path / "acks-1")
