"""Messages that are not worth delivering after some time: the attribute ``expires``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Self

NAME: Final = "expires"
"""The attribute's name in an envelope."""


class Expiry(datetime):
    """When a message expires. A kind of its own, so that decoding notices those that do and pays for no other."""

    @classmethod
    def after(cls, since_us: int, ttl: timedelta) -> Self:
        """
        >>> Expiry.after(0, timedelta(hours=1)).text()
        '1970-01-01T01:00:00.000000Z'
        """
        return cls(1970, 1, 1, tzinfo=UTC) + (timedelta(microseconds=since_us) + ttl)

    @classmethod
    def read(cls, value: object) -> Expiry:
        """From an envelope. What is no time never expires: others may mean something else by that name.

        >>> Expiry.read("2026-11-15T20:30:01Z") < Expiry.read("next year") == NEVER
        True
        """
        try:
            found = cls.fromisoformat(value) if isinstance(value, str) else NEVER
        except ValueError:
            return NEVER
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    def text(self) -> str:
        """RFC 3339 in UTC with microseconds, as every time of an envelope."""
        return self.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


NEVER: Final = Expiry(9999, 12, 31, tzinfo=UTC)
