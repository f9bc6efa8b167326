"""``helio dead``: what handlers gave up on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli import exits, messages, output
from heliograph.cli.ask import confirm
from heliograph.cli.common import Common, clean, plain
from heliograph.cli.frame import command, group
from heliograph.cli.names import CHANNEL, channel_argument, optional_channel_argument
from heliograph.cli.read import parse_where

if TYPE_CHECKING:
    from heliograph.admin.dead import DeadLetter, ReplayReport
    from heliograph.admin.where import Where
    from heliograph.station import Station

_OFFSETS_PRINTED = 10

where_option = click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only letters for which this holds: reason=handler, subscription=…, worker=…, error~REGEX, attempts>3, "
    "or type, key and data.… of the original. May be repeated; all must hold.",
)  # fmt: skip
offset_option = click.option(
    "--offset", "offsets", multiple=True, type=click.IntRange(min=0), metavar="N",
    help="Only the letter at this offset of the dead letters (see 'helio dead list --each'). May be repeated.",
)  # fmt: skip
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would happen, change nothing.")


@group(
    "dead",
    examples="""
helio dead list
helio dead list alerts --each
helio dead replay alerts --where error_type=builtins.TimeoutError --dry-run
""",
)
def dead() -> None:
    """Dead letters: messages whose handler gave up, and why.

    The dead letters of a channel are messages of the channel CHANNEL.dead-letter, each with its original, the
    error and the subscription. Once the cause is mended, replay them.
    """


@command(
    "list",
    examples="""
helio dead list                # by channel, reason and error
helio dead list alerts --each  # every letter, with its offset and id
helio dead list --where subscription=pager --json
""",
)
@optional_channel_argument
@where_option
@click.option("--each", is_flag=True, help="Every letter, not only how many of each kind.")
@click.pass_obj
def list_(common: Common, channel: str | None, conditions: tuple[str, ...], each: bool) -> None:
    """List dead letters by reason.

    AGAIN is how many of them had been replayed before: replaying those once more may not help either. ATTEMPTS is
    how often the handler was called, the most of all; KIND and WORKERS say which are of groups and queues, and how
    many workers gave up.
    """
    with common.open() as station:
        if each:
            _list_each(common, station, channel, parse_where(conditions))
        else:
            _list_groups(common, station, channel, parse_where(conditions))


def _list_each(common: Common, station: Station, channel: str | None, where: Where | None) -> None:
    from heliograph.admin import dead as admin

    found = admin.letters(station, channel, where)
    if common.json:
        for letter in found:
            output.json_line(plain(letter))
        return
    shared = False
    rows: list[list[Any]] = []
    for letter in found:
        shared = shared or letter.worker is not None
        rows.append([
            letter.channel, str(letter.offset), letter.failed_at, letter.subscription, letter.kind, letter.worker,
            letter.attempts, letter.error,
        ])  # fmt: skip
    columns = ["CHANNEL", ">OFFSET", "FAILED", "SUBSCRIPTION", "KIND", "WORKER", ">ATTEMPTS", "…ERROR"]
    _print_rows(common, columns, rows, [] if shared else ["KIND", "WORKER"])


def _list_groups(common: Common, station: Station, channel: str | None, where: Where | None) -> None:
    from heliograph.admin import dead as admin

    groups = admin.summary(station, channel, where)
    if common.json:
        output.document(plain(groups))
        return
    columns = [
        "CHANNEL", ">COUNT", ">AGAIN", "REASON", "SUBSCRIPTION", "KIND", ">WORKERS", ">ATTEMPTS", "LAST", "~ERROR",
    ]  # fmt: skip
    rows: list[list[Any]] = [
        [one.channel, one.count, one.replayed, one.reason, one.subscription, one.kind, len(one.workers), one.attempts,
         one.last, one.error_type]
        for one in groups
    ]  # fmt: skip
    unused = [] if any(one.replayed for one in groups) else [">AGAIN"]
    unused += [] if any(one.workers for one in groups) else ["KIND", ">WORKERS"]
    _print_rows(common, columns, rows, unused)


def _print_rows(common: Common, columns: list[str], rows: Sequence[Sequence[Any]], unused: list[str]) -> None:
    """A table without the columns that would say nothing."""
    shown = [at for at, column in enumerate(columns) if column not in unused]
    if rows:
        output.table([columns[at] for at in shown], [[row[at] for at in shown] for row in rows])
    else:
        common.note("no dead letters")


@command(
    "show",
    short_help="Show a dead letter and its original.",
    examples="""
helio dead show 0193315c-7a5e-7c41-a0a4-2f7f6d1c9e55  # an id
helio dead show 17 --channel alerts                   # an offset
""",
)
@click.argument("reference")
@click.option("--channel", type=CHANNEL, metavar="CHANNEL", help="The channel; an offset needs it.")
@click.pass_obj
def show(common: Common, reference: str, channel: str | None) -> None:
    """Show a dead letter: the error, its traceback, and the original message."""
    from heliograph.admin import dead as admin
    from heliograph.station.starts import OFFSET_DIGITS_MAX, is_offset

    offset = int(reference) if is_offset(reference) and len(reference) <= OFFSET_DIGITS_MAX else None
    if offset is not None and channel is None:
        raise click.UsageError(f"offset {reference} of which channel? add --channel CHANNEL")
    with common.open() as station:
        letter = admin.find(station, reference if offset is None else offset, channel)
    if common.json:
        output.document(plain(letter))
    else:
        _print_letter(letter)


def _print_letter(letter: DeadLetter) -> None:
    output.facts([
        ("letter", f"offset {letter.offset} of {letter.channel}.dead-letter"), ("id", letter.id),
        ("original", f"offset {letter.original_offset} of {letter.channel}"), ("original id", letter.original_id),
        ("type", letter.type), ("key", letter.key), ("subscription", letter.subscription),
        ("group", letter.group), ("queue", letter.queue), ("worker", letter.worker),
        ("reason", letter.reason), ("attempts", letter.attempts), ("replayed", letter.replays or None),
        ("failed", output.moment(letter.failed_at)), ("error", letter.error),
    ])  # fmt: skip
    if letter.traceback:
        print()
        for line in letter.traceback.rstrip().splitlines():
            print(f"  {clean(line)}")
    print()
    if letter.original is not None:
        messages.show_payload(letter.original.get("data", letter.original.get("data_base64")))
    else:
        print(f"the line cannot be decoded; in base64: {letter.original_base64}")


@command(
    "replay",
    short_help="Publish the originals again, take the letters away.",
    examples="""
helio dead replay alerts --dry-run
helio dead replay alerts
helio dead replay alerts --where subscription=pager --where 'error~Timeout'
helio dead replay alerts --offset 17 --offset 18
helio dead replay alerts --to-all
""",
)
@channel_argument
@where_option
@offset_option
@click.option("--to-all", is_flag=True, help="For every subscription of the channel, not only for the one that failed.")
@dry_run_option
@click.pass_obj
def replay(
    common: Common, channel: str, conditions: tuple[str, ...], offsets: tuple[int, ...], to_all: bool, dry_run: bool
) -> int:
    """Publish the originals of dead letters again and take the letters away.

    Each goes to the subscription, group or queue that gave it up; all others pass over it. First an original is
    published, then its letter removed, so that an interrupted replay loses nothing and can simply be started again.
    The attempt is marked on the message, so that loops show in 'helio dead list'.

    A letter stays if its subscription does not exist any more, or its original cannot be decoded: exit code 1.
    Letters of subscriptions without a name go to all, as everything does with --to-all.
    """
    from heliograph.admin import dead as admin

    with common.open(write=True) as station, output.progress(common, "replaying", sizes=False) as progress:
        report = admin.replay(
            station, channel, where=parse_where(conditions), offsets=offsets or None, to_all=to_all, dry_run=dry_run,
            progress=progress,
        )  # fmt: skip
    if common.json:
        output.document(plain(report))
    else:
        _warn_of_skipped(common, report)
        if not common.quiet:
            resumed = f", {report.resumed} of an interrupted replay taken away" if report.resumed else ""
            what = f"{output.several(report.replayed, 'dead letter')} of {report.channel}{_receivers(report)}"
            print(f"would replay {what}" if dry_run else f"replayed {what}{resumed}")
    return exits.BAD if report.skipped else exits.OK


def _warn_of_skipped(common: Common, report: ReplayReport) -> None:
    """A line for each reason, however many letters there are."""
    reasons: dict[str, list[int]] = {}
    for skipped in report.skipped:
        reasons.setdefault(skipped.reason, []).append(skipped.offset)
    for reason, offsets in reasons.items():
        if len(offsets) == 1:
            common.warn(f"offset {offsets[0]} stays: {reason}")
        else:
            more = f" and {len(offsets) - _OFFSETS_PRINTED:,} more" if len(offsets) > _OFFSETS_PRINTED else ""
            common.warn(f"offsets {', '.join(map(str, offsets[:_OFFSETS_PRINTED]))}{more} stay: {reason}")


def _receivers(report: ReplayReport) -> str:
    """Whom the messages are for, with how many each if that is not plain."""
    found = dict(sorted(report.redriven.items()))
    rest = report.replayed - sum(found.values())
    if not found:
        return " to all subscriptions" if rest else ""
    counts = found | ({"all subscriptions": rest} if rest else {})
    return " to " + ", ".join(name if len(counts) == 1 else f"{name} ({count:,})" for name, count in counts.items())


@command(
    "purge",
    examples="""
helio dead purge alerts --where 'failed_at<-30d' --dry-run
helio dead purge alerts --yes
""",
)
@channel_argument
@where_option
@offset_option
@dry_run_option
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def purge(
    common: Common, channel: str, conditions: tuple[str, ...], offsets: tuple[int, ...], dry_run: bool, yes: bool
) -> None:
    """Remove dead letters for good. Their originals stay in their channel's log."""
    from heliograph.admin import dead as admin

    wanted, chosen = parse_where(conditions), offsets or None
    with common.open(write=True) as station:
        report = admin.purge(station, channel, where=wanted, offsets=chosen, dry_run=True)
        if not dry_run:
            if not yes and report.matched:
                confirm(f"Remove {output.several(report.matched, 'dead letter')} of {report.channel} for good?")
            with output.progress(common, "removing", sizes=False) as progress:
                report = admin.purge(station, channel, where=wanted, offsets=chosen, progress=progress)
    if common.json:
        output.document(plain(report))
    elif not common.quiet:
        what = output.several(report.matched if dry_run else report.removed, "dead letter")
        print(f"{'would remove' if dry_run else 'removed'} {what} of {report.channel}")


@command(
    "export",
    examples="""
helio dead export alerts > letters.ndjson
helio dead export --where reason=mismatch --output letters.ndjson
""",
)
@optional_channel_argument
@where_option
@click.option("--output", "-o", "path", metavar="FILE", help="Write to a file, which appears when it is complete.")
@click.pass_obj
def export(common: Common, channel: str | None, conditions: tuple[str, ...], path: str | None) -> None:
    """Write dead letters as lines of JSON, as they are stored."""
    from heliograph.admin import dead as admin

    with common.open() as station, output.to_file(path) as out:
        count = admin.export(station, channel, out, where=parse_where(conditions))
    if common.json and path not in (None, "-"):
        output.document({"letters": count, "path": path})
    else:
        common.note(f"exported {output.several(count, 'dead letter')}")


for _command in (list_, show, replay, purge, export):
    dead.add_command(_command)
