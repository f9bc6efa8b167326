"""``helio top``: what happens in a station, live."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.durations import pause
from heliograph.cli.frame import command
from heliograph.cli.signals import Terminated

if TYPE_CHECKING:
    from heliograph.admin.overview import ChannelView, View, Watching

_MISSING = (
    "helio top needs textual: pip install 'heliograph[top]'. Without it: --once, --json, or 'helio stats --watch'"
)
_NO_TERMINAL = "helio top draws on a terminal, and this is none; use --once or --json"
_ORDERS = ("name", "rate", "messages", "size", "lag", "behind", "dead")


@command(
    "top",
    short_help="Watch channels, rates, lag and dead letters live.",
    examples="""
helio top
helio top --filter sensors --sort lag
helio top --once                              # one table
helio top --json --count 3 --interval 10      # three lines of JSON
""",
)
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option(
    "--interval", type=pause(0.1, 3600), default=1.0, show_default=True, metavar="SECONDS",
    help="The time between two looks; rates are those of this time.",
)  # fmt: skip
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="With --json: end after N lines.")
@click.option("--filter", "contains", default="", metavar="TEXT", help="Only channels whose name contains this.")
@click.option(
    "--sort", type=click.Choice(_ORDERS), default="name", show_default=True, help="What the rows are sorted by."
)
@click.pass_obj
def top(common: Common, once: bool, interval: float, count: int | None, contains: str, sort: str) -> int:
    """Watch a station: channels, rates, lag, subscriptions, dead letters.

    It reads the directory without leaving a trace, and shows what all processes do. On the screen '?' explains the
    keys: sort, filter, pause, and a pane with everything about the chosen channel.
    """
    from heliograph.admin.overview import Watching

    if count is not None and not common.json:
        raise click.UsageError("--count goes with --json")
    with common.open() as station:
        watching = Watching(station)
        if not once and not common.json:
            return _run_screen(watching, interval, contains, sort)
        try:
            _print(common, watching, interval, 1 if once else count, contains, sort)
        except Terminated:
            return exits.OK
    return exits.OK


def _is_terminal() -> bool:
    return all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))


def _run_screen(watching: Watching, interval_s: float, contains: str, sort: str) -> int:
    if not _is_terminal():
        raise click.UsageError(_NO_TERMINAL)
    try:
        from heliograph.cli.screen import Top
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("textual"):
            raise
        raise click.ClickException(_MISSING) from None
    screen = Top(watching, interval_s=interval_s, contains=contains, sort=sort)
    try:
        screen.run()
    finally:
        watching.finish()
    return screen.return_code or exits.OK


def _print(
    common: Common, watching: Watching, interval_s: float, count: int | None, contains: str, sort: str
) -> None:  # fmt: skip
    """Lines of JSON, or a table. The first look is not shown: a rate needs two."""
    watching.view()
    while count is None or count > 0:
        time.sleep(interval_s)
        view = watching.view()
        if common.json:
            output.json_line(_json(view, contains, sort))
        else:
            _print_table(view, contains, sort)
        output.flush()
        count = None if count is None else count - 1


def _json(view: View, contains: str, sort: str) -> dict[str, object]:
    from heliograph.admin.overview import rows

    return {**plain(view), "channels": plain(rows(view, contains=contains, sort=sort, dead=True))}


def _print_table(view: View, contains: str, sort: str) -> None:
    from heliograph.admin.overview import rows

    found = rows(view, contains=contains, sort=sort)
    output.heading(f"station {view.station} in {view.path}: {output.size(view.bytes)}")
    for trouble in view.troubles:
        print(f"trouble: {output.cell(trouble)}")
    output.table(
        ["…CHANNEL", ">PER SECOND", ">MESSAGES", ">SIZE", ">LAG", ">BEHIND", ">LIVE", ">DEAD LETTERS"],
        [_row(one) for one in found],
    )


def _row(one: ChannelView) -> tuple[object, ...]:
    name = output.Mark(f"{one.name} (fenced)", "red") if one.fenced else one.name
    dead = output.Mark(output.cell(one.dead_letters), "red") if one.dead_letters else 0
    behind = output.age(one.lag_s) if one.readers else "-"
    live = f"{one.live}/{len(one.readers)}" if one.readers else "-"
    return name, one.rate, one.messages, output.size(one.bytes), one.lag, behind, live, dead
