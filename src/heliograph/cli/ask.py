"""Asking before something is lost for good."""

from __future__ import annotations

import sys

from heliograph.errors import HeliographError


class NotConfirmed(HeliographError):
    """Nobody said yes."""


def answer(question: str) -> str:
    """What a person types; questions go to stderr, because stdout may be read by a program."""
    print(question, end=" ", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line.endswith("\n") or not sys.stdin.isatty():
        print(file=sys.stderr)  # nobody pressed return: what follows begins on its own line
    return line.strip()


def confirm(question: str) -> None:
    """Go on only after a yes."""
    if answer(f"{question} [y/N]").lower() not in ("y", "yes"):
        raise NotConfirmed("not confirmed, so nothing was changed; --yes does it without asking")


def confirm_name(question: str, name: str, given: str | None) -> None:
    """Go on only if the name was typed, here or with --yes."""
    if given is None:
        given = answer(question)
    if given != name:
        raise NotConfirmed(f"{given!r} is not '{name}', so nothing was changed; type the name, or --yes {name}")
