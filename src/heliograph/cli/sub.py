"""``helio sub``: subscribe from the command line; print messages or run a command for each."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from heliograph.cli import exits, messages, output
from heliograph.cli.common import Common
from heliograph.cli.exec import Exec
from heliograph.cli.frame import command
from heliograph.cli.names import SUBSCRIPTION, channel_argument
from heliograph.cli.signals import Stop, raise_for
from heliograph.errors import HeliographError, NotFound

if TYPE_CHECKING:
    from heliograph.delivery import Subscription, SubscriptionStats
    from heliograph.message import Message
    from heliograph.station import Station

_LOOK_S: Final = 0.2
"""How often the subscription is looked at: whether it failed, or has what --count asked for."""

_LONG_S: Final = 7 * 86_400.0
"""How long a running command may take to finish once somebody asked to stop; asking twice ends it."""


@command(
    "sub",
    examples="""
helio sub alerts                                # print until Ctrl-C
helio sub alerts --name pager --start first     # resumes where it stopped
helio sub alerts --name pager --exec ./page.sh  # gets JSON on stdin
helio sub alerts --name web --exec 'curl -sf -d @- https://example.com/hook'
helio sub jobs --name worker --exec ./work.sh --max-retries 2 --timeout 60
helio sub readings --name sums --group --exec ./sum.sh  # in several terminals
helio sub alerts --name nightly --start first --count 100 --json
""",
)
@channel_argument
@click.option(
    "--name",
    type=SUBSCRIPTION,
    metavar="NAME",
    help="Make the subscription durable under this name: its position is kept.",
)
@click.option(
    "--group", is_flag=True,
    help="Work for the group --name: each of its workers delivers some of the partitions. Start as many as you like.",
)  # fmt: skip
@click.option(
    "--start", default="new", show_default=True, metavar="WHERE",
    help="Where a new subscription begins: first, new, an offset, a time or an age (-5m). A durable one "
    "that has a position resumes there.",
)  # fmt: skip
@click.option(
    "--exec", "exec_", metavar="COMMAND",
    help="Run a shell command for each message: its JSON on stdin, and HELIOGRAPH_CHANNEL, _PARTITION, _OFFSET, "
    "_ID, _TYPE and _KEY in the environment. Any exit code but 0 is a failure.",
)  # fmt: skip
@click.option("--count", "-n", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option(
    "--max-retries", type=click.IntRange(min=0), metavar="N",
    help="How often a failing command is run again before the dead letter.  [default: 5; setting "
    "subscribers.max_retries]",
)  # fmt: skip
@click.option(
    "--timeout", metavar="TIME",
    help="A command that takes longer (10s, 5m) is killed and has failed.  [default: none; setting "
    "subscribers.timeout_s]",
)  # fmt: skip
@click.option(
    "--concurrency", type=click.IntRange(1, 1024), default=1, show_default=True, metavar="N",
    help="Run N commands at once; messages of one key stay in order.",
)  # fmt: skip
@messages.format_option
@click.pass_obj
def sub(
    common: Common,
    channel: str,
    name: str | None,
    group: bool,
    start: str,
    exec_: str | None,
    count: int | None,
    max_retries: int | None,
    timeout: str | None,
    concurrency: int,
    shape: str | None,
) -> int:
    """Subscribe to a channel, which is made if it is new.

    Messages are printed, or handed to a command. A failing command is run again, then its message goes to
    the channel's dead letters (see 'helio dead --help'). Ctrl-C or SIGTERM let the message at hand finish and
    save the position; a second one ends a running command, whose message is delivered again.
    """
    if group and name is None:
        raise click.UsageError("--group needs --name: the workers of a group find each other by it")
    if exec_ is None and (max_retries is not None or timeout is not None or concurrency > 1):
        raise click.UsageError("--max-retries, --timeout and --concurrency belong to --exec")
    if exec_ is not None and shape is not None:
        raise click.UsageError("--format says how to print messages; with --exec the command gets them")
    if count is not None and concurrency > 1:
        raise click.UsageError("--count needs messages one after the other; leave out --concurrency")
    given = {"max_retries": max_retries, "subscribers_timeout_s": timeout}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    with common.open(create=True, **settings) as station, Stop() as stop:
        if exec_ is None:
            work: Exec | _Printing = _Printing(messages.printer(common, shape, several=_several(station, channel)))
        else:
            work = Exec(exec_, station.config.subscribers.timeout_s)
        delivery = _Delivery(work, count, station.config.subscribers.max_retries)
        stop.on_second = work.end
        subscription = station.subscribe(
            channel, delivery, name=name, group=group, start=start, concurrency=concurrency,
            timeout_s=0.0,  # a command has its own, which kills it
            paused=True,  # until the delivery knows what to close
        )  # fmt: skip
        delivery.subscription = subscription
        _say_begin(common, subscription)
        subscription.resume()
        return _follow(common, subscription, delivery, work, stop)


def _several(station: Station, channel: str) -> bool:
    with contextlib.suppress(NotFound):
        return station.engine.describe(channel).partitions > 1
    return station.config.storage.partitions > 1


def _follow(common: Common, subscription: Subscription, delivery: _Delivery, work: Exec | _Printing, stop: Stop) -> int:
    """Wait for the end: the count, a signal, or a failure that no retry can mend."""
    failure = ""
    while not stop.asked.wait(_LOOK_S):
        stats = subscription.stats()
        if stats.state == "closed" or delivery.satisfied(stats):
            break
        if stats.state == "failed":
            failure = stats.last_error
            break
    if isinstance(work, Exec) and stop.signal and work.running:
        common.note("finishing the message at hand; once more ends it now")
    subscription.close(timeout_s=_LONG_S if isinstance(work, Exec) else 10.0)
    if isinstance(work, _Printing) and work.error is not None:
        raise work.error
    if failure:
        raise HeliographError(failure)
    _say_end(common, subscription)
    return exits.OK if not stop.signal else stop.exit_code


class _Delivery:
    """The handler. Counts messages, not attempts, and closes the subscription after the last one."""

    def __init__(self, work: Callable[[Message], None], count: int | None, retries_max: int) -> None:
        self.subscription: Subscription | None = None
        self._work = work
        self._count = count
        self._retries_max = retries_max
        self._begun = 0
        self._place = (-1, -1)
        self._attempts = 0

    def __call__(self, message: Message) -> None:
        subscription = self.subscription
        assert subscription is not None
        if (message.partition, message.offset) != self._place:
            self._place, self._attempts = (message.partition, message.offset), 0
            self._begun += 1
        self._attempts += 1
        last = self._begun == self._count
        try:
            self._work(message)
        except OutputLost:
            subscription.close()  # what is being closed tries nothing again and buries nothing
            raise
        except Exception:
            if last and self._attempts > self._retries_max:
                subscription.pause()  # it is buried now, and no other begins
            raise
        if last:
            subscription.close()

    def satisfied(self, stats: SubscriptionStats) -> bool:
        """Whether as many as were asked for are done, with or without success."""
        return self._count is not None and stats.delivered + stats.dead_letters >= self._count


class OutputLost(Exception):
    """A message could not be printed, which is not the message's fault."""


class _Printing:
    """Prints each message; one is done when it has left this process."""

    def __init__(self, show: Callable[[Message], None]) -> None:
        self.error: OSError | None = None
        self.end = raise_for
        self._show = show

    def __call__(self, message: Message) -> None:
        try:
            self._show(message)
            output.flush()
        except OSError as error:
            self.error = error
            raise OutputLost from error


def _say_begin(common: Common, subscription: Subscription) -> None:
    name = f" as {subscription.name}" if subscription.name else ""
    at = subscription.positions
    place = f"from offset {subscription.position}" if len(at) == 1 else f"in {output.several(len(at), 'partition')}"
    where = f"{place}, {output.several(subscription.stats().lag, 'message')} waiting"
    common.note(f"subscribed to {subscription.channel}{name} {where}; Ctrl-C ends")


def _say_end(common: Common, subscription: Subscription) -> None:
    stats = subscription.stats()
    letters = f", {output.several(stats.dead_letters, 'dead letter')}" if stats.dead_letters else ""
    common.note(f"{output.several(stats.delivered, 'message')} delivered{letters}; position {stats.position}")
