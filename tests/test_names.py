"""Names that must not become paths."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import InvalidName
from heliograph.limits import NAME_BYTES_MAX
from heliograph.names import DEAD_LETTER, check_name, check_publishable

BAD = [
    "", ".", "..", "/", "a/b", "../a", "a/..", "a/../b", "/etc/passwd", "a\\b", "\0", "a\0b", "\n", "a\n", "\na",
    "a\nb", " ", "a b", " a", "a ", ".hidden", "a.", "a..b", "-a", "a.-b", "~", "~root", "$HOME", "a*", "a?",
    "é", "日本",
    "a\u200bb", "ａ", "a" * (NAME_BYTES_MAX + 1), "a" * 5000, "CON:", "a:b", "%2e%2e", "a\tb", "\x7f", "\ud800",
]  # fmt: skip
NOT_TEXT = [None, 1, 1.5, True, b"alerts", ["alerts"], {"a": 1}, object()]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_a_name_that_could_leave_the_directory_or_confuse_a_person_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="is not a channel name: use letters") as caught:
        check_name(name)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", NOT_TEXT, ids=lambda name: type(name).__name__)
def test_what_is_not_text_is_no_name(name: object) -> None:
    with pytest.raises(InvalidName):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["a", "A", "0", "_", "alerts", "sensors.kitchen.temp", "a-b_c.d-1", "a" * NAME_BYTES_MAX]
)
def test_ordinary_names_are_accepted_as_they_are(name: str) -> None:
    assert check_name(name) == name
    assert check_name(name) == name  # also the second time, from memory


def test_the_error_says_what_kind_of_name_it_is() -> None:
    with pytest.raises(InvalidName, match="is not a subscription name"):
        check_name("a/b", "subscription")


@pytest.mark.parametrize("name", ["alerts" + DEAD_LETTER, "a.b" + DEAD_LETTER])
def test_nobody_publishes_to_dead_letters(name: str) -> None:
    assert check_name(name) == name
    with pytest.raises(InvalidName, match="reserved"):
        check_publishable(name)


def test_the_longest_channel_has_room_for_its_dead_letters() -> None:
    longest = "a" * NAME_BYTES_MAX
    check_publishable(longest)
    check_name(longest + DEAD_LETTER)


@given(st.text(max_size=300))
def test_whatever_is_accepted_is_one_plain_path_component(name: str) -> None:
    try:
        check_name(name)
    except InvalidName:
        return
    assert set(name) <= set(string.ascii_letters + string.digits + "_-.")
    assert not name.startswith(".")
    assert ".." not in name
    assert len(name.encode()) <= 255 - 40  # room for what is put around it
