"""``helio export`` and ``helio import``: messages as lines of JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import BinaryIO

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command
from heliograph.cli.names import CHANNEL, channel_argument, partition_option
from heliograph.cli.read import parse_where, where_option


@command(
    "export",
    short_help="Write the messages of a channel as lines of JSON.",
    examples="""
helio export alerts > alerts.ndjson
helio export alerts --start -1d --output alerts.ndjson
helio export alerts | ssh host2 helio import
helio export alerts --where 'data.level>=3' | gzip > important.ndjson.gz
""",
)
@channel_argument
@click.option(
    "--start", default="first", show_default=True, metavar="WHERE", help="Where to begin: as for 'helio read'."
)
@click.option("--end", metavar="WHERE", help="Where to end, that one excluded.  [default: what is there now]")
@partition_option
@where_option
@click.option("--output", "-o", "path", metavar="FILE", help="Write to a file, which appears when it is complete.")
@click.pass_obj
def export(
    common: Common,
    channel: str,
    start: str,
    end: str | None,
    partition: int | None,
    conditions: tuple[str, ...],
    path: str | None,
) -> int:
    """Write the messages of a channel as they are stored, one line of JSON each.

    Several partitions are written one after the other. The lines are CloudEvents, which other tools read and
    'helio import' takes. Exit code 1 if some offsets could not be read.
    """
    from heliograph.admin import transfer

    wanted = parse_where(conditions)
    with (
        common.open() as station,
        output.to_file(path) as out,
        output.progress(common, "exporting", sizes=False) as progress,
    ):
        report = transfer.export_messages(
            station, channel, out, start=start, end=end, partition=partition, where=wanted, progress=progress
        )
    for gap in report.gaps:
        common.warn(f"offsets {gap.first} to {gap.next - 1} of partition {gap.partition} are missing: {gap.reason}")
    to_stdout = path in (None, "-")
    if common.json and not to_stdout:
        output.document(plain(report))
    else:
        common.note(f"exported {output.several(report.messages, 'message')}, {output.size(report.bytes)}")
    return exits.BAD if report.gaps else exits.OK


@command(
    "import",
    short_help="Append messages from lines of JSON.",
    examples="""
helio import alerts.ndjson
helio import alerts.ndjson --channel alerts-copy
zcat old.ndjson.gz | helio import --rejects bad.ndjson
helio import foreign.ndjson --dry-run
""",
)
@click.argument("file", required=False)
@click.option(
    "--channel", type=CHANNEL, metavar="CHANNEL", help="Import into this channel.  [default: each line's own]"
)
@click.option("--rejects", metavar="FILE", help="Write lines that cannot be imported to this file.")
@click.option("--dry-run", is_flag=True, help="Only check the lines, import nothing.")
@click.pass_obj
def import_(common: Common, file: str | None, channel: str | None, rejects: str | None, dry_run: bool) -> int:
    """Append messages from lines of JSON: CloudEvents, as 'helio export' writes them.

    Reads stdin without FILE. Ids, times and headers stay as they are. A line that cannot be imported is told
    and left out; exit code 1 if there was one.
    """
    from heliograph.admin import transfer

    with contextlib.ExitStack() as stack:
        station = stack.enter_context(common.open(write=not dry_run))
        source = stack.enter_context(_source(file))
        aside = stack.enter_context(output.to_file(rejects)) if rejects is not None else None
        report = transfer.import_messages(station, source, channel=channel, rejects=aside, dry_run=dry_run)
    if common.json:
        output.document(plain(report))
    else:
        for reject in report.rejects[:10]:
            common.warn(f"line {reject.line}: {reject.reason}")
        if report.rejected > 10:
            common.warn(f"and {report.rejected - 10:,} more")
        if not common.quiet:
            done = "would import" if dry_run else "imported"
            into = ", ".join(f"{count:,} to {name}" for name, count in report.channels.items())
            print(f"{done} {output.several(report.imported, 'message')}" + (f": {into}" if into else ""))
    return exits.BAD if report.rejected else exits.OK


@contextlib.contextmanager
def _source(file: str | None) -> Iterator[BinaryIO]:
    if file is None or file == "-":
        yield sys.stdin.buffer
    else:
        with open(file, "rb") as opened:
            yield opened
