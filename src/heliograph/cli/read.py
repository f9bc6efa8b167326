"""``helio read``, ``get`` and ``redact``: messages that are there already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from heliograph.cli import exits, messages, output
from heliograph.cli.ask import confirm
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command
from heliograph.cli.hubs import hub_client, hub_options
from heliograph.cli.names import CHANNEL, channel_or_pattern_argument, partition_option
from heliograph.cli.signals import Terminated
from heliograph.errors import NotFound
from heliograph.patterns import Pattern, is_pattern

if TYPE_CHECKING:
    from heliograph.admin.where import Where
    from heliograph.station import Station

where_option = click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only messages for which this holds: type=…, data.level>=3, key!=…, data.text~REGEX, has:FIELD. "
    "May be repeated; all must hold.",
)  # fmt: skip


def parse_where(conditions: tuple[str, ...]) -> Where | None:
    """What --where said, if anything."""
    if not conditions:
        return None
    from heliograph.admin import where

    return where.parse(conditions)


def has_several(station: Station, channel: str) -> bool:
    """Whether a channel, or any that a pattern matches, has more than one partition: then a place names it."""
    names = [channel]
    if is_pattern(channel):
        names = [name for name in station.engine.channel_names() if Pattern(channel).matches(name)]
    counts = [station.config.storage.partitions] * (names != [channel])
    for name in names:
        try:
            counts.append(station.engine.describe(name).partitions)
        except NotFound:  # it may still be made
            counts.append(station.config.storage.partitions)
    return max(counts) > 1


@command(
    "read",
    examples="""
helio read alerts                          # everything there is
helio read alerts --start -5m --follow     # five minutes, then what comes
helio read alerts --start 1000 --limit 10  # ten messages from offset 1000
helio read alerts --start 2026-11-15T20:00:00Z --end 2026-11-15T21:00:00Z
helio read alerts --where 'data.level>=3' --where type=com.example.alert.v1
helio read readings --partition 3 --start 1000
helio read 'sensors.>' --follow            # every channel that begins so
helio read alerts --json | jq .data
helio read alerts --hub hub.example:7740 --follow --start new
""",
)
@channel_or_pattern_argument
@click.option(
    "--start", default="first", show_default=True, metavar="WHERE",
    help="Where to begin: first, new, an offset, a time (2026-11-15T20:30:00Z) or an age (-5m).",
)  # fmt: skip
@click.option(
    "--end", metavar="WHERE", help="Where to end, that one excluded: as --start.  [default: what is there now]"
)
@partition_option
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until Ctrl-C.")
@where_option
@click.option("--limit", "-n", type=click.IntRange(min=1), metavar="N", help="Print at most N messages.")
@messages.format_option
@hub_options
@click.pass_obj
def read(
    common: Common,
    channel: str,
    start: str,
    end: str | None,
    partition: int | None,
    follow: bool,
    conditions: tuple[str, ...],
    limit: int | None,
    shape: str | None,
) -> int:
    """Print the messages of a channel, or of all that a pattern matches.

    In a pattern '*' stands for one word and '>' for one or more at the end: 'sensors.*.temp', 'sensors.>'. Then
    messages come in the order of their times, whatever their channel. Conditions on anything but the payload
    are tested before it is decoded.

    Reading leaves no trace: it moves no subscription's position. Several partitions are merged by time; with
    --follow messages come as they come. An offset needs --partition if there are several. Offsets that were damaged
    or deleted are told on stderr. With --hub the messages of one channel come from there, and no data directory is
    needed.
    """
    if follow and end is not None:
        raise click.UsageError("--follow has no end; leave out --end or --follow")
    where = parse_where(conditions)
    outside, inside = (None, None) if where is None else where.apart()
    printed = 0
    from heliograph.station import Station

    with hub_client(common) or common.open() as station:
        if isinstance(station, Station):
            several = has_several(station, channel)
            found = station.read(
                channel, start=start, end=end, partition=partition, follow=follow, where=outside or None
            )
        else:
            several, inside = True, where
            found = station.read(channel, start=start, end=end, partition=partition, follow=follow)
        show = messages.printer(common, shape, several=several, channels=is_pattern(channel))
        try:
            for message in found:
                if inside and not inside(message):
                    continue
                show(message)
                printed += 1
                if follow:
                    output.flush()
                if printed == limit:
                    break
        except Terminated:
            if not follow:
                raise
    if not printed and not follow and not common.json:
        common.note("no messages")
    return exits.OK


@command(
    "get",
    examples="""
helio get 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55
helio get 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55 --channel alerts --json
""",
)
@click.argument("id")
@click.option("--channel", type=CHANNEL, metavar="CHANNEL", help="Look in this channel only.")
@click.pass_obj
def get(common: Common, id: str, channel: str | None) -> int:
    """Look up a message by its id.

    The id says when the message was published, so that little has to be searched. Exit code 1 if there is no
    such message.
    """
    with common.open() as station:
        message = station.get(id, channel)
        if message is None:
            place = f"channel '{channel}'" if channel else str(station.path)
            common.note(f"there is no message {id} in {place}")
            return exits.BAD
        if common.json:
            output.write(messages.to_json(message) + b"\n")
        else:
            messages.show(message)
    return exits.OK


@command(
    "redact",
    examples="""
helio redact 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55 --reason 'request 4711'
helio redact 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55 --channel customers --yes
""",
)
@click.argument("id")
@click.option("--channel", type=CHANNEL, metavar="CHANNEL", help="Look in this channel only.")
@click.option("--reason", default="", help="Why; it is written to the audit file.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def redact(common: Common, id: str, channel: str | None, reason: str, yes: bool) -> int:
    """Take a message out of the log for good.

    Its line becomes blank, all offsets stay as they are, and the audit file keeps who, when and why. Copies
    that were made before (backups, dead letters, other stations) keep theirs.
    """
    from heliograph.errors import NotFound

    with common.open(write=True) as station:
        message = station.get(id, channel)
        if message is None:
            raise NotFound(f"there is no message {id}" + (f" in channel '{channel}'" if channel else ""))
        if not yes:
            common.note(
                f"{message.channel}/{message.partition}/{message.offset}  {output.moment(message.time)}  {message.type}"
            )
            common.note(f"  {messages.payload(message.data)[:200]}")
            confirm("Take this message out of the log for good?")
        receipt = station.redact(id, channel=message.channel, reason=reason)
        if common.json:
            output.document(plain(receipt))
        elif not common.quiet:
            print(f"redacted offset {receipt.offset} of {receipt.channel}/{receipt.partition}")
        if (left := station.get(id)) is not None:  # imported into another channel, or published twice
            common.warn(
                f"offset {left.offset} of {left.channel}/{left.partition} has the same id and is still there: "
                f"helio redact {id} --channel {left.channel}"
            )
    return exits.OK
