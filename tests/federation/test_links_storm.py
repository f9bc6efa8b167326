"""Thousands of cuts in every phase of a connection, kills and stops, in every shape; then a look at all logs.

Connections are cut after so few bytes that many end in the middle of the TLS handshake, of the greeting, of a batch or
of its acknowledgement. Whatever was published is everywhere in the end, once, and in order along one path.
"""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from tests.federation.chaos import Proxy
from tests.federation.stations import Net, Process, check_log, identity, lines, wait_for

CHANNEL = "news"
SHAPES: dict[str, list[tuple[str, str]]] = {  # who publishes to whom
    "two": [("a", "b")],
    "star": [("a", "d"), ("b", "d"), ("c", "d")],
    "chain": [("a", "b"), ("b", "c"), ("c", "d")],
    "diamond": [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
    "ring": [("a", "b"), ("b", "c"), ("c", "a")],
}
ONE_PATH = {"two", "star", "chain"}


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.federation.backoff.BASE_S", 0.01)
    monkeypatch.setattr("heliograph.federation.backoff.MAX_S", 0.05)


class Storm:
    """A shape of stations whose links all go through proxies that cut them."""

    def __init__(self, directory: Path, shape: str, seed: int) -> None:
        self.net = Net(directory)
        self.shape = shape
        self.pairs = SHAPES[shape]
        self.names = sorted({name for pair in self.pairs for name in pair})
        self.proxies = {
            pair: Proxy(self.net.port(pair[1]), cut_after=(300, 25_000), seed=seed + at)
            for at, pair in enumerate(self.pairs)
        }
        for name in self.names:
            before = [one for one, other in self.pairs if other == name]
            after = [pair for pair in self.pairs if pair[0] == name]
            self.net.station(
                name,
                peers=[{"name": one, "publish": [CHANNEL], "relay": [">"]} for one in before],
                links=[{"hub": f"localhost:{self.proxies[pair].port}", "publish": [CHANNEL]} for pair in after],
            )

    @property
    def cuts(self) -> int:
        return sum(proxy.cuts for proxy in self.proxies.values())

    def calm(self) -> None:
        for proxy in self.proxies.values():
            proxy.cut_after = (1 << 60, 1 << 61)
            proxy.cut()

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()

    def reaches(self, name: str) -> set[str]:
        """Whose messages a station has in the end."""
        found = {name}
        for _ in self.names:
            found |= {one for one, other in self.pairs if other in found}
        return found

    def check(self, said: dict[str, list[str]]) -> None:
        """Everything that was said is where it belongs, once; nothing else is; and in order where there is one path."""
        logs = {name: lines(self.net.path(name), CHANNEL) for name in self.names}
        published: dict[str, set[bytes]] = {name: set() for name in self.names}
        for found in logs.values():
            for line in found:
                published[identity(line)[0].rpartition(".")[0]].add(line)
        for name, found in logs.items():
            assert len(found) == len(set(found)) == len(set(map(identity, found))), f"{name} has something twice"
            wanted = set().union(*(published[one] for one in self.reaches(name)))
            assert set(found) == wanted, f"{name} lacks {len(wanted - set(found))} of {len(wanted)}"
            if self.shape in ONE_PATH:
                check_log(self.net.path(name), CHANNEL)
        for name, texts in said.items():
            own = (
                {text for line in published[name] for text in texts if f'"{text} '.encode() in line} if texts else set()
            )
            assert own == set(texts), f"something that {name} published is lost"

    def whole(self) -> bool:
        counts = {name: len(lines(self.net.path(name), CHANNEL)) for name in self.names}
        own = {
            name: sum(identity(line)[0].rpartition(".")[0] == name for line in lines(self.net.path(name), CHANNEL))
            for name in self.names
        }
        return all(counts[name] >= sum(own[one] for one in self.reaches(name)) for name in self.names)


@contextlib.contextmanager
def storm(directory: Path, shape: str, seed: int = 1) -> Iterator[Storm]:
    found = Storm(directory, shape, seed)
    try:
        yield found
    finally:
        found.close()


def cut_in(directory: Path, shape: str, cuts: int, seed: int = 1) -> int:
    chance = random.Random(seed)
    with storm(directory, shape, seed) as weather, contextlib.ExitStack() as stack:
        stations = {name: stack.enter_context(weather.net.open(name)) for name in weather.names}
        said: dict[str, list[str]] = {name: [] for name in weather.names}
        until = time.monotonic() + 540
        while weather.cuts < cuts:
            assert time.monotonic() < until, f"{weather.cuts} cuts only"
            for name, station in stations.items():
                text = f"{name}-{len(said[name])}"
                station.publish(CHANNEL, f"{text} {'x' * chance.randrange(2_000)}")
                said[name].append(text)
            time.sleep(0.01)
        weather.calm()
        wait_for(weather.whole, 60)
        weather.check({name: texts[:: max(1, len(texts) // 200)] for name, texts in said.items()})
        return weather.cuts


@pytest.mark.parametrize("shape", ["diamond", "ring"])
def test_a_hundred_cuts(tmp_path: Path, shape: str) -> None:
    assert cut_in(tmp_path, shape, 100) >= 100


@pytest.mark.prove
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shape", SHAPES)
def test_thousands_of_cuts(tmp_path: Path, shape: str) -> None:
    cuts = cut_in(tmp_path, shape, 2_000, seed=7)
    print(f"{shape}: {cuts} cuts")


# -- processes that are killed and stopped in between ---------------------------------------------------------


def havoc(directory: Path, shape: str, rounds: int, seed: int) -> dict[str, int]:
    """Every station a process of its own; each round one of them is killed or stopped, while lines are cut."""
    chance = random.Random(seed)
    done = {"killed": 0, "stopped": 0}
    with storm(directory, shape, seed) as weather:
        running: dict[str, Process] = {}
        try:
            for number in range(rounds):
                for name in weather.names:
                    if name not in running:
                        running[name] = weather.net.run(name, CHANNEL, "100000", f"{name}-{number}-", "0.005")
                time.sleep(chance.random() * 0.5)
                name = chance.choice(weather.names)
                if chance.random() < 0.6:
                    running.pop(name).kill()
                    done["killed"] += 1
                else:
                    running[name].child.send_signal(signal.SIGSTOP)
                    time.sleep(chance.choice((0.1, 0.5, 4.0)))  # longer than three heartbeats, sometimes
                    running[name].child.send_signal(signal.SIGCONT)
                    done["stopped"] += 1
        finally:
            for process in running.values():
                process.kill()
        weather.calm()
        with contextlib.ExitStack() as stack:
            for name in weather.names:
                stack.enter_context(weather.net.open(name))
            wait_for(weather.whole, 120)
        weather.check({})
        done["cuts"] = weather.cuts
        done["messages"] = sum(len(lines(weather.net.path(name), CHANNEL)) for name in weather.names)
    return done


def test_kills_stops_and_cuts_together(tmp_path: Path) -> None:
    assert havoc(tmp_path, "two", 4, seed=3)["messages"] > 0


@pytest.mark.prove
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shape", ["chain", "diamond", "ring"])
def test_kills_stops_and_cuts_together_for_long(tmp_path: Path, shape: str) -> None:
    done: dict[str, Any] = havoc(tmp_path, shape, 60, seed=11)
    print(f"{shape}: {done}")


def test_the_check_notices_what_is_lost(tmp_path: Path) -> None:
    with storm(tmp_path, "two") as weather:
        with weather.net.open("a", federate=False) as a:
            a.publish(CHANNEL, "a-0 x")
        with hg.open(weather.net.path("b"), name="b") as b:
            b.create_channel(CHANNEL)
        with pytest.raises(AssertionError, match="b lacks 1 of 1"):
            weather.check({})
        with pytest.raises(AssertionError, match="is lost"):
            Storm.check(weather_of(weather, ["a"]), {"a": ["a-0", "a-1"]})


def weather_of(weather: Storm, names: list[str]) -> Storm:
    weather.names = names
    return weather
