"""Which kind of lanes and which way of calling suit a handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.arguments import check_callable, check_seconds, check_whole
from heliograph.delivery.far import FarHandler, FarInvoker
from heliograph.delivery.invoke import (
    AsyncInvoke,
    BatchInvoker,
    Interrupt,
    Invoke,
    PlainInvoker,
    check_handler,
    is_async,
)
from heliograph.delivery.lane import Lane, Terms
from heliograph.delivery.lanes import InlineLanes, Lanes, ThreadLanes
from heliograph.delivery.turns import TurnInvoker, Turns, async_in_turn
from heliograph.delivery.workers import Abandoned, TimedInvoker
from heliograph.errors import ConfigError

if TYPE_CHECKING:
    import asyncio

    from heliograph.delivery.ports import Handler, OnGap, OverflowPolicy

CONCURRENCY_MAX = 1024
"""Most lanes of one subscription."""


def check_arguments(
    *,
    name: str | None,
    handler: Handler,
    on_gap: OnGap | None,
    concurrency: int,
    timeout_s: float | None,
    buffer: int,
    overflow: OverflowPolicy,
) -> None:
    """Refuse what cannot work while the caller is still there to hear it."""
    check_handler(handler)
    check_callable("on_gap", on_gap)
    if on_gap is not None and is_async(on_gap) and not is_async(handler):
        raise ConfigError("on_gap is a coroutine function but the handler is not; make both async, or neither")
    if not 1 <= check_whole("concurrency", concurrency) <= CONCURRENCY_MAX:
        raise ConfigError(f"concurrency is {concurrency}; use 1 to {CONCURRENCY_MAX}")
    if timeout_s is not None and check_seconds("timeout_s", timeout_s) < 0:
        raise ConfigError(f"timeout_s is {timeout_s}; use seconds, or None for no timeout")
    if overflow not in ("block", "drop_oldest", "drop_newest"):
        raise ConfigError(f'overflow is {overflow!r}; use "block", "drop_oldest" or "drop_newest"')
    if overflow != "block" and name is not None:
        raise ConfigError(
            f'overflow="{overflow}" drops messages, but the durable subscription {name} promises every '
            "one of them; leave out the name, or the overflow"
        )
    if check_whole("buffer", buffer) < 1:
        raise ConfigError(f"buffer is {buffer}; at least one message must fit")


def make_invoker(handler: Handler, interrupt: Interrupt) -> Invoke:
    """What calls a plain handler message by message, here or wherever it is."""
    return FarInvoker(handler, interrupt) if isinstance(handler, FarHandler) else PlainInvoker(handler, interrupt)


def make_lanes(
    terms: Terms,
    handler: Handler,
    start: int,
    *,
    concurrency: int,
    timeout_s: float | None,
    event_loop: asyncio.AbstractEventLoop | None,
    turns: Turns,
) -> Lanes:
    """The lanes for this handler; nothing is started yet."""
    lanes = [Lane(index, terms) for index in range(concurrency)]
    control = terms.control
    name = f"heliograph-{terms.channel}-{terms.name or 'ephemeral'}"
    abandoned = Abandoned()

    def make_plain(interrupt: Interrupt) -> Invoke:
        return BatchInvoker(handler, interrupt) if terms.batch else make_invoker(handler, interrupt)

    def make_invoke(lane: Lane) -> Invoke:
        def make(interrupt: Interrupt) -> Invoke:
            if timeout_s is None:
                return make_plain(interrupt)
            return TimedInvoker(
                make_plain,
                interrupt,
                timeout_s=timeout_s,
                abandoned=abandoned,
                counters=lane.counters,
                clock=terms.clock,
                name=f"{name}-worker",
            )

        return TurnInvoker(make, control, turns)

    if is_async(handler):
        from heliograph.delivery.coroutines import AsyncBatchInvoker, AsyncInvoker
        from heliograph.delivery.tasks import TaskLanes

        kind = AsyncBatchInvoker if terms.batch else AsyncInvoker

        def make_async(lane: Lane) -> AsyncInvoke:
            return async_in_turn(
                lambda interrupt: kind(handler, interrupt, timeout_s=timeout_s, counters=lane.counters),
                control,
                turns,
            )

        return TaskLanes(lanes, control, start, make_invoke=make_async, event_loop=event_loop, name=name)
    if concurrency == 1:
        return InlineLanes(lanes[0], control, start, make_invoke(lanes[0]))
    return ThreadLanes(lanes, control, start, make_invoke=make_invoke, name=name)
