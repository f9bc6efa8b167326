"""Who carries the courses out: the loop's own thread, or several threads (tasks are in ``tasks.py``).

With ``concurrency=N`` there are N lanes. Messages with the same key share a lane, which keeps their order;
those without a key take turns. A lane that fails, waits or hangs holds up nobody but the messages of its
own, until the window is full.
"""

from __future__ import annotations

import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.delivery.control import delivering
from heliograph.delivery.deadletter import describe
from heliograph.delivery.gate import GatedInvoke
from heliograph.delivery.lane import drive
from heliograph.delivery.window import Window
from heliograph.delivery.workers import TimedInvoker

if TYPE_CHECKING:
    from heliograph.delivery.control import Control
    from heliograph.delivery.invoke import Invoke
    from heliograph.delivery.lane import Lane
    from heliograph.message import Message

PIECES_MAX = 3
"""Most pieces a lane may have, including the one at hand: enough to never wait for the loop's next pull."""

SPAN_OFFSETS_MAX = 16_384
"""How far the fastest lane may run ahead of the slowest; so much at most is delivered again after a crash."""

ROOM_LOOK_S = 0.05
"""While the lanes are full, how often their progress is looked at."""

logger = logging.getLogger("heliograph.delivery")


class Piece(NamedTuple):
    """Messages for one lane, in order."""

    messages: list[Message]
    lag_base_us: int


class Lanes(ABC):
    """The lanes of one subscription, and how far they got together."""

    def __init__(self, lanes: list[Lane], control: Control, start: int) -> None:
        self.lanes = lanes
        self._control = control
        self._window = Window(len(lanes), start, pieces_max=PIECES_MAX, span_max=SPAN_OFFSETS_MAX)
        self._changed = threading.Condition(threading.Lock())
        self._turn = 0

    def committed(self) -> int:
        """Everything before this offset is done."""
        with self._changed:
            return self._window.committed(self._undone())

    def reach(self) -> int:
        """Everything before this offset was handed out."""
        with self._changed:
            return self._window.reach

    def advance(self, reach: int) -> None:
        """What lies before this offset and was not handed out needs nobody."""
        with self._changed:
            self._window.advance(max(reach, self._window.reach))

    def begin(self) -> None:  # noqa: B027 - nothing to start unless there are several
        """Start. Called once, by the loop, in its thread."""

    @abstractmethod
    def hand_out(self, messages: list[Message], lag_base_us: int, reach: int) -> bool:
        """Deliver these, which are all there is before ``reach``. False: the subscription stops."""

    @abstractmethod
    def end(self) -> None:
        """Wait until every lane has ended. Called when the subscription stops, by the loop."""

    def cancel(self) -> None:  # noqa: B027 - threads cannot be cancelled
        """Nobody waits any longer: give up on handlers that are still at work, where that is possible."""

    def await_gap_handler(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine where the handlers run."""
        coroutine.close()
        raise TypeError("an async on_gap needs an async handler")

    def _undone(self) -> list[int]:
        return [lane.undone() for lane in self.lanes]

    def _register(self, piles: dict[int, list[Message]], reach: int) -> None:
        firsts = {index: pile[0].offset for index, pile in piles.items()}
        with self._changed:
            self._window.hand_out(firsts, reach)

    def _complete(self, lane: Lane) -> None:
        with self._changed:
            self._window.complete(lane.index)
            self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        while self._going_on():
            with self._changed:
                if self._window.has_room(self._undone()):
                    return True
                self._changed.wait(ROOM_LOOK_S)
        return False

    def _going_on(self) -> bool:
        """Whether to wait any longer for the lanes; holds while there are none to wait for."""
        if not self._all_alive():
            self._fail_for_good()
            return self._control.hold()
        return not self._control.stopping

    def _all_alive(self) -> bool:
        return True

    def _fail_for_good(self) -> None:
        if not self._control.stopping and not self._control.failure:
            self._control.fail(
                "what called the handlers has ended (its event loop, for example); close and subscribe again"
            )

    def _split(self, messages: list[Message]) -> dict[int, list[Message]]:
        """Which lane gets which messages."""
        count = len(self.lanes)
        if count == 1:
            return {0: messages}
        piles: dict[int, list[Message]] = {}
        for message in messages:
            key = message.partitionkey
            if key is None:
                self._turn = index = (self._turn + 1) % count
            else:
                index = hash(key) % count
            pile = piles.get(index)
            if pile is None:
                piles[index] = [message]
            else:
                pile.append(message)
        return piles

    def _report(self, error: Exception) -> None:
        """Something is wrong with the delivery itself; hold rather than lose anything."""
        logger.error("a lane broke down; close and subscribe again", exc_info=error)
        self._control.fail(f"internal error, please report it: {describe(error)}")


class InlineLanes(Lanes):
    """A plain handler, one lane: the loop's thread calls it. The fastest way there is."""

    def __init__(self, lane: Lane, control: Control, start: int, invoke: Invoke) -> None:
        super().__init__([lane], control, start)
        self._invoke = invoke

    def hand_out(self, messages: list[Message], lag_base_us: int, reach: int) -> bool:
        """Deliver these now."""
        if not messages:
            self.advance(reach)
            return True
        lane = self.lanes[0]
        self._register({0: messages}, reach)
        if not drive(lane.deliver(messages, lag_base_us), self._invoke, self._control):
            return False
        self._complete(lane)
        return True

    def end(self) -> None:
        """Nobody else is at work."""
        _dismiss(self._invoke)


class ThreadLanes(Lanes):
    """A plain handler, several lanes, a thread each."""

    def __init__(
        self,
        lanes: list[Lane],
        control: Control,
        start: int,
        *,
        make_invoke: Callable[[Lane], Invoke],
        name: str,
    ) -> None:
        super().__init__(lanes, control, start)
        self._inboxes: list[queue.SimpleQueue[Piece | None]] = [queue.SimpleQueue() for _ in lanes]
        self._threads = [
            threading.Thread(
                target=self._work, args=(lane, make_invoke(lane)), name=f"{name}-{lane.index}", daemon=True
            )
            for lane in lanes
        ]

    def begin(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def hand_out(self, messages: list[Message], lag_base_us: int, reach: int) -> bool:
        """Give these to their lanes, as soon as there is room."""
        if not self._wait_for_room():
            return False
        piles = self._split(messages) if messages else {}
        self._register(piles, reach)
        for index, pile in piles.items():
            self._inboxes[index].put(Piece(pile, lag_base_us))
        return True

    def end(self) -> None:
        """Lanes that have nothing at hand end at once, the others after their message."""
        for inbox in self._inboxes:
            inbox.put(None)
        for thread in self._threads:
            thread.join()

    def _all_alive(self) -> bool:
        return all(thread.is_alive() for thread in self._threads)

    def _work(self, lane: Lane, invoke: Invoke) -> None:
        delivering.set(self._control)
        try:
            while (piece := self._inboxes[lane.index].get()) is not None:
                if not drive(lane.deliver(piece.messages, piece.lag_base_us), invoke, self._control):
                    return
                self._complete(lane)
        except Exception as error:  # noqa: BLE001 - a silent end of this thread would look like slowness
            self._report(error)
        finally:
            _dismiss(invoke)


def _dismiss(invoke: Invoke) -> None:
    """Let the worker thread of a timed handler go, if there is one."""
    if isinstance(invoke, TimedInvoker | GatedInvoke):
        invoke.close()
