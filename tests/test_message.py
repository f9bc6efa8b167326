"""Envelopes: what goes in comes out, and what must not go in does not."""

from __future__ import annotations

import json
import re
import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph import message as messages
from heliograph.errors import InvalidMessage
from heliograph.limits import HEADER_NAME_CHARS_MAX, HEADERS_MAX, KEY_BYTES_MAX
from heliograph.message import (
    RESERVED,
    Timestamps,
    attributes,
    check_id,
    decode_line,
    id_time_us,
    ids_of,
    new_id,
    new_ids,
    parse_time,
)

ENVELOPE: dict[str, Any] = {
    "specversion": "1.0", "id": "x", "source": "host1", "type": "t", "time": "2026-11-15T20:30:01Z", "channel": "c",
    "data": {"n": 1}, "origin": "host1.abc", "originseq": "0/7", "crc": "00000000",
}  # fmt: skip


def decoded(**changed: Any) -> messages.Message:
    return decode_line(msgspec.json.encode({**ENVELOPE, **changed}), 7, 0, None)


def test_unknown_fields_survive_and_are_headers() -> None:
    message = decoded(newfangled={"deep": [1, 2]}, tenant="t1")
    assert message.headers == {"newfangled": {"deep": [1, 2]}, "tenant": "t1"}
    assert message.envelope["newfangled"] == {"deep": [1, 2]}
    assert json.loads(message.raw)["tenant"] == "t1"


def test_a_message_knows_its_place_and_its_origin() -> None:
    message = decoded()
    assert (message.offset, message.partition, message.origin, message.originseq) == (7, 0, "host1.abc", "0/7")


def test_a_message_cannot_be_changed() -> None:
    message = decoded()
    with pytest.raises(AttributeError):
        message.data = {"n": 2}  # type: ignore[misc]
    with pytest.raises(AttributeError):
        message.offset = 8  # type: ignore[misc]


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xfe\n\r", bytes(range(256)) * 3])
def test_bytes_survive_as_base64(data: bytes) -> None:
    line = b"{" + messages.bytes_data(data)[1:] + b"," + msgspec.json.encode({**ENVELOPE, "data": None})[1:]
    assert decode_line(line.replace(b',"data":null', b""), 0, 0, None).data == data


def test_a_payload_that_has_a_field_called_data_base64_is_left_alone() -> None:
    assert decoded(data={"data_base64": "aGk="}).data == {"data_base64": "aGk="}
    assert decoded(data='"data_base64":"aGk="').data == '"data_base64":"aGk="'


@pytest.mark.parametrize("missing", ["id", "source", "type", "time", "channel"])
def test_an_object_without_what_an_envelope_needs_is_none(missing: str) -> None:
    envelope = {name: value for name, value in ENVELOPE.items() if name != missing}
    with pytest.raises(msgspec.MsgspecError):
        decode_line(msgspec.json.encode(envelope), 0, 0, None)


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_header_cannot_pose_as_an_attribute(name: str) -> None:
    with pytest.raises(InvalidMessage, match=r"header name|attribute"):
        attributes(None, None, None, None, {name: "x"})


@pytest.mark.parametrize(
    "name", ["", "A", "Trace", "a-b", "a b", "a.b", "é", 'a"', "a\n", "x" * (HEADER_NAME_CHARS_MAX + 1), 1, None]
)
def test_header_names_are_those_of_cloudevents(name: Any) -> None:
    with pytest.raises(InvalidMessage, match="header name"):
        attributes(None, None, None, None, {name: "x"})


@pytest.mark.parametrize("value", [None, 1.5, [1], {"a": 1}, b"x", object()])
def test_header_values_are_text_numbers_or_booleans(value: Any) -> None:
    with pytest.raises(InvalidMessage, match="header 'a' must be"):
        attributes(None, None, None, None, {"a": value})


@pytest.mark.parametrize("headers", ["tenant", [("tenant", "t1")], 7])
def test_headers_that_are_no_mapping_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidMessage, match="must be a mapping"):
        attributes(None, None, None, None, headers)


def test_too_many_headers_are_refused() -> None:
    fits = {f"h{number}": number for number in range(HEADERS_MAX)}
    attributes(None, None, None, None, fits)
    with pytest.raises(InvalidMessage, match=str(HEADERS_MAX)):
        attributes(None, None, None, None, {**fits, "more": 1})


def test_a_key_has_a_bound_and_is_text() -> None:
    attributes("k" * 1000, None, None, None, None)
    with pytest.raises(InvalidMessage, match=str(KEY_BYTES_MAX)):
        attributes("k" * (KEY_BYTES_MAX + 1), None, None, None, None)
    with pytest.raises(InvalidMessage, match="must be text"):
        attributes(1, None, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["key", "correlation_id", "subject", "header"])
def test_text_that_utf8_cannot_hold_is_refused(what: str) -> None:
    bad = "\ud800"
    given: dict[str, Any] = {"key": None, "correlation_id": None, "subject": None, "header": None}
    given[what] = bad if what != "header" else {"a": bad}
    with pytest.raises(InvalidMessage, match="UTF-8"):
        attributes(given["key"], given["correlation_id"], None, given["subject"], given["header"])


@pytest.mark.parametrize("text", ["", " ", "a b", 'a"b', "a\\b", "é", "a\n", "x" * 201, 5, b"x", "\x7f", "\0"])
def test_an_id_that_could_break_the_line_is_refused(text: Any) -> None:
    with pytest.raises(InvalidMessage, match="id "):
        check_id(text)


@pytest.mark.parametrize("text", ["x", "a" * 200, "%b", "%s", "{}", "<>&'", "urn:uuid:1-2"])
def test_ids_of_other_people_are_accepted(text: str) -> None:
    assert check_id(text) == text.encode()


def test_ids_sort_by_the_time_they_were_made_in_whichever_thread() -> None:
    made: list[str] = []
    lock = threading.Lock()

    def make() -> None:
        for _ in range(2000):
            with lock:
                made.append(new_id())

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == sorted(made)
    assert len(set(made)) == 16_000


def test_an_id_says_when_it_was_made() -> None:
    now_us = int(datetime.now(UTC).timestamp() * 1e6)
    made_us = id_time_us(new_id())
    assert made_us is not None
    assert abs(made_us - now_us) < 60_000_000
    for other in ("", "x", "0" * 36, "zzzzzzzz-zzzz-7zzz-zzzz-zzzzzzzzzzzz", "1b4e28ba-2fa1-11d2-883f-0016d3cca427"):
        assert id_time_us(other) is None


@pytest.mark.parametrize("count", [1, 2, 100, 4095, 4096, 4097, 10_000])
def test_the_ids_of_batches_are_uuids_of_version_7_in_order_and_never_the_same(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    made: list[str] = []
    for last in (None, "00000000", "00000fff", "7fffffff", "ffffffff"):  # where counting on must not go over
        if last is not None:
            drawn = new_id()[:28] + last
            monkeypatch.setattr(messages, "_uuid7", lambda drawn=drawn: drawn)
        begin, ends = new_ids(count)
        monkeypatch.undo()
        ids = ids_of(begin, ends)
        assert [begin + end for end in ends] == [one.encode() for one in ids]
        assert ids == sorted(set(ids)) and len(ids) == count
        assert {UUID(one).version for one in (ids[0], ids[-1])} == {7}
        assert all(len(one) == 36 for one in ids)
        made += ids
    assert len(set(made)) == len(made)


@given(st.integers(min_value=0, max_value=253_402_300_799_999_999))
def test_timestamps_are_rfc3339_to_the_microsecond(us: int) -> None:
    text = Timestamps().format(us).decode()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)
    assert parse_time(text) == datetime.fromisoformat(text)


def test_timestamps_are_right_across_the_second_in_both_directions() -> None:
    stamps = Timestamps()
    for us in (1_999_999, 2_000_000, 1_999_998, 0, 5_000_000, 1_000_000):
        assert stamps.format(us) == Timestamps().format(us)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01T00:00:00Z", "12:00", "2026-11-15T25:00:00Z"])
def test_a_time_that_is_none_says_how_to_write_one(text: str) -> None:
    with pytest.raises(InvalidMessage, match="2026-11-15T20:30:01Z"):
        parse_time(text)
