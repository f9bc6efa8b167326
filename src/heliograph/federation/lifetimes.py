"""How long certificates, CAs and revocation lists are still good, and when to say so. Pure: the time is passed in."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec

from heliograph.station.links import LifetimeInfo

THRESHOLDS_DAYS: Final = (30, 14, 7, 3, 1, 0)
"""When a warning is due; 0 is the end. Those beyond a third of the whole life are left out: what lives for a week and
is renewed every day is not worth a warning all the time."""

Status = Literal["ok", "warn", "bad"]
_DAY: Final = timedelta(days=1)


class Lifetime(msgspec.Struct, frozen=True, kw_only=True):
    """How long one thing is still good."""

    what: Literal["certificate", "ca", "crl"]
    name: str
    path: str
    fingerprint: str
    begins: datetime
    ends: datetime

    def days_left(self, now: datetime) -> float:
        """How many days are left; negative once it has ended."""
        return (self.ends - now) / _DAY

    def threshold(self, now: datetime) -> int | None:
        """The smallest threshold that was passed; None while there is time."""
        left, life = self.days_left(now), (self.ends - self.begins) / _DAY
        passed = [days for days in THRESHOLDS_DAYS if left <= days <= life / 3]
        return min(passed, default=None)

    def status(self, now: datetime) -> Status:
        """``bad`` once it has ended, ``warn`` when a threshold was passed."""
        if now > self.ends or now < self.begins:
            return "bad"
        return "ok" if self.threshold(now) is None else "warn"

    def says(self, now: datetime) -> str:
        """One line for a person."""
        kind = {"certificate": "the certificate", "ca": "the CA", "crl": "the revocation list"}[self.what]
        thing = f"{kind} '{self.name}' ({self.path})"
        if now < self.begins:
            return f"{thing} is not valid before {self.begins:%Y-%m-%d %H:%M} UTC; is the clock right?"
        if now > self.ends:
            return f"{thing} expired on {self.ends:%Y-%m-%d %H:%M} UTC: links are refused until it is renewed"
        left = self.days_left(now)
        count = f"{left:.0f} days" if left >= 2 else f"{left * 24:.0f} hours"
        return f"{thing} expires in {count}, on {self.ends:%Y-%m-%d %H:%M} UTC; 'helio keygen renew' renews it"


def shown(lifetime: Lifetime, now: datetime) -> LifetimeInfo:
    """A lifetime as it is at this time."""
    return LifetimeInfo(
        what=lifetime.what, name=lifetime.name, path=lifetime.path, fingerprint=lifetime.fingerprint,
        not_after=lifetime.ends, days_left=round(lifetime.days_left(now), 2), status=lifetime.status(now),
    )  # fmt: skip


class Reminders:
    """Each threshold of each thing is told once; what was renewed begins anew."""

    def __init__(self) -> None:
        self._told: dict[tuple[str, str, datetime], int] = {}

    def due(self, lifetimes: Iterable[Lifetime], now: datetime) -> list[str]:
        """What has to be said now."""
        found: list[str] = []
        told: dict[tuple[str, str, datetime], int] = {}
        for lifetime in lifetimes:
            key = lifetime.what, lifetime.fingerprint, lifetime.ends
            before, passed = self._told.get(key), lifetime.threshold(now)
            if passed is not None and (before is None or passed < before):
                found.append(lifetime.says(now))
                before = passed
            if before is not None:
                told[key] = before
        self._told = told
        return found
