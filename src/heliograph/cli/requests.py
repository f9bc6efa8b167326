"""``helio request`` and ``helio reply``: ask whoever answers, or answer with a command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from heliograph.cli import exits, messages, output
from heliograph.cli.common import Common
from heliograph.cli.durations import duration
from heliograph.cli.exec import Command, Exec
from heliograph.cli.frame import command
from heliograph.cli.hubs import hub_client, hub_options
from heliograph.cli.names import SUBSCRIPTION, channel_argument, channel_or_pattern_argument
from heliograph.cli.payloads import MODES, Reader
from heliograph.cli.pub import header_option
from heliograph.cli.signals import Stop
from heliograph.cli.sub import follow
from heliograph.clock import SYSTEM_CLOCK
from heliograph.patterns import is_pattern
from heliograph.station.starts import check_word

if TYPE_CHECKING:
    from heliograph.message import Message


@command(
    "request",
    examples="""
helio request prices '{"item": "lamp"}'           # prints the reply
helio request prices lamp --timeout 2s --json
echo '{"item": "lamp"}' | helio request prices -  # from stdin
helio request prices lamp --hub hub.example:7740  # asked there
""",
)
@channel_argument
@click.argument("message", required=False)
@click.option(
    "--timeout", default="10s", show_default=True, metavar="TIME", callback=duration,
    help="How long to wait for the reply.",
)  # fmt: skip
@click.option(
    "--as", "mode", type=click.Choice(MODES), default="auto", show_default=True,
    help="What the input is; see 'helio pub --help'.",
)  # fmt: skip
@click.option("--type", "type_name", metavar="NAME", help="The payload's type.  [default: heliograph.data.v1]")
@click.option("--key", help="The partition key.")
@header_option
@messages.format_option
@hub_options
@click.pass_obj
def request(
    common: Common,
    channel: str,
    message: str | None,
    timeout: float,
    mode: str,
    type_name: str | None,
    key: str | None,
    headers: dict[str, str],
    shape: str | None,
) -> int:
    """Publish a request and print the reply.

    MESSAGE is the payload; without it, or with '-', all of stdin is. Exit code 4 if nobody replied in time (the
    request is in the log all the same), 1 if the handler of the other side gave up. With --hub it is asked there,
    and no data directory is needed.
    """
    if message in (None, "-"):
        raw = sys.stdin.buffer.read()
    else:
        assert message is not None
        raw = message.encode("utf-8", "surrogateescape")
    data = Reader(mode, common.warn).payload(raw)
    with hub_client(common) or common.open(write=True) as station:
        answer = station.request(channel, data, timeout=timeout, type=type_name, key=key, headers=headers)
        if shape is None and not common.json:
            messages.show_payload(answer.data)
        else:
            messages.printer(common, shape)(answer)
        output.flush()
    return exits.OK


@command(
    "reply",
    examples="""
helio reply prices --exec 'jq .data.item | ./price.sh'
helio reply prices --name clerk --exec ./price.sh  # resumes where it stopped
helio reply 'prices.*' --exec ./price.sh --concurrency 4
helio reply prices --exec ./price.sh --hub hub.example:7740
""",
)
@channel_or_pattern_argument
@click.option(
    "--exec", "exec_", type=Command(), required=True, metavar="COMMAND",
    help="Run a shell command for each request: its JSON on stdin, and HELIOGRAPH_CHANNEL, _OFFSET, _ID, _TYPE "
    "and _KEY in the environment. What it prints is the reply; any exit code but 0 is a failure.",
)  # fmt: skip
@click.option(
    "--name", type=SUBSCRIPTION, metavar="NAME",
    help="Make the subscription durable under this name: requests that came while nobody replied are answered.",
)  # fmt: skip
@click.option(
    "--start",
    default="new",
    show_default=True,
    metavar="WHERE",
    help="Where a new subscription begins; see 'helio sub'.",
)
@click.option(
    "--as", "mode", type=click.Choice(MODES), default="auto", show_default=True,
    help="What the command prints; see 'helio pub --help'. A newline at its end is left out.",
)  # fmt: skip
@click.option("--type", "type_name", metavar="NAME", help="The replies' type.  [default: heliograph.data.v1]")
@click.option(
    "--max-retries", type=click.IntRange(min=0), default=0, show_default=True, metavar="N",
    help="How often a failing command is run again before whoever asked is told.",
)  # fmt: skip
@click.option("--timeout", metavar="TIME", help="A command that takes longer (10s, 5m) is killed and has failed.")
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N", help="Run N at once."
)
@hub_options
@click.pass_obj
def reply(
    common: Common,
    channel: str,
    exec_: str,
    name: str | None,
    start: str,
    mode: str,
    type_name: str | None,
    max_retries: int,
    timeout: str | None,
    concurrency: int,
) -> int:
    """Answer the requests of a channel with what a command prints.

    A failing command is run again if --max-retries says so; then whoever asked gets the error, and the request
    goes to the channel's dead letters. Ctrl-C or SIGTERM let the request at hand finish. With --hub requests are
    answered that come to that hub, whose rules must allow it ('reply'), and no data directory is needed.
    """
    settings: dict[str, Any] = {"max_retries": max_retries}
    if timeout is not None:
        settings["subscribers_timeout_s"] = timeout
    reader = Reader(mode, common.warn)

    def answer(asked: Message) -> Any:
        from heliograph.message import Draft

        printed = work.run(asked)
        return Draft(data=reader.payload(printed.removesuffix(b"\n")), type=type_name)

    client = hub_client(common)
    if client is not None:
        from heliograph.cli.hubwork import reply_at_hub

        work = Exec(exec_, common.config(**settings).subscribers.timeout_s, capture=True)
        return reply_at_hub(
            common, client, channel, work, answer, name=name, start=start, max_retries=max_retries,
            concurrency=concurrency,
        )  # fmt: skip
    check_word(start, SYSTEM_CLOCK, several=is_pattern(channel))  # before a station is made for it
    with common.open(create=True, **settings) as station, Stop() as stop:
        work = Exec(exec_, station.config.subscribers.timeout_s, capture=True)
        stop.on_second = work.end
        subscription = station.reply(
            channel, answer, name=name, start=start, concurrency=concurrency, timeout_s=0.0
        )  # fmt: skip
        common.note(f"replying to requests on {subscription.channel}; Ctrl-C ends")
        return follow(common, subscription, work, stop)
