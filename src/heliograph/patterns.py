"""Wildcards over channel names, by the rules of NATS.

    sensors.*.temp    ``*`` stands for exactly one word
    sensors.>         ``>`` stands for one or more words, at the end only

Two kinds of channels are matched only by patterns that name them: dead letters (the pattern's last word is
``dead-letter``) and channels of replies (its first word is ``_reply``). Whoever subscribes to everything wants
neither what handlers gave up on nor other people's answers.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from heliograph.errors import InvalidName
from heliograph.limits import NAME_BYTES_MAX
from heliograph.names import DEAD_LETTER, REPLY

_WORD: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_WILD: Final = frozenset("*>")


def is_pattern(text: object) -> bool:
    """Whether it is meant as a pattern: it holds a wildcard. A name never does.

    >>> is_pattern("sensors.>"), is_pattern("sensors.kitchen")
    (True, False)
    """
    return isinstance(text, str) and not _WILD.isdisjoint(text)


class Pattern:
    """A checked pattern.

    >>> Pattern("sensors.*.temp").matches("sensors.kitchen.temp")
    True
    >>> [Pattern("sensors.>").matches(name) for name in ("sensors", "sensors.a", "sensors.a.b", "sensors.dead-letter")]
    [False, True, True, False]
    >>> Pattern("*.dead-letter").matches("sensors.dead-letter")
    True
    >>> Pattern("sensors.>.temp")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    heliograph.errors.InvalidName: 'sensors.>.temp' is not a pattern: '>' may only be the last word...
    """

    __slots__ = ("_fits", "_wants_dead_letters", "_wants_replies", "text")

    def __init__(self, text: str) -> None:
        words = _checked(text)
        self.text = text
        # No two parts of the expression can match the same characters in two ways: it never goes back far.
        self._fits = re.compile("[.]".join([_expression(word) for word in words])).fullmatch
        self._wants_dead_letters = text.endswith(DEAD_LETTER)
        self._wants_replies = text.startswith(REPLY)

    def matches(self, name: str) -> bool:
        """Whether the channel of this name is meant."""
        if self._fits(name) is None:
            return False
        if name.endswith(DEAD_LETTER) and not self._wants_dead_letters:
            return False
        return self._wants_replies or not name.startswith(REPLY)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def _checked(text: object) -> list[str]:
    if not isinstance(text, str) or len(text.removesuffix(DEAD_LETTER)) > NAME_BYTES_MAX:
        _refuse(text, f"use text of at most {NAME_BYTES_MAX} characters")
    words = text.split(".")
    for at, word in enumerate(words):
        if word == ">" and at < len(words) - 1:
            _refuse(text, "'>' may only be the last word; '*' stands for one word in the middle")
        if word in _WILD:
            continue
        if not word:
            _refuse(text, "there is nothing between two dots, or before or after one")
        if not _WILD.isdisjoint(word):
            _refuse(text, f"a wildcard is a whole word: write '*' or '>' instead of '{word[:40]}'")
        if not _WORD.fullmatch(word):
            _refuse(text, "use letters, digits, '_' and '-' in words joined by single dots")
    if _WILD.isdisjoint(words):
        _refuse(text, "it holds no wildcard")
    return words


def _refuse(text: object, why: str) -> NoReturn:
    shown = repr(text) if len(repr(text)) <= 80 else repr(text)[:77] + "…"
    raise InvalidName(f"{shown} is not a pattern: {why} (as in 'sensors.*.temp' or 'sensors.>')")


def _expression(word: str) -> str:
    return {"*": "[^.]+", ">": "[^.]+(?:[.][^.]+)*"}.get(word) or re.escape(word)
