"""A station and a model of it do the same things in any order; the station's process is killed now and then.

The station lives in a process of its own, forked from a waiting one because that is quick. It is killed between
two operations, or kills itself in the middle of one (tests/proof/writer.py), and leaves what a torn write leaves.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import tempfile
import time
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

from heliograph.admin.verify import verify
from heliograph.station import Station, open_station
from tests.proof.tools import Child
from tests.proof.writer import SuicidalDisk

CHANNELS = ("a", "b")
SUBSCRIPTION = "s"
SEGMENT_BYTES = 4096
DURABILITIES = st.sampled_from(["always", "interval", "os"])


# -- the process that has the station ----


def _nothing(*_: Any) -> None:
    pass


class QuickSuicidalDisk(SuicidalDisk):
    """The page cache survives a killed process: what is counted as a sync need not be one."""

    def fdatasync(self, fd: int) -> None:
        self._step(_nothing, fd)

    def sync_directory(self, path: Any) -> None:
        self._step(_nothing, path)


class Served:
    """The operations, as the machine asks for them."""

    def __init__(self, root: str, durability: str) -> None:
        self.disk = QuickSuicidalDisk(0, random.Random(0))
        self.station: Station = open_station(
            root, name="host1", durability=durability, segment_bytes=SEGMENT_BYTES, disk=self.disk
        )

    def doomed(self, at: int, seed: int, name: str, *arguments: Any) -> Any:
        """Do something, and die in the ``at``-th call of the disk that changes anything, if there are so many."""
        self.disk._left, self.disk._luck = at, random.Random(seed)
        done = getattr(self, name)(*arguments)
        self.disk._left = 0
        return done

    def kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def publish(self, channel: str, data: Any) -> int:
        return self.station.publish(channel, data).offset

    def publish_many(self, channel: str, batch: list[Any]) -> list[int]:
        return [receipt.offset for receipt in self.station.publish_many(channel, batch)]

    def drain(self, channel: str) -> list[tuple[int, int]]:
        got: list[tuple[int, int]] = []

        def note(message: Any) -> None:
            got.append((message.offset, message.data["n"]))

        subscription = self.station.subscribe(channel, note, name=SUBSCRIPTION, start="first")
        end = self.station.channel(channel).next
        until = time.monotonic() + 30
        while subscription.position < end and time.monotonic() < until:
            time.sleep(0.001)
        subscription.close()
        return got

    def seek(self, channel: str, to: Any) -> int:
        return self.station.seek(channel, SUBSCRIPTION, to).after

    def rotate(self, channel: str) -> None:
        self.station.engine.write(channel, 0, lambda partition: partition.rotate())

    def trim(self, channel: str, retention_bytes: int) -> None:
        self.station.alter_channel(channel, retention_bytes=retention_bytes)
        self.station.trim(channel)
        self.station.alter_channel(channel, retention_bytes=None)

    def compress(self, channel: str) -> None:
        self.station.alter_channel(channel, compress=True)
        self.rotate(channel)
        self.station.trim(channel)

    def redact(self, channel: str, offset: int) -> None:
        (message,) = self.station.read(channel, start=offset, end=offset + 1)
        self.station.redact(message.id, channel=channel)

    def delete(self, channel: str) -> None:
        self.station.delete_channel(channel)

    def look(self) -> dict[str, Any]:
        """Everything a reader can see, and whether verify is content."""
        found = {}
        for info in self.station.channels():
            messages = [(message.offset, message.data["n"]) for message in self.station.read(info.name)]
            found[info.name] = {"first": info.first, "next": info.next, "messages": messages}
        return found

    def verify(self) -> str:
        report = verify(self.station)
        return "" if report.ok else repr(report)

    def position(self, channel: str) -> tuple[int, bool] | None:
        """The saved one, and whether it is of this life of the channel."""
        saved = self.station.engine.load_position(channel, SUBSCRIPTION, 0)
        return (saved.offset, saved.incarnation == self.station.engine.incarnation(channel)) if saved else None

    def close(self) -> None:
        self.station.close()


def _read_line() -> bytes:
    """Unbuffered: what is not read belongs to the next process."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(0, 1 << 20)
        if not more:
            os._exit(0)
        line += more
    return line


def _say(what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _serve(root: str, durability: str) -> None:
    try:
        served = Served(root, durability)
        _say({"ok": None})
        while True:
            name, *arguments = json.loads(_read_line())
            _say({"ok": getattr(served, name)(*arguments)})
            if served.station.closed:
                os._exit(0)
    except BaseException as error:
        _say({"error": f"{type(error).__name__}: {error}"})
        os._exit(0)


def main() -> None:
    while True:
        root, durability = json.loads(_read_line())
        pid = os.fork()
        if not pid:
            _serve(root, durability)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            _say({"died": os.WTERMSIG(status)})


# -- the model ----


class Log:
    """What a channel should hold."""

    def __init__(self) -> None:
        self.first = self.next = 0
        self.live: dict[int, int] = {}
        self.position: tuple[int, int] | None = None  # the saved one lies between these two

    def append(self, numbers: list[int]) -> None:
        self.live.update(zip(itertools.count(self.next), numbers, strict=False))
        self.next += len(numbers)

    def cut(self, first: int) -> None:
        self.first = first
        self.live = {offset: n for offset, n in self.live.items() if offset >= first}

    def from_offset(self, offset: int) -> list[list[int]]:
        return [[at, n] for at, n in sorted(self.live.items()) if at >= offset]

    def view(self) -> dict[str, Any]:
        return {"first": self.first, "next": self.next, "messages": self.from_offset(0)}


class Died(Exception):
    """The station's process is dead."""


_zygote: list[Child] = []


def zygote() -> Child:
    if not _zygote:
        _zygote.append(Child(Path(__file__)))
    return _zygote[0]


class StationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="heliograph-"))
        self.logs: dict[str, Log] = {}
        self.numbers = itertools.count()
        self.alive = False
        self.durability = "always"
        self.doom: tuple[int, int] | None = None
        self.half_trimmed = False

    def teardown(self) -> None:
        if self.alive:
            with contextlib.suppress(Died):
                self._exchange("kill")
        shutil.rmtree(self.root)

    # -- talking ----

    def _exchange(self, *what: Any) -> Any:
        zygote().tell(json.dumps(what))
        answer = json.loads(zygote().line())
        if "ok" not in answer:
            self.alive = False
        if "died" in answer:
            raise Died
        assert "ok" in answer, f"{what}: {answer}"
        return answer["ok"]

    def _open(self, durability: str) -> None:
        self._exchange(str(self.root), durability)
        self.durability, self.alive = durability, True

    def _attempt(self, *what: Any) -> tuple[bool, Any]:
        """Do it, or die of it and open the station again."""
        doom, self.doom = self.doom, None
        try:
            return True, self._exchange("doomed", *doom, *what) if doom else self._exchange(*what)
        except Died:
            self._open(self.durability)
            return False, None

    def _log(self, channel: str) -> Log:
        return self.logs.setdefault(channel, Log())

    def _pick(self, data: st.DataObject, among: list[str] | None = None) -> tuple[str, Log]:
        channel = data.draw(st.sampled_from(sorted(self.logs if among is None else among)))
        return channel, self.logs[channel]

    # -- doing ----

    @initialize(durability=DURABILITIES)
    def begin(self, durability: str) -> None:
        self._open(durability)

    @rule(at=st.integers(1, 12), seed=st.integers(0, 1000))
    def be_killed_in_the_next_one(self, at: int, seed: int) -> None:
        self.doom = (at, seed)

    @rule(channel=st.sampled_from(CHANNELS), size=st.sampled_from([0, 200, 1500, 5000]))
    def publish(self, channel: str, size: int) -> None:
        n = next(self.numbers)
        done, offset = self._attempt("publish", channel, {"n": n, "pad": "x" * size})
        if done:
            assert offset == self._log(channel).next
            self._log(channel).append([n])
        else:
            self._all_or_nothing(channel, [n])

    @rule(channel=st.sampled_from(CHANNELS), sizes=st.lists(st.sampled_from([0, 300, 2000]), min_size=2, max_size=6))
    def publish_many(self, channel: str, sizes: list[int]) -> None:
        numbers = [next(self.numbers) for _ in sizes]
        batch = [{"n": n, "pad": "x" * size} for n, size in zip(numbers, sizes, strict=True)]
        done, offsets = self._attempt("publish_many", channel, batch)
        if done:
            following = self._log(channel).next
            assert offsets == list(range(following, following + len(numbers)))
            self._log(channel).append(numbers)
        else:
            self._all_or_nothing(channel, numbers)

    def _all_or_nothing(self, channel: str, numbers: list[int]) -> None:
        found = self._exchange("look").get(channel)
        if found is not None and found["next"] > self._log(channel).next:
            self._log(channel).append(numbers)  # the invariant compares
        elif found is None and not self._log(channel).next:
            del self.logs[channel]

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        """Every message from the position on, in order; after a kill from where it was last saved."""
        channel, log = self._pick(data)
        done, got = self._attempt("drain", channel)
        low, high = log.position or (0, 0)
        if done:
            assert got in [log.from_offset(offset) for offset in range(low, high + 1)]
            log.position = (log.next, log.next)
            return
        saved = self._exchange("position", channel)
        if saved is None:
            assert log.position is None, "a saved position is lost"
        elif saved[1]:
            assert low <= saved[0] <= log.next
            log.position = (saved[0], saved[0])

    @precondition(lambda self: any(log.position for log in self.logs.values()))
    @rule(data=st.data(), to=st.one_of(st.integers(0, 40), st.sampled_from(["first", "new"])))
    def seek(self, data: st.DataObject, to: Any) -> None:
        channel, log = self._pick(data, [name for name, log in self.logs.items() if log.position])
        assert log.position is not None
        target = min(max({"first": log.first, "new": log.next}.get(to, to), log.first), log.next)
        done, after = self._attempt("seek", channel, to)
        if done:
            assert after == target
            log.position = (target, target)
        else:
            log.position = (min(target, log.position[0]), max(target, log.position[1]))

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def rotate(self, data: st.DataObject) -> None:
        self._attempt("rotate", self._pick(data)[0])

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def compress(self, data: st.DataObject) -> None:
        self._attempt("compress", self._pick(data)[0])

    @precondition(lambda self: self.logs)
    @rule(data=st.data(), retention_bytes=st.sampled_from([1, 4096, 10_000]))
    def trim(self, data: st.DataObject, retention_bytes: int) -> None:
        """Deletes from the beginning only, and nothing that a subscription still has to read."""
        channel, log = self._pick(data)
        done, _ = self._attempt("trim", channel, retention_bytes)
        if not done:
            self.half_trimmed = True
            self._exchange("trim", channel, 1 << 40)  # or upkeep might go on with it at any moment
        first = self._exchange("look")[channel]["first"]
        assert log.first <= first <= log.next
        assert first == log.first or log.position is None or first <= log.position[1]
        log.cut(first)

    @precondition(lambda self: any(log.live for log in self.logs.values()))
    @rule(data=st.data())
    def redact(self, data: st.DataObject) -> None:
        channel, log = self._pick(data, [name for name, log in self.logs.items() if log.live])
        offset = data.draw(st.sampled_from(sorted(log.live)))
        done, _ = self._attempt("redact", channel, offset)
        if done or [offset, log.live[offset]] not in self._exchange("look")[channel]["messages"]:
            del log.live[offset]

    @precondition(lambda self: self.logs)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """With its positions: whoever subscribes to the channel made again begins at its beginning."""
        channel, _ = self._pick(data)
        done, _ = self._attempt("delete", channel)
        if done or channel not in self._exchange("look"):
            del self.logs[channel]

    @rule(durability=DURABILITIES)
    def reopen(self, durability: str) -> None:
        done, _ = self._attempt("close")
        if not done:
            self._exchange("close")
        self._open(durability)

    @rule(
        durability=DURABILITIES,
        tail=st.sampled_from([b"", b"{", b'{"specversion":"1.0","id":"x"}\n', b"\0" * 700, b'torn","crc":"0'])
        | st.binary(max_size=40).map(lambda tail: tail.replace(b"\n", b"")),
        harm=st.sampled_from(["", "", "index", "head", "odd"]),
    )
    def crash(self, durability: str, tail: bytes, harm: str) -> None:
        """SIGKILL; then a torn tail, and what is derived is lost or half written."""
        with contextlib.suppress(Died):
            self._exchange("kill")
        for channel, log in self.logs.items():
            directory = self.root / "channels" / channel / "0"
            active = max(directory.glob("*.jsonl"))
            with active.open("ab") as file:
                file.write(tail)
            self._harm(directory, harm, log)
        self._open(durability)

    def _harm(self, directory: Path, harm: str, log: Log) -> None:
        if harm == "index":
            for path in directory.glob("*.index"):
                path.unlink()
        if harm == "head" and not self.half_trimmed:  # else what is trimmed and still there comes back
            (directory / "head").unlink()
        if harm == "odd" and not self.half_trimmed:
            with (directory / "head").open("r+b") as file:
                file.seek(64)
                file.write(b"\1")
        if harm in ("head", "odd") and log.position:
            log.position = (0, log.position[1])  # a new life: rather delivered again than skipped

    # -- comparing ----

    @invariant()
    def readers_see_the_model(self) -> None:
        if self.alive:
            assert self._exchange("look") == {channel: log.view() for channel, log in self.logs.items()}

    @invariant()
    def verify_is_content(self) -> None:
        if self.alive:
            assert self._exchange("verify") == ""


def _run(examples: int, steps: int) -> None:
    try:
        run_state_machine_as_test(
            StationMachine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    finally:
        while _zygote:
            with _zygote.pop():
                pass


def test_a_station_does_what_its_model_does_whenever_it_is_killed() -> None:
    _run(25, 25)


@pytest.mark.prove
@pytest.mark.timeout(3600)
def test_a_station_does_what_its_model_does_whenever_it_is_killed_for_long() -> None:
    _run(1_500, 60)


if __name__ == "__main__":
    main()
