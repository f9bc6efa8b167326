"""Messages that are for one subscription only: the attribute ``redrivefor``.

A dead letter that is redriven is published again for the subscription that failed; all others of the channel pass
over it. Nobody but a redrive sets the attribute. Links carry such a message to other stations, where a subscription of
the same name is another one: it is for the station that published it, which its origin names.
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
    origin: object = None


_brief = msgspec.json.Decoder(_Brief)


def is_meant(line: bytes, subscription: str | None, station: str) -> bool:
    """Whether a subscription (None: one without a name) of a station is to get a stored line; also one whose payload
    does not fit its type.

    >>> line = b'{"data":1,"redrivefor":"pager","origin":"host1.k3f9q2"}'
    >>> is_meant(line, "pager", "host1"), is_meant(line, "pager", "hub"), is_meant(b"broken", "pager", "hub")
    (True, False, True)
    """
    try:
        brief = _brief.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return True
    addressee = Addressee.read(brief.redrivefor)
    if not addressee:
        return True
    origin = brief.origin if isinstance(brief.origin, str) else ""
    return addressee.means(subscription) and origin.rpartition(".")[0] in ("", station)
