"""A partition opened without leaving a trace: no lock, no repair, no file made."""

from __future__ import annotations

import os
from typing import Final

from heliograph.clock import Clock
from heliograph.disk import SYSTEM_DISK, Disk
from heliograph.log import indexing, recovery, segments
from heliograph.log.head import DELETED, FENCED, Fields, Head, Limit, TornHead
from heliograph.log.held import ChannelGone, Evicted
from heliograph.log.news import News

_TRIES: Final = 8


class ReadOnlyLog:
    """Reads a partition's head; where that cannot be trusted, finds the end of the log in memory."""

    def __init__(self, place: indexing.Place, boot: bytes, disk: Disk, clock: Clock) -> None:
        self.place = place
        self._disk = disk
        self._clock = clock
        self._boot = boot
        self.used = True
        self.closed = False
        self._found: tuple[tuple[int, int], Fields] | None = None
        self.head: Head | None = self._trusted_head()
        self.news = News(place.directory / "news", self.head, disk, clock)

    def _trusted_head(self) -> Head | None:
        try:
            head = Head(self.place.directory / "head", self._disk, writable=False)
        except (OSError, TornHead, ValueError):
            return None
        if head.trusted(self._boot, self._disk):
            return head
        head.close()
        return None

    def limit(self, *, synced: bool | None = None) -> Limit:
        """How far readers may go."""
        fields = self.fields()
        if fields.flags & DELETED:
            raise ChannelGone(f"{self.place.directory} was deleted")
        return fields.limit(synced=bool(synced))

    def durable(self, *, unsynced: bool) -> Limit:
        """How far it is on disk for sure. ``unsynced``: some process shows its readers what it has not synced.

        Syncing what such a process wrote needs neither its lock nor a descriptor that can write, and changes nothing
        that others could see: they do not learn of it, and the head stays as it is.
        """
        for _ in range(_TRIES):
            fields = self.fields()
            if not unsynced or fields.synced_next == fields.next or fields.flags & FENCED:
                break
            try:
                fd = self._disk.open(segments.path_of(self.place.directory, fields.base), os.O_RDONLY)
            except FileNotFoundError:
                continue  # sealed and compressed in this moment: there is a new one
            try:
                SYSTEM_DISK.fdatasync(fd)
            except OSError:
                break  # what it says is synced is
            finally:
                self._disk.close(fd)
            if fields.flags & DELETED:
                break
            return fields.limit(synced=False)
        return self.limit(synced=True)

    def fields(self) -> Fields:
        """What the head says, or would say."""
        if self.head is not None:
            try:
                return self.head.load()
            except TornHead:
                pass
            except ValueError:  # unmapped
                raise Evicted(str(self.place.directory)) from None
        directory = self.place.directory
        base = max(segments.bases(directory, self._disk), default=None)  # None: somebody took them all away
        state = (0, 0) if base is None else (base, segments.stored_bytes(directory, base, self._disk))
        if self._found is None or self._found[0] != state:
            report = recovery.recover(self.place, self._disk, None, self._clock.time_ns() // 1000, write=False)
            self._found = (state, report.fields)
        return self._found[1]

    @property
    def gone(self) -> bool:
        """Whether it was closed for room or its channel was deleted."""
        try:
            return self.closed or (self.head is not None and bool(self.head.state() & DELETED))  # though it be torn
        except ValueError:  # another thread closed it meanwhile
            return True

    def close_if_idle(self) -> bool:
        """Close if nobody waits for its news; whether it is closed."""
        if self.news.waiting:
            return False
        self.close()
        return True

    def close(self) -> None:
        self.closed = True
        self.news.close()
        if self.head is not None:
            self.head.close()

    abandon = finish = close
