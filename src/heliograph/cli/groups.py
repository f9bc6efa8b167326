"""``helio groups``: list, show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from heliograph.cli import output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command, group
from heliograph.cli.names import SUBSCRIPTION, channel_argument, optional_channel_argument

if TYPE_CHECKING:
    from heliograph.station.info import GroupInfo


@group(
    "groups",
    examples="""
helio groups list
helio groups show readings sums
""",
)
def groups() -> None:
    """Groups: who works for them, and on which partitions.

    'helio sub CHANNEL --name NAME --group' is a worker; 'helio subscriptions' seeks and forgets.
    """


@command(
    "list",
    examples="""
helio groups list
helio groups list readings --json | jq '.[] | select(.members == [])'
""",
)
@optional_channel_argument
@click.pass_obj
def list_(common: Common, channel: str | None) -> None:
    """List the groups with their workers and how far each lags behind."""
    with common.open() as station:
        if channel is not None:
            station.channel(channel)  # an unknown channel is an error, not an empty list
        found = station.groups(channel)
    if common.json:
        output.document(plain(found))
    elif found:
        output.table(
            ["CHANNEL", "GROUP", ">WORKERS", ">PARTITIONS", ">IDLE", ">LAG"],
            [
                (info.channel, info.name, len(info.members), len(info.partitions), _idle(info), info.lag)
                for info in found
            ],
        )
    else:
        common.note("no groups; 'helio sub CHANNEL --name NAME --group' makes one")


def _idle(info: GroupInfo) -> output.Mark:
    """Partitions that nobody delivers."""
    count = sum(part.worker is None for part in info.partitions)
    return output.Mark(str(count), "yellow" if count else "green")


@command(
    "show",
    examples="""
helio groups show readings sums
helio groups show readings sums --json | jq -r '.members[].worker'
""",
)
@channel_argument
@click.argument("name", type=SUBSCRIPTION)
@click.pass_obj
def show(common: Common, channel: str, name: str) -> None:
    """Show a group: its workers, and who delivers which partition.

    BEHIND is the age of the oldest message that waits.
    """
    from heliograph.errors import NotFound

    with common.open() as station:
        station.channel(channel)
        info = next((one for one in station.groups(channel) if one.name == name), None)
        if info is None:
            raise NotFound(f"channel '{channel}' has no group '{name}'; 'helio groups list' shows those there are")
    if common.json:
        output.document(plain(info))
        return
    if info.members:
        output.table(
            ["WORKER", ">PROCESS", "SINCE", "PARTITIONS"],
            [
                (one.worker, str(one.process), one.since, ", ".join(map(str, one.partitions)) or "none")
                for one in info.members
            ],
        )
        print()
    else:
        common.note("nobody works for it now")
    output.table(
        [">PARTITION", "WORKER", ">OFFSET", ">LAG", ">BEHIND"],
        [
            (part.partition, part.worker or output.Mark("nobody", "yellow"), str(part.offset), part.lag,
             output.age(part.lag_s))
            for part in info.partitions
        ],
    )  # fmt: skip


for _command in (list_, show):
    groups.add_command(_command)
