"""A link to a hub: dialled, and dialled again, for as long as the station runs.

connecting ──▶ up ──lost──▶ waiting ──pause──▶ connecting …
    └──refused, or nobody there──▲
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import picows

from heliograph.config import Link as LinkRules
from heliograph.federation import peerfile, sockets
from heliograph.federation.autosync import AutoSync
from heliograph.federation.backoff import failures_after, pause_s
from heliograph.federation.conversation import Conversation
from heliograph.federation.events import Called
from heliograph.federation.frames import Wanted
from heliograph.federation.identity import Identity
from heliograph.federation.quota import Quota
from heliograph.federation.rules import EVERYTHING, Rules
from heliograph.federation.showing import shown, since_now
from heliograph.federation.terms import Shared, Terms
from heliograph.federation.tls import refusal
from heliograph.federation.tlsfiles import TlsFiles
from heliograph.names import REPLY_TO
from heliograph.station import links
from heliograph.station.links import LinkInfo, LinkState

logger = logging.getLogger("heliograph.links")


class Link:
    """One hub of the configuration. ``all_links``: those of this station, of which no two go to hubs of one name."""

    def __init__(
        self, shared: Shared, tls: TlsFiles, identity: Identity, rules: LinkRules,
        all_links: Callable[[], Iterable[Link]] = tuple,
    ) -> None:  # fmt: skip
        self._shared = shared
        self._all_links = all_links
        self._engine = shared.station.engine
        self._tls = tls
        self._identity = identity
        self.rules = self._told = rules  # and what the connection goes by
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self.conversation: Conversation | None = None
        self._linked: Conversation | None = None  # once it is known that it may stay
        self._name = links.hub_at(shared.station.path, rules.hub, self._engine.disk)
        self.state: LinkState = "connecting"
        self._since = since_now(self._engine)
        self._connects = 0
        self._refused = 0
        self._error = ""
        self._sync = AutoSync(shared.station)
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        """End it in order."""
        self._stop.set()
        self._hurry.set()
        if self.conversation is not None:
            self.conversation.bye("the station is closed")
        await asyncio.wait([self._task], timeout=5.0)
        self._task.cancel()

    def hurry(self) -> None:
        """Try again now instead of after the pause."""
        self._hurry.set()

    async def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._enter("connecting")
            self._hurry.clear()
            held, refused = await self._try()
            if self._stop.is_set():
                return
            failures = failures_after(failures, held, refused=refused)
            self._enter("refused" if refused else "waiting")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause_s(failures, random.random()))
                failures = 0  # something changed: if it does not work at once, it may soon

    async def _try(self) -> tuple[float, bool]:
        """The same as ``_once``, whatever goes wrong: a link is never given up."""
        try:
            return await self._once()
        except Exception as error:
            logger.exception("the link to the hub %s failed, and is made again", self.rules.hub)
            self._fail(f"{type(error).__name__}: {error}")
            return 0.0, False

    async def _once(self) -> tuple[float, bool]:
        """Connect and stay so as long as it goes: how long that was, and whether it was refused."""
        made: list[Conversation] = []

        def listener() -> Conversation:
            made.append(Conversation(self._shared, self))
            return made[0]

        try:
            await sockets.dial(self.rules.hub, self._tls.client_context, listener, self._identity.frame_bytes)
        except (OSError, TimeoutError, picows.WSError) as error:
            self._fail(self._why(error))
            if made:
                await made[0].finished.wait()
            return 0.0, False
        conversation = self.conversation = made[0]
        if self._stop.is_set():
            conversation.bye("the station is closed")
        await conversation.finished.wait()
        self.conversation = None
        if conversation.peer is not None:
            self._refused += conversation.sender.refused
        closed = conversation.closed
        reason = "" if closed is None else f"{closed.reason} {closed.upgrade}".strip()
        if conversation.established_at is None:
            self._fail(reason)
            return 0.0, closed is not None and closed.code == "refused"
        self._error = reason
        if not self._stop.is_set():
            logger.warning("the link to %s (%s) is down: %s", self._name, self.rules.hub, reason or "it hung up")
        self._audit("link-down", peer=self._name, address=self.rules.hub, why=reason)
        return conversation.age_s, closed is not None and closed.code == "refused"

    def _why(self, error: BaseException) -> str:
        """Why there is no connection. Whoever refuses a certificate may only hang up; then our own may tell."""
        hung_up = isinstance(error, ConnectionResetError | BrokenPipeError | picows.WSError | ssl.SSLError)
        doubted = hung_up and not isinstance(error, ssl.SSLCertVerificationError)
        return (self._tls.own_fault() if doubted else "") or refusal(error)

    def _fail(self, why: str) -> None:
        """The first time it is worth a word."""
        if why != self._error:
            self._error = why
            logger.warning("no link to the hub %s: %s", self.rules.hub, why)
            self._audit("link-failed", address=self.rules.hub, why=why)

    def _enter(self, state: LinkState) -> None:
        if state != self.state:
            self.state, self._since = state, since_now(self._engine)

    # -- for the conversation -------------------------------------------------------------------------------------

    def identify(self, connection: Any) -> Terms:
        """The hub by its certificate: it may send what we want, and whose messages these are is its concern."""
        peer = self._tls.peer(connection)
        self._name, self._told = peer.name, self.rules
        wants = self._wants()
        return Terms(
            "hub", peer, self._identity.ours(self._push(), wants), self._rules(), _UNLIMITED, self.rules.compress
        )

    def _wants(self) -> tuple[Wanted, ...]:
        wants = tuple(Wanted(text, self.rules.start) for text in self.rules.subscribe)
        return (*wants, Wanted(REPLY_TO + self._engine.name, "first"))

    def _push(self) -> tuple[str, ...]:
        """What is configured, and what is replied here to requests of other stations."""
        return (*self.rules.publish, REPLY_TO + EVERYTHING)

    def _rules(self) -> Rules:
        replies = REPLY_TO + self._engine.name
        return Rules(self._name, publish=[*self.rules.subscribe, replies], relay=[EVERYTHING])

    async def admit(self, conversation: Conversation) -> tuple[str, str] | None:
        """Whom we dialled may stay, unless it is ourselves, or the namesake of a hub that we are linked with.

        How far a hub has come is remembered by its name: what one of two has, both would be taken to have.
        """
        name = conversation.session_peer
        if name == self._engine.name:
            return "name", f"{self.rules.hub} is this station itself"
        for other in self._all_links():
            if other is not self and other.is_linked_with(name):
                at = other.rules.hub
                return "duplicate", f"{self._engine.name} is linked with a station '{name}' already, at {at}"
        self._linked = conversation
        return None

    def is_linked_with(self, name: str) -> bool:
        """Whether there is a connection now with a hub of that name."""
        return self._linked is not None and not self._linked.over.is_set() and self._linked.session_peer == name

    def established(self, conversation: Conversation) -> None:
        """It works."""
        self._connects += 1
        self._error = ""
        self._enter("up")
        logger.info("the link to %s (%s) is up", self._name, self.rules.hub)
        self._audit("link-up", peer=self._name, address=self.rules.hub)
        directory = peerfile.directory_of(self._shared.station.path, "hub", self._name)
        self._shared.workers.submit(peerfile.note_address, directory, self.rules.hub, self._engine.disk)
        if self._told is not self.rules:
            self._tell(conversation)
        self._sync.begin(conversation, self.rules.sync)

    def allowed(self, conversation: Conversation) -> None:
        """The hub changed its rules: it may give, or take, what it refused."""
        self._sync.begin(conversation, self.rules.sync)

    def wanting(self, conversation: Conversation) -> None:
        """What a hub is sent says the configuration."""

    def called(self, conversation: Conversation, event: Called) -> None:
        """A hub has nothing to ask for."""
        conversation.session.calls.fail(event.call, "NotFound", f"there is no request {event.name!r} here")

    def reload(self, rules: LinkRules) -> None:
        """Other channels from now on."""
        before, self.rules = self.rules, rules
        conversation = self.conversation
        if conversation is not None and conversation.established_at is not None:
            self._tell(conversation)
            if rules.sync != before.sync:
                self._sync.begin(conversation, rules.sync)

    def _tell(self, conversation: Conversation) -> None:
        """Go by the rules that there are now."""
        before, self._told = self._told, self.rules
        conversation.want(self._wants())  # first: what is not asked for any more is not to be parked
        conversation.allow(self._rules(), self._push(), _UNLIMITED)
        if self.rules.compress != before.compress:
            conversation.sender.compress(self.rules.compress)

    def look(self) -> None:
        """Now and then: end the connection if the hub's certificate is not good any more."""
        conversation = self.conversation
        if conversation is not None and conversation.peer is not None:
            why = self._tls.why_invalid(conversation.peer.certificate)
            if why:
                conversation.refuse("certificate", why)

    def info(self) -> LinkInfo:
        """As it is now."""
        reconnects = max(0, self._connects - 1)
        conversation = self.conversation
        if self.state == "up" and conversation is not None:
            info = shown(self._engine, conversation, "hub", self.rules.hub, reconnects, self._refused)
            return msgspec.structs.replace(info, synced=self._sync.last)
        return LinkInfo(
            name=self._name, kind="hub", address=self.rules.hub, state=self.state, since=self._since,
            reconnects=reconnects, refused=self._refused, error=self._error, synced=self._sync.last,
        )  # fmt: skip

    def _audit(self, event: str, **facts: object) -> None:
        self._shared.workers.submit(lambda: self._engine.audit.write(event, **facts))


_UNLIMITED = Quota(messages_per_s=0, bytes_per_s=0)
