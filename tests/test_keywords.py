"""Keyword-only arguments that are quick to leave out, and seem what they are."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import heliograph as hg
from heliograph.keywords import quick_keywords


@quick_keywords
def gather(first: int, second: int = 2, *, third: Any = 3, fourth: Any = None) -> tuple[Any, ...]:
    here = "local"
    return first, second, third, fourth, here


def test_what_is_not_given_has_its_default_and_what_is_given_goes_where_it_belongs() -> None:
    assert gather(1) == (1, 2, 3, None, "local")
    assert gather(1, fourth=4) == (1, 2, 3, 4, "local")
    assert gather(first=1, fourth=4, third=0, second=5) == (1, 5, 0, 4, "local")
    with pytest.raises(TypeError, match="unexpected keyword argument 'fifth'"):
        gather(1, fifth=5)  # type: ignore[call-arg]


def test_whoever_asks_for_help_sees_keywords() -> None:
    kinds = {name: one.kind for name, one in inspect.signature(hg.Station.publish).parameters.items()}
    assert kinds["data"] is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert kinds["type"] is kinds["ttl"] is inspect.Parameter.KEYWORD_ONLY
    assert hg.Station.publish.__kwdefaults__ is None, "each would be looked up with every call"


def test_a_keyword_that_must_be_given_cannot_become_an_ordinary_argument() -> None:
    def insists(*, given: int) -> int:
        return given

    with pytest.raises(TypeError, match="without defaults"):
        quick_keywords(insists)
