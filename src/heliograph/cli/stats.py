"""``helio stats``: the numbers of a station."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.durations import pause
from heliograph.cli.frame import command
from heliograph.cli.signals import Terminated

if TYPE_CHECKING:
    from rich.console import RenderableType

    from heliograph.station import Station
    from heliograph.station.info import SubscriptionInfo
    from heliograph.station.stats import StationStats


@command(
    "stats",
    short_help="Show channels and subscriptions in numbers.",
    examples="""
helio stats
helio stats --watch                       # again every two seconds
helio stats --watch --interval 10 --json  # a line every ten seconds
""",
)
@click.option("--watch", "-w", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--interval", type=pause(0.1), default=2.0, show_default=True, metavar="SECONDS",
    help="The time between two looks with --watch.",
)  # fmt: skip
@click.pass_obj
def stats(common: Common, watch: bool, interval: float) -> int:
    """Show channels and subscriptions: how much, how fast, how far behind.

    A rate needs two looks, so it is shown with --watch: messages a second, of all processes.
    """
    with common.open() as station:
        if not watch:
            _print_once(common, station)
            return exits.OK
        try:
            _watch(common, station, interval)
        except Terminated:
            return exits.OK
    return exits.OK


def _print_once(common: Common, station: Station) -> None:
    numbers, subscriptions = station.stats(), station.subscriptions()
    if common.json:
        output.document(_json(numbers, subscriptions))
        return
    _print_heading(numbers)
    for at, (columns, rows) in enumerate(_tables(numbers, subscriptions)):
        print() if at else None
        output.table(columns, rows)


def _print_heading(numbers: StationStats) -> None:
    total = sum(channel.bytes for channel in numbers.channels)
    waiting = f", {output.several(numbers.scheduled, 'message')} scheduled" if numbers.scheduled else ""
    print(f"station {numbers.name} in {numbers.path}: {output.size(total)}, durability {numbers.durability}{waiting}")
    for one in numbers.certificates:
        if one.status != "ok":
            ends = "has expired" if one.days_left <= 0 else f"expires in {one.days_left:.1f} days"
            print(f"{one.what} {one.path} {ends}: 'helio keygen renew'")
    print() if numbers.channels else print("no channels yet")


def _json(numbers: StationStats, subscriptions: list[SubscriptionInfo]) -> dict[str, Any]:
    """The station's numbers, with the durable subscriptions of all processes instead of this one's."""
    return {**plain(numbers), "subscriptions": plain(subscriptions)}


Rows = tuple[list[str], list[tuple[Any, ...]]]


def _tables(numbers: StationStats, subscriptions: list[SubscriptionInfo], *, rates: bool = False) -> list[Rows]:
    columns = ["CHANNEL", ">PARTITIONS", ">MESSAGES", ">SIZE", ">SEGMENTS", ">DEAD LETTERS"]
    tables: list[Rows] = []
    rows = [
        (channel.channel, len(channel.partitions), channel.messages, output.size(channel.bytes),
         sum(part.segments for part in channel.partitions), channel.dead_letters)
        for channel in numbers.channels
    ]  # fmt: skip
    if rates:
        columns = [*columns, ">PER SECOND"]
        grown = [channel.growth_rate for channel in numbers.channels]
        tables.append((columns, [(*row, rate) for row, rate in zip(rows, grown, strict=True)]))
    elif rows:
        tables.append((columns, [*rows]))
    if subscriptions:
        tables.append((
            ["CHANNEL", "SUBSCRIPTION", ">PARTITION", "LIVE", ">OFFSET", ">LAG", ">BEHIND"],
            [
                (info.channel, info.name, info.partition, output.Mark("yes", "green") if info.live else "no",
                 str(info.offset), info.lag, output.age(info.lag_s))
                for info in subscriptions
            ],
        ))  # fmt: skip
    return tables


def _watch(common: Common, station: Station, interval_s: float) -> None:
    if common.json or not sys.stdout.isatty():
        while True:
            if common.json:
                output.json_line(_json(station.stats(), station.subscriptions()))
            else:
                _print_once(common, station)
            output.flush()
            time.sleep(interval_s)
    from rich.live import Live

    terminal = output.console()
    with Live(console=terminal, screen=True, auto_refresh=False) as live:
        while True:
            live.update(_screen(station.stats(), station.subscriptions(), terminal.width), refresh=True)
            time.sleep(interval_s)


def _screen(numbers: StationStats, subscriptions: list[SubscriptionInfo], width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    total = sum(channel.bytes for channel in numbers.channels)
    parts: list[RenderableType] = [
        Text(f"station {numbers.name} in {numbers.path}: {output.size(total)}   (Ctrl-C ends)\n")
    ]
    for columns, rows in _tables(numbers, subscriptions, rates=True):
        parts += [output.rich_table(columns, rows, width), Text("")]
    return Group(*parts)
