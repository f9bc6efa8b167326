"""``helio links``: the links of a station, and whether somebody should look after one."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, clean, plain
from heliograph.cli.durations import pause
from heliograph.cli.frame import command
from heliograph.cli.signals import Terminated

if TYPE_CHECKING:
    from rich.console import RenderableType

    from heliograph.admin.linked import LinksView
    from heliograph.station import Station
    from heliograph.station.links import LifetimeInfo, LinkInfo

_STYLES: Final = {"up": "green", "absent": "", "connecting": "yellow", "waiting": "yellow"}
_MORE, _COUNTS, _ADDRESSES = 95, 120, 160
"""How wide a terminal has to be for since when, counts and addresses."""


@command(
    "links",
    short_help="Show the links to other stations.",
    examples="""
helio links
helio links hub.example:7740    # one of them, by address or name
helio links host1 --quiet       # only the exit code: is host1 here?
helio links --watch             # again every two seconds
helio links --json | jq '.links[] | {name, state, lag_messages, parked}'
""",
)
@click.argument("link", required=False)
@click.option("--watch", "-w", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval", type=pause(0.1), default=2.0, show_default=True, metavar="SECONDS",
    help="The time between two looks with --watch.",
)  # fmt: skip
@click.pass_obj
def links(common: Common, link: str | None, watch: bool, interval: float) -> int:
    """Show the links: to hubs (->) that this station dials, and from peers (<-) that dial it.

    LAG is what the other side has not acknowledged yet, BEHIND the age of the oldest of it, IN FLIGHT what is on its
    way, TRIP the time to the other side and back, CERT how long its certificate is valid. A wider terminal shows more.

    What runs the links ('helio serve', or an application) writes it down every second. If nothing runs them, they are
    'not running' and the lag is counted in the log.

    \b
    Exit code 0: all is well. 1: a link to a hub is not up, a peer is refused, a
    channel is parked, or nothing runs the links. A peer that is not here is no
    fault, unless it was asked for by name. 3: there is no such link.
    """
    with common.open() as station:
        if not watch:
            view = _look(station, link)
            _print(common, view)
            return _code(view, named=link is not None)
        try:
            _watch(common, station, link, interval)
        except Terminated:
            return exits.OK
    return exits.OK


def _look(station: Station, wanted: str | None) -> LinksView:
    import msgspec

    from heliograph.admin import linked
    from heliograph.errors import NotFound

    view = linked.look(station)
    if wanted is None:
        return view
    found = [link for link in view.links if wanted in (link.name, link.address)]
    if not found:
        names = ", ".join(sorted(link.name or link.address for link in view.links)) or "none"
        raise NotFound(f"there is no link '{wanted}'; there are: {names}")
    return msgspec.structs.replace(view, links=found)


def _code(view: LinksView, *, named: bool) -> int:
    from heliograph.admin.linked import is_down

    down = any(is_down(link) or (named and link.state != "up") for link in view.links)
    return exits.BAD if down else exits.OK


# -- once ---------------------------------------------------------------------------------------------------


def _print(common: Common, view: LinksView) -> None:
    if common.json:
        output.document(plain(view))
    elif not common.quiet:
        width = output.console().width
        if not view.links:
            print(f"station {view.station} has no links; 'helio serve --help' says how to make some")
            return
        print(_heading(view))
        print()
        output.table(*_table(view.links, width))
        for text in _remarks(view, width):
            print(text)


def _heading(view: LinksView) -> str:
    up = sum(link.state == "up" for link in view.links)
    state = f"{up} of {output.several(len(view.links), 'link')} up"
    return f"station {view.station}: {state if view.running else 'not running (helio serve runs the links)'}"


_COLUMNS: Final = (
    ("…LINK", 0), ("ADDRESS", _ADDRESSES), ("STATE", 0), (">SINCE", _MORE), (">LAG", 0), (">BEHIND", 0),
    (">IN FLIGHT", 0), (">TRIP", 0), (">CERT", 0), (">RECONNECTS", _COUNTS), (">REFUSED", _COUNTS),
    (">PARKED", _COUNTS),
)  # fmt: skip
"""Headings, and from which width on each is shown."""


def _table(links: Sequence[LinkInfo], width: int) -> tuple[list[str], list[list[Any]]]:
    shown = [width >= least for _, least in _COLUMNS]
    rows = [list(itertools.compress(_row(link), shown)) for link in links]
    return [heading for heading, least in _COLUMNS if width >= least], rows


def _row(link: LinkInfo) -> list[Any]:
    up = link.state == "up"
    return [
        f"{'->' if link.kind == 'hub' else '<-'} {link.name or link.address}", link.address or None,
        output.Mark("not running" if link.state == "stopped" else link.state, _STYLES.get(link.state, "red")),
        output.age(max(0.0, time.time() - link.since.timestamp())), link.lag_messages, output.age(link.lag_s),
        output.size(link.in_flight_bytes) if up else None,
        f"{link.round_trip_ms:.1f} ms" if up and link.round_trip_ms else None, _days(link.certificate_days_left),
        link.reconnects, link.refused, len(link.parked),
    ]  # fmt: skip


def _days(left: float | None) -> Any:
    if left is None:
        return None
    text = f"{left:,.0f} d" if left >= 2 else f"{left * 24:.0f} h"
    return output.Mark(text, "red" if left <= 3 else "yellow" if left <= 30 else "")


def _remarks(view: LinksView, width: int) -> list[str]:
    """What has no column: a line for everything that deserves one."""
    found = [f"this station: {_ending(one)}" for one in view.certificates if one.status != "ok"]
    for link in view.links:
        name = link.name or link.address
        counts = [
            output.several(link.reconnects, "reconnect") if link.reconnects and width < _COUNTS else "",
            f"{output.several(link.refused, 'message')} refused: 'helio dead list'" if link.refused else "",
        ]
        if link.held_bytes and link.state != "up":
            counts.append(
                f"retention keeps {output.size(link.held_bytes)} for it (storage.holdback_bytes is the limit)"
            )
        found += [f"{name}: {text}" for text in counts if text]
        found += [f"{name}: {text}" for text in _synced(link)]
        found += [f"{name}: channel {channel} is parked: {why}" for channel, why in sorted(link.parked.items())]
        found += [f"{name}: {link.error}"] if link.error else []
    return ["", *map(clean, found)] if found else []


def _ending(one: LifetimeInfo) -> str:
    what = {"certificate": "the certificate", "ca": "the CA", "crl": "the revocation list"}.get(one.what, one.what)
    if one.days_left <= 0:
        return f"{what} {one.path} has expired: 'helio keygen renew'"
    left = f"{one.days_left:,.0f} days" if one.days_left >= 2 else f"{one.days_left * 24:.0f} hours"
    return f"{what} {one.path} expires in {left}: 'helio keygen renew'"


def _synced(link: LinkInfo) -> list[str]:
    """How the last sync went."""
    if link.synced is None:
        return []
    one, ago = link.synced, output.age(max(0.0, time.time() - link.synced.time.timestamp()))
    moved = f"{output.several(one.fetched, 'message')} fetched, {one.sent:,} sent"
    told = [f"synced {ago} ago, {output.several(one.channels, 'channel')}: {moved}"]
    told += [f"the sync ended: {one.error}"] if one.error else []
    return told + [f"channel {channel} is not equal: {why}" for channel, why in sorted(one.left.items())]


# -- again and again ----------------------------------------------------------------------------------------


def _watch(common: Common, station: Station, wanted: str | None, interval_s: float) -> None:
    if common.json or not sys.stdout.isatty():
        while True:
            view = _look(station, wanted)
            output.json_line(plain(view)) if common.json else _print(common, view)
            output.flush()
            time.sleep(interval_s)
    from rich.live import Live

    terminal = output.console()
    with Live(console=terminal, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(_look(station, wanted), terminal.width), refresh=True)
            time.sleep(interval_s)


def _screen(view: LinksView, width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    remarks = [Text(text) for text in _remarks(view, width)]
    table = output.rich_table(*_table(view.links, width), width)
    return Group(Text(f"{_heading(view)}   (Ctrl-C ends)\n"), table, *remarks)
