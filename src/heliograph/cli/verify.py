"""``helio verify``: is everything on disk what was written?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command
from heliograph.cli.names import optional_channel_argument

if TYPE_CHECKING:
    from heliograph.admin.verify import ChannelReport, Damage, VerifyReport


@command(
    "verify",
    examples="""
helio verify           # every checksum of every channel
helio verify alerts    # of one channel
helio verify --repair  # rebuild indexes, lift a fence, set damage aside
""",
)
@optional_channel_argument
@click.option(
    "--repair", is_flag=True,
    help="Rebuild what is derived, and set damaged bytes aside. Nothing that is intact is lost, nothing is deleted.",
)  # fmt: skip
@click.pass_obj
def verify(common: Common, channel: str | None, repair: bool) -> int:
    """Check every checksum, index, position and queue.

    Exit code 1 if anything is wrong, or with --repair if anything is still wrong. Without --repair nothing is
    changed.
    """
    from heliograph.admin import verify as admin

    with common.open(write=repair) as station, output.progress(common, "verifying") as progress:
        report = admin.verify(station, channel, repair=repair, progress=progress)
    if common.json:
        output.document(plain(report))
    else:
        _print(common, report)
    return exits.OK if report.ok else exits.BAD


def _print(common: Common, report: VerifyReport) -> None:
    if report.channels and not common.quiet:
        output.table(
            ["CHANNEL", ">MESSAGES", ">SIZE", ">DAMAGED", "STATE"],
            [_row(channel) for channel in report.channels],
        )
        print()
    for line in _findings(report):
        print(output.cell(line))
    lost = f"{output.several(report.damaged, 'message')} lost to damage" if report.damaged else ""
    if not report.ok:
        hint = "some of it cannot be repaired" if report.repaired else "'helio verify --repair' repairs what it can"
        print("NOT OK: " + "; ".join(filter(None, [lost, hint])))
    elif not common.quiet:
        what = f"{output.several(report.lines, 'line')}, {output.size(report.bytes)} in {output.age(report.seconds)}"
        print("ok: " + "; ".join(filter(None, [what, lost])))


def _row(channel: ChannelReport) -> tuple[str, int, str, int, output.Mark]:
    parts = channel.partitions
    return (
        channel.name,
        sum(part.lines for part in parts),
        output.size(sum(part.bytes for part in parts)),
        sum(damage.next - damage.first for part in parts for damage in part.damaged),
        output.Mark("ok", "green") if channel.ok else output.Mark("BAD", "red"),
    )


def _findings(report: VerifyReport) -> list[str]:
    """One line for everything that is or was wrong."""
    lines = []
    for damage, channel in _damages(report):
        which = f"offset {damage.first} is" if damage.next - damage.first == 1 else (
            f"offsets {damage.first} to {damage.next - 1} are"
        )  # fmt: skip
        aside = f" (set aside in {', '.join(damage.quarantined)})" if damage.quarantined else ""
        lines.append(f"{channel}: {which} lost: {damage.reason}{aside}")
    for trouble in report.troubles:
        state = "repaired" if trouble.repaired else "can be rebuilt" if trouble.derived else "bad"
        lines.append(f"{trouble.path}: {trouble.what} ({state})")
    return lines


def _damages(report: VerifyReport) -> list[tuple[Damage, str]]:
    parts = [part for channel in report.channels for part in channel.partitions]
    return [(damage, part.channel) for part in parts for damage in part.damaged]
