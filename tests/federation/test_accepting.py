"""Events of clients: nothing of them is stored but what a publisher may say."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import HeliographError, InvalidMessage, NotAllowed, PayloadMismatch
from heliograph.federation.accepting import accept

GOOD: dict[str, Any] = {
    "specversion": "1.0", "id": "1", "source": "host1", "type": "t", "time": "2026-11-15T20:30:01Z", "data": {"n": 1},
}  # fmt: skip


def line(**changes: Any) -> bytes:
    said = {**GOOD, **changes}
    return msgspec.json.encode({name: value for name, value in said.items() if value is not ...})


def stored(event: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(accept(event, "alerts", "host1", lambda _: None).body + b"}")
    return found


def test_what_a_publisher_may_say_is_stored_as_said() -> None:
    said = {"partitionkey": "k", "correlationid": "c", "traceparent": "00-x", "subject": "s", "region": "eu", "n": 3}
    found = stored(line(**said, channel="alerts"))
    assert found == {**GOOD, **said, "channel": "alerts", "time": "2026-11-15T20:30:01.000000Z"}
    assert stored(line(data=...))["data"] is None
    assert stored(line(data=..., data_base64="AAH/"))["data_base64"] == "AAH/"


@pytest.mark.parametrize("name", ["origin", "originseq", "crc", "batch", "atomic", "producer", "producerseq"])
def test_what_only_a_station_may_say_is_refused(name: str) -> None:
    with pytest.raises(InvalidMessage, match=name):
        accept(line(**{name: "x"}), "alerts", "host1", lambda _: None)


@pytest.mark.parametrize("source", ["host2", "host1x", "host1x/service", "", "HOST1", "host2/host1"])
def test_nobody_publishes_as_another(source: str) -> None:
    with pytest.raises(NotAllowed, match="not allowed to publish as"):
        accept(line(source=source), "alerts", "host1", lambda _: None)
    assert stored(line(source="host1/monitor"))["source"] == "host1/monitor"


@pytest.mark.parametrize(
    "changes",
    [
        {"specversion": "2.0"}, {"specversion": ...}, {"channel": "other"}, {"id": ...}, {"id": 'a"b'}, {"id": "a b"},
        {"type": ...}, {"time": "yesterday"}, {"time": ...}, {"time": "1969-01-01T00:00:00Z"}, {"source": 3},
        {"partitionkey": "k" * 100_000}, {"Header": "x"}, {"header": 1.5}, {"header": [1]}, {"data_base64": "AA=="},
        {"data": ..., "data_base64": "!"}, {f"h{n}": n for n in range(1000)}, {"source": "host1/" + "x" * 1000},
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage):
        accept(line(**changes), "alerts", "host1", lambda _: None)


def test_what_is_said_twice_is_stored_once() -> None:
    twice = line()[:-1] + b',"id":"2","\\u006frigin":"x"}'
    with pytest.raises(InvalidMessage, match="origin"):
        accept(twice, "alerts", "host1", lambda _: None)
    body = accept(line()[:-1] + b',"id":"2"}', "alerts", "host1", lambda _: None).body
    assert body.count(b'"id":') == 1


def test_data_must_be_json_and_fit_a_type_that_is_known() -> None:
    for bad in (b'{"n": \xff}', b'["\xff"]', b"[1,]", b"NaN", b"{"):
        with pytest.raises(InvalidMessage):
            accept(line(data=...)[:-1] + b',"data":' + bad + b"}", "alerts", "host1", lambda _: None)

    def refuse(_: bytes, binary: bool = False, /) -> None:
        raise InvalidMessage(f"no {binary}")

    with pytest.raises(PayloadMismatch, match="no False"):
        accept(line(), "alerts", "host1", lambda name: refuse if name == "t" else None)
    with pytest.raises(PayloadMismatch, match="no True"):
        accept(line(data=..., data_base64="AAH/"), "alerts", "host1", lambda name: refuse if name == "t" else None)


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=8),
    max_leaves=8,
))  # fmt: skip
def test_whatever_comes_is_an_event_or_an_error_of_ours(anything: Any) -> None:
    raw = anything if isinstance(anything, bytes) else msgspec.json.encode(anything)
    try:
        body = accept(raw, "alerts", "host1", lambda _: None).body
    except HeliographError:
        return
    assert b"\n" not in body
