"""The links of one station in one process: hub and links of its configuration, in a thread with an event loop.

However many processes have the directory open, one runs its links: whoever holds ``DATA/links/lock``. The others stand
by; the kernel frees a dead holder's lock at once, and one of them goes on.

    start ──▶ standing by ──lock──▶ running ──close──▶ closed
                   └──────────close──────────────────────▲
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from heliograph.clock import from_us
from heliograph.errors import HeliographError
from heliograph.log.locks import FileLock
from heliograph.station import links
from heliograph.station.links import LinkInfo, LinksState

if TYPE_CHECKING:
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")
STANDBY_S: Final = 1.0
"""How often a process that stands by looks whether the one that runs the links is gone."""
STATE_S: Final = 1.0
CLOSE_S: Final = 10.0
BEGIN_S: Final = 10.0


class Federation:
    """Runs the links of a station until it is closed."""

    def __init__(self, station: Station) -> None:
        self._station = station
        self._engine = station.engine
        self._directory = station.path / links.DIRECTORY
        self._closing = threading.Event()
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="heliograph-links", daemon=True)

    def start(self) -> None:
        """Run in the background. Returns when the hub listens, or when another process runs the links."""
        self._engine.check_writable()
        self._directory.mkdir(exist_ok=True)
        self._station.on_close.append(self.close)
        self._thread.start()
        self._begun.wait(BEGIN_S)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End the links in order. Safe to call again; nothing to be done in a forked child."""
        if self._pid != os.getpid() or self._closing.is_set():
            return
        self._closing.set()
        self._call(self._end)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning("the links did not end within %g s; what is not acknowledged is sent again", timeout_s)

    @property
    def running(self) -> bool:
        """Whether this process runs the links, rather than standing by."""
        return self._loop is not None

    def links(self) -> list[LinkInfo]:
        """Every link to a hub, and every peer of this hub, as it is now."""
        return []

    # -- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        lease = FileLock(self._directory / links.LOCK_FILE, self._engine.disk)
        try:
            while not lease.try_exclusive():
                self._begun.set()
                if self._closing.wait(STANDBY_S):
                    return
            lease.note(f"process {os.getpid()}")
            if not self._closing.is_set():
                with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                    runner.run(self._main())
        except HeliographError as error:
            logger.error("the links ended: %s", error)
        except Exception:
            logger.exception("the links ended")
        finally:
            self._station.live_links = None
            self._loop = None
            self._begun.set()
            lease.release()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._station.live_links = self.links
        if self._closing.is_set():
            return
        self._begun.set()
        showing = asyncio.create_task(self._show())
        try:
            await self._stop.wait()
        finally:
            showing.cancel()
            self._save(self.links())

    def _end(self) -> None:
        if self._stop is not None:
            self._stop.set()

    def _call(self, action: Callable[[], None]) -> None:
        """Have something done in the event loop, from any thread."""
        loop = self._loop
        if loop is not None:
            try:
                loop.call_soon_threadsafe(action)
            except RuntimeError:  # it is over
                return

    # -- what others see ------------------------------------------------------------------------------------------

    async def _show(self) -> None:
        """Write the state down once a second, if it has changed."""
        shown: list[LinkInfo] | None = None
        while True:
            now = self.links()
            if now != shown:
                shown = now
                await asyncio.to_thread(self._save, now)
            await asyncio.sleep(STATE_S)

    def _save(self, now: list[LinkInfo]) -> None:
        time = from_us(self._engine.clock.time_ns() // 1000)
        try:
            links.save(self._station.path, LinksState(pid=os.getpid(), time=time, links=now), self._engine.disk)
        except OSError as error:
            logger.warning("the state of the links cannot be written: %s", error)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
