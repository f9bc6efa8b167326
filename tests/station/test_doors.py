"""Names are checked at every door before a path is made from them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import heliograph as hg
from heliograph.limits import NAME_BYTES_MAX
from heliograph.names import DEAD_LETTER
from heliograph.station import Station
from tests.opening import Opener
from tests.proof.tools import tree

BAD: list[Any] = [
    "", ".", "..", "/", "a/b", "../escaped", "../../escaped", "/tmp/escaped", "a/../../escaped", "nul\0", "\0",
    "line\n", "\n", ".hidden", "..hidden", "a..b", "trailing.", "-dash", "sp ace", "ünïcode",
    "日本", "x" * (NAME_BYTES_MAX + 1),
    "\ud800", None, 7, b"bytes", ["list"], {"a": 1}, Path("path"),
]  # fmt: skip
RESERVED = ["alerts" + DEAD_LETTER, "a.b" + DEAD_LETTER]

Door = Callable[[Station, Any], Any]
CHANNEL_DOORS: dict[str, Door] = {
    "publish": lambda station, name: station.publish(name, 1),
    "publish with type": lambda station, name: station.publish(name, 1, type="t.v1", key="k", headers={"h": 1}),
    "publish bytes": lambda station, name: station.publish(name, b"1"),
    "publish_many": lambda station, name: station.publish_many(name, [1, 2]),
    "publish_many of drafts": lambda station, name: station.publish_many(name, [hg.Draft(data=1)]),
    "publish_many of nothing": lambda station, name: station.publish_many(name, []),
    "subscribe": lambda station, name: station.subscribe(name, print),
    "subscribe by name": lambda station, name: station.subscribe(name, print, name="worker"),
    "read": lambda station, name: list(station.read(name)),
    "channel": lambda station, name: station.channel(name),
    "create_channel": lambda station, name: station.create_channel(name),
    "alter_channel": lambda station, name: station.alter_channel(name, compress=True),
    "delete_channel": lambda station, name: station.delete_channel(name),
    "seek": lambda station, name: station.seek(name, "worker", "first"),
    "forget": lambda station, name: station.forget(name, "worker"),
}
OPTIONAL_CHANNEL_DOORS: dict[str, Door] = {  # None means all channels there
    "get": lambda station, name: station.get("some-id", name),
    "redact": lambda station, name: station.redact("some-id", channel=name),
    "trim": lambda station, name: station.trim(name),
    "subscriptions": lambda station, name: station.subscriptions(name),
}
SUBSCRIPTION_DOORS: dict[str, Door] = {
    "subscribe": lambda station, name: station.subscribe("alerts", print, name=name),
    "seek": lambda station, name: station.seek("alerts", name, "first"),
    "forget": lambda station, name: station.forget("alerts", name),
}
CASES = [
    *[(f"{door}: {name!a}", act, name) for door, act in CHANNEL_DOORS.items() for name in BAD],
    *[
        (f"{door}: {name!a}", act, name)
        for door, act in OPTIONAL_CHANNEL_DOORS.items()
        for name in BAD
        if name is not None
    ],
    *[
        (f"subscription in {door}: {name!a}", act, name)
        for door, act in SUBSCRIPTION_DOORS.items()
        for name in BAD
        if name is not None or door != "subscribe"
    ],
    *[
        (f"{door}: {name!a}", CHANNEL_DOORS[door], name)
        for door in CHANNEL_DOORS
        if door.startswith(("publish", "create"))
        for name in RESERVED
    ],
]  # fmt: skip


def test_every_bad_name_is_refused_at_every_door_and_leaves_nothing(opened: Opener, root: Path) -> None:
    station = opened()
    station.publish("alerts", 1)
    station.close()
    before = set(tree(root.parent))
    station = opened()
    wrong = []
    for what, act, name in CASES:
        try:
            act(station, name)
        except hg.InvalidName as error:
            if len(str(error)) > 500:
                wrong.append(f"{what}: an endless error")
        except BaseException as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{what}: accepted")
    assert not wrong, "\n".join(wrong[:40])
    station.close()
    assert set(tree(root.parent)) == before


def test_every_bad_name_is_refused_by_the_asynchronous_station_too(root: Path) -> None:
    async def run() -> list[str]:
        wrong = []
        async with hg.open_async(root, name="host1") as station:
            doors: dict[str, Callable[[Any], Any]] = {
                "publish": lambda name: station.publish(name, 1),
                "publish_many": lambda name: station.publish_many(name, [1]),
                "subscribe": lambda name: station.subscribe(name, print),
                "channel": station.channel,
                "create_channel": station.create_channel,
                "delete_channel": station.delete_channel,
                "subscription": lambda name: station.subscribe("alerts", print, name=name),
            }
            for door, act in doors.items():
                for name in BAD:
                    if door == "subscription" and name is None:
                        continue
                    try:
                        await act(name)
                    except hg.InvalidName:
                        continue
                    except BaseException as error:
                        wrong.append(f"{door}: {name!a}: {type(error).__name__}: {error}")
                    else:
                        wrong.append(f"{door}: {name!a}: accepted")
        return wrong

    assert not asyncio.run(run())


@pytest.mark.parametrize("name", [name for name in BAD if name is not None], ids=ascii)
def test_a_station_of_a_bad_name_is_not_made(tmp_path: Path, name: Any) -> None:
    with pytest.raises((hg.InvalidName, hg.ConfigError)):
        hg.open(tmp_path / "data", name=name)
    assert os.listdir(tmp_path) in ([], ["data"])
    assert not (tmp_path / "data" / "station.json").exists()


def test_a_bad_name_from_a_configuration_is_refused_like_any_other(tmp_path: Path) -> None:
    with pytest.raises((hg.InvalidName, hg.ConfigError)):
        hg.open(tmp_path / "data", config={"name": "../evil"})


def test_invalid_names_take_no_memory(opened: Opener) -> None:
    station = opened()
    for number in range(500):
        with pytest.raises(hg.InvalidName):
            station.publish(f"not/{number}", 1)
        with pytest.raises(hg.InvalidName):
            station.publish_many(f"not/{number}", [1])
    assert len(station._meters._meters) < 10
    assert station.stats().channels == []


def test_the_longest_name_works_at_every_door_with_its_dead_letters(opened: Opener) -> None:
    station = opened(max_retries=0)
    channel, name = "c" * NAME_BYTES_MAX, "s" * NAME_BYTES_MAX
    station.publish(channel, 1)

    def fail(_: hg.Message) -> None:
        raise ValueError("no")

    from tests.proof.tools import eventually

    with station.subscribe(channel, fail, name=name, start="first", retry=hg.Retry(max_retries=0)) as subscription:
        eventually(lambda: subscription.position == 1)
    assert station.channel(channel + DEAD_LETTER).messages == 1
    assert station.seek(channel, name, "first").applied
    station.forget(channel, name)
    station.delete_channel(channel)


def test_a_name_that_is_a_file_elsewhere_stays_inside(opened: Opener, root: Path) -> None:
    """Names that mean something to other tools are only names here."""
    station = opened()
    for name in ("channel.json", "station", "0", "trash", "audit", "CON", "null", "lock", "head"):
        station.publish(name, name)
        assert [message.data for message in station.read(name)] == [name]
    assert sorted(os.listdir(root / "channels")) == sorted(info.name for info in station.channels())
