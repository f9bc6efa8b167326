"""Schemas are part of a channel: backups hold them, verify checks them, repair sets aside what is damaged."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

import heliograph as hg
from heliograph.admin.backup import backup, restore
from heliograph.admin.verify import verify

TYPE = "com.example.alert.v1"
ODD = "https://example.com/alert.v1"


class Alert(msgspec.Struct):
    text: str


class Wider(msgspec.Struct):
    text: str
    level: int = 1


class Other(msgspec.Struct):
    text: int


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    for cls in (Alert, Wider):
        with hg.open(root, name="host1") as station:
            station.register(TYPE, cls)
            station.register(ODD, cls)
            station.publish("alerts", cls("x"), type=TYPE)
            station.publish("alerts", cls("x"), type=ODD)
    return root


def path_of(root: Path, version: int = 1) -> Path:
    return root / "channels" / "alerts" / "types" / TYPE / f"{version}.json"


def test_a_backup_carries_the_schemas_along(root: Path, tmp_path: Path) -> None:
    with hg.open(root) as station:
        before = station.types()
        assert backup(station, tmp_path / "backup").warnings == []
        assert backup(station, tmp_path / "backup").copied_files <= 1, "schemas are not copied again"
    restore(tmp_path / "backup", tmp_path / "restored")
    with hg.open(tmp_path / "restored") as station:
        assert len(before) == 4
        assert station.types() == before
        station.register(TYPE, Other)
        with pytest.raises(hg.SchemaConflict):
            station.publish("alerts", Other(1))
        assert verify(station).ok


def test_a_backup_forgets_the_schemas_of_a_deleted_channel(root: Path, tmp_path: Path) -> None:
    with hg.open(root) as station:
        backup(station, tmp_path / "backup")
        station.delete_channel("alerts")
        backup(station, tmp_path / "backup")
    assert not list((tmp_path / "backup").rglob("types"))


def test_what_is_right_is_no_trouble(root: Path) -> None:
    with hg.open(root, read_only=True) as station:
        report = verify(station)
    assert report.ok
    assert report.troubles == []


@pytest.mark.parametrize("damage", ["torn", "changed", "moved"])
def test_a_damaged_schema_is_found_set_aside_and_stored_again(root: Path, damage: str) -> None:
    path = path_of(root, 2)
    whole = path.read_bytes()
    if damage == "moved":
        path.rename(path.with_name("7.json"))
        path = path.with_name("7.json")
    else:
        path.write_bytes(whole[:-20] if damage == "torn" else whole.replace(b'"integer"', b'"number"'))
    with hg.open(root) as station:
        (found,) = verify(station).troubles
        assert (found.kind, found.path, found.repaired) == ("type", str(path.relative_to(root)), False)
        repaired = verify(station, repair=True)
        assert repaired.ok
        assert [one.repaired for one in repaired.troubles] == [True]
        assert verify(station).ok
        assert list((root / "quarantine" / "alerts" / "types").rglob("*.bad"))
        station.register(TYPE, Wider)
        station.publish("alerts", Wider("x"))
        assert [info.version for info in station.types() if info.type == TYPE] == [1, 2]


def test_a_newer_format_is_told_and_left_alone(root: Path) -> None:
    path = path_of(root)
    path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 9'))
    with hg.open(root) as station:
        report = verify(station, repair=True)
    assert not report.ok
    assert "Upgrade" in report.troubles[0].what
    assert path.exists()


def test_a_leftover_is_removed_once_it_is_old(root: Path) -> None:
    leftover = path_of(root).with_name("3.json.tmp-4711")
    leftover.write_bytes(b"{")
    with hg.open(root) as station:
        assert verify(station).ok, "somebody may be writing it"
        os.utime(leftover, (0, 0))
        assert [one.kind for one in verify(station).troubles] == ["leftover"]
        assert verify(station, repair=True).ok
    assert not leftover.exists()
