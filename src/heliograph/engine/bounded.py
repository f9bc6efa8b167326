"""How many lives of other stations a channel remembers: whoever sends may invent as many as it likes.

Each life (incarnation) of a station, and each partition of it, costs memory and room in ``seen/`` for ever, because
what was seen must never be forgotten. So there is an end to it, for each station and for all of them; honest stations
begin a new life when their directory was restored or copied, which is seldom.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from heliograph import limits
from heliograph.engine.origins import station_of
from heliograph.errors import Busy, HeliographError
from heliograph.seen import Key, SeenSet

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.engine.files import FilesEngine
    from heliograph.engine.knowledge import Knowledge

logger = logging.getLogger("heliograph.engine")
STATIONS: Final = 10
"""All stations together may have this many times as many as one."""


class TooManyOrigins(HeliographError):
    """Somebody invents origins. Nothing was stored."""


def check_origins(channel: str, known: Knowledge, arriving: Iterable[Key], most: int) -> None:
    """Raise TooManyOrigins if a channel would know more than ``most`` of one station, or ten times that of all."""
    new = [key for key in arriving if key not in known.seen and key not in known.gaps]
    if not new:
        return
    keys = {*known.seen.keys(), *known.gaps.keys(), *new}
    counts = Counter([station_of(origin) for origin, _ in keys])
    for station in {station_of(origin) for origin, _ in new}:
        if counts[station] > most:
            raise TooManyOrigins(
                f"channel '{channel}' knows {most} lives of '{station}' and their partitions already "
                "(hub.origins_max); did somebody else get its key, or does it lose its directory all the time?"
            )
    if len(keys) > most * STATIONS:
        raise TooManyOrigins(
            f"channel '{channel}' knows {most * STATIONS} lives of stations and their partitions already "
            f"({STATIONS} times hub.origins_max)"
        )


def too_many_gaps(engine: FilesEngine, channel: str, known: Knowledge, more: SeenSet) -> bool:
    """Whether these are not to be kept, with a word the first time. Nothing depends on gaps: rather know fewer of
    them than as many as somebody cares to tell.
    """
    if known.gaps.pieces + more.pieces <= limits.SEEN_GAPS_MAX:
        return False
    if not known.forgone:
        known.forgone = True
        logger.warning("channel '%s' has more than %d gaps: others are not kept", channel, limits.SEEN_GAPS_MAX)
        engine.audit.write("gaps-not-kept", channel=channel, gaps=known.gaps.pieces)
    return True


class Renewals:
    """New lives that channels of this station began at the word of others.

    Whoever says to have more of this station than there is here may be right (it was restored from a backup) or lie,
    which nobody can tell. Each new life has messages appended again, so there is an end to believing one peer.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: dict[tuple[str, str], list[int]] = {}
        self._lock = threading.Lock()

    def take(self, peer: str, channel: str) -> None:
        """One more; ``peer`` is empty if it is not known who says so.

        Busy if there were too many lately: then nothing is sent or taken until the hour is over.
        """
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            begun = [at for at in self._begun.get((peer, channel), ()) if now_ns - at < limits.RENEWALS_S * 10**9]
            if len(begun) >= limits.RENEWALS_MAX:
                who = f"'{peer}'" if peer else "somebody"
                raise Busy(
                    f"{who} says once more that there are messages of '{channel}' from "
                    f"here that are not here; this station began {len(begun)} new lives for that within "
                    f"{limits.RENEWALS_S / 3600:g} h. Was it restored so often? Otherwise revoke the peer's certificate"
                )
            self._begun[peer, channel] = [*begun, now_ns]
