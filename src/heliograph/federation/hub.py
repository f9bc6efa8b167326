"""The hub of a station: accepts other stations, each with the rules of its name.

Two live connections of one name: the second is refused, unless the first does not answer; then the same station came
back before its old connection was noticed to be dead, and that one is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from datetime import datetime
from typing import Any, Final

import picows

from heliograph.clock import from_us
from heliograph.config import Config
from heliograph.config import Peer as PeerRules
from heliograph.errors import ConfigError
from heliograph.federation import peerfile, sockets
from heliograph.federation.clients import Clients, ephemeral
from heliograph.federation.conversation import Conversation
from heliograph.federation.events import Called
from heliograph.federation.identity import Identity
from heliograph.federation.newsroom import Ends
from heliograph.federation.quota import Quota
from heliograph.federation.rules import Rules
from heliograph.federation.showing import shown, since_now
from heliograph.federation.terms import Shared, Terms
from heliograph.federation.tls import refusal
from heliograph.federation.tlsfiles import TlsFiles
from heliograph.station import links
from heliograph.station.links import LinkInfo

logger = logging.getLogger("heliograph.links")
PROBE_S: Final = 2.0
"""How long an old connection has time to show that it lives."""
LOOK_S: Final = 0.02
CLOSE_S: Final = 5.0
BIND_S: Final = 5.0
"""How long until an address that cannot be listened at is tried again."""
REFUSED_S: Final = 300.0
"""How long a peer that was refused, and did not try again, is called so."""
AUDITS_MAX: Final = 100
"""How many refusals a minute are written to the audit log; the others are counted."""


class Hub:
    """Accepts stations."""

    def __init__(self, shared: Shared, tls: TlsFiles, identity: Identity, config: Config) -> None:
        self._shared = shared
        self._engine = shared.station.engine
        self._tls = tls
        self._identity = identity
        self._config = config
        self._peers = {peer.name: peer for peer in config.hub.peers}
        self._askers = frozenset({*self._peers, self._engine.name})
        self._loop = asyncio.get_running_loop()
        self.socket: socket.socket | None = None
        self.error = ""
        self._accepting: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.conversations: set[Conversation] = set()
        self._live: dict[str, Conversation] = {}
        self._clients = Clients(shared)
        self._ended: dict[str, tuple[Any, int, str]] = {}  # since when, how often connected, why it ended
        self._refused: dict[str, int] = {}  # messages that connections before this one were refused
        self._refusals: dict[str, tuple[float, Any, str]] = {}  # when, and why, somebody with that name was refused
        self._wanted: dict[str, list[str]] = {}
        self._noting = threading.Lock()
        self._budget = AUDITS_MAX
        self._unaudited = 0
        self._minute = self._loop.time()

    async def start(self) -> None:
        """Listen; if that fails, again and again."""
        self._bind()
        self._accepting = self._loop.create_task(self._accept())

    def _bind(self) -> None:
        try:
            self.socket = sockets.listen(self._config.hub.listen)
            self.error = ""
        except ConfigError as error:
            if str(error) != self.error:
                logger.error("%s; trying again every %g s", error, BIND_S)
            self.error = str(error)

    @property
    def port(self) -> int:
        """Where it listens; 0 if it does not."""
        return 0 if self.socket is None else self.socket.getsockname()[1]

    async def close(self) -> None:
        """End every connection in order."""
        if self._accepting is not None:
            self._accepting.cancel()
        if self.socket is not None:
            self.socket.close()
        for conversation in list(self.conversations):
            conversation.bye("the hub is closed")
        ending = [self._loop.create_task(one.finished.wait()) for one in self.conversations]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_S)
        for task in (*ending, *self._open):  # some may be in the middle of a handshake
            task.cancel()
        await asyncio.gather(*ending, *self._open, return_exceptions=True)

    # -- connections ----------------------------------------------------------------------------------------------

    async def _accept(self) -> None:
        while True:
            if self.socket is None:
                await asyncio.sleep(BIND_S)
                self._bind()
                continue
            try:
                connection, address = await self._loop.sock_accept(self.socket)
            except OSError as error:  # too many open files, for example
                logger.warning("the hub cannot accept: %s", error)
                await asyncio.sleep(1.0)
                continue
            if len(self._open) >= self._config.hub.connections_max:
                connection.close()
                self._audit_refusal(address, "", f"hub.connections_max = {self._config.hub.connections_max} are there")
                continue
            task = self._loop.create_task(self._serve(connection, address))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _serve(self, connection: socket.socket, address: Any) -> None:
        made: list[Conversation] = []

        def listener() -> Conversation:
            made.append(Conversation(self._shared, self))
            return made[0]

        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await sockets.accept(connection, self._tls.server_context, listener, self._identity.frame_bytes)
        except (OSError, TimeoutError, picows.WSError) as error:
            connection.close()
            self._audit_refusal(address, "", refusal(error))
            return
        if not made:
            self._audit_refusal(address, "", "no WebSocket was asked for after the TLS handshake")
            return
        conversation = made[0]
        self.conversations.add(conversation)
        try:
            await conversation.finished.wait()
        finally:
            self.conversations.discard(conversation)
            self._ended_now(conversation, address)

    def _ended_now(self, conversation: Conversation, address: Any) -> None:
        name, closed = conversation.session_peer, conversation.closed
        self._clients.left(conversation)
        reason = "" if closed is None else f"{closed.reason} {closed.upgrade}".strip()
        live = self._live.get(name) is conversation
        if live:
            del self._live[name]
        if conversation.established_at is None:
            self._refusals[name] = (self._loop.time(), since_now(self._engine), reason)
            self._audit_refusal(address, name, reason)
            return
        if ephemeral(conversation):
            self._audit("client-down", peer=name, address=conversation.address, why=reason)
            return
        self._refused[name] = self._refused.get(name, 0) + conversation.sender.refused
        if live:
            count = self._ended.get(name, (None, 0, ""))[1]
            self._ended[name] = (since_now(self._engine), count, reason)
        logger.info("%s is gone: %s", name, reason or "it hung up")
        self._audit("link-down", peer=name, address=conversation.address, why=reason)
        self._shared.workers.submit(self._note_here, name, self._now())

    def identify(self, connection: Any) -> Terms:
        """Who it is by its certificate, and what that one may do."""
        peer = self._tls.peer(connection)
        rules = self._peers.get(peer.name, PeerRules(name=peer.name))
        return Terms("peer", peer, self._identity.ours(), self._rules(rules), _quota(rules), "auto")

    async def admit(self, conversation: Conversation) -> tuple[str, str] | None:
        """Only who is known, and each only once."""
        name = conversation.session_peer
        if name not in self._peers:
            return "unknown", f"'{name}' is not among the hub's peers: name it in hub.peers"
        if ephemeral(conversation):
            await self._clients.admit(conversation)
            return None
        old = self._live.get(name)
        if old is not None and not old.over.is_set():
            if not await self._silent(old, conversation):
                return "duplicate", f"'{name}' is connected already, from {old.address}"
            old.drop("it did not answer when its station came back")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(old.finished.wait(), PROBE_S)
        if self._live.get(name) not in (None, old):
            return "duplicate", f"'{name}' is connected already"
        self._live[name] = conversation
        return None

    async def _silent(self, old: Conversation, new: Conversation) -> bool:
        """Whether an old connection of the same station does not answer."""
        theirs, known = new.session.theirs, old.session.theirs
        if theirs is None or known is None or known.station != theirs.station:
            return False
        before = old.heard_at
        old.probe()
        for _ in range(round(PROBE_S / LOOK_S)):
            if old.over.is_set() or old.heard_at != before:
                break
            await asyncio.sleep(LOOK_S)
        return old.over.is_set() or old.heard_at == before

    def established(self, conversation: Conversation) -> None:
        """It works."""
        name = conversation.session_peer
        if ephemeral(conversation):
            self._audit("client-up", peer=name, address=conversation.address)
            return
        self._refusals.pop(name, None)
        since, count, _ = self._ended.get(name, (None, -1, ""))
        self._ended[name] = (since, count + 1, "")
        logger.info("%s is connected, from %s", name, conversation.address)
        self._audit("link-up", peer=name, address=conversation.address)
        self._shared.workers.submit(self._note_here, name, self._now())

    def allowed(self, conversation: Conversation) -> None:
        """What it sends is asked for by itself."""

    def wanting(self, conversation: Conversation) -> None:
        """Of what it asked for before and does not any more nothing is kept for it."""
        name = conversation.session_peer
        self._wanted[name] = [one.channels for one, _ in conversation.session.wanted]
        self._shared.workers.submit(self._note_wanted, name)

    def _note_wanted(self, name: str) -> None:
        """In a thread; whoever is the last to do so writes down what was said last."""
        directory = peerfile.directory_of(self._shared.station.path, "peer", name)
        with self._noting:
            peerfile.note_wanted(directory, self._wanted[name], self._engine.disk)

    def called(self, conversation: Conversation, event: Called) -> None:
        """It asks for something."""
        self._clients.called(conversation, event)

    def on_news(self, ends: Ends) -> None:
        """Channels grew."""
        self._clients.on_news(ends)

    # -- rules, certificates, absence -----------------------------------------------------------------------------

    def reload(self, config: Config) -> None:
        """Other rules from now on; who is not among the peers any more is sent away."""
        self._config = config
        self._clients.reload(config)
        self._peers = {peer.name: peer for peer in config.hub.peers}
        self._askers = frozenset({*self._peers, self._engine.name})
        quotas = {name: _quota(rules) for name, rules in self._peers.items()}
        for conversation in list(self.conversations):
            rules = self._peers.get(conversation.session_peer)
            if rules is None:
                conversation.refuse("unknown", "not among the hub's peers any more")
            else:
                conversation.allow(self._rules(rules), None, quotas[rules.name])

    def look(self) -> None:
        """Now and then: end connections whose certificate is not good any more, and tidy up."""
        self._clients.look()
        for conversation in list(self.conversations):
            if conversation.peer is not None:
                why = self._tls.why_invalid(conversation.peer.certificate)
                if why:
                    conversation.refuse("certificate", why)
        if self._loop.time() - self._minute > 60.0:
            self._minute, self._budget = self._loop.time(), AUDITS_MAX
            if self._unaudited:
                self._audit("link-refusals", count=self._unaudited)
                self._unaudited = 0

    def note_here(self) -> list[str]:
        """Who is here now."""
        return sorted(self._live)

    def forget_absent(self, here: list[str]) -> None:
        """In a thread: forget how far stations have come that were not here for too long."""
        for name in here:
            self._note_here(name, self._now())
        try:
            self._forget_absent(here)
        except OSError as error:
            logger.warning("cannot look who was not here for long, trying again: %s", error)

    def _forget_absent(self, here: list[str]) -> None:
        root = peerfile.directory_of(self._shared.station.path, "peer", "any").parent
        patience = self._config.hub.forget_after_s
        if not patience or not root.is_dir():
            return
        now = self._engine.clock.time_ns() / 1e9
        for name in self._engine.disk.listdir(root):
            last = links.last_here(root / name, self._engine.disk)
            if name not in here and last and now - last > patience:
                self._engine.disk.remove_tree(root / name)
                self._engine.audit.write("link-forgotten", peer=name, last_here=from_us(int(last * 1e6)).isoformat())
                logger.warning("'%s' was not here for %.1f days: its positions are forgotten", name, patience / 86_400)

    def _now(self) -> datetime:
        return from_us(self._engine.clock.time_ns() // 1000)

    def _note_here(self, name: str, now: datetime) -> None:
        """Also since when it comes: a channel that is made after that is new to it, from its first message on."""
        try:
            directory = peerfile.directory_of(self._shared.station.path, "peer", name)
            peerfile.first_here(directory, now, self._engine.disk)
            peerfile.here(directory, self._engine.disk)
        except OSError as error:
            logger.warning("cannot note that '%s' is here: %s", name, error)

    # -- what is seen ---------------------------------------------------------------------------------------------

    def infos(self) -> list[LinkInfo]:
        """Every peer, here or not."""
        found = []
        for name in sorted({*self._peers, *self._live}):
            conversation = self._live.get(name)
            since, count, why = self._ended.get(name, (None, 0, ""))
            if conversation is not None and conversation.established_at is not None:
                before = self._refused.get(name, 0)
                found.append(shown(self._engine, conversation, "peer", conversation.address, max(count, 0), before))
            else:
                refused = self._refused_lately(name)
                if refused is not None:
                    since, why = refused
                info = LinkInfo(
                    name=name, kind="peer", address="", state="absent" if refused is None else "refused",
                    reconnects=max(count, 0), refused=self._refused.get(name, 0), error=why or self.error,
                    since=since or self._identity.started,
                )  # fmt: skip
                found.append(info)
        return found + self._clients.infos()

    def _refused_lately(self, name: str) -> tuple[Any, str] | None:
        """Since when, and why, a peer is refused that tries again and again."""
        moment, since, why = self._refusals.get(name, (0.0, None, ""))
        return (since, why) if since is not None and self._loop.time() - moment < REFUSED_S else None

    def _audit_refusal(self, address: Any, peer: str, why: str) -> None:
        if self._budget <= 0:
            self._unaudited += 1
            return
        self._budget -= 1
        where = sockets.written(address)
        logger.warning("the hub refused %s (%s): %s", peer or "somebody", where, why)
        self._audit("link-refused", peer=peer, address=where, why=why)

    def _rules(self, peer: PeerRules) -> Rules:
        return Rules(peer.name, peer.publish, peer.subscribe, peer.relay, peer.reply, self._askers)

    def _audit(self, event: str, **facts: object) -> None:
        self._shared.workers.submit(lambda: self._engine.audit.write(event, **facts))


def _quota(peer: PeerRules) -> Quota:
    return Quota(messages_per_s=peer.messages_per_s, bytes_per_s=peer.bytes_per_s)
