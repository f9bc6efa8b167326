"""The links of one station in one process: hub and links of its configuration, in a thread with an event loop.

However many processes have the directory open, one runs its links: whoever holds ``DATA/links/lock``. The others stand
by; the kernel frees a dead holder's lock at once, and one of them goes on.

    start ──▶ standing by ──lock──▶ running ──close──▶ closed
                   └──────────close──────────────────────▲
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from heliograph.clock import from_us
from heliograph.errors import HeliographError, StationClosed
from heliograph.federation import again
from heliograph.federation.burden import Burden, burdened
from heliograph.federation.loops import loop_factory, on_loop_error
from heliograph.federation.netlink import NetworkNews
from heliograph.federation.newsroom import Ends, Newsroom
from heliograph.federation.source import Fixed, Source, tls_files
from heliograph.federation.workers import Workers
from heliograph.log.locks import FileLock
from heliograph.station import links
from heliograph.station.links import LifetimeInfo, LinkInfo, LinksState

if TYPE_CHECKING:
    from heliograph.config import Config
    from heliograph.config import Link as LinkRules
    from heliograph.federation.conversation import Conversation
    from heliograph.federation.hub import Hub
    from heliograph.federation.identity import Identity
    from heliograph.federation.link import Link
    from heliograph.federation.terms import Shared
    from heliograph.station import Station

logger = logging.getLogger("heliograph.links")
STANDBY_S: Final = 1.0
"""How often a process that stands by looks whether the one that runs the links is gone."""
LOOK_S: Final = 1.0
CERTIFICATES_S: Final = 10.0
"""How often live links are looked at for what has expired; what was revoked is noticed with the new list."""
CHANNELS_S: Final = 5.0
"""How often channels are looked for that nobody told of."""
BURDEN_S: Final = 30.0
"""How often it is looked for what retention keeps because of links."""
FORGET_S: Final = 3600.0
"""How often absent peers are looked for; who is here is noted as often."""
CLOSE_S: Final = 10.0
BEGIN_S: Final = 10.0
THREADS: Final = 16

_T = TypeVar("_T")
_running: weakref.WeakSet[Federation] = weakref.WeakSet()


class Federation:
    """Runs the links of a station until it is closed.

    ``source``: the file that the configuration came from, and how to load it again; it is watched.
    """

    def __init__(self, station: Station, source: tuple[Path, Callable[[], Config]] | None = None) -> None:
        self._station = station
        self._engine = station.engine
        self._config = station.config
        self._source = Source(source)
        self._burden = Burden(station.engine)
        self._certificates: list[LifetimeInfo] = []
        self._fixed: Fixed
        self._directory = station.path / links.DIRECTORY
        self._tls = tls_files(station)
        self._closing = threading.Event()
        self._begun = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._hub: Hub | None = None
        self._links: dict[str, Link] = {}
        self._known: set[str] = set()
        self._shown: list[LinkInfo] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._make_link: Callable[[LinkRules], Link]
        self._identity: Identity
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="heliograph-links", daemon=True)

    def start(self) -> None:
        """Run in the background. Returns when the hub listens, or when another process runs the links."""
        self._engine.check_writable()
        self._directory.mkdir(exist_ok=True)
        self._station.on_close.append(self.close)
        _running.add(self)
        self._thread.start()
        self._begun.wait(BEGIN_S)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """End the links in order. Safe to call again; nothing to be done in a forked child."""
        if self._pid != os.getpid() or self._closing.is_set():
            return
        self._closing.set()
        self._call(self._end)
        self._thread.join(timeout_s)
        _running.discard(self)
        if self._thread.is_alive():
            logger.warning("the links did not end within %g s; what is not acknowledged is sent again", timeout_s)

    def reload(self, config: Config | None = None) -> None:
        """Take other rules and certificates into use, without dropping links: ``config``, or what the files say now."""
        if config is not None and self._loop is None:
            self._config = config  # for when it is this process's turn
        self._call(lambda: self._reload(config, now=True))

    @property
    def ended(self) -> bool:
        """Whether it is over, unasked: something went wrong that it could not go on after, and was logged."""
        return self._begun.is_set() and not self._thread.is_alive() and not self._closing.is_set()

    @property
    def running(self) -> bool:
        """Whether this process runs the links, rather than standing by."""
        return self._loop is not None

    @property
    def port(self) -> int:
        """Where the hub listens; 0 if it does not."""
        return 0 if self._hub is None else self._hub.port

    def links(self) -> list[LinkInfo]:
        """Every link to a hub, and every peer of this hub, as it was within the last second."""
        return self._shown if self.running else links.load(self._station.path, self._engine.disk)

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
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
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
        from heliograph.federation.terms import Shared

        loop = asyncio.get_running_loop()
        loop.set_exception_handler(on_loop_error)
        self._stop = asyncio.Event()
        workers = Workers(THREADS, loop)
        news = Newsroom(self._engine, self._on_news, self._call)

        def channel_came() -> None:
            self._call(lambda: self._soon(self._look_for_channels(workers)))

        self._engine.channel_news.listen(channel_came)
        watching = self._tls.watch(lambda: self._call(self._on_new_files))
        network = NetworkNews(self._on_network)
        self._loop = loop
        self._engine.relayed.patience_s = LOOK_S  # a thread that waits for a long log is one that nobody else has
        try:
            await self._begin(Shared(self._station, workers, news))
            self._show()
            self._station.live_links = self.links
            self._begun.set()
            await self._attend(workers)
        finally:
            self._engine.channel_news.unlisten(channel_came)
            watching.close()
            network.close()
            await self._end_all()
            self._show()
            news.close()
            workers.close()
            self._engine.relayed.patience_s = None
            self._save()

    async def _begin(self, shared: Shared) -> None:
        from heliograph.federation import sockets
        from heliograph.federation.hub import Hub
        from heliograph.federation.identity import Identity, software
        from heliograph.federation.link import Link

        asyncio.get_running_loop().set_exception_handler(sockets.on_exception)
        self._fixed = Fixed(self._config.hub.listen, self._station.config.tls)
        identity = self._identity = Identity(self._station, software())
        self._make_link = lambda rules: Link(shared, self._tls, identity, rules, self._links.values)
        self._known = set(self._engine.channel_names())
        links.note_configured(self._station.path, self._config, self._engine.disk)
        if self._config.hub.listen:
            self._hub = Hub(shared, self._tls, identity, self._config)
            await self._hub.start()
        for rules in self._config.links:
            self._links[rules.hub] = self._make_link(rules)

    async def _attend(self, workers: Workers) -> None:
        """Once a second until the end: look after certificates, channels, absent peers, and show how it is."""
        assert self._stop is not None
        turn = 0
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), LOOK_S)
            try:
                await self._attend_once(workers, turn)
            except StationClosed:
                raise
            except Exception:
                logger.exception("something beside the links failed, and is tried again")
            turn += 1

    async def _attend_once(self, workers: Workers, turn: int) -> None:
        if self._source.changed():
            self._reload(None)
        if turn % round(CERTIFICATES_S / LOOK_S) == 0:
            self._look()
        if self._show() or turn == 0:
            await self._run_in(workers, self._save)
        if turn % round(CHANNELS_S / LOOK_S) == 0:
            await self._look_for_channels(workers)
        if turn % round(FORGET_S / LOOK_S) == round(FORGET_S / LOOK_S) - 1 and self._hub is not None:
            await self._run_in(workers, self._hub.forget_absent, self._hub.note_here())
        if turn % round(BURDEN_S / LOOK_S) == 0:
            await self._run_in(workers, self._look_at_burden)

    async def _run_in(self, workers: Workers, function: Callable[..., _T], *arguments: object) -> _T | None:
        """Call something in a thread, if there are still some: a process that ends has none."""
        try:
            future = workers.run(function, *arguments)
        except RuntimeError:
            return None
        return await future

    def _end(self) -> None:
        if self._stop is not None:
            self._stop.set()

    async def _end_all(self) -> None:
        ends = [link.close() for link in self._links.values()]
        if self._hub is not None:
            ends.append(self._hub.close())
        await asyncio.gather(*ends)

    def _call(self, action: Callable[[], None]) -> None:
        """Have something done in the event loop, from any thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it is over
                loop.call_soon_threadsafe(action)

    # -- news, rules, certificates --------------------------------------------------------------------------------

    def conversations(self) -> list[Conversation]:
        """Every connection."""
        found = [] if self._hub is None else list(self._hub.conversations)
        return found + [link.conversation for link in self._links.values() if link.conversation is not None]

    def _on_news(self, ends: Ends) -> None:
        if self._hub is not None:
            self._hub.on_news(ends)
        for conversation in self.conversations():
            for channel, found in ends.items():
                conversation.on_news(channel, found)

    async def _look_for_channels(self, workers: Workers) -> None:
        with contextlib.suppress(HeliographError, OSError):  # the next look is soon
            asked = await self._run_in(workers, again.asked, self._station.path, self._engine.disk) or {}
            found = await self._run_in(workers, self._engine.channel_names)
            names = self._known if found is None else set(found)
            new, self._known = names - self._known, names
            if self._hub is not None:
                self._hub.on_news(dict.fromkeys(new))
            for conversation in self.conversations():
                conversation.send_again(asked)
                conversation.offer(new, names)

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_new_files(self) -> None:
        self._look()
        for link in self._links.values():
            link.hurry()

    def _on_network(self) -> None:
        """The network may work again: whoever waits need not. Who was refused has to wait for a person."""
        for link in self._links.values():
            if link.state == "waiting":
                link.hurry()

    def _look(self) -> None:
        if self._hub is not None:
            self._hub.look()
        for link in self._links.values():
            link.look()

    def _reload(self, config: Config | None, *, now: bool = False) -> None:
        self._tls.reload() if now else self._tls.refresh()
        config = self._source.load() if config is None else config
        if config is None:
            return
        self._config = config
        self._fixed.look(config)
        used = msgspec.structs.replace(self._station.config, hub=config.hub, links=config.links)
        self._station.config = self._engine.config = used  # some of it counts wherever messages are stored
        links.note_configured(self._station.path, config, self._engine.disk)
        self._identity.change(config)
        if self._hub is not None:
            self._hub.reload(config)
        wanted = {rules.hub: rules for rules in config.links}
        for address in [address for address in self._links if address not in wanted]:
            self._soon(self._links.pop(address).close())
        for address, rules in wanted.items():
            if address not in self._links:
                self._links[address] = self._make_link(rules)
            elif self._links[address].rules != rules:
                self._links[address].reload(rules)
            self._links[address].hurry()  # whoever was refused may be welcome now
        self._engine.audit.write("links-reloaded")
        logger.info("the rules of the links were loaded anew")

    # -- what others see ------------------------------------------------------------------------------------------

    def _show(self) -> bool:
        """See how it is now; whether that changed."""
        now = [link.info() for link in self._links.values()]
        if self._hub is not None:
            now += self._hub.infos()
        now, certificates = burdened(now, self._burden.held), self._tls.state().lifetimes
        changed = now != self._shown or certificates != self._certificates
        self._shown, self._certificates = now, certificates
        return changed

    def _look_at_burden(self) -> None:
        with contextlib.suppress(HeliographError, OSError):  # a channel that is deleted meanwhile
            self._burden.look(self._shown)

    def _save(self) -> None:
        time = from_us(self._engine.clock.time_ns() // 1000)
        try:
            state = LinksState(pid=os.getpid(), time=time, links=self._shown, certificates=self._certificates)
            links.save(self._station.path, state, self._engine.disk)
        except OSError as error:
            logger.warning("the state of the links cannot be written: %s", error)

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, or the other ends would not notice the parent's death."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        found = [conversation.descriptor for conversation in self.conversations()]
        if self._hub is not None and self._hub.socket is not None:
            found.append(self._hub.socket.fileno())
        for number in found:
            if number >= 0:
                with contextlib.suppress(OSError):
                    os.dup2(null, number, inheritable=False)
        os.close(null)


def _after_fork_in_child() -> None:
    for federation in list(_running):
        with contextlib.suppress(Exception):
            federation.abandon()
    _running.clear()


def _at_exit() -> None:
    """Who does not close its station ends all the same: an event loop must not run while Python is taken down."""
    for federation in list(_running):
        federation.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
