"""Names of channels, subscriptions and stations: checked at every door before a path is made from them."""

from __future__ import annotations

import re
from typing import Final

from heliograph.errors import InvalidName
from heliograph.limits import NAME_BYTES_MAX

DEAD_LETTER: Final = ".dead-letter"
REPLY: Final = "_reply."
"""How the names of channels of replies begin: made and deleted by the stations that ask, and by nobody else."""

REPLY_TO: Final = "_reply.to."
"""And with the name of a station behind it: replies of other stations to requests of that one, on their way there."""

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*")
_known: set[str] = set()


def check_name(name: object, what: str = "channel") -> str:
    """Return the name if it is safe, else raise InvalidName saying what is allowed.

    >>> check_name("sensors.kitchen.temp")
    'sensors.kitchen.temp'
    >>> len(check_name("a" * 200 + ".dead-letter"))
    212
    >>> check_name("../etc")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    heliograph.errors.InvalidName: '../etc' is not a channel name: use letters, digits, '_' and '-' in words...
    """
    if isinstance(name, str) and name in _known:
        return name
    # The suffix does not count: the dead letters of the longest channel need a name, too.
    if not isinstance(name, str) or len(name.removesuffix(DEAD_LETTER)) > NAME_BYTES_MAX or not _NAME.fullmatch(name):
        shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:77] + "…"
        raise InvalidName(
            f"{shown} is not a {what} name: use letters, digits, '_' and '-' in words joined by single dots "
            f"(as in 'sensors.kitchen'), at most {NAME_BYTES_MAX} bytes"
        )
    if len(_known) < 10_000:  # checking again costs more than remembering
        _known.add(name)
    return name


def is_name(text: str) -> bool:
    """Whether a text could be a name: of what is found among our files, others may have put something there.

    >>> is_name("sensors.kitchen"), is_name("lost+found"), is_name(".DS_Store")
    (True, False, False)
    """
    return _NAME.fullmatch(text) is not None


def is_mailbox(channel: str) -> bool:
    """Whether it is a channel of replies of one process, which nobody else can make."""
    return channel.startswith(REPLY) and not channel.startswith(REPLY_TO)


def check_publishable(channel: str) -> str:
    """As check_name, and not a dead-letter channel: only delivery writes there."""
    check_name(channel)
    if channel.endswith(DEAD_LETTER):
        raise InvalidName(
            f"'{channel}' is reserved: channels ending in '{DEAD_LETTER}' hold what handlers gave up on. "
            f"Publish to '{channel.removesuffix(DEAD_LETTER)}' instead."
        )
    return channel


def check_ownable(channel: str) -> str:
    """As check_publishable, and not a channel of replies: those are made by stations that ask."""
    check_publishable(channel)
    if channel.startswith(REPLY):
        raise InvalidName(f"'{channel}' is reserved: channels beginning with '{REPLY}' hold replies to requests")
    return channel
