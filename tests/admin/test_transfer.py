"""What is exported is what is stored; what is imported is what was said; nothing is dropped in silence."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import heliograph as hg
from heliograph.admin import where
from heliograph.admin.transfer import export_messages, import_messages
from heliograph.admin.verify import verify
from heliograph.limits import KEY_BYTES_MAX
from heliograph.log.lines import intact
from tests.admin.helpers import CHANNEL, fill, numbers, open_station, overwrite, segments


def event(**changes: Any) -> bytes:
    base = {"specversion": "1.0", "id": "a-1", "source": "elsewhere", "type": "t.v1", "channel": "in", "data": {"n": 1}}
    return json.dumps({name: value for name, value in (base | changes).items() if value is not ...}).encode()


def exported(station: hg.Station, channel: str = CHANNEL, **options: Any) -> bytes:
    out = io.BytesIO()
    export_messages(station, channel, out, **options)
    return out.getvalue()


def test_an_export_is_the_stored_lines_byte_for_byte(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        station.publish(CHANNEL, b"\0\1", headers={"team": "blue"})
        out = io.BytesIO()
        seen: list[tuple[int, int]] = []
        report = export_messages(station, CHANNEL, out, progress=lambda done, total: seen.append((done, total)))
        assert out.getvalue() == b"".join(path.read_bytes() for path in segments(tmp_path))
        assert (report.messages, report.bytes, report.first, report.next) == (201, len(out.getvalue()), 0, 201)
        assert all(intact(line) for line in out.getvalue().splitlines())
        assert seen[-1] == (201, 201)


def test_an_export_can_be_limited_by_start_end_and_conditions(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        chosen = exported(station, start=10, end=20, where=where.parse("key=k0"))
        assert [json.loads(line)["data"]["n"] for line in chosen.splitlines()] == [12, 15, 18]
        assert exported(station, start="new") == b""
        assert exported(station, end=0) == b""
        with pytest.raises(hg.NotFound):
            exported(station, "nothing")


def test_an_export_leaves_redacted_lines_out_and_reports_what_cannot_be_read(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        fill(station)
        station.redact(next(message.id for message in station.read(CHANNEL, start=20)))
        victim = segments(tmp_path)[2]
        overwrite(victim, 50, b"!")
        out = io.BytesIO()
        report = export_messages(station, CHANNEL, out)
        assert report.messages == 198
        assert [(gap.first, gap.next) for gap in report.gaps] == [(int(victim.stem), int(victim.stem) + 1)]


def test_a_round_trip_keeps_everything_but_the_place(tmp_path: Path) -> None:
    with open_station(tmp_path / "a") as first, hg.open(tmp_path / "b", name="host2") as second:
        first.publish(
            CHANNEL, {"n": 1.50, "big": 2**70}, type="t.v1", key="k", headers={"team": "blue", "size": 3},
            correlation_id="c", subject="s",
        )  # fmt: skip
        first.publish_many(
            CHANNEL, [hg.Draft(data=b"\0\xff", id="own-id", time=datetime(2020, 1, 1, tzinfo=UTC)), {"n": 2}]
        )
        lines = exported(first).splitlines(keepends=True)
        report = import_messages(second, lines)
        assert (report.lines, report.imported, report.channels, report.rejected) == (3, 3, {CHANNEL: 3}, 0)
        for before, after in zip(first.read(CHANNEL), second.read(CHANNEL), strict=True):
            ours = ("origin", "originseq", "crc", "batch")
            assert {k: v for k, v in before.envelope.items() if k not in ours} == {
                k: v for k, v in after.envelope.items() if k not in ours
            }
            assert after.data == before.data
            assert after.origin.startswith("host2.")
            assert "batch" not in after.envelope
        assert b'"big":1180591620717411303424' in exported(second)
        assert verify(second).ok


def test_an_import_keeps_ids_times_and_unknown_fields_of_foreign_events(tmp_path: Path) -> None:
    foreign = event(
        id="weird id/ünïcode", time="2021-05-05T10:00:00+02:00", channel=..., extension={"deep": [1, None]},
        dataschema="http://x", origin="evil.aaaaaa", originseq="0/99", crc="00000000", producer="p", producerseq=4,
        batch="0/9",
    )  # fmt: skip
    with open_station(tmp_path) as station:
        report = import_messages(station, [foreign, event(id="no-time", time=...)], channel="in")
        assert report.imported == 2
        got, untimed = station.read("in")
        assert got.id == "weird id/ünïcode"
        assert got.time == datetime(2021, 5, 5, 8, tzinfo=UTC)
        assert got.envelope["time"] == "2021-05-05T10:00:00+02:00"
        assert got.envelope["extension"] == {"deep": [1, None]}
        assert got.envelope["dataschema"] == "http://x"
        assert got.channel == "in"
        assert got.origin.startswith("host1.")
        assert got.originseq == "0/0"
        assert not {"producer", "producerseq", "batch"} & set(got.envelope)
        assert abs((untimed.time - datetime.now(UTC)).total_seconds()) < 60
        again = station.get("weird id/ünïcode")
        assert again is not None
        assert again.raw == got.raw


GARBAGE = [
    b"not json",
    b"[1, 2]",
    b'"text"',
    b"\xff\xfe\x00",
    b'{"id": "x"',
    event(id=...),
    event(id=""),
    event(id=7),
    event(id="x" * 2000),
    event(source=...),
    event(type=None),
    event(specversion="0.3"),
    event(time="yesterday"),
    event(time="1066-10-14T00:00:00Z"),
    event(partitionkey=5),
    event(channel="../etc"),
    event(channel="a.dead-letter"),
    event(channel=...),
    event(data_base64="AAAA"),
    event(data=..., data_base64="***"),
    event(data="x" * 20_000),
    b"{" + b'"a":{' * 5000 + b"}" * 5001,
    event().replace(b'"n": 1', b'"n": "\xff"'),
    event(x=1).replace(b'"x": 1', b'"x": "\xff"'),
    event(id="two") + b"\n" + event(id="lines"),
]


def test_garbage_is_rejected_with_its_line_number_and_does_not_stop_the_rest(tmp_path: Path) -> None:
    lines: list[bytes] = []
    for number, bad in enumerate(GARBAGE):
        lines += [event(id=f"good-{number}", data={"n": number}) + b"\r\n", bad + b"\n"]
    with open_station(tmp_path, max_bytes=10_000) as station:
        kept = io.BytesIO()
        report = import_messages(station, [*lines, b"\n", b"  \n"], rejects=kept, batch=7)
        assert [reject.line for reject in report.rejects] == [2 * number + 2 for number in range(len(GARBAGE))]
        assert all(reject.reason for reject in report.rejects)
        assert (report.imported, report.rejected) == (len(GARBAGE), len(GARBAGE))
        assert report.lines == 2 * len(GARBAGE) + 2
        assert numbers(station, "in") == list(range(len(GARBAGE)))
        assert kept.getvalue() == b"".join(bad + b"\n" for bad in GARBAGE)
        assert verify(station).ok
        assert msgspec.json.encode(report)


def test_a_key_that_is_too_long_to_be_published_is_not_imported_either(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        report = import_messages(station, [event(partitionkey="k" * KEY_BYTES_MAX), event()])
        assert (report.imported, report.rejected) == (1, 1)
        assert "key has" in report.rejects[0].reason


def test_a_dry_run_imports_nothing(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        report = import_messages(station, [event(), b"bad"], dry_run=True)
        assert (report.imported, report.rejected, report.dry_run) == (1, 1, True)
        assert station.channels() == []


def test_several_channels_keep_their_order_across_batches(tmp_path: Path) -> None:
    lines = [event(id=f"i{n}", channel=f"c{n % 3}", data={"n": n}) for n in range(100)]
    with open_station(tmp_path) as station:
        report = import_messages(station, lines, batch=8)
        assert report.channels == {"c0": 34, "c1": 33, "c2": 33}
        for remainder in range(3):
            assert numbers(station, f"c{remainder}") == [n for n in range(100) if n % 3 == remainder]


def test_payloads_that_do_not_fit_a_registered_type_are_rejected(tmp_path: Path) -> None:
    class Reading(msgspec.Struct):
        value: int

    with open_station(tmp_path) as station:
        station.register("reading.v1", Reading)
        lines = [event(type="reading.v1", data={"value": 1}), event(type="reading.v1", data={"value": "x"})]
        report = import_messages(station, lines)
        assert (report.imported, report.rejected) == (1, 1)


def test_a_channel_that_may_not_be_made_is_a_reason_for_rejection(tmp_path: Path) -> None:
    with open_station(tmp_path, auto_create=False) as station:
        station.create_channel("there")
        report = import_messages(station, [event(channel="there"), event(channel="nowhere")])
        assert (report.imported, [reject.line for reject in report.rejects]) == (1, [2])


def test_reserved_and_bad_targets_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with open_station(tmp_path) as station:
        for name in ("x.dead-letter", "../x"):
            with pytest.raises(hg.InvalidName):
                import_messages(station, iter([event()]), channel=name)
    with open_station(tmp_path, read_only=True) as station, pytest.raises(hg.ReadOnly):
        import_messages(station, [event()])
