from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Helio, lines, one_line_error, wait_until


@pytest.fixture
def numbers(station: hg.Station) -> hg.Station:
    station.publish_many("numbers", [{"n": n} for n in range(10)])
    return station


def test_what_is_exported_can_be_imported(helio: Helio, numbers: hg.Station, tmp_path: Path) -> None:
    file = tmp_path / "numbers.ndjson"
    report = json.loads(helio("export", "numbers", "--output", file, "--json").stdout)
    assert report["messages"] == 10
    imported = json.loads(helio("import", file, "--channel", "copy", "--json").stdout)
    assert imported["channels"] == {"copy": 10}
    ids = [message.id for message in numbers.read("numbers")]
    assert [message.id for message in numbers.read("copy")] == ids


def test_export_to_stdout_is_nothing_but_messages(helio: Helio, numbers: hg.Station) -> None:
    result = helio("export", "numbers", "--start", 2, "--end", 8, "--where", "data.n!=5")
    assert [message["data"]["n"] for message in lines(result)] == [2, 3, 4, 6, 7]
    assert result.stderr.startswith("exported 5 messages")


def test_a_file_appears_only_when_it_is_complete(helio: Helio, numbers: hg.Station, tmp_path: Path) -> None:
    file = tmp_path / "numbers.ndjson"
    file.write_text("the one before")
    one_line_error(helio("export", "nothing", "--output", file), 3)
    assert file.read_text() == "the one before"
    assert [path.name for path in tmp_path.glob("numbers*")] == ["numbers.ndjson"]


def test_lines_that_cannot_be_imported_are_told_and_kept(helio: Helio, numbers: hg.Station, tmp_path: Path) -> None:
    source = helio("export", "numbers").stdout_bytes + b"garbage\n"
    rejects = tmp_path / "rejects"
    result = helio("import", "--channel", "copy", "--rejects", rejects, input=source)
    assert result.exit_code == 1
    assert "line 11" in result.stderr
    assert "imported 10 messages: 10 to copy" in result.stdout
    assert rejects.read_bytes() == b"garbage\n"


def test_a_dry_run_imports_nothing(helio: Helio, numbers: hg.Station) -> None:
    source = helio("export", "numbers").stdout_bytes
    assert "would import 10 messages" in helio("import", "--channel", "copy", "--dry-run", input=source).stdout
    assert [info.name for info in numbers.channels()] == ["numbers"]


def test_a_file_that_is_not_there_is_not_found(helio: Helio, numbers: hg.Station) -> None:
    one_line_error(helio("import", "/does/not/exist"), 3)


def test_export_writes_to_what_is_no_file_and_leaves_it_what_it_is(
    helio: Helio, numbers: hg.Station, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert helio("export", "numbers", "--output", str(pipe)).exit_code == 0
    reader.join(30)
    assert got[0].count(b"\n") == len(list(numbers.read("numbers")))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".part")] == []


def test_export_through_a_link_replaces_what_it_leads_to(helio: Helio, numbers: hg.Station, tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere.ndjson", tmp_path / "latest.ndjson"
    link.symlink_to(target)
    for _ in range(2):
        assert helio("export", "numbers", "--output", str(link)).exit_code == 0
        assert link.is_symlink()
        assert target.read_bytes().count(b"\n") == len(list(numbers.read("numbers")))


def test_what_is_nested_too_deeply_to_be_published_is_not_imported(helio: Helio, numbers: hg.Station) -> None:
    (line,) = helio("export", "numbers", "--start", 0, "--end", 1).stdout_bytes.splitlines()
    deep = [line.replace(b'{"n":0}', b"[" * levels + b"]" * levels) for levels in (500, 501, 900)]
    result = helio("import", "--channel", "copy", "--json", input=b"\n".join(deep))
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["imported"] == 1
    assert [reject["line"] for reject in report["rejects"]] == [2, 3]
    assert "nested too deeply: 501 levels" in report["rejects"][0]["reason"]


def test_dead_letters_of_the_deepest_messages_are_imported(helio: Helio, station: hg.Station) -> None:
    deep: object = []
    for _ in range(499):
        deep = [deep]
    station.publish("deep", deep)

    def handler(_: hg.Message) -> None:
        raise hg.Reject("no")

    with station.subscribe("deep", handler, name="pager", start="first"):
        wait_until(lambda: [info.name for info in station.channels()] == ["deep", "deep.dead-letter"])
        wait_until(lambda: len(list(station.read("deep.dead-letter"))) == 1)
    letters = helio("export", "deep.dead-letter").stdout_bytes
    assert letters.count(b"\n") == 1
    assert json.loads(helio("import", "--json", input=letters).stdout)["channels"] == {"deep.dead-letter": 1}
