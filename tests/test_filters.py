"""Filters: what they want, and that a payload nobody wants is never looked at."""

from __future__ import annotations

import fnmatch
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import ConfigError
from heliograph.filters import ABSENT, Filter, Sieve, sieve_of


def line(**fields: Any) -> bytes:
    return msgspec.json.encode({"id": "1", "data": {"deep": [1, 2, 3]}, **fields}) + b"\n"


def chosen(filter: Filter, *lines: bytes) -> list[bool]:
    sieve = Sieve(filter)
    return sieve.wanted(sieve.rows(b"".join(lines)))


def test_all_conditions_must_hold() -> None:
    wanted = Filter(type="com.example.*", key="cpu", headers={"region": "eu"})
    assert chosen(
        wanted,
        line(type="com.example.a", partitionkey="cpu", region="eu"),
        line(type="com.other", partitionkey="cpu", region="eu"),
        line(type="com.example.a", partitionkey="disk", region="eu"),
        line(type="com.example.a", partitionkey="cpu", region="us"),
        line(type="com.example.a", partitionkey="cpu"),
        line(type="com.example.a", region="eu"),
    ) == [True, False, False, False, False, False]


def test_a_header_is_equal_in_kind_as_well() -> None:
    lines = [line(n=1), line(n=True), line(n="1"), line(n=1.0)]
    assert chosen(Filter(headers={"n": 1}), *lines) == [True, False, False, False]
    assert chosen(Filter(headers={"n": True}), *lines) == [False, True, False, False]
    assert chosen(Filter(headers={"n": "1"}), *lines) == [False, False, True, False]


def test_headers_may_have_names_that_python_has_not() -> None:
    assert chosen(Filter(headers={"class": 1, "0": 2}), line(**{"class": 1, "0": 2}), line(**{"class": 1})) == [
        True,
        False,
    ]


@given(
    st.text(alphabet="ab*?[]!-", min_size=1, max_size=8),
    st.lists(st.text(alphabet="ab[]!-", max_size=8), max_size=8),
)
def test_globs_mean_what_they_mean_in_a_shell(pattern: str, keys: list[str]) -> None:
    found = chosen(Filter(key=pattern), *[line(partitionkey=key) for key in keys])
    assert found == [fnmatch.fnmatchcase(key, pattern) for key in keys]


def test_a_glob_does_not_fit_what_is_not_text() -> None:
    assert chosen(Filter(key="*"), line(partitionkey=["a"]), line(partitionkey=1), line()) == [False] * 3


def test_the_payload_is_not_decoded() -> None:
    whole = line(type="t", partitionkey="k")
    broken = whole.replace(b"[1,2,3]", b"1e999")  # a number that no decoder of numbers accepts
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        msgspec.json.decode(broken)
    assert chosen(Filter(type="t"), whole, broken) == [True, True]


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"headers": {}}, {"type": 1}, {"key": b"x"}, {"headers": {"type": "t"}}, {"headers": {"": 1}},
        {"headers": {1: 1}}, {"headers": {"a": 1.5}}, {"headers": {"a": None}}, {"headers": ["a"]},
        {"type": "x" * 100_000}, {"headers": {f"h{n}": 1 for n in range(100)}},
    ],
    ids=str,
)  # fmt: skip
def test_a_filter_that_cannot_work_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="filter"):
        Filter(**arguments)


def test_what_is_no_filter_is_refused() -> None:
    assert sieve_of(None) is None
    with pytest.raises(ConfigError, match="use a Filter"):
        sieve_of("type=x")  # type: ignore[arg-type]


def test_what_is_absent_says_so() -> None:
    assert repr(ABSENT) == "ABSENT"
