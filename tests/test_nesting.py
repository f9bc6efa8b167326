"""What is accepted can be read back: payloads have a bound of levels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.limits import PAYLOAD_DEPTH_MAX
from heliograph.nesting import SHALLOW_BYTES_MAX, any_long, refuse_too_deep
from heliograph.payloads import Payloads


def nested(levels: int, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    data: Any = "x"
    for _ in range(levels):
        data = wrap(data)
    return data


WRAPS: list[Callable[[Any], Any]] = [
    lambda inner: [inner],
    lambda inner: {"a": inner},
    lambda inner: ["]", inner, "["],  # brackets in texts that would hide those outside
    lambda inner: {'}\\"': [inner], '\\\\"{': "\\"},
    lambda inner: [[], {}, inner, [[1], {"a": 2}]],
]


def levels_of(data: Any) -> int:
    levels, layer = 0, [data]
    while layer := [one for one in layer if isinstance(one, dict | list)]:
        levels += 1
        layer = [inner for one in layer for inner in (one.values() if isinstance(one, dict) else one)]
    return levels


def decode_in_the_midst_of(frames: int, encoded: bytes) -> Any:
    return decode_in_the_midst_of(frames - 1, encoded) if frames else msgspec.json.decode(encoded)


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("type_name", [None, "plain.v1"])
def test_as_deep_as_allowed_and_one_level_deeper(wrap: Callable[[Any], Any], type_name: str | None) -> None:
    payloads = Payloads()
    data = "x"
    while levels_of(wrap(data)) <= PAYLOAD_DEPTH_MAX:
        data = wrap(data)
    _, encoded = payloads.check_and_encode(type_name, data)
    assert decode_in_the_midst_of(sys.getrecursionlimit() - PAYLOAD_DEPTH_MAX - 150, encoded) == data
    assert payloads.check_and_encode_many(type_name, [1, data])[1][1] == encoded
    for refused in (wrap(data), msgspec.Raw(msgspec.json.encode(wrap(data)))):
        with pytest.raises(hg.InvalidMessage, match=r"nested too deeply: 50[12] levels"):
            payloads.check_and_encode(type_name, refused)
        with pytest.raises(hg.InvalidMessage, match="payload 1 of the batch: the payload is nested too deeply"):
            payloads.check_and_encode_many(type_name, [1, refused, 2])


plain = st.recursive(
    st.integers() | st.text(st.sampled_from('[]{}"\\,:a\n')),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.sampled_from('[]{}"\\a')), inner, max_size=4)
    ),
    max_leaves=60,
)


@given(plain, st.integers(0, 3), st.integers(1, 520))
@example(['\\"[', "\\\\", '"]'], 2, 500)
def test_brackets_in_texts_count_for_nothing(inner: Any, which: int, levels: int) -> None:
    data = nested(levels, lambda below: [inner, WRAPS[which](below)] if which else [below])
    depth = levels_of(data)
    encoded = msgspec.json.encode(data) if depth < 900 else b"[" * depth + b"]" * depth
    if depth <= PAYLOAD_DEPTH_MAX:
        refuse_too_deep(encoded)
    else:
        with pytest.raises(hg.InvalidMessage, match=f"{depth} levels"):
            refuse_too_deep(encoded)


@given(st.lists(st.integers(0, 3000), max_size=30))
@example([SHALLOW_BYTES_MAX])
@example([SHALLOW_BYTES_MAX + 1])
@example([SHALLOW_BYTES_MAX, SHALLOW_BYTES_MAX, SHALLOW_BYTES_MAX + 1])
def test_a_long_line_is_found_among_others(lengths: list[int]) -> None:
    lines = b"".join(b"x" * length + b"\n" for length in lengths)
    assert any_long(lines) == any(length > SHALLOW_BYTES_MAX for length in lengths)


def test_a_long_and_flat_payload_is_not_deep(tmp_path: Path) -> None:
    records = [{"n": at, "words": ["a", "b"], "text": "[" * (at % 3)} for at in range(2_000)]
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", records)
        station.publish("alerts", "[" * 5_000)
        assert [message.data for message in station.read("alerts")] == [records, "[" * 5_000]


@pytest.mark.parametrize("levels", [PAYLOAD_DEPTH_MAX + 1, 800, 900, 940])
def test_every_way_to_publish_refuses_what_could_not_be_read(tmp_path: Path, levels: int) -> None:
    deep = nested(levels)
    with hg.open(tmp_path, name="host1") as station:
        station.publish("alerts", "before")
        producer = station.producer("p")
        ways: list[Callable[[], object]] = [
            lambda: station.publish("alerts", deep),
            lambda: station.publish("alerts", deep, key="a", headers={"b": "c"}),
            lambda: station.publish_many("alerts", ["first", deep]),
            lambda: station.publish_many("alerts", [hg.Draft(data=deep)]),
            lambda: station.publish("alerts", deep, delay=60),
            lambda: producer.publish("alerts", deep),
        ]
        for way in ways:
            with pytest.raises(hg.InvalidMessage, match="nested too deeply"):
                way()
        assert [message.data for message in station.read("alerts")] == ["before"]
