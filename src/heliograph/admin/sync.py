"""Makes channels of this station and of a hub equal, once.

The hub is asked as a client without a directory asks: beside a link to the same hub, if there is one, and whether or
not some process runs the links of this directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.admin import Progress
from heliograph.client.asker import LOSSES_MAX
from heliograph.client.keeper import Keeper, address_of
from heliograph.client.line import Line
from heliograph.errors import ConfigError, NotFound, Unreachable
from heliograph.federation import targets
from heliograph.federation.questions import Lost
from heliograph.federation.rules import Names
from heliograph.federation.syncing import Side, Synced, Syncing, Way, channels_known
from heliograph.federation.targets import Target
from heliograph.federation.tlsfiles import TlsFiles
from heliograph.station import links

if TYPE_CHECKING:
    from heliograph.station import Station

TIMEOUT_S: Final = 30.0


class SyncReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it."""

    hub: str
    address: str
    dry_run: bool
    equal: bool
    """Whether both sides have now, or in a dry run had already, what was asked for."""
    fetched: int
    """How many messages were appended here."""
    sent: int
    """How many were appended there."""
    channels: list[Synced]


def sync(
    station: Station, hub: str, channels: Sequence[str] = (), *, sides: tuple[Side, ...] = ("here", "there"),
    dry_run: bool = False, progress: Progress | None = None, timeout_s: float = TIMEOUT_S,
) -> SyncReport:  # fmt: skip
    """Give both sides what they lack. ``hub``: an address, or the name of a hub that a link was with.

    ``channels``: names and patterns; without, what the link to that hub says. ``sides``: who is to get something.
    ``timeout_s``: how long a hub that is not there is waited for.
    """
    address = address_of(_address(station, hub))
    Names(channels)  # what is no name is told before anybody is asked
    said = [Target(tuple(channels))] if channels else _configured(station, address)
    wanted = [Target(one.channels, tuple(side for side in one.sides if side in sides)) for one in said]
    report, known = asyncio.run(_Run(station, address, wanted, timeout_s, dry_run=dry_run, progress=progress).run())
    empty = {one.channel for one in report.channels if not one.lacking and not one.left}
    missing = empty.intersection(channels) - known if channels else ()
    if missing or not report.channels:
        names = ", ".join(sorted(missing or channels))
        raise NotFound(f"neither {station.name} nor {report.hub} has a channel {names}")
    return report


def _configured(station: Station, address: str) -> list[Target]:
    found = [target for link in station.config.links if link.hub == address for target in targets.of_link(link)]
    if not any(target.channels for target in found):
        raise ConfigError(f"no link to {address} is configured: name the channels to sync, '>' for all")
    return found


def _address(station: Station, hub: str) -> str:
    """A hub that was linked may be called by its name."""
    known = station.path / links.DIRECTORY / "hub" / hub / links.ADDRESS_FILE
    if ":" not in hub and "/" not in hub and known.is_file():
        return station.engine.disk.read_file(known).decode()
    return hub


def tls_of(station: Station) -> TlsFiles:
    """The certificate that the station shows."""
    tls = station.config.tls
    unset = [f"tls.{name}" for name in ("cert", "key", "ca") if not getattr(tls, name)]
    if unset:
        raise ConfigError(f"to sync with a hub, set {', '.join(unset)}: 'helio keygen' makes certificates")
    files = TlsFiles(tls.cert, tls.key, tls.ca, tls.crl or None)
    if files.name != station.name:
        raise ConfigError(
            f"the certificate {tls.cert} is '{files.name}' and the station '{station.name}': they must have one name"
        )
    return files


class _Run:
    """One sync."""

    def __init__(
        self, station: Station, address: str, wanted: Sequence[Target], timeout_s: float, *, dry_run: bool,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._station = station
        self._address = address
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._dry_run = dry_run
        self._progress = progress

    async def run(self) -> tuple[SyncReport, set[str]]:
        """All channels, one after the other; and those that one of the sides has."""
        keeper = Keeper(self._address, tls_of(self._station))
        try:
            line = await self._line(keeper)
            way = Way(keeper.hub, partial(self._ask, keeper), asyncio.to_thread, lambda: line.body_bytes_max)
            known = await channels_known(self._station, way)
            done = [await self._one(way, *one) for one in targets.meant(self._wanted, known).items()]
        finally:
            await keeper.close()
        if not self._dry_run:
            self._audit(keeper.hub, done)
        report = SyncReport(
            hub=keeper.hub, address=self._address, dry_run=self._dry_run,
            equal=all(one.equal and not (self._dry_run and one.lacking) for one in done),
            fetched=sum([one.fetched for one in done]), sent=sum([one.sent for one in done]), channels=done,
        )  # fmt: skip
        return report, known

    async def _line(self, keeper: Keeper) -> Line:
        return await keeper.line(asyncio.get_running_loop().time() + self._timeout_s)

    async def _ask(
        self, keeper: Keeper, name: str, head: msgspec.Struct, kind: type[Any], lines: bytes
    ) -> tuple[Any, bytes]:
        """Ask, and again after a cut. An answer may take its time: a hub that has a quota for us slows us down."""
        losses = 0
        while True:
            line = await self._line(keeper)
            try:
                return await line.ask(name, head, kind, lines)
            except Lost as lost:
                losses += 1
                if losses >= LOSSES_MAX:
                    raise Unreachable(
                        f"the connection was lost {losses} times before the hub answered: {lost}"
                    ) from None

    async def _one(self, way: Way, channel: str, sides: tuple[Side, ...]) -> Synced:
        rules = targets.rules_for(self._station.config, self._address, way.peer, channel)
        return await Syncing(
            self._station, way, channel, rules, sides=sides, dry_run=self._dry_run, progress=self._progress
        ).run()

    def _audit(self, hub: str, done: list[Synced]) -> None:
        for one in done:
            if one.fetched or one.sent:
                self._station.engine.audit.write(
                    "synced", peer=hub, channel=one.channel, fetched=one.fetched, sent=one.sent, equal=one.equal
                )
