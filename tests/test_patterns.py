"""Wildcards over channel names: which they match, and which patterns are none."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import InvalidName
from heliograph.limits import NAME_BYTES_MAX
from heliograph.names import DEAD_LETTER, REPLY
from heliograph.patterns import Pattern, is_pattern

BAD = [
    "", ".", "..", "*.", ".*", "a..*", "*..b", "../*", "*/..", "a/*", "*/b", "/*", "*\\b", "\0*", "*\n", "\n*", "* ",
    "a*", "*a", "a.*b", "a.**", "**", ">>", "a>", ">a", ">.a", "a.>.b", ">.>", "*.>.dead-letter", "-.*", "*.-a", "é.*",
    "~.*", "$.>", "a:*", "%2e%2e.*", "a" * NAME_BYTES_MAX + ".*", ".".join(["*"] * NAME_BYTES_MAX), "a.\ud800.*",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=ascii)
def test_what_could_leave_the_directory_or_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="is not a pattern") as caught:
        Pattern(text)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", [None, 1, b"a.*", ["*"], "plain.name"], ids=repr)
def test_what_holds_no_wildcard_is_no_pattern(text: object) -> None:
    assert not is_pattern(text)
    with pytest.raises(InvalidName):
        Pattern(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("*", ["a", "alerts"], ["a.b", "a.dead-letter"]),
        ("sensors.*", ["sensors.a"], ["sensors", "sensors.a.b", "sensorsxa", "sensors.dead-letter"]),
        ("sensors.*.temp", ["sensors.kitchen.temp"], ["sensors.temp", "sensors.a.b.temp", "sensors.kitchen.temp2"]),
        ("sensors.>", ["sensors.a", "sensors.a.b.c"], ["sensors", "sensor.a", "sensors.a.dead-letter"]),
        (">", ["a", "a.b", "_replies"], ["a.dead-letter", "_reply.x", "_reply.x.dead-letter"]),
        ("*.dead-letter", ["a.dead-letter"], ["a", "a.b", "a.b.dead-letter", "_reply.dead-letter"]),
        ("sensors.*.dead-letter", ["sensors.a.dead-letter"], ["sensors.dead-letter", "sensors.a"]),
        ("_reply.*", ["_reply.x"], ["_reply", "_reply.x.y"]),
    ],
)
def test_words_are_matched_as_nats_matches_them(pattern: str, matched: list[str], not_matched: list[str]) -> None:
    wildcard = Pattern(pattern)
    assert [name for name in [*matched, *not_matched] if wildcard.matches(name)] == matched


WORD = st.sampled_from(["a", "b", "ab", "a-b", "_", "_reply", "dead-letter", "temp"])
NAME = st.lists(WORD, min_size=1, max_size=5).map(".".join)
PATTERN = (
    st.tuples(st.lists(st.one_of(WORD, st.just("*")), max_size=4), st.sampled_from(["*", ">", ""]))
    .map(lambda parts: ".".join([*parts[0], *([parts[1]] if parts[1] else [])]))
    .filter(is_pattern)
)


def naively(pattern: list[str], name: list[str]) -> bool:
    """Word by word, as one would explain it."""
    if not pattern:
        return not name
    if not name:
        return False
    if pattern == [">"]:
        return True
    return pattern[0] in ("*", name[0]) and naively(pattern[1:], name[1:])


@given(PATTERN, NAME)
def test_the_expression_matches_what_the_words_say(pattern: str, name: str) -> None:
    hidden = name.endswith(DEAD_LETTER) and not pattern.endswith(DEAD_LETTER)
    hidden = hidden or (name.startswith(REPLY) and not pattern.startswith(REPLY))
    assert Pattern(pattern).matches(name) == (naively(pattern.split("."), name.split(".")) and not hidden)


@given(st.text(max_size=30))
def test_any_text_is_a_pattern_of_plain_words_or_refused(text: str) -> None:
    try:
        Pattern(text)
    except InvalidName:
        return
    assert all(word and word.isascii() and not set(word) & set("/\\\0 ") for word in text.split("."))


def test_no_pattern_is_slow() -> None:
    wildcard, name = Pattern("*." * 98 + ">"), "a." * 99 + "!"
    quick = Pattern("*").matches
    started = time.process_time()  # of this process alone, however busy the machine is
    wildcard.matches(name)
    one = time.process_time() - started
    started = time.process_time()
    for _ in range(100_000):
        quick("a")
    assert one < time.process_time() - started
