"""Schemas at the door: stored once, versioned, and what contradicts them is refused before anything is written."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import threading
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

import heliograph as hg
from heliograph.engine.schemas import folder_of
from heliograph.station import open_station, publisher
from heliograph.station import types as module
from tests.faults import MUTATING, Died, FaultyDisk, PowerDisk
from tests.opening import Opener
from tests.proof.tools import Child

TYPE = "com.example.alert.v1"


class Alert(msgspec.Struct):
    text: str


class WithLevel(msgspec.Struct):
    text: str
    level: int = 1


class WithName(msgspec.Struct):
    text: str
    level: int = 1
    name: str | None = None


class Numbered(msgspec.Struct):
    text: int


class Urgent(msgspec.Struct):
    text: str
    urgent: bool


def versions(root: Path, channel: str = "alerts", type_name: str = TYPE) -> list[str]:
    folder = root / "channels" / channel / "types" / folder_of(type_name)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def publish(station: hg.Station, cls: Any, payload: Any, **extra: Any) -> hg.Receipt:
    station.register(TYPE, cls)
    return station.publish("alerts", payload, type=TYPE, **extra)


def count(station: hg.Station) -> int:
    return sum(info.messages for info in station.channels())


# -- what is stored -------------------------------------------------------------------------------------------


def test_the_first_publish_stores_the_schema_with_the_channel(opened: Opener, root: Path) -> None:
    station = opened()
    publish(station, Alert, Alert("door open"))
    stored = json.loads((root / "channels" / "alerts" / "types" / TYPE / "1.json").read_bytes())
    assert stored["type"] == TYPE
    assert stored["schema"]["$defs"]["Alert"]["properties"] == {"text": {"type": "string"}}
    (info,) = station.types()
    assert (info.channel, info.type, info.version, info.schema) == ("alerts", TYPE, 1, stored["schema"])
    assert station.types("alerts") == [info]


def test_each_channel_has_its_own(opened: Opener) -> None:
    station = opened()
    publish(station, Alert, Alert("door open"))
    station.publish("doors", Alert("open"))
    assert [(info.channel, info.version) for info in station.types()] == [("alerts", 1), ("doors", 1)]
    assert [info.channel for info in station.types("doors")] == ["doors"]
    with pytest.raises(hg.NotFound):
        station.types("windows")


def test_the_same_schema_again_adds_nothing(opened: Opener, root: Path) -> None:
    for _ in range(2):
        station = opened()
        publish(station, Alert, Alert("door open"))
        station.close()
    assert versions(root) == ["1.json"]


def test_a_compatible_schema_is_the_next_version_and_the_old_one_stays_welcome(opened: Opener, root: Path) -> None:
    for cls in (Alert, WithLevel, WithName, Alert, WithLevel):
        station = opened()
        publish(station, cls, cls("door open"))
        station.close()
    assert versions(root) == ["1.json", "2.json", "3.json"]
    assert [info.version for info in opened(read_only=True).types()] == [1, 2, 3]


def test_a_conflict_is_refused_naming_the_field_and_both_types(opened: Opener) -> None:
    publish(opened(), Alert, Alert("door open"))
    other = opened()
    with pytest.raises(hg.SchemaConflict, match=r"\$\.text was string, is integer.*com\.example\.alert\.v2"):
        publish(other, Numbered, Numbered(7))
    with pytest.raises(hg.SchemaConflict, match=r"\$\.urgent was absent, is boolean, required"):
        publish(opened(), Urgent, Urgent("x", True))
    assert count(other) == 1
    assert [info.version for info in other.types()] == [1]


def test_every_stored_version_has_to_stay_readable_not_only_the_last(opened: Opener) -> None:
    class Without(msgspec.Struct):
        text: str

    class Another(msgspec.Struct):
        text: str
        level: str = ""

    publish(opened(), WithLevel, WithLevel("x"))
    publish(opened(), Without, Without("x"))
    with pytest.raises(hg.SchemaConflict, match=r"version 1.*\$\.level was integer, is string"):
        publish(opened(), Another, Another("x"))


@pytest.mark.parametrize("how", ["inferred", "named", "keyed", "batch", "mixed batch", "drafts"])
def test_every_way_of_publishing_is_checked(opened: Opener, how: str) -> None:
    publish(opened(), Alert, Alert("door open"))
    station = opened()
    station.register(TYPE, Numbered)
    bad = Numbered(7)
    with pytest.raises(hg.SchemaConflict):
        match how:
            case "inferred":
                station.publish("alerts", bad)
            case "named":
                station.publish("alerts", {"text": 7}, type=TYPE)
            case "keyed":
                station.publish("alerts", bad, key="a", headers={"a": "b"})
            case "batch":
                station.publish_many("alerts", [bad, bad])
            case "mixed batch":
                station.publish_many("alerts", [{"plain": 1}, bad])
            case "drafts":
                station.publish_many("alerts", [hg.Draft(data=1), hg.Draft(data={"text": 7}, type=TYPE)])
    assert count(station) == 1


def test_a_batch_says_which_message_is_in_conflict(opened: Opener) -> None:
    publish(opened(), Alert, Alert("door open"))
    station = opened()
    station.register(TYPE, Numbered)
    with pytest.raises(hg.SchemaConflict, match="message 1 of the batch"):
        station.publish_many("alerts", [{"plain": 1}, Numbered(7)])


def test_a_payload_that_is_refused_stores_no_schema_and_makes_no_channel(opened: Opener) -> None:
    station = opened()
    with pytest.raises(hg.PayloadMismatch):
        publish(station, Alert, {"text": 7})
    assert station.channels() == []


def test_plain_data_is_not_checked_whatever_its_type_is_called(opened: Opener) -> None:
    publish(opened(), Alert, Alert("door open"))
    station = opened()
    station.publish("alerts", {"text": 7}, type=TYPE)
    station.publish("alerts", {"anything": True})
    assert count(station) == 3
    assert len(station.types()) == 1


def test_without_auto_create_a_registered_type_makes_no_channel_either(opened: Opener) -> None:
    station = opened(auto_create=False)
    with pytest.raises(hg.NotFound):
        publish(station, Alert, Alert("x"))
    assert station.channels() == []


@pytest.mark.parametrize("name", ["https://example.com/alert.v1", "../../../alert.v1", ".hidden.v1", "ü" * 250 + ".v1"])
def test_a_type_name_that_is_no_file_name_leads_nowhere_else(opened: Opener, root: Path, name: str) -> None:
    station = opened()
    station.register(name, Alert)
    station.publish("alerts", Alert("x"))
    assert [info.type for info in station.types()] == [name]
    (folder,) = [path for path in (root / "channels" / "alerts" / "types").iterdir() if path.is_dir()]
    assert folder.name.startswith("~")
    other = opened()
    other.register(name, Numbered)
    with pytest.raises(hg.SchemaConflict):
        other.publish("alerts", Numbered(1))


def test_a_type_without_a_schema_is_published_all_the_same(opened: Opener, caplog: pytest.LogCaptureFixture) -> None:
    pydantic = pytest.importorskip("pydantic")

    class Odd:
        pass

    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
        text: str
        odd: Odd | None = None

    station = opened()
    publish(station, Model, Model(text="x"))
    assert count(station) == 1
    assert station.types() == []
    assert "no JSON Schema" in caplog.text


def test_there_is_a_bound_on_versions(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TYPE_VERSIONS_MAX", 2)
    for cls in (Alert, WithLevel):
        publish(opened(), cls, cls("x"))
    with pytest.raises(hg.SchemaConflict, match=r"has 2 versions.*alert\.v2"):
        publish(opened(), WithName, WithName("x"))


# -- settings -------------------------------------------------------------------------------------------------


def test_warn_warns_once_and_publishes(opened: Opener, caplog: pytest.LogCaptureFixture) -> None:
    publish(opened(), Alert, Alert("door open"))
    station = opened(schemas="warn")
    with caplog.at_level(logging.WARNING, "heliograph"):
        for n in range(3):
            publish(station, Numbered, Numbered(n)) if n == 0 else station.publish("alerts", Numbered(n))
    (said,) = [record.getMessage() for record in caplog.records if "$.text was string" in record.getMessage()]
    assert "Nothing was published" not in said
    assert count(station) == 4
    assert [info.version for info in station.types()] == [1]


def test_off_stores_nothing_and_looks_at_nothing(opened: Opener, root: Path) -> None:
    publish(opened(schemas="off"), Alert, Alert("door open"))
    assert versions(root) == []
    publish(opened(), Alert, Alert("door open"))
    publish(opened(schemas="off"), Numbered, Numbered(1))
    assert versions(root) == ["1.json"]


def test_an_unknown_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(hg.ConfigError, match="schemas"):
        hg.open(tmp_path, name="host1", schemas="sometimes")


# -- cost -----------------------------------------------------------------------------------------------------


def test_after_the_first_message_nothing_is_read_or_compared_any_more(opened: Opener) -> None:
    disk = FaultyDisk()
    station = opened(disk=disk, durability="os")
    publish(station, Alert, Alert("x"))
    station.publish("alerts", Alert("x"))
    disk.recording = True
    for _ in range(20):
        station.publish("alerts", Alert("x"), type=TYPE)
        station.publish("alerts", Alert("x"))
        station.publish_many("alerts", [Alert("x")] * 3)
    assert len(disk.journal) >= 60
    assert not [path for _, path in disk.journal if "types" in path or "json" in path.replace("jsonl", "")]


def test_a_named_type_is_not_even_looked_up_again(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    station = opened()
    publish(station, Alert, Alert("x"))
    monkeypatch.setattr(publisher.Publisher, "_begin", lambda *_: pytest.fail("asked again"))
    station.publish("alerts", Alert("x"), type=TYPE)


def test_registering_again_looks_again(opened: Opener, root: Path) -> None:
    station = opened()
    publish(station, Alert, Alert("x"))
    (root / "channels" / "alerts" / "types" / TYPE / "1.json").unlink()
    station.publish("alerts", Alert("x"), type=TYPE)
    assert versions(root) == []
    publish(station, Alert, Alert("x"))
    assert versions(root) == ["1.json"]


# -- channels come and go -------------------------------------------------------------------------------------


def test_a_deleted_channel_loses_its_schemas(opened: Opener) -> None:
    station = opened()
    publish(station, Alert, Alert("x"))
    station.delete_channel("alerts")
    other = opened()
    publish(other, Numbered, Numbered(1))
    assert [info.version for info in other.types()] == [1]
    with pytest.raises(hg.SchemaConflict):
        station.publish("alerts", Alert("x"))


def test_a_channel_that_another_process_made_anew_gets_its_schemas_again(opened: Opener) -> None:
    station, other = opened(), opened()
    publish(station, Alert, Alert("x"))
    other.delete_channel("alerts")
    other.publish("alerts", "plain")
    for _ in range(2):  # the first one finds out
        station.publish("alerts", Alert("x"), type=TYPE)
    assert [info.version for info in station.types()] == [1]


# -- asyncio --------------------------------------------------------------------------------------------------


def test_the_asynchronous_station_checks_outside_of_the_loop(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    real = module.Types._check

    def noted(self: module.Types, channel: str, type_name: str) -> None:
        threads.append(threading.current_thread().name)
        real(self, channel, type_name)

    monkeypatch.setattr(module.Types, "_check", noted)

    async def story() -> None:
        async with hg.open_async(root, name="host1") as station:
            station.register(TYPE, Alert)
            await station.publish("alerts", Alert("x"))
            await station.publish_many("doors", (hg.Draft(data=Alert("x")) for _ in range(2)))
            await station.publish("windows", {"text": "x"}, type=TYPE)
            await station.publish("alerts", "plain")
            assert [(info.channel, info.version) for info in await station.types()] == [
                ("alerts", 1), ("doors", 1), ("windows", 1),
            ]  # fmt: skip
        async with hg.open_async(root) as station:
            station.register(TYPE, Numbered)
            with pytest.raises(hg.SchemaConflict):
                await station.publish("alerts", Numbered(1))
            with pytest.raises(hg.SchemaConflict):
                await station.publish_many("alerts", [Numbered(1)])

    asyncio.run(story())
    assert len(threads) == 5
    assert "MainThread" not in threads


# -- races and crashes ----------------------------------------------------------------------------------------

RACER = """
    import sys, msgspec, heliograph as hg
    root, fields = sys.argv[1:3]
    made = msgspec.defstruct("Alert", [("text", str), *((name, int, 0) for name in fields.split(",") if name)])
    station = hg.open(root, name="host1")
    station.register("com.example.alert.v1", made)
    print("ready", flush=True)
    sys.stdin.readline()
    station.publish("alerts", made("x"))
    station.close()
"""


def test_processes_that_race_on_the_first_end_with_one(root: Path) -> None:
    open_station(root, name="host1").close()
    children = [Child(RACER, root, "") for _ in range(4)]
    for child in children:
        assert child.line() == "ready"
    for child in children:
        child.tell()
    for child in children:
        child.finish()
    assert versions(root) == ["1.json"]
    with open_station(root, read_only=True) as station:
        assert count(station) == 4


def test_processes_that_race_with_different_schemas_each_get_a_number(root: Path) -> None:
    open_station(root, name="host1").close()
    children = [Child(RACER, root, fields) for fields in ("", "a", "b", "a,b")]
    for child in children:
        assert child.line() == "ready"
    for child in children:
        child.tell()
    for child in children:
        child.finish()
    assert versions(root) == ["1.json", "2.json", "3.json", "4.json"]
    with open_station(root, read_only=True) as station:
        assert len({json.dumps(info.schema) for info in station.types()}) == 4


def test_a_conflict_from_another_process_is_refused(root: Path) -> None:
    with open_station(root, name="host1") as station:
        publish(station, Numbered, Numbered(1))
    child = Child(RACER, root, "")
    child.line()
    _, err = child.process.communicate("\n", timeout=60)
    assert child.process.returncode == 1
    assert "SchemaConflict: com.example.alert.v1" in err


def test_killed_at_any_step_there_is_a_whole_version_or_none(tmp_path: Path) -> None:
    for number in range(1, 100):
        root = tmp_path / str(number)
        with open_station(root, name="host1") as station:
            publish(station, Alert, Alert("x"))
        disk = FaultyDisk()
        station = open_station(root, disk=disk)
        station.register(TYPE, WithLevel)
        disk.kill_at(number)
        finished = False
        try:
            station.publish("alerts", WithLevel("x"))
            finished = not disk.dead
        except Died:
            pass
        disk.bury()
        station.engine.abandon()
        with open_station(root) as after:
            assert [info.version for info in after.types()] in ([1], [1, 2])
            publish(after, WithLevel, WithLevel("again"))
            assert [info.version for info in after.types()] == [1, 2]
        if finished:
            break
    else:
        pytest.fail("it never got through")
    assert number > 8


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_step_refuses_the_message_and_the_next_one_passes(tmp_path: Path, code: int) -> None:
    failures = 0
    for number in range(1, 100):
        disk = FaultyDisk()
        with open_station(tmp_path / str(number), name="host1", disk=disk) as station:
            station.create_channel("alerts")
            station.register(TYPE, Alert)
            disk.fail_at(number, code, MUTATING)
            try:
                station.publish("alerts", Alert("x"))
                failed = False
            except hg.StorageError:
                failed = True
            noting = ("ftruncate", "pwrite")  # a word for whoever waits for the lock, which nobody needs
            schema_failed = any("types" in one and not one.startswith(noting) for one in disk.fired)
            disk.heal()
            if schema_failed:
                assert failed
                assert count(station) == 0
                station.publish("alerts", Alert("x"))
                assert [info.version for info in station.types()] == [1]
        failures += schema_failed
        if not disk.fired:
            break
    assert failures > 8


def test_what_was_published_has_its_schema_after_a_power_cut(root: Path) -> None:
    disk = PowerDisk(root)
    root.mkdir()
    station = open_station(root, name="host1", disk=disk)
    disk.everything_is_durable()
    publish(station, Alert, Alert("x"))
    disk.cut()
    station.engine.abandon()
    with open_station(root) as after:
        assert count(after) == 1
        assert [info.version for info in after.types()] == [1]


def test_a_damaged_schema_is_said_and_does_not_pass_for_another(opened: Opener, root: Path) -> None:
    publish(opened(), Alert, Alert("x"))
    path = root / "channels" / "alerts" / "types" / TYPE / "1.json"
    path.write_bytes(path.read_bytes().replace(b'"string"', b'"number"'))
    station = opened()
    with pytest.raises(hg.Damaged, match=r"1\.json.*helio verify --repair"):
        publish(station, Alert, Alert("x"))
    with pytest.raises(hg.Damaged):
        station.types()


def test_a_type_of_a_newer_format_is_refused(opened: Opener, root: Path) -> None:
    publish(opened(), Alert, Alert("x"))
    path = root / "channels" / "alerts" / "types" / TYPE / "1.json"
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9'))
    with pytest.raises(hg.UnsupportedFormat):
        publish(opened(), Alert, Alert("x"))


def test_literals_and_plain_types_have_schemas_too(opened: Opener) -> None:
    first, second = opened(), opened()
    first.register("com.example.word.v1", Literal["a", "b"])
    first.publish("words", "a", type="com.example.word.v1")
    second.register("com.example.word.v1", Literal["a"])
    with pytest.raises(hg.SchemaConflict, match='was "b", is "a"'):
        second.publish("words", "a", type="com.example.word.v1")


def test_bytes_under_a_type_of_objects_become_a_dead_letter(opened: Opener) -> None:
    publisher, station = opened(), opened()
    publisher.publish("alerts", b"\xff", type=TYPE)  # this one does not know the type
    publisher.publish("alerts", {"text": "cpu"}, type=TYPE)
    station.register(TYPE, Alert)
    station.register("com.example.photo.v1", bytes)
    station.publish("alerts", b"\xfe", type="com.example.photo.v1")
    got: list[Any] = []
    done = threading.Event()

    def handle(message: hg.Message) -> None:
        got.append(message.data)
        if len(got) == 2:
            done.set()

    station.subscribe("alerts", handle, name="pager", start="first")
    assert done.wait(10)
    assert got == [Alert("cpu"), b"\xfe"]
    (letter,) = station.read("alerts.dead-letter")
    assert "Expected `object`, got `bytes`" in letter.data["error"]
