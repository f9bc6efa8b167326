"""The command line: ``helio``."""

from __future__ import annotations

from typing import Final

import click

from heliograph.cli import (
    backup,
    channels,
    completion,
    dead,
    doctor,
    frame,
    groups,
    init,
    keygen,
    links,
    pipeline,
    producers,
    pub,
    queue,
    read,
    requests,
    schedule,
    serve,
    settings,
    stats,
    sub,
    subscriptions,
    sync,
    top,
    trace,
    transfer,
    types,
    verify,
)

SECTIONS: Final[dict[str, list[click.Command]]] = {
    "Messages": [init.init, pub.pub, sub.sub, read.read, read.get, read.redact, requests.request, requests.reply],
    "Channels and subscriptions": [
        channels.channels,
        types.types,
        subscriptions.subscriptions,
        groups.groups,
        producers.producers,
        queue.queue,
        dead.dead,
        schedule.schedule,
    ],
    "Care": [stats.stats, top.top, verify.verify, doctor.doctor, backup.backup, backup.restore],
    "Between stations": [serve.serve, links.links, sync.sync, trace.trace, keygen.keygen],
    "Analysis": [pipeline.pipeline],
    "More": [transfer.export, transfer.import_, settings.config, completion.completion],
}


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        import heliograph

        print(f"helio {heliograph.__version__}")
        ctx.exit()


@click.group(
    "helio",
    cls=frame.Root,
    sections={title: [str(command.name) for command in found] for title, found in SECTIONS.items()},
    epilog="""
helio pub alerts 'system problem!'
helio sub alerts --name pager --exec ./page.sh
helio read alerts --start -5m --follow

Exit codes: 0 done, 1 what was checked is bad, 2 used wrongly, 3 not found,
4 busy, 5 the storage refused, 6 not equal, 130 ended with Ctrl-C.
""",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
    help="Print the version.",
)  # fmt: skip
def cli() -> None:
    """Durable publish/subscribe: a directory, no server.

    'helio COMMAND --help' explains a command, with examples. The options below may stand before or after
    the command.
    """


for _commands in SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    """The entry of the script ``helio``."""
    cli()
