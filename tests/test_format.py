"""docs/format.md is a specification, so it is held against what is written."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import heliograph as hg
from heliograph.log import channel, head, index, lines

PAGE = (Path(__file__).parent.parent / "docs" / "format.md").read_text("utf-8")
SIZES = {"Q": 8, "I": 4}


def block(name: str) -> str:
    """What stands between two marks, without the fence around it."""
    found = re.search(rf"<!-- {name} -->\n```\w*\n(.*?)```\n<!-- /{name} -->", PAGE, re.DOTALL)
    assert found, f"docs/format.md has no block {name!r}"
    return found[1]


def section(title: str) -> str:
    found = re.search(rf"\n## {title}\n(.*?)(\n## |\Z)", PAGE, re.DOTALL)
    assert found, f"docs/format.md has no section {title!r}"
    return found[1]


def rows(text: str) -> list[tuple[int, str, str]]:
    """Position, type and name of the fields in a table of a binary layout."""
    found = re.findall(r"^\| (\d+) \| (\w+) \| `?(\w[\w ]*?)`? \|", text, re.MULTILINE)
    return [(int(at), kind, name) for at, kind, name in found]


def layout(names: tuple[str, ...], packing: struct.Struct, start: int) -> list[tuple[int, str, str]]:
    kinds = re.sub(r"(\d+)(\w)", lambda match: match[2] * int(match[1]), packing.format.lstrip("<@"))
    at, expected = start, []
    for name, kind in zip(names, kinds, strict=True):
        expected.append((at, kind, name))
        at += SIZES[kind]
    return expected


# -- the reader ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader() -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(block("reader"), names)
    return names


def test_the_documented_reader_is_as_short_as_it_says(reader: dict[str, Any]) -> None:
    assert len([line for line in block("reader").splitlines() if line.strip()]) <= 32
    assert not re.search(r"^(import|from) (?!glob|json|os\b)", block("reader"), re.MULTILINE)


def test_the_documented_reader_reads_what_the_station_reads(reader: dict[str, Any], tmp_path: Path) -> None:
    read: Callable[[str], Iterator[tuple[int, Any]]] = reader["read"]
    with hg.open(tmp_path, name="host1", segment_bytes=4096) as station:
        for n in range(40):
            station.publish("c", {"n": n, "text": "grün ☀"}, key=f"k{n % 3}", headers={"shop": "north"})
        station.publish_many("c", [b"\x00\xff", None, 3.5])
        station.redact(station.publish("c", "secret").id)
        station.publish("c", "end")
        expected = [(message.offset, message.envelope) for message in station.read("c")]
    directory = tmp_path / "channels" / "c" / "0"
    assert len(list(directory.glob("*.jsonl"))) > 2
    assert list(read(str(directory))) == expected
    assert b"secret" not in b"".join(path.read_bytes() for path in directory.glob("*.jsonl"))


def test_the_documented_reader_tells_damage_and_half_lines(reader: dict[str, Any], tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        station.publish_many("c", [1, 2, 3])
    path = tmp_path / "channels" / "c" / "0" / "00000000000000000000.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"data":2', b'"data":7') + b'{"half')
    found = [(offset, event and event["data"]) for offset, event in reader["read"](str(path.parent))]
    assert found == [(0, 1), (1, None), (2, 3)]


# -- the worked example -------------------------------------------------------------------------------------


def test_the_example_is_intact_and_as_large_as_it_says(reader: dict[str, Any]) -> None:
    example = block("example lines").encode()
    assert all(lines.intact(line) for line in example.splitlines())
    assert f"`, {len(example)} bytes, offsets 0, 1 and 2" in PAGE
    body = example.splitlines()[0][:-18]
    assert f"first {len(body)} bytes" in PAGE
    assert f"`{google_crc32c.value(body):08x}`" in section("A worked example")
    assert reader["crc32c"](body) == google_crc32c.value(body)
    assert [lines.batch_of(line) for line in example.splitlines()] == [None, (1, 2), (1, 2)]


def test_the_example_of_an_index_entry_is_that_of_the_example(reader: dict[str, Any]) -> None:
    dumped = "".join(line.partition("  ")[2] for line in block("example entry").splitlines())
    entry = index.decode(bytes.fromhex(dumped.replace(" ", "")))
    example = block("example lines").encode()
    assert entry is not None
    assert (entry.first, entry.position, entry.next, entry.end) == (0, 0, 3, len(example))
    assert entry.crc == google_crc32c.value(example)


def test_the_program_of_the_example_writes_such_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = re.search(r"```python\n(with hg\.open.*?)```", section("A worked example"), re.DOTALL)
    assert program
    exec(program[1], {"hg": hg})
    written = (tmp_path / "data/channels/alerts/0/00000000000000000000.jsonl").read_bytes()
    differ = re.compile(rb'"id":"[^"]*"|"time":"[^"]*"|"origin":"[^"]*"|"crc":"[^"]*"')
    assert differ.sub(b"", written) == differ.sub(b"", block("example lines").encode())


# -- the layouts --------------------------------------------------------------------------------------------


def test_the_table_of_the_head_is_its_layout() -> None:
    documented = rows(section("Head"))
    fields = layout(head.Fields._fields, head._FIELDS, head.FIELDS_AT)
    assert [row for row in documented if head.FIELDS_AT <= row[0] < head._SUM_AT] == fields
    assert (head._SUM_AT, "I", "crc") in documented
    words = {
        "news wanted": head.NEWS_WANTED, "lock wanted": head.LOCK_WANTED, "lock holder": head.LOCK_HOLDER,
        "looked through": head.LOOKED_THROUGH,
    }  # fmt: skip
    for name, word in words.items():
        assert (word * 8, "Q", name) in documented
    assert (head.NEWS_PLACES * 8, f"{head.NEWS_PLACES_END - head.NEWS_PLACES}Q", "news places") in documented
    assert (head._AT, "Q", "sequence") in documented
    assert f"`{head.MAGIC.decode()}`" in section("Head")
    assert f"{head.SIZE} bytes" in section("Head")
    assert f"{head.FENCED} fenced, {head.DELETED} deleted" in section("Head")


def test_the_table_of_the_index_is_its_layout() -> None:
    assert rows(section("Index")) == layout((*index.Entry._fields, "self"), index.ENTRY, 0)
    assert f"entries of {index.SIZE} bytes" in section("Index")


def test_the_attributes_stand_in_the_documented_order(tmp_path: Path) -> None:
    documented = re.findall(r"^\| `(\w+)` \|", section("Segments and lines"), re.MULTILINE)
    documented.remove("data_base64")
    documented.remove("atomic")  # only in atomic steps, whose tests look for it
    documented.remove("redrivefor")  # only in copies of dead letters, as above
    with hg.open(tmp_path, name="host1", service="monitor") as station:
        draft = hg.Draft(
            data=1, key="k", headers={"shop": "north"}, correlation_id="c", subject="s", type="com.example.a.v1"
        )
        station.publish_many("c", [draft, draft], ttl=60)
        envelope = next(iter(station.read("c"))).envelope
    stored = [name for name in envelope if name != "shop"]
    assert stored == [name for name in documented if name != "traceparent"]
    assert list(envelope).index("shop") == list(envelope).index("subject") + 1


def test_the_settings_of_a_channel_are_all_documented() -> None:
    for name in channel.ChannelSettings.__struct_fields__:
        assert f"`{name}`" in section("channel.json")


def test_what_is_derived_can_be_deleted(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1", segment_bytes=4096) as station:
        for n in range(40):
            station.publish("c", n)
    for path in (tmp_path / "channels" / "c" / "0").iterdir():
        if path.suffix != ".jsonl":
            path.unlink()
    with hg.open(tmp_path) as station:
        assert [message.data for message in station.read("c")] == list(range(40))
        assert station.publish("c", 40).offset == 40
