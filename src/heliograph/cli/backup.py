"""``helio backup`` and ``helio restore``."""

from __future__ import annotations

import click

from heliograph.cli import exits, output
from heliograph.cli.common import Common, plain
from heliograph.cli.frame import command
from heliograph.cli.names import STATION


@command(
    "backup",
    examples="""
helio backup /mnt/backup/host1          # first everything, then what is new
helio backup /mnt/backup/host1 --check  # is that backup whole?
""",
)
@click.argument("directory")
@click.option("--check", is_flag=True, help="Only check the backup that is there. Exit code 1 if it is not whole.")
@click.pass_obj
def backup(common: Common, directory: str, check: bool) -> int:
    """Copy a station while it is used.

    The copy is consistent, and a second one into the same directory only copies what is new. Positions, the state of
    queues and what waits for its time are in it.

    A channel that is damaged is told and left out, its older copy stays; exit code 1 if there was one.
    """
    from heliograph.admin import backup as admin

    if check:
        return _check(common, directory)
    with common.open() as station, output.progress(common, "copying") as progress:
        report = admin.backup(station, directory, progress=progress)
    for warning in report.warnings:
        common.warn(warning)
    if common.json:
        output.document(plain(report))
    elif not common.quiet:
        kind = "added to the backup in" if report.incremental else "made a backup in"
        copied = f"{output.size(report.copied_bytes)} in {output.several(report.copied_files, 'file')} copied"
        holds = f"{output.several(report.messages, 'message')} of {output.several(report.channels, 'channel')}"
        print(f"{kind} {report.target}: {copied}; it holds {holds}, {output.size(report.bytes)}")
    return exits.BAD if report.left_out else exits.OK


def _check(common: Common, directory: str) -> int:
    from heliograph.admin import backup as admin

    with output.progress(common, "checking") as progress:
        wrong = admin.check(directory, progress=progress)
    if common.json:
        output.document({"path": directory, "ok": not wrong, "wrong": wrong})
    else:
        for line in wrong:
            print(output.cell(line))
        if not wrong and not common.quiet:
            print(f"ok: the backup in {directory} is whole")
    return exits.BAD if wrong else exits.OK


@command(
    "restore",
    examples="""
helio restore /mnt/backup/host1 /var/lib/heliograph
helio restore /mnt/backup/host1 ./copy --name host1-copy
""",
)
@click.argument("directory")
@click.argument("target")
@click.option(
    "--name", type=STATION, metavar="NAME", help="Give the restored station another name, if the first one still lives."
)
@click.pass_obj
def restore(common: Common, directory: str, target: str, name: str | None) -> None:
    """Make a station from a backup.

    DIRECTORY is the backup, TARGET the new station's directory, which must be empty or not there yet. Every
    file is checked on the way.
    """
    from heliograph.admin import backup as admin

    with output.progress(common, "restoring") as progress:
        report = admin.restore(directory, target, name=name, progress=progress)
    if common.json:
        output.document(plain(report))
    elif not common.quiet:
        what = f"{output.several(report.channels, 'channel')}, {output.size(report.bytes)}"
        print(f"restored station '{report.name}' in {report.target}: {what}, as of {output.moment(report.taken)}")
