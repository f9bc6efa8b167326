"""Channels come and go: whoever wants to know is told, in this process and in others.

Whoever makes or deletes a channel writes one byte to the file ``channels.news``, which the others watch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from heliograph.disk import Disk
from heliograph.engine.watch import Watcher
from heliograph.log.news import ring


class ChannelNews:
    """Tells and is told of new and deleted channels. A wake-up may get lost: look once in a while anyway."""

    def __init__(self, root: Path, disk: Disk, watcher: Watcher, *, read_only: bool) -> None:
        self._path = root / "channels.news"
        self._disk = disk
        self._watcher = watcher
        self._read_only = read_only
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this, from any thread, whenever a channel came or went. It must not block."""
        self._listeners.append(listener)
        if not self._read_only:
            self._watcher.watch(self._path, self._wake)

    def unlisten(self, listener: Callable[[], None]) -> None:
        """Call it no more."""
        with contextlib.suppress(ValueError):
            self._listeners.remove(listener)

    def tell(self) -> None:
        """A channel came or went."""
        self._wake()
        ring(self._path, self._disk)

    def _wake(self) -> None:
        for listener in list(self._listeners):
            listener()
