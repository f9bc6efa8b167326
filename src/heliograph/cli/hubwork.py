"""``helio sub --hub`` and ``helio reply --hub``: work for a hub without a data directory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from heliograph.cli import exits, messages, output
from heliograph.cli.common import Common
from heliograph.cli.exec import Exec
from heliograph.cli.printing import OutputLost, Printing
from heliograph.cli.signals import Stop
from heliograph.delivery.retry import Retry
from heliograph.patterns import is_pattern

if TYPE_CHECKING:
    from heliograph.client import Client, ClientSubscription
    from heliograph.message import Message

_LOOK_S: Final = 0.2
_LONG_S: Final = 7 * 86_400.0
"""How long a running command may take to finish once somebody asked to stop; asking twice ends it."""


def sub_at_hub(
    common: Common, client: Client, channel: str, *, name: str | None, group: bool, queue: bool, start: str,
    exec_: str | None, max_retries: int | None, timeout: str | None, concurrency: int, shape: str | None,
) -> int:  # fmt: skip
    """Print what comes, or hand it to a command, until somebody asks to stop."""
    if exec_ is not None and name is None:
        raise click.UsageError("--exec at a hub needs --name: without, a message whose command fails would be lost")
    with client, Stop() as stop:
        if exec_ is None:
            several = messages.printer(common, shape, several=True, channels=is_pattern(channel))
            work: Exec | Printing = Printing(several)
        else:
            work = Exec(exec_, _seconds(common, timeout))
        stop.on_second = work.end

        def handle(message: Message) -> None:
            try:
                work(message)
            except OutputLost:
                stop.asked.set()
                raise

        retry = None if max_retries is None else Retry(max_retries=max_retries)
        subscription = client.subscribe(
            channel, handle, name=name, group=group, queue=queue, start=start, concurrency=concurrency, retry=retry
        )
        common.note(f"subscribed to {channel}{f' as {name}' if name else ''} at {client.hub}; Ctrl-C ends")
        return _follow(common, subscription, work, stop)


def reply_at_hub(
    common: Common, client: Client, channel: str, work: Exec, answer: Callable[[Message], Any], *, name: str | None,
    start: str, max_retries: int, concurrency: int,
) -> int:  # fmt: skip
    """Answer requests until somebody asks to stop."""
    options: dict[str, Any] = {}
    if name is not None:
        options = {"name": name, "retry": Retry(max_retries=max_retries), "concurrency": concurrency}
    elif max_retries or concurrency > 1:
        raise click.UsageError("--max-retries and --concurrency at a hub need --name: it keeps the place then")
    with client, Stop() as stop:
        stop.on_second = work.end
        subscription = client.reply(channel, answer, start=start, **options)
        common.note(f"replying to requests on {channel} at {client.hub}; Ctrl-C ends")
        return _follow(common, subscription, work, stop)


def _seconds(common: Common, timeout: str | None) -> float:
    given = {} if timeout is None else {"subscribers_timeout_s": timeout}
    return common.config(**given).subscribers.timeout_s


def _follow(common: Common, subscription: ClientSubscription, work: Exec | Printing, stop: Stop) -> int:
    """Wait for the end: a signal, or the hub's word that it is over."""
    while subscription.live and not stop.asked.wait(_LOOK_S):
        pass
    if isinstance(work, Exec) and stop.signal and work.running:
        common.note("finishing the message at hand; once more ends it now")
    subscription.close(timeout_s=_LONG_S if isinstance(work, Exec) else 10.0)
    if isinstance(work, Printing) and work.error is not None:
        raise work.error
    if subscription.error is not None:
        raise subscription.error
    common.note(f"{output.several(subscription.delivered, 'message')} delivered")
    return exits.OK if not stop.signal else stop.exit_code
