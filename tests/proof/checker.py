"""What a group's workers did, from their journals: lost, doubled, reordered, two at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    what: str
    when: int
    who: int
    partition: int
    offset: int


def read(journals: Iterable[Path]) -> list[Event]:
    """Everything that was told, in the order in which it happened."""
    events = []
    for journal in journals:
        for line in journal.read_text().splitlines():
            what, when, who, partition, offset = line.split()
            events.append(Event(what, int(when), int(who), int(partition), int(offset)))
    return sorted(events, key=lambda event: event.when)


def complaints(events: list[Event], ends: Mapping[int, int], killed: Iterable[int] = ()) -> list[str]:
    """What is wrong; ``ends`` are the partitions' next offsets, ``killed`` the workers that died without a word."""
    found: list[str] = []
    dead = set(killed)
    by_partition: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        by_partition[event.partition].append(event)
    for partition, end in ends.items():
        found += _lost(partition, end, by_partition[partition])
        found += _at_once(partition, by_partition[partition], dead)
        found += _out_of_order(partition, by_partition[partition])
        found += _doubled(partition, by_partition[partition], dead)
    return found


def _lost(partition: int, end: int, events: list[Event]) -> list[str]:
    done = {event.offset for event in events if event.what == "end"}
    lost = sorted(set(range(end)) - done)
    return [f"partition {partition}: lost {lost[:10]}"] if lost else []


def _at_once(partition: int, events: list[Event], dead: set[int]) -> list[str]:
    """A worker that was killed does not tell the end of its message; somebody else's beginning is that."""
    working: Event | None = None
    for event in events:
        if event.what == "begin":
            if working is not None and working.who != event.who and working.who not in dead:
                return [f"partition {partition}: {event} while {working}"]
            working = event
        elif working is not None and working.who == event.who:
            working = None
    return []


def _out_of_order(partition: int, events: list[Event]) -> list[str]:
    """A worker goes forwards; another may begin again at what was done last, never beyond what comes next."""
    done, last = -1, {}
    for event in events:
        if event.what == "begin":
            if event.offset > done + 1:
                return [f"partition {partition}: {event} after {done}"]
            if event.offset < last.get(event.who, -1) and not _left(events, event):
                return [f"partition {partition}: {event} after its own {last[event.who]}"]
            last[event.who] = event.offset
        else:
            done = max(done, event.offset)
    return []


def _doubled(partition: int, events: list[Event], dead: set[int]) -> list[str]:
    """What is done comes again only if the worker that did it was killed: in order, everything is left saved."""
    done: dict[int, Event] = {}
    for event in events:
        if event.what == "end":
            done[event.offset] = event
        elif event.offset in done and done[event.offset].who not in dead:
            return [f"partition {partition}: {event} again after {done[event.offset]}"]
    return []


def _left(events: list[Event], again: Event) -> bool:
    """Whether another worker had the partition since this one's last message."""
    before = [event for event in events if event.when < again.when]
    return bool(before) and before[-1].who != again.who
