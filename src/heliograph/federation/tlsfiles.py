"""The TLS files of a running station: replaced while it runs, and watched.

New connections use new files as soon as they are whole and fit one another; until then the old ones stay, with a
warning. Live links are not dropped by a reload: whoever has links asks ``why_invalid`` for each of them after a change
and now and then, and ends those whose peer was revoked or has expired.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from queue import Empty, SimpleQueue
from ssl import SSLContext
from types import FrameType
from typing import Any, Protocol, Self

import msgspec

from heliograph.clock import SYSTEM_CLOCK, Clock, from_us
from heliograph.disk import anchored
from heliograph.errors import CertificateError, HeliographError
from heliograph.federation.certificates import name_of
from heliograph.federation.lifetimes import Reminders, Status, shown
from heliograph.federation.tls import TlsMaterial, TlsPaths, load
from heliograph.federation.trust import parse
from heliograph.limits import TLS_LOOK_S
from heliograph.station.links import LifetimeInfo

logger = logging.getLogger("heliograph.tls")


class Connected(Protocol):
    """An ``SSLSocket``, an ``SSLObject``, or what stands for one in a transport's ``ssl_object``."""

    def getpeercert(self, binary_form: bool) -> Any:  # noqa: D102
        ...


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Who is at the other end of a connection, by its certificate."""

    name: str
    certificate: bytes
    """DER, for ``why_invalid``."""
    not_after: datetime

    def days_left(self, now: datetime) -> float:
        """How long the certificate is still good; negative once it has ended."""
        return round((self.not_after - now).total_seconds() / 86_400, 2)


class TlsState(msgspec.Struct, frozen=True, kw_only=True):
    """The certificates of a station, for statistics, health and commands."""

    name: str
    """Who the station's certificate says it is."""
    status: Status
    lifetimes: list[LifetimeInfo]
    """Its certificate first, then CAs and revocation lists."""
    problem: str
    """Why the files on disk are not in use; empty if they are."""
    warnings: list[str]
    """What deserves attention: permissions, lists without a CA, CAs without a list."""
    reloads: int
    """How often new files were taken into use."""
    reload_failures: int
    """How often changed files could not be."""


class TlsFiles:
    """Contexts and trust from files. Loading raises what is wrong with them; a reload keeps the old ones instead."""

    def __init__(
        self, cert: str | Path, key: str | Path, ca: str | Path, crl: str | Path | None = None, *,
        clock: Clock = SYSTEM_CLOCK, on_warning: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        self.paths = TlsPaths(anchored(cert), anchored(key), anchored(ca), None if crl is None else anchored(crl))
        self._clock = clock
        self._on_warning = on_warning
        self._lock = threading.Lock()
        self._reminders = Reminders()
        self._refused: tuple[object, ...] | None = None
        self._changing: tuple[object, ...] | None = None
        self._problem = ""
        self._reloads = 0
        self._failures = 0
        self._material = load(self.paths)
        self._warn_of(self._material)

    # -- connections ----------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """Who this station is, by its certificate."""
        return self._material.name

    @property
    def server_context(self) -> SSLContext:
        """For accepting: another object after each reload. Never change it."""
        return self._material.server

    @property
    def client_context(self) -> SSLContext:
        """For dialling: another object after each reload. ``server_hostname`` must be given, and is checked."""
        return self._material.client

    def peer(self, connection: Connected) -> Peer:
        """Who is at the other end of a connection after its handshake; CertificateError if nobody we may talk to.

        Also looks at files that were replaced since the context was made.
        """
        der = connection.getpeercert(True)
        if not der:
            raise CertificateError("the peer showed no certificate; both sides of a link need one")
        certificate = parse(der)
        name = name_of(certificate)
        now = self._now()
        reason = self._material.trust.why_invalid(certificate, now)
        if reason:
            raise CertificateError(f"'{name}' is refused: {reason}")
        return Peer(name=name, certificate=der, not_after=certificate.not_valid_after_utc)

    def why_invalid(self, certificate_der: bytes) -> str | None:
        """Why a peer's certificate is not good any more, by the files in use now; None if it is."""
        return self._material.trust.why_invalid(parse(certificate_der), self._now())

    def still_valid(self, certificate_der: bytes) -> bool:
        """Whether a live link's peer may stay."""
        return self.why_invalid(certificate_der) is None

    # -- reload ---------------------------------------------------------------------------------------------

    def reload(self) -> bool:
        """Take the files on disk into use, now. False, a warning and the old ones if something is wrong with them."""
        with self._lock:
            signature = self.paths.signature()
            try:
                found = load(self.paths)
            except (HeliographError, OSError) as error:
                self._refuse(signature, str(error))
                return False
            self._material = found
            self._refused, self._problem = None, ""
            self._reloads += 1
        logger.info("new TLS files are in use for new connections (%s)", self.paths.cert)
        self._warn_of(found)
        return True

    def refresh(self) -> bool:
        """As ``reload``, if the files changed and have been quiet since the last look."""
        signature = self.paths.signature()
        if signature in (self._material.signature, self._refused):
            if signature == self._material.signature:
                self._problem = ""  # somebody put the old ones back
            self._changing = None
            return False
        if signature != self._changing:
            self._changing = signature
            return False
        self._changing = None
        return self.reload()

    def _refuse(self, signature: tuple[object, ...], reason: str) -> None:
        self._refused, self._problem = signature, reason
        self._failures += 1
        self._warn(f"the new TLS files are not used, the old ones stay in use: {reason}")

    def _warn_of(self, material: TlsMaterial) -> None:
        for warning in material.warnings:
            self._warn(warning)
        reason = material.trust.why_invalid(material.certificate, self._now())
        if reason:
            self._warn(f"peers will refuse this station '{material.name}': {reason}")
        self.remind()

    def _warn(self, text: str) -> None:
        logger.warning("%s", text)
        if self._on_warning is not None:
            self._on_warning(text)

    # -- time -----------------------------------------------------------------------------------------------

    def _now(self) -> datetime:
        return from_us(self._clock.time_ns() // 1000)

    def remind(self) -> list[str]:
        """Warn of what ends soon: each of 30, 14, 7, 3 and 1 days before, and at the end, once."""
        due = self._reminders.due(self._material.lifetimes, self._now())
        for text in due:
            self._warn(text)
        return due

    def own_fault(self) -> str:
        """Why others refuse this station, as far as it can see that itself; empty if it cannot."""
        material = self._material
        reason = material.trust.why_invalid(material.certificate, self._now())
        return f"peers refuse this station '{material.name}': {reason}" if reason else ""

    def state(self) -> TlsState:
        """Everything that statistics, health and commands show."""
        now = self._now()
        material = self._material
        lifetimes = [shown(lifetime, now) for lifetime in material.lifetimes]
        statuses = {lifetime.status for lifetime in lifetimes}
        own = material.trust.why_invalid(material.certificate, now)
        warnings = [*material.warnings, *([f"peers will refuse this station: {own}"] if own else [])]
        if lifetimes[0].status == "bad":
            status: Status = "bad"
        else:
            status = "warn" if statuses != {"ok"} or warnings or self._problem else "ok"
        return TlsState(
            name=material.name, status=status, lifetimes=lifetimes, problem=self._problem, warnings=warnings,
            reloads=self._reloads, reload_failures=self._failures,
        )  # fmt: skip

    # -- watching -------------------------------------------------------------------------------------------

    def watch(
        self, on_change: Callable[[], None] | None = None, *, interval_s: float = TLS_LOOK_S, hangup: bool = False
    ) -> Watching:  # fmt: skip
        """Look for changed files and for what ends soon, in a thread, until the result is closed.

        ``on_change`` is called in that thread after new files were taken into use. ``hangup`` reloads on SIGHUP, too;
        it needs the main thread.
        """
        return Watching(self, on_change, interval_s, hangup)


class Watching:
    """A thread that looks after the files. A context manager, too."""

    def __init__(
        self, files: TlsFiles, on_change: Callable[[], None] | None, interval_s: float, hangup: bool
    ) -> None:  # fmt: skip
        self._files = files
        self._on_change = on_change
        self._interval_s = interval_s
        self._orders: SimpleQueue[bool] = SimpleQueue()  # unlike an Event, it may be used in a signal handler
        self._closed = False
        self._before: Any = None
        self._hangup = hangup
        if hangup:
            self._before = signal.signal(signal.SIGHUP, self._on_hangup)
        self._thread = threading.Thread(target=self._run, name="heliograph-tls", daemon=True)
        self._thread.start()

    def reload(self) -> None:
        """Have the files loaded at once, whether they changed or not. Signal handlers may call it."""
        self._orders.put(True)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.reload()
        if callable(self._before):
            self._before(number, frame)

    def _run(self) -> None:
        while True:
            try:
                asked = self._orders.get(timeout=self._interval_s)
            except Empty:
                asked = False
            if self._closed:
                return
            try:
                self._look(asked)
            except Exception:
                logger.exception("looking after the TLS files failed; it goes on")

    def _look(self, asked: bool) -> None:
        changed = self._files.reload() if asked else self._files.refresh()
        if changed and self._on_change is not None:
            self._on_change()
        self._files.remind()

    def close(self) -> None:
        """End the thread and give the signal back. Safe to call again."""
        if self._hangup:
            self._hangup = False
            with contextlib.suppress(ValueError, TypeError):  # not the main thread, or not set from Python: ours stays
                signal.signal(signal.SIGHUP, self._before)
        self._closed = True
        self._orders.put(False)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
