"""Which of the channels that links send have grown, in this process or in others: one thread for all of them.

Each partition has a bell that whoever appends rings; only those that rang are looked at. Once a second all are, however
often others ring: a bell may not be heard, for another process forgot, or the partition was closed for room; or it rang
and there was nothing yet, for its writer never syncs by itself, or the disk failed. Before anybody is told, whoever
asked for that reads the news ahead, in this thread: it need not ask another one then.

A line that this process publishes by itself goes without that thread, which would take as long to wake and to read it
as the rest of its way takes. Whoever published it rings when it is durable, and leaves it with the bell::

    ring ──▶ the event loop has the line, is told, sends it ──▶ and listens on
      └──no line, or not the next one──▶ the thread listens anew, reads ahead ──▶ the event loop is told, and sends
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

from heliograph.errors import HeliographError, NotFound, StationClosed

if TYPE_CHECKING:
    from heliograph.engine.files import FilesEngine
    from heliograph.log.news import Fresh

logger = logging.getLogger("heliograph.links")
LOOK_S: Final = 1.0
CROWD: Final = 200
"""More bells than this at once: take a breath, or partitions that are closed for room ring each other's for ever."""
BREATH_S: Final = 0.02
AHEAD_MAX: Final = 4
"""If more links than this send a channel, they read by themselves, side by side."""

Ends = dict[str, dict[int, int] | None]
"""By channel: by partition where it ends; None if the channel is gone."""


class Ahead(Protocol):
    """Whoever sends a channel, and has what is new in memory before it is told. Never fails."""

    def read_ahead(self, partition: int, end: int) -> None:
        """Read what is new in a partition that ends now at an offset."""

    def take(self, partition: int, fresh: Fresh) -> None:
        """This line is new. In the event loop: does not touch the disk."""


class _Bell:
    """Looks like a lock to whoever rings it."""

    __slots__ = ("_place", "_room", "end", "fresh", "life")

    def __init__(self, room: Newsroom, place: tuple[str, int]) -> None:
        self._room = room
        self._place = place
        self.fresh: Fresh | None = None
        self.end = -1
        self.life: str | None = None

    def release(self) -> None:
        fresh, self.fresh = self.fresh, None
        if fresh is None or fresh.offset != self.end or not self._room.pass_on(self._place, self, fresh):
            self._room.rung.put(self._place)


class Newsroom:
    """Watches channels, and tells where they end now: in the event loop, which ``call`` has something done in."""

    def __init__(
        self,
        engine: FilesEngine,
        tell: Callable[[Ends], None],
        call: Callable[[Callable[[], None]], None] = lambda action: action(),
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._call = call
        self.rung: SimpleQueue[tuple[str, int]] = SimpleQueue()  # an event would take several steps of Python
        self._lock = threading.Lock()
        self._bells: dict[tuple[str, int], _Bell] = {}
        self._channels: dict[str, int] = {}  # how many links send it
        self._ahead: dict[str, list[Ahead]] = {}
        self._troubles: dict[str, str] = {}  # channels that cannot be looked at, and why
        self._all_at = 0.0  # when all are looked at again
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="heliograph-link-news", daemon=True)
        self._thread.start()

    def watch(self, channel: str, ahead: Ahead | None = None) -> None:
        """Tell of this channel from now on, at once if there is anything."""
        with self._lock:
            self._channels[channel] = self._channels.get(channel, 0) + 1
            if ahead is not None:
                self._ahead.setdefault(channel, []).append(ahead)
            for place, bell in self._bells.items():
                if place[0] == channel:
                    bell.end = -1  # whoever asks does not know yet what others were told
        self.rung.put((channel, -1))

    def unwatch(self, channel: str, ahead: Ahead | None = None) -> None:
        """One link less sends it."""
        with self._lock:
            if ahead is not None and ahead in self._ahead.get(channel, ()):
                self._ahead[channel].remove(ahead)
            left = self._channels.get(channel, 0) - 1
            if left > 0:
                self._channels[channel] = left
                return
            self._channels.pop(channel, None)
            self._ahead.pop(channel, None)
            gone = [place for place in self._bells if place[0] == channel]
            bells = [(place, self._bells.pop(place)) for place in gone]
        for place, bell in bells:
            self._engine.unlisten(*place, bell)

    def pass_on(self, place: tuple[str, int], bell: _Bell, fresh: Fresh) -> bool:
        """Have a line taken and told of at once; False if nobody takes it. In whichever thread rang."""
        channel, number = place
        takers = self._ahead.get(channel, [])
        if not 0 < len(takers) <= AHEAD_MAX:
            return False

        def tell() -> None:
            for one in takers:
                one.take(number, fresh)
            bell.end = end = fresh.offset + 1
            self._tell({channel: {number: end}})
            if self._engine.listen_on(channel, number, bell) != end:
                self.rung.put(place)

        self._call(tell)
        return True

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self.rung.put(("", -1))
        self._thread.join()

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            places = self._heard()
            if self._closed:
                return
            try:
                self._look(places)
            except StationClosed:
                return

    def _heard(self) -> set[tuple[str, int]]:
        """Which partitions rang; none if it is time to look at all of them."""
        try:
            places = {self.rung.get(timeout=max(0.0, self._all_at - time.monotonic()))}
            while not self.rung.empty():
                places.add(self.rung.get_nowait())
        except Empty:
            return set()
        return places if time.monotonic() < self._all_at else set()

    def _look(self, places: set[tuple[str, int]]) -> None:
        heard = bool(places)
        if not heard:
            self._all_at = time.monotonic() + LOOK_S
            with self._lock:
                places = {(channel, -1) for channel in self._channels}
        found: Ends = {}
        for channel in {channel for channel, number in places if number < 0}:
            try:
                places |= {(channel, number) for number in self._numbers(channel, found)}
            except (HeliographError, OSError) as error:
                self._stumbled(channel, error)
        for place in places:
            if place[1] >= 0:
                try:
                    self._listen(place, found, settle=not heard)
                except (HeliographError, OSError) as error:
                    self._stumbled(place[0], error)
        if found:
            self._read_ahead(found)
            self._call(partial(self._tell, found))
        if len(places) > CROWD:
            threading.Event().wait(BREATH_S)

    def _stumbled(self, channel: str, error: Exception) -> None:
        """One cannot be looked at now. The others can, and it is tried again with all of them."""
        if isinstance(error, StationClosed):
            raise error
        if self._troubles.get(channel) != str(error):
            self._troubles[channel] = str(error)
            logger.warning("cannot look for news of '%s', trying again: %s", channel, error)

    def _read_ahead(self, found: Ends) -> None:
        for channel, ends in found.items():
            with self._lock:
                readers = list(self._ahead.get(channel, ()))
            if ends and len(readers) <= AHEAD_MAX:
                for one in readers:
                    for number, end in ends.items():
                        one.read_ahead(number, end)

    def _numbers(self, channel: str, found: Ends) -> range:
        try:
            return range(self._engine.partition_count(channel))
        except NotFound:
            found[channel] = None
            return range(0)

    def _listen(self, place: tuple[str, int], found: Ends, *, settle: bool) -> None:
        channel, number = place
        with self._lock:
            if channel not in self._channels:
                return
            bell = self._bells.get(place)
            if bell is None:
                bell = self._bells[place] = _Bell(self, place)
        try:
            end = self._engine.listen(channel, number, bell, settle=settle)
        except NotFound:
            found[channel] = None
            return
        if self._troubles:
            self._troubles.pop(channel, None)
        life = self._engine.life(channel)
        if end != bell.end or life != bell.life:
            bell.end, bell.life = end, life
            ends = found.setdefault(channel, {})
            if ends is not None:
                ends[number] = end
