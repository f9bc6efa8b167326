"""Messages that are for one subscription only: the attribute ``redrivefor``.

A dead letter that is redriven is published again for the subscription that failed; all others of the channel pass
over it. Nobody but a redrive sets the attribute.
"""

from __future__ import annotations

from typing import Final

import msgspec

NAME: Final = "redrivefor"
"""The attribute's name in an envelope."""


class Addressee(str):
    """The name of a subscription. A kind of its own, so that decoding notices who has one and pays for no other."""

    __slots__ = ()

    @classmethod
    def read(cls, value: object) -> Addressee:
        """From an envelope. What is no text is for everybody: others may mean something else by that name.

        >>> Addressee.read("pager"), Addressee.read(7) == EVERYBODY
        ('pager', True)
        """
        return cls(value) if isinstance(value, str) else EVERYBODY

    def means(self, subscription: str | None) -> bool:
        """Whether a subscription (None: one without a name) is to get the message.

        >>> Addressee("pager").means("pager"), Addressee("pager").means(None), EVERYBODY.means(None)
        (True, False, True)
        """
        return not self or self == subscription


EVERYBODY: Final = Addressee()


class _Brief(msgspec.Struct, gc=False):
    redrivefor: object = None


_brief = msgspec.json.Decoder(_Brief)


def addressee_of(line: bytes) -> Addressee:
    """Whom a stored line is for, also one whose payload does not fit its type.

    >>> addressee_of(b'{"data":1,"redrivefor":"pager"}'), addressee_of(b"broken") == EVERYBODY
    ('pager', True)
    """
    try:
        return Addressee.read(_brief.decode(line).redrivefor)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return EVERYBODY
