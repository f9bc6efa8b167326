"""``helio sub``: subscribe from the command line; print messages or run a command for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from heliograph.cli import exits, messages, output
from heliograph.cli.common import Common
from heliograph.cli.exec import Command, Exec
from heliograph.cli.frame import command
from heliograph.cli.hubs import hub_client, hub_options
from heliograph.cli.names import SUBSCRIPTION, channel_or_pattern_argument
from heliograph.cli.printing import OutputLost, Printing
from heliograph.cli.read import has_several, parse_where
from heliograph.cli.signals import Stop
from heliograph.clock import SYSTEM_CLOCK
from heliograph.delivery.control import Control, delivering
from heliograph.errors import HeliographError
from heliograph.patterns import is_pattern
from heliograph.station.starts import check_word
from heliograph.station.wildcards import WildcardSubscription

if TYPE_CHECKING:
    from heliograph.admin.where import Where
    from heliograph.delivery import Subscription, SubscriptionStats
    from heliograph.message import Message

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
helio sub images --name resize --queue --exec ./resize.sh
helio sub alerts --name nightly --start first --count 100 --json
helio sub 'sensors.>' --name archive            # also channels made later
helio sub alerts --where 'type~^com.example' --where region=eu
helio sub jobs --name worker --queue --exec ./work.sh --hub hub.example:7740
""",
)
@channel_or_pattern_argument
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
    "--exec", "exec_", type=Command(), metavar="COMMAND",
    help="Run a shell command for each message: its JSON on stdin, and HELIOGRAPH_CHANNEL, _PARTITION, _OFFSET, "
    "_ID, _TYPE and _KEY in the environment. Any exit code but 0 is a failure.",
)  # fmt: skip
@click.option(
    "--queue", is_flag=True,
    help="Be one of several workers of the queue --name: each message goes to one of them (see 'helio queue --help').",
)  # fmt: skip
@click.option("--count", "-n", type=click.IntRange(min=1), metavar="N", help="End after N messages.")
@click.option(
    "--max-retries", type=click.IntRange(min=0), metavar="N",
    help="How often a failing command is run again before the dead letter; with --queue for all its workers.  "
    "[default: 5, or what the queue has; setting subscribers.max_retries]",
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
@click.option(
    "--where", "conditions", multiple=True, metavar="CONDITION",
    help="Only messages for which this holds: type=…, key~REGEX, HEADER!=…, has:FIELD; not on the payload. May "
    "be repeated; all must hold.",
)  # fmt: skip
@messages.format_option
@hub_options
@click.pass_obj
def sub(
    common: Common,
    channel: str,
    name: str | None,
    group: bool,
    start: str,
    exec_: str | None,
    queue: bool,
    count: int | None,
    max_retries: int | None,
    timeout: str | None,
    concurrency: int,
    conditions: tuple[str, ...],
    shape: str | None,
) -> int:
    """Subscribe to a channel, which is made if it is new, or to all that a pattern matches.

    In a pattern '*' stands for one word and '>' for one or more at the end: 'sensors.*.temp', 'sensors.>'.
    Channels made later are heard from their first message on; dead letters only if the pattern ends in
    '.dead-letter'.

    Messages are printed, or handed to a command. A failing command is run again, then its message goes to
    the channel's dead letters (see 'helio dead --help'). Ctrl-C or SIGTERM let the message at hand finish and
    save the position; a second one ends a running command, whose message is delivered again.

    With --hub this is a subscription at a hub, a worker of its group or queue, and no data directory is needed; the
    certificate's name must be allowed to subscribe the channel there.
    """
    if group and name is None:
        raise click.UsageError("--group needs --name: the workers of a group find each other by it")
    if exec_ is None and (max_retries is not None or timeout is not None or concurrency > 1):
        raise click.UsageError("--max-retries, --timeout and --concurrency belong to --exec")
    if exec_ is not None and shape is not None:
        raise click.UsageError("--format says how to print messages; with --exec the command gets them")
    if count is not None and concurrency > 1:
        raise click.UsageError("--count needs messages one after the other; leave out --concurrency")
    if queue and (name is None or count is not None):
        raise click.UsageError("--queue needs --name, and takes messages in any order, hence no --count")
    client = hub_client(common)
    if client is not None:
        if count is not None or conditions:
            raise click.UsageError("--count and --where are for a station; 'helio read --hub' has --limit and --where")
        from heliograph.cli.hubwork import sub_at_hub

        return sub_at_hub(
            common, client, channel, name=name, group=group, queue=queue, start=start, exec_=exec_,
            max_retries=max_retries, timeout=timeout, concurrency=concurrency, shape=shape,
        )  # fmt: skip
    where = _envelope_only(conditions)
    given = {"max_retries": max_retries, "subscribers_timeout_s": timeout}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    check_word(start, SYSTEM_CLOCK, several=is_pattern(channel))  # before a station is made for it
    with common.open(create=True, **settings) as station, Stop() as stop:
        if exec_ is None:
            show = messages.printer(common, shape, several=has_several(station, channel), channels=is_pattern(channel))
            work: Exec | Printing = Printing(show)
        else:
            work = Exec(exec_, station.config.subscribers.timeout_s)
        delivery = _Delivery(work, count, station.config.subscribers.max_retries)
        stop.on_second = work.end
        subscription = station.subscribe(
            channel, delivery, name=name, group=group, start=start, concurrency=concurrency,
            timeout_s=0.0,  # a command has its own, which kills it
            paused=True,  # until the delivery knows what to close
            where=where,
            queue=queue,
            max_deliveries=max_retries + 1 if queue and max_retries is not None else None,
        )  # fmt: skip
        delivery.subscription = subscription
        _say_begin(common, subscription)
        subscription.resume()
        return follow(common, subscription, work, stop, delivery.satisfied)


def _envelope_only(conditions: tuple[str, ...]) -> Where | None:
    where = parse_where(conditions)
    if where is not None and where.apart()[1]:
        raise click.UsageError("--where of sub cannot look at the payload; 'helio read --follow --where …' can")
    return where


def follow(
    common: Common,
    subscription: Subscription,
    work: Exec | Printing,
    stop: Stop,
    satisfied: Callable[[SubscriptionStats], bool] = lambda _: False,
) -> int:
    """Wait for the end: the count, a signal, or a failure that no retry can mend."""
    failure = ""
    while not stop.asked.wait(_LOOK_S):
        stats = subscription.stats()
        if stats.state == "closed" or satisfied(stats):
            break
        if stats.state == "failed":
            failure = stats.last_error
            break
    if isinstance(work, Exec) and stop.signal and work.running:
        common.note("finishing the message at hand; once more ends it now")
    subscription.close(timeout_s=_LONG_S if isinstance(work, Exec) else 10.0)
    if isinstance(work, Printing) and work.error is not None:
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
        self._undone: dict[tuple[str, int, int], tuple[int, Control]] = {}
        """Messages that failed and are tried again, with their attempts: at most one per partition."""

    def __call__(self, message: Message) -> None:
        subscription = self.subscription
        assert subscription is not None
        control = delivering.get()
        assert control is not None
        place = (message.channel, message.partition, message.offset)
        attempts = self._undone.pop(place, (0, control))[0] + 1
        self._begun += attempts == 1
        enough = self._begun == self._count
        if enough and attempts == 1:
            self._hold_others(subscription, control)
        try:
            self._work(message)
        except OutputLost:
            subscription.close()  # what is being closed tries nothing again and buries nothing
            raise
        except Exception:
            if self._count is not None and attempts <= self._retries_max:
                self._undone[place] = attempts, control
            elif enough:
                control.pause()  # it is buried now, and no other begins
            raise
        if enough:
            control.pause()
            if not self._undone:
                subscription.close()

    def _hold_others(self, subscription: Subscription, control: Control) -> None:
        """The last one has begun: of the other partitions only those go on that have begun one, too."""
        subscription.pause()
        for going in [control, *[other for _, other in self._undone.values()]]:
            going.resume()

    def satisfied(self, stats: SubscriptionStats) -> bool:
        """Whether as many as were asked for are done, with or without success."""
        return self._count is not None and stats.delivered + stats.dead_letters >= self._count


def _say_begin(common: Common, subscription: Subscription) -> None:
    name = f" as {subscription.name}" if subscription.name else ""
    waiting = f"{output.several(subscription.stats().lag, 'message')} waiting"
    at = subscription.positions
    if isinstance(subscription, WildcardSubscription):
        place = f"({output.several(len(subscription.channels), 'channel')} now)"
    elif len(at) == 1:
        place = f"from offset {subscription.position}"
    else:
        place = f"in {output.several(len(at), 'partition')}"
    where = f"{place}, {waiting}"
    common.note(f"subscribed to {subscription.channel}{name} {where}; Ctrl-C ends")


def _say_end(common: Common, subscription: Subscription) -> None:
    stats = subscription.stats()
    letters = f", {output.several(stats.dead_letters, 'dead letter')}" if stats.dead_letters else ""
    position = "" if is_pattern(stats.channel) else f"; position {stats.position}"
    common.note(f"{output.several(stats.delivered, 'message')} delivered{letters}{position}")
