"""What workers at clients say: errors keep their names on the way, and nothing that is said breaks the other side."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph as hg
from heliograph.delivery.deadletter import describe
from heliograph.errors import ProtocolError
from heliograph.federation import asking, errands
from heliograph.federation.errands import Failure, Ran, error_of, failure_of


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def there_and_back(error: BaseException) -> Exception:
    body = asking.encode(Ran(done=0, error=failure_of(error)))
    ran, _ = asking.decode(body, Ran)
    assert ran.error is not None
    return error_of(ran.error)


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_keeps_its_name_and_text_and_where_it_was() -> None:
    error = there_and_back(raised(KeyError("lamp")))
    assert describe(error) == "KeyError: 'lamp'"
    assert (type(error).__module__, type(error).__qualname__) == ("builtins", "KeyError")
    assert "test_errands.py" in error.__notes__[0]
    assert not isinstance(error, KeyError), "it only looks like one"


def test_what_a_handler_asks_for_is_asked_for_there() -> None:
    later = there_and_back(hg.RetryLater(2.5, "not yet"))
    assert isinstance(later, hg.RetryLater)
    assert (later.seconds, str(later)) == (2.5, "not yet")
    assert not isinstance(there_and_back(hg.RetryLater(float("inf"))), hg.RetryLater)
    try:
        raise hg.Reject("no use") from ValueError("wrong")
    except hg.Reject as caught:
        rejected = there_and_back(caught)
    assert isinstance(rejected, hg.Reject)
    assert describe(rejected.__cause__ or rejected) == "ValueError: wrong"
    assert isinstance(there_and_back(hg.Reject("no use")), hg.Reject)


@pytest.mark.parametrize("error", [Broken(), ValueError("\ud800"), ValueError("x" * 100_000), ValueError("a\0b")])
def test_whatever_an_error_says_arrives(error: Exception) -> None:
    assert len(describe(there_and_back(error))) <= 3_000


@given(st.builds(Failure, text=st.text(max_size=50), type=st.text(max_size=50), module=st.text(max_size=50)))
def test_whatever_a_client_says_makes_an_error(failure: Failure) -> None:
    assert describe(error_of(failure))


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error(body: bytes) -> None:
    for kind in (errands.Work, errands.Settle, errands.Ran, errands.Run, errands.Request, errands.Answer):
        with contextlib.suppress(ProtocolError):
            asking.decode(body, kind)
