"""``helio trace``: where a message is, how it came there, and who else has it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command
from heliograph.cli.names import CHANNEL

if TYPE_CHECKING:
    from heliograph.admin.trace import Copy, Onward

_STYLES: Final = {"acknowledged": "green", "waiting": "yellow", "not sent": "red"}


@command(
    "trace",
    short_help="Show where a message is and which links have it.",
    examples="""
helio trace 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55
helio trace 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55 --channel alerts --json
helio trace 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55 -d hub --also host1
""",
)
@click.argument("id")
@click.option("--channel", type=CHANNEL, metavar="CHANNEL", help="Look in this channel only.")
@click.option(
    "--also", multiple=True, metavar="DIR",
    help="Look in this station's directory, too: one on this machine, or a copy. May be given several times.",
)  # fmt: skip
@click.pass_obj
def trace(common: Common, id: str, channel: str | None, also: tuple[str, ...]) -> int:
    """Show where a message is: its place in the log, where it was published, and which links have it.

    A link that has acknowledged it has it on disk. What this station cannot know, other stations can: ask there, or
    name their directories with --also. A message of another station came over one of the links that are named; with
    --config only those that may bring it are.

    Exit code 1 if no directory has the message.
    """
    from heliograph.admin.trace import trace as find

    copies: list[Copy] = []
    with contextlib.ExitStack() as opened:
        stations = [opened.enter_context(common.open())]
        stations += [opened.enter_context(common.elsewhere(directory)) for directory in also]
        for station in stations:
            if channel is None or channel in station.engine.channel_names():
                copies += find(station, id, channel)
        copies.sort(key=lambda copy: copy.appended or copy.published)
    if common.json:
        output.document({"id": id, "copies": plain(copies)})
    elif copies:
        for at, copy in enumerate(copies):
            print() if at else None
            _show(copy)
    else:
        place = f"channel '{channel}'" if channel else "any log"
        common.note(f"there is no message {id} in {place} of {', '.join(station.name for station in stations)}")
    return exits.OK if copies else exits.BAD


def _show(copy: Copy) -> None:
    output.heading(f"{copy.station}: {copy.channel}/{copy.partition} offset {copy.offset}")
    place = f"{copy.origin}, partition {copy.origin_partition}, offset {copy.origin_offset}"
    came = "published here"
    if not copy.own:
        came = f"over a link, from {' or '.join(copy.through)}" if copy.through else "over a link"
    output.facts([
        ("  appended", f"{output.moment(copy.appended)} at the latest"), ("  came", came),
        ("  published", output.moment(copy.published)),
        ("  origin", f"{place} ({copy.incarnation})"),
    ])  # fmt: skip
    for onward in copy.onward:
        _show_onward(onward)


def _show_onward(onward: Onward) -> None:
    from rich.text import Text

    what = {
        "acknowledged": "has it", "waiting": "has not acknowledged it yet", "came from there": "published it",
        "not sent": "will not be sent it: refused, or before the link's start",
    }[onward.state]  # fmt: skip
    arrow = "to hub" if onward.kind == "hub" else "to peer"
    output.console().print(Text(f"  {arrow} {onward.station}: {what}", style=_STYLES.get(onward.state, "")))
