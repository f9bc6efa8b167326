"""How the workers of a group share its partitions: pure functions of who holds what.

There is no coordinator. Every worker knows the live workers and what each holds, and works out its own share; leases
see to it that no two hold one partition, whatever they believe. Everybody gets as many as everybody else, or one
more: those who hold most already keep that one more, so that nothing moves that need not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

Held = Mapping[str, Collection[int]]
"""Which partitions each live worker holds."""


class Decision(NamedTuple):
    """What a worker does next."""

    give: tuple[int, ...]
    """Partitions to give back after the message at hand."""
    take: tuple[int, ...]
    """Free partitions to try for, in this order,"""
    room: int
    """until it has got so many of them."""


def quotas(count: int, held: Held) -> dict[str, int]:
    """How many of ``count`` partitions each worker should hold.

    >>> quotas(5, {"a": [0, 1, 2, 3, 4], "b": []})
    {'a': 3, 'b': 2}
    """
    if not held:
        return {}
    least, more = divmod(count, len(held))
    order = sorted(held, key=lambda worker: (-len(held[worker]), worker))
    return {worker: least + (rank < more) for rank, worker in enumerate(order)}


def decide(me: str, count: int, held: Held, leaving: Collection[int] = ()) -> Decision:
    """What ``me`` should do; ``leaving`` are those of its partitions that it is giving back already.

    >>> decide("a", 4, {"a": [0, 1, 2, 3], "b": []})
    Decision(give=(2, 3), take=(), room=0)
    >>> decide("b", 4, {"a": [0, 1, 2], "b": []})
    Decision(give=(), take=(3,), room=2)
    """
    quota = quotas(count, held)[me]
    mine = sorted(set(held[me]) - set(leaving))
    room = quota - len(mine) - len(leaving)
    if len(mine) > quota:
        return Decision(tuple(mine[quota:]), (), 0)
    if room <= 0:
        return Decision((), (), 0)
    taken = {number for numbers in held.values() for number in numbers}
    free = [number for number in range(count) if number not in taken]
    rank = sorted(held).index(me)
    first = len(free) * rank // len(held)  # workers begin at different places, so that they do not meet
    return Decision((), tuple(free[first:] + free[:first]), room)
