"""A worker of a group: holds the leases of its share of the partitions, and delivers them.

One daemon thread looks at the group whenever something changes in it, and several times a second anyway: the kernel
frees the locks of a killed worker without telling anybody. What to do is decided in ``sharing.py``::

    surplus   stop the part after its message ─▶ position saved and sealed ─▶ lease given back ─▶ the others are told
    too few   try for the leases of free partitions ─▶ resume at the saved position

A lease is given back only when the part has ended, so that no two workers deliver one partition at once; and once it
is given back the part saves nothing more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.delivery.beginning import establish
from heliograph.delivery.deadletter import describe
from heliograph.delivery.sharing import decide
from heliograph.errors import StationClosed, SubscriptionBusy

if TYPE_CHECKING:
    from heliograph.clock import Clock
    from heliograph.delivery.parts import Parts
    from heliograph.delivery.ports import Engine, PartitionLease

LOOK_S = 0.15
"""How often a worker looks at its group though nobody told it anything."""

logger = logging.getLogger("heliograph.delivery")


class Member:
    """The holder of a worker's share."""

    def __init__(self, engine: Engine, channel: str, name: str, start: Callable[[int], int], clock: Clock) -> None:
        self._engine = engine
        self._channel = channel
        self._name = name
        self._start = start
        self._clock = clock
        self._parts: Parts | None = None
        self._leases: dict[int, PartitionLease] = {}
        self._leaving: set[int] = set()
        self._said: list[int] = []
        self._known = 0
        self._troubles = 0
        self._lock = threading.RLock()
        self._bell = threading.Event()
        self._stopping = False
        self._group = engine.join_group(channel, name)
        self.worker = self._group.worker

    def prepare(self) -> None:
        """Write down where the group begins."""
        self._establish(self._engine.partition_count(self._channel))

    def _establish(self, count: int) -> None:
        if count > self._known:
            with self._group.alone():
                establish(self._engine, self._channel, self._name, self._start, count, self._clock)
            self._known = count

    def begin(self, parts: Parts) -> None:
        """Take a share, and look at the group from now on."""
        self._parts = parts
        self._group.listen(self._bell.set)
        self._look_safely()
        threading.Thread(target=self._work, name=f"heliograph-{self._channel}-{self._name}-group", daemon=True).start()

    def _work(self) -> None:
        while not self._stopping:
            self._bell.wait(LOOK_S)
            self._bell.clear()
            self._look_safely()

    def _look_safely(self) -> None:
        try:
            with self._lock:
                if not self._stopping and self._parts is not None:
                    self._look(self._parts)
            self._troubles = 0
        except StationClosed:
            self._stopping = True
        except Exception as error:  # noqa: BLE001 - the disk may recover, the worker must be there then
            self._troubles += 1
            if self._troubles & (self._troubles - 1) == 0:  # the 1st, 2nd, 4th, 8th … time in a row
                logger.error("%s of %s: cannot see to its share: %s", self.worker, self._name, describe(error))

    def _look(self, parts: Parts) -> None:
        count = self._engine.partition_count(self._channel)
        self._establish(count)
        held = {**self._group.members(), self.worker: list(self._leases)}
        decision = decide(self.worker, count, held, self._leaving)
        for number in decision.give:
            self._leaving.add(number)
            parts.leave(number)
        try:
            enough = len(self._leases) + decision.room
            for number in decision.take:
                if len(self._leases) >= enough:
                    break
                self._take(parts, number)
        finally:
            held_now = sorted(self._leases)
            if held_now != self._said:
                self._group.say(held_now)
                self._said = held_now

    def _take(self, parts: Parts, number: int) -> None:
        lease = self._group.lease(number)
        if lease is None:
            return  # somebody was quicker, or has not given it back yet
        try:
            if parts.begin(number, 0, lease.valid):
                self._leases[number] = lease
                return
        except BaseException:
            lease.release()
            raise
        lease.release()

    def left(self, number: int) -> None:
        """Its part has ended: another worker may have the partition."""
        with self._lock:
            self._leaving.discard(number)
            lease = self._leases.pop(number, None)
            if lease is not None:
                lease.release()
        self._bell.set()  # to tell the others

    def stop(self) -> None:
        """Take and give nothing more."""
        self._stopping = True
        self._bell.set()

    def release(self, *, forget: bool) -> None:
        """Leave the group; its positions stay, unless this was the last worker and they are to be forgotten."""
        with self._lock:
            for lease in self._leases.values():
                lease.release()
            self._leases.clear()
            self._group.leave()
        if forget:
            self.forget_later()

    def forget_later(self) -> None:
        """Forget where the group stands, unless others work on."""
        try:
            lease = self._engine.subscription_lease(self._channel, self._name)
        except SubscriptionBusy as error:
            logger.warning("group %s of %s is not forgotten: %s", self._name, self._channel, error)
            return
        try:
            self._engine.forget_position(self._channel, self._name)
        finally:
            lease.release()
