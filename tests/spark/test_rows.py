"""What becomes of stored lines: the same as JSON says, whichever way they are read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.log.packed import Packed
from heliograph.spark import rows as module
from heliograph.spark.cutting import PADDING, cut, words_of
from heliograph.spark.moments import possible
from heliograph.spark.odd import decode
from heliograph.spark.rows import Piece, Place, to_batch
from tests.spark.reading_back import comparable, expected, publish_every_kind, wanted

PLACE = Place("alerts", 0)


def stored(path: Path, channel: str = "alerts", partition: int = 0) -> bytes:
    return b"".join(
        file.read_bytes() for file in sorted((path / "channels" / channel / str(partition)).glob("*.jsonl"))
    )


def line(body: bytes, tail: bytes = b',"origin":"host1.k3f9q2","originseq":"0/1"') -> bytes:
    body += tail
    return b'%b,"crc":"%08x"}\n' % (body, google_crc32c.value(body))


HEAD = b'{"specversion":"1.0","id":"a","source":"s","type":"t","time":"2026-11-15T20:30:01.123456Z","channel":"alerts"'


def test_every_kind_of_message_is_read_as_json_has_it(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        count = publish_every_kind(station, "alerts")
    text = stored(tmp_path)
    batch, malformed = to_batch(Piece(0, text), PLACE, wanted())
    assert not malformed
    lines = text.splitlines()
    assert batch.num_rows == count == len(lines)
    for offset, (row, one) in enumerate(zip(batch.to_pylist(), lines, strict=True)):
        assert comparable(row) == expected(one, "alerts", 0, offset)


def test_most_lines_are_not_decoded_one_by_one(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        for number in range(20):
            station.publish("alerts", {"text": f'a "quoted" {number}'}, key=f"k{number}", correlation_id="c")
        station.publish_many("alerts", [{"n": n} for n in range(20)])
        with station.producer("p") as producer:
            producer.publish_many("alerts", [{"n": n} for n in range(20)], key="x")
        with station.atomic() as step:
            step.publish("alerts", {"n": 1})
            step.publish("alerts", {"n": 2})
        station.publish("alerts", 1, headers={"h": 1})
    found = cut(stored(tmp_path) + PADDING)
    assert np.flatnonzero(found.odd).tolist() == [62]


def test_numbers_stand_before_the_data_or_behind_it(tmp_path: Path) -> None:
    """Behind, where lines were encoded before anybody numbered them."""
    with hg.open(tmp_path, name="host1") as station:
        publish_every_kind(station, "alerts")
        with station.producer("before") as producer:
            producer.publish_many("alerts", [{"n": 1}, "text", None])
        with station.producer("behind") as producer:
            bodies = [HEAD + b',"data":%b' % data for data in (b'{"n":1}', b'"text"', b"null", b'"a\\"b"', b"[]")]
            producer.publish_encoded("alerts", 0, Packed.of(bodies), seq=1, times_us=(1, 1))
            producer.publish_encoded("alerts", 0, Packed.of(bodies[:1]), seq=6, times_us=(1, 1))
    text = stored(tmp_path)
    batch, malformed = to_batch(Piece(0, text), PLACE, wanted())
    assert not malformed
    for offset, (row, one) in enumerate(zip(batch.to_pylist(), text.splitlines(), strict=True)):
        assert comparable(row) == expected(one, "alerts", 0, offset)
    found = cut(text + PADDING)
    assert not found.odd[-9:].any()
    span = found.spans["producerseq"]
    numbers = [text[a:b] for a, b in zip(span.start[-9:], span.end[-9:], strict=True)]
    assert numbers == [b"1/1", b"1/2", b"1/3", b"1/1", b"1/2", b"1/3", b"1/4", b"1/5", b"1/6"]


def test_who_is_numbered_twice_is_decoded_by_itself() -> None:
    numbers = b',"producer":"p","producerseq":"1/1"'
    tail = b',"origin":"host1.k3f9q2","originseq":"0/1"'
    text = line(HEAD + numbers + b',"data":1') + line(HEAD + numbers + b',"data":1' + numbers, tail)
    assert cut(text + line(HEAD + b',"data":1' + numbers) + PADDING).odd.tolist() == [False, True, False]


def test_bytes_expiry_and_raw_lines_have_columns(tmp_path: Path) -> None:
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", b"\x00\x01")
        station.publish("alerts", 1, headers={"level": 3, "urgent": True, "text": "x"}, ttl=60)
        station.publish("alerts", 2)
    text = stored(tmp_path)
    schema = "bytes BINARY, expires TIMESTAMP, raw STRING, level BIGINT, urgent BOOLEAN, text STRING, data STRING"
    got = to_batch(Piece(0, text), PLACE, wanted(schema))[0].to_pylist()
    assert [row["bytes"] for row in got] == [b"\x00\x01", None, None]
    assert [row["data"] for row in got] == [None, "1", "2"]
    assert [(row["level"], row["urgent"], row["text"]) for row in got] == [(None,) * 3, (3, True, "x"), (None,) * 3]
    assert got[1]["expires"] > datetime.now(UTC)
    assert got[0]["expires"] is None
    assert [row["raw"].encode() for row in got] == text.splitlines()


def test_numbers_of_another_writer_are_what_they_are_or_null() -> None:
    said = (b"1.5", b"2.0", b"9007199254740993", b"99999999999999999999", b"1e999", b'"3"', b"null", b"true")
    text = b"".join(line(HEAD + b',"level":%b,"data":1' % one) for one in said)
    want = {
        "BIGINT": [None, 2, 9007199254740993, None, None, None, None, None],
        "INT": [None, 2, None, None, None, None, None, None],
        "DOUBLE": [1.5, 2.0, 9007199254740992.0, 1e20, None, None, None, None],
        "BOOLEAN": [None, None, None, None, None, None, None, True],
        "STRING": ["1.5", "2.0", "9007199254740993", "99999999999999999999", "1e999", "3", None, "true"],
    }
    for kind, values in want.items():
        batch, malformed = to_batch(Piece(0, text), PLACE, wanted(f"level {kind}"))
        assert not malformed
        assert [row["level"] for row in batch.to_pylist()] == values


COLUMNS = ["", ", id STRING, raw STRING", ", data STRING", ", key STRING", ", time TIMESTAMP", ", headers_json STRING"]


@pytest.mark.parametrize("more", [b"", b',"partitionkey":"k"', b',"region":"north"'])
@pytest.mark.parametrize("columns", COLUMNS)
def test_a_time_that_cannot_be_is_no_message_whatever_is_asked_for(columns: str, more: bytes) -> None:
    good = (
        b"2026-11-15T20:30:59.999999Z", b"0001-01-01T00:00:00.000000Z", b"9999-12-31T23:59:59.123456Z",
        b"2024-02-29T23:59:00.123456Z", b"1969-12-31T00:00:19.909090Z",
    )  # fmt: skip
    bad = (
        b"2026-13-15T20:30:01.123456Z", b"2026-02-29T20:30:01.123456Z", b"2026-11-15T24:30:01.123456Z",
        b"2026-11-15T20:60:01.123456Z", b"2026-11-15T20:30:60.123456Z", b"2026-11-15T20:30:1a.123456Z",
        b"2026-11-15T20:30:01.12345:Z", b"2026-11-15T20:30:01.1 3456Z", b"0000-11-15T20:30:01.123456Z",
        b"2026-11-15T20:30:0/.123456Z", b"2026-11-15T20:30:\xb01.123456Z", b"2026-W46-7T20:30:01.123456Z",
    )  # fmt: skip
    for one in bad:
        moments = [*good, one, good[0], good[0]]
        bodies = [HEAD.replace(b"2026-11-15T20:30:01.123456Z", each) + more + b',"data":1' for each in moments]
        text = b"".join(map(line, bodies))
        batch, malformed = to_batch(Piece(0, text), PLACE, wanted(f"offset BIGINT{columns}"))
        assert [one.offset for one in malformed] == [5], one
        assert batch["offset"].to_pylist() == [0, 1, 2, 3, 4, 6, 7]


TWO = st.integers(0, 99).map(lambda one: f"{one:02}")
LIKE = st.tuples(TWO, TWO, TWO, TWO, TWO, TWO, TWO).map(lambda of: "{}{}-{}-{}T{}:{}:{}.123456Z".format(*of))
MOMENTS = st.datetimes().map(lambda one: one.isoformat(timespec="microseconds") + "Z")
ANYTHING = st.text("0123456789:/-.TZ", min_size=27, max_size=27)


@given(st.lists(LIKE | MOMENTS | ANYTHING, min_size=1))
def test_what_can_be_a_time_is_what_decoding_takes_for_one(texts: list[str]) -> None:
    text = "".join(texts).encode() + PADDING
    found = possible(words_of(text), np.arange(0, 27 * len(texts), 27)).tolist()
    for one, fits in zip(texts, found, strict=True):
        plain = one[4] + one[7] + one[10] + one[13] + one[16] + one[19] + one[26] == "--T::.Z"
        decoded = decode(line(HEAD.replace(b"2026-11-15T20:30:01.123456Z", one.encode()) + b',"data":1'))
        assert fits == (plain and not isinstance(decoded, str)), one


def test_headers_as_json_are_of_the_kind_that_they_are() -> None:
    said = b'"level":3,"urgent":true,"text":"3","part":1.50,"none":null'
    text = line(HEAD + b',"partitionkey":"k",%b,"data":1' % said) + line(HEAD + b',"data":1')
    batch, _ = to_batch(Piece(0, text), PLACE, wanted("headers_json STRING"))
    assert batch["headers_json"].to_pylist() == [f"{{{said.decode()}}}", None]


def test_every_attribute_of_a_line_can_be_asked_for_by_its_name() -> None:
    text = line(HEAD + b',"data":1') + line(HEAD + b',"region":"north","data":1')  # cut, and decoded by itself
    for at, one in enumerate(text.splitlines()):
        for name, value in json.loads(one).items():
            if name not in {"time", "data"}:
                assert to_batch(Piece(0, text), PLACE, wanted(f"{name} STRING"))[0].to_pylist()[at][name] == value


def test_attributes_behind_the_data_are_found_by_name() -> None:
    """Another writer's order: what is asked for decides nothing about what is found."""
    text = line(HEAD + b',"data":{"a":1},"subject":"late","region":"north","partitionkey":"k"') + line(
        HEAD + b',"data":2'
    )
    want = {"subject": "late", "headers": [("region", "north")], "region": "north", "key": "k", "data": '{"a":1}'}
    for column, value in want.items():
        kind = "MAP<STRING,STRING>" if column == "headers" else "STRING"
        assert to_batch(Piece(0, text), PLACE, wanted(f"{column} {kind}"))[0].to_pylist()[0][column] == value


@pytest.mark.parametrize(
    "bad",
    [
        b'{"specversion":"1.0","id":"a"}',
        b"{}",
        b"not json",
        HEAD + b',"data":{"a":}',
        HEAD.replace(b'"time":"2026-11-15T20:30:01.123456Z"', b'"time":"yesterday"') + b',"data":1',
        HEAD.replace(b'"type":"t"', b'"type":7') + b',"data":1',
        HEAD + b',"data":"\xff\xfe"',
        b'"' * 60,
        HEAD,
    ],
)
def test_a_line_that_is_no_message_is_told_and_the_others_are_read(bad: bytes) -> None:
    wrong = bad + b"\n" if bad == b"not json" else line(bad)
    text = line(HEAD + b',"data":1') + wrong + line(HEAD + b',"data":2')
    batch, malformed = to_batch(Piece(10, text), PLACE, wanted("offset BIGINT, data STRING"))
    if bad == HEAD:  # no data is null
        assert not malformed
        assert batch.to_pylist()[1] == {"offset": 11, "data": None}
        return
    assert batch.to_pylist() == [{"offset": 10, "data": "1"}, {"offset": 12, "data": "2"}]
    assert [one.offset for one in malformed] == [11]
    assert malformed[0].reason.startswith("not a message")


@pytest.mark.parametrize("columns", ["offset BIGINT, data STRING", "offset BIGINT, type STRING"])
def test_a_line_that_ends_early_is_told_wherever_it_stands(columns: str) -> None:
    """At the beginning of a text, or alone in it, there are fewer quotes before its end than are looked for."""
    whole = HEAD + b',"data":1,"origin":"host1.k3f9q2","originseq":"0/1","crc":"00000000"}\n'
    for length in range(1, len(whole) - 1):
        broken = whole[:length] + b"\n"
        for text, at in ((broken, 0), (broken + whole, 0), (whole + broken, 1)):
            batch, malformed = to_batch(Piece(0, text), PLACE, wanted(columns))
            if "type" not in columns or length < len(HEAD):
                assert [one.offset for one in malformed] == [at]
            assert batch.num_rows + len(malformed) == text.count(b"\n")


def test_a_value_does_not_end_in_the_next_line() -> None:
    """Two broken lines whose borders would fit if they were one."""
    whole = HEAD + b',"data":1,"origin":"host1.k3f9q2","originseq":"0/1","crc":"00000000"}\n'
    broken = whole.replace(b'"id":"a"', b'"id":"a\n"')
    _, malformed = to_batch(Piece(0, broken), PLACE, wanted("offset BIGINT, type STRING"))
    assert [one.offset for one in malformed] == [0, 1]


@pytest.mark.parametrize(
    "changed",
    [
        (b'"source":"s","type":"t"', b'"type":"t","source":"s"'),
        (b'"source":"s",', b'"source":"s","extra":"e",'),
        (b'"specversion":"1.0","id":"a"', b'"id":"a","specversion":"1.0"'),
        (b'"type":"t"', b'"type" : "t"'),
        (b'"channel":"alerts"', b'"channel":"alerts" '),
    ],
)
def test_another_order_or_spaces_change_nothing(changed: tuple[bytes, bytes]) -> None:
    text = line((HEAD + b',"data":[1]').replace(*changed)) + line(HEAD + b',"data":[2]')
    columns = "id STRING, source STRING, type STRING, time TIMESTAMP, key STRING, data STRING"
    for schema in (columns, "id STRING, source STRING, type STRING, time TIMESTAMP"):
        got, malformed = to_batch(Piece(0, text), PLACE, wanted(schema))
        assert not malformed
        for row in got.to_pylist():
            assert (row["id"], row["source"], row["type"]) == ("a", "s", "t")


def test_blank_lines_keep_the_offsets_of_the_others() -> None:
    text = b"\n   \n" + line(HEAD + b',"data":1') + b"\n\n" + line(HEAD + b',"data":2') + b" \n"
    got = to_batch(Piece(100, text), PLACE, wanted("offset BIGINT, data STRING"))[0].to_pylist()
    assert got == [{"offset": 102, "data": "1"}, {"offset": 105, "data": "2"}]
    assert to_batch(Piece(0, b"\n\n"), PLACE, wanted())[0].num_rows == 0


def test_two_values_in_the_place_of_one_are_not_taken_for_data() -> None:
    """The borders fit, and what is between them is more than a JSON value."""
    text = line(HEAD + b',"data":{"a":1},"more":{"b":2}')
    got = to_batch(Piece(0, text), PLACE, wanted("data STRING, more STRING"))[0].to_pylist()
    assert got == [{"data": '{"a":1}', "more": '{"b":2}'}]


def test_times_in_other_forms_are_the_same_moments() -> None:
    moments = (b"2026-11-15T21:30:01.123456+01:00", b"2026-11-15T20:30:01.123456Z", b"2026-11-15T20:30:01Z")
    text = b"".join(line(HEAD.replace(b"2026-11-15T20:30:01.123456Z", one) + b',"data":1') for one in moments)
    got = [row["time"] for row in to_batch(Piece(0, text), PLACE, wanted("time TIMESTAMP"))[0].to_pylist()]
    assert got[0] == got[1] == datetime(2026, 11, 15, 20, 30, 1, 123456, UTC)
    assert got[2] == datetime(2026, 11, 15, 20, 30, 1, tzinfo=UTC)


@pytest.mark.parametrize("columns", ["offset BIGINT, time TIMESTAMP", "offset BIGINT, time TIMESTAMP, data STRING"])
@pytest.mark.parametrize("id", [b"a", b"0192a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"])
def test_what_only_looks_like_a_time_is_told_and_the_others_are_read(columns: str, id: bytes) -> None:
    """The right length and a Z at its end, in lines that are alike and in others."""
    head = HEAD.replace(b'"id":"a"', b'"id":"%b"' % id)
    moments = (b"2026-11-15T20:30:01.123456Z", b"2026-02-30T20:30:01.123456Z", b"2026-11-15t20:30:01.123456Z")
    text = b"".join(line(head.replace(moments[0], one) + b',"data":1') for one in moments)
    batch, malformed = to_batch(Piece(10, text), PLACE, wanted(columns))
    moment = datetime(2026, 11, 15, 20, 30, 1, 123456, UTC)
    assert [(row["offset"], row["time"]) for row in batch.to_pylist()] == [(10, moment), (12, moment)]
    assert [one.offset for one in malformed] == [11]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(st.tuples(values, st.text(max_size=10) | st.none(), st.booleans()), min_size=1, max_size=12))
def test_whatever_is_in_payloads_and_keys_comes_back(messages: list[tuple[object, str | None, bool]]) -> None:
    lines = []
    for data, key, spaced in messages:
        said = {"specversion": "1.0", "id": "a", "source": "s", "type": "t", "time": "2026-11-15T20:30:01.123456Z"}
        said |= {"channel": "alerts", **({} if key is None else {"partitionkey": key})}
        body = json.dumps(said, ensure_ascii=spaced, separators=(",", ":"))[:-1].encode("utf-8", "replace")
        body += b',"data":' + json.dumps(data, ensure_ascii=spaced, separators=(",", ":")).encode("utf-8", "replace")
        lines.append(line(body))
    got = to_batch(Piece(0, b"".join(lines)), PLACE, wanted("key STRING, data STRING"))[0].to_pylist()
    for row, one in zip(got, lines, strict=True):
        want = json.loads(one)
        assert row["key"] == want.get("partitionkey")
        assert (None if row["data"] is None else json.loads(row["data"])) == want["data"]


def test_both_ways_of_reading_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hg.open(tmp_path, name="host1") as station:
        publish_every_kind(station, "alerts")
    piece = Piece(0, stored(tmp_path))
    cut_up = to_batch(piece, PLACE, wanted())[0]
    monkeypatch.setattr(module, "_whole", lambda _: False)  # every line by itself
    assert to_batch(piece, PLACE, wanted())[0].equals(cut_up)
