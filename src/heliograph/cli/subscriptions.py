"""``helio subscriptions``: list, seek, forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from heliograph.cli import output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command, group
from heliograph.cli.names import (
    SUBSCRIPTION,
    channel_argument,
    channel_or_pattern_argument,
    optional_channel_argument,
    partition_option,
)
from heliograph.patterns import is_pattern

if TYPE_CHECKING:
    from heliograph.station.info import SubscriptionInfo


@group(
    "subscriptions",
    examples="""
helio subscriptions list
helio subscriptions seek alerts pager --to -1h --dry-run
helio subscriptions forget alerts pager
""",
)
def subscriptions() -> None:
    """Durable subscriptions: who reads what, and how far."""


@command(
    "list",
    examples="""
helio subscriptions list
helio subscriptions list alerts --json | jq '.[] | select(.lag > 1000)'
""",
)
@optional_channel_argument
@click.pass_obj
def list_(common: Common, channel: str | None) -> None:
    """List durable subscriptions and how far each lags behind.

    A live one has a subscriber now. BEHIND is the age of the oldest message that waits.
    """
    with common.open() as station:
        if channel is not None:
            station.channel(channel)  # an unknown channel is an error, not an empty list
        found = station.subscriptions(channel)
    if common.json:
        output.document(plain(found))
    elif found:
        print_table(found)
    else:
        common.note("no durable subscriptions; 'helio sub CHANNEL --name NAME' makes one")


def print_table(found: list[SubscriptionInfo]) -> None:
    """Subscriptions for a person."""
    output.table(
        ["CHANNEL", "SUBSCRIPTION", ">PARTITION", "LIVE", ">OFFSET", ">LAG", ">BEHIND", "SAVED"],
        [
            (info.channel, info.name, info.partition, output.Mark("yes", "green") if info.live else "no",
             str(info.offset), info.lag, output.age(info.lag_s), info.saved)
            for info in found
        ],
    )  # fmt: skip


@command(
    "seek",
    examples="""
helio subscriptions seek alerts pager --to first          # all again
helio subscriptions seek alerts pager --to new            # skip what waits
helio subscriptions seek alerts pager --to -1h --dry-run  # only look
helio subscriptions seek readings web --to 1000 --partition 3
""",
)
@channel_argument
@click.argument("name", type=SUBSCRIPTION)
@click.option(
    "--to", required=True, metavar="WHERE",
    help="first, new, an offset, a time (2026-11-15T20:30:00Z) or an age (-5m).",
)  # fmt: skip
@partition_option
@click.option("--dry-run", is_flag=True, help="Say what would happen, change nothing.")
@click.pass_obj
def seek(common: Common, channel: str, name: str, to: str, partition: int | None, dry_run: bool) -> None:
    """Move a durable subscription, back to deliver again or ahead to skip.

    All of its partitions, or one; an offset needs --partition if there are several. It must not be live: end its
    subscriber first.
    """
    with common.open(write=True) as station:
        result = station.seek(channel, name, to, partition=partition, dry_run=dry_run)
    if common.json:
        output.document(plain(result))
    elif not common.quiet:
        moves = "would move" if dry_run else "moved"
        skipped = result.after - result.before
        effect = f"skips {output.several(skipped, 'message')}" if skipped > 0 else (
            f"delivers {output.several(-skipped, 'message')} again" if skipped else "stays where it is"
        )  # fmt: skip
        place = f"from offset {result.before} to {result.after}"
        if result.partition is None:
            place = f"in {len(result.parts)} partitions"
        print(f"{moves} {name} of {channel} {place}: {effect}, {output.several(result.lag, 'message')} waiting")
        if result.partition is None:
            output.table(
                [">PARTITION", ">BEFORE", ">AFTER", ">LAG"],
                [(part.partition, str(part.before), str(part.after), part.lag) for part in result.parts],
            )


@command(
    "forget",
    examples="""
helio subscriptions forget alerts pager
helio subscriptions forget 'sensors.>' archive  # on all its channels
""",
)
@channel_or_pattern_argument
@click.argument("name", type=SUBSCRIPTION)
@click.pass_obj
def forget(common: Common, channel: str, name: str) -> None:
    """Remove a durable subscription's position.

    The same name then starts anew, and no longer holds back what retention deletes. It must not be live.
    """
    with common.open(write=True) as station:
        known = [] if is_pattern(channel) else station.subscriptions(channel)
        before = [info for info in known if info.name == name]
        station.forget(channel, name)
    offset, lag = sum(info.offset for info in before), sum(info.lag for info in before)
    if common.json:
        offsets = {info.partition: info.offset for info in before}
        output.document({"channel": channel, "name": name, "offset": offset, "offsets": offsets})
    elif not common.quiet:
        where = f"at offset {offset}" if len(before) == 1 else f"in {len(before)} partitions"
        stood = f"; it stood {where}, {lag} waiting" if before else ""
        print(f"forgot subscription {name} of {channel}{stood}")


for _command in (list_, seek, forget):
    subscriptions.add_command(_command)
