"""``helio sync``: this station and a hub get what each lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, clean, plain
from heliograph.cli.durations import pause
from heliograph.cli.frame import command

if TYPE_CHECKING:
    from heliograph.admin.sync import SyncReport
    from heliograph.federation.syncing import Left, Side


@command(
    "sync",
    short_help="Give this station and a hub what each lacks.",
    examples="""
helio sync hub:7740                      # what the link to it says, its way
helio sync hub:7740 alerts 'sensors.>'   # these, both ways
helio sync hub:7740 alerts --dry-run     # who lacks how many?
helio sync hub:7740 alerts --pull        # only what is lacking here
helio sync hub alerts --json | jq '.channels[].left[]'
""",
)
@click.argument("hub")
@click.argument("channels", nargs=-1, metavar="[CHANNEL|PATTERN]...")
@click.option("--dry-run", "-n", is_flag=True, help="Only compare: how many messages each side lacks.")
@click.option("--pull", is_flag=True, help="Only fetch what is lacking here.")
@click.option("--push", is_flag=True, help="Only send what is lacking there.")
@click.option(
    "--timeout", type=pause(0.0), default=30.0, show_default=True, metavar="SECONDS",
    help="How long to wait for a hub that is not there.",
)  # fmt: skip
@click.pass_obj
def sync(
    common: Common, hub: str, channels: tuple[str, ...], dry_run: bool, pull: bool, push: bool, timeout: float
) -> int:
    """Compare channels of this station with those of a HUB, and give each side what it lacks.

    Messages of all stations are compared, whichever way they came; each is appended once, byte for byte. HUB is an
    address, or the name of a hub that a link was with. The rules of both sides hold: the hub's 'subscribe' for what is
    fetched, its 'publish' and 'relay' for what is sent. It needs the settings tls, no link, and nothing that runs the
    links; it may run beside them, be ended at any time, and be run again.

    \b
    Exit code 0: both sides have all of it. 6: some is lacking all the same, and
    why: not allowed by the rules, gone where it was (trimmed, compacted,
    redacted), or refused. With --dry-run 6: somebody lacks something.
    """
    from heliograph.admin import sync as admin

    if pull and push:
        raise click.UsageError("--pull is one direction and --push the other; without them it is both")
    sides: tuple[Side, ...] = ("here",) if pull else ("there",) if push else ("here", "there")
    with (
        common.open(write=not dry_run) as station,
        output.progress(common, "comparing" if dry_run else "syncing", sizes=False) as progress,
    ):
        report = admin.sync(
            station, hub, channels, sides=sides, dry_run=dry_run, progress=progress, timeout_s=timeout
        )  # fmt: skip
    if common.json:
        output.document(plain(report))
    elif not common.quiet:
        _print(report)
    return exits.OK if report.equal else exits.UNEQUAL


def _print(report: SyncReport) -> None:
    rows = [
        [one.channel, lack.origin, lack.here or None, lack.there or None]
        for one in report.channels for lack in one.lacking
    ]  # fmt: skip
    if rows:
        output.table(["CHANNEL", "ORIGIN", ">LACKING HERE", ">LACKING THERE"], rows)
        print()
    for one in report.channels:
        for text in dict.fromkeys([_words(left) for left in one.left]):
            print(clean(f"{one.channel}: {text}"))
    print(_end(report))


def _words(left: Left) -> str:
    if not left.origin:
        return f"not compared, {left.why}: {left.reason}"
    what = f"{output.several(left.messages, 'message')} of {left.origin}"
    return f"{what} cannot come {left.side}, {left.why}: {left.reason}"


def _end(report: SyncReport) -> str:
    hub, what = report.hub, output.several(len(report.channels), "channel")
    if report.dry_run:
        return f"{what} compared with {hub}: " + ("nothing is lacking" if report.equal else "not equal")
    moved = f"{output.several(report.fetched, 'message')} fetched, {report.sent:,} sent"
    if not report.fetched and not report.sent:
        moved = "nothing to do" if report.equal else "nothing could be done"
    return f"{what} synced with {hub}: {moved}" + ("" if report.equal else "; not equal")
