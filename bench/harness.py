"""What every subject shares: interleaved rounds, medians, and a verdict beside each goal.

Machines are noisy, and other programs run on them. So the raw limit and ours are measured in turns within one
run, in short rounds whose order rotates; a ratio is the median of the ratios within each round, because
neighbours in time share their noise. It may therefore differ a little from the quotient of the two medians. Where
the ratios scatter, more rounds are added.
"""

from __future__ import annotations

import gc
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import msgspec

ROOT = Path(__file__).parent.parent

SCATTER_MAX = 0.1
"""When half of a contestant's ratios lie further apart than this share of their median, more rounds are needed."""

Contestant = Callable[[], float]
Rounds = dict[str, list[float]]


class NotRun(Exception):
    """A subject lacks something that is not Heliograph's: no number, and no failure either."""


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be reached. With several limits, reaching one of them is enough."""

    ratio_min: float | None = None
    ratio_max: float | None = None
    ours_min: float | None = None
    ours_max: float | None = None

    def met(self, ours: float, ratio: float | None) -> bool:
        """Whether any of the limits holds."""
        return bool(
            (self.ratio_min is not None and ratio is not None and ratio >= self.ratio_min)
            or (self.ratio_max is not None and ratio is not None and ratio <= self.ratio_max)
            or (self.ours_min is not None and ours >= self.ours_min)
            or (self.ours_max is not None and ours <= self.ours_max)
        )

    def closeness(self, ours: float, ratio: float | None) -> float:
        """How many times the goal is reached, by its kindest limit; 1 is just enough."""
        found = [
            (ratio or 0) / self.ratio_min if self.ratio_min and ratio is not None else 0.0,
            self.ratio_max / ratio if self.ratio_max and ratio else 0.0,
            ours / self.ours_min if self.ours_min else 0.0,
            self.ours_max / ours if self.ours_max and ours else 0.0,
        ]
        return max(found)

    def __str__(self) -> str:
        limits = [
            f"≥ {self.ratio_min:g} ×" if self.ratio_min is not None else "",
            f"≤ {self.ratio_max:g} ×" if self.ratio_max is not None else "",
            f"≥ {self.ours_min:,.0f}" if self.ours_min is not None else "",
            f"< {self.ours_max:g}" if self.ours_max is not None else "",
        ]
        return " or ".join(filter(None, limits))


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table."""

    subject: str
    what: str
    unit: str
    ours: float
    raw: float | None = None
    raw_is: str = ""
    ratio: float | None = None
    goal: Goal | None = None
    rounds: Rounds = {}

    @property
    def met(self) -> bool | None:
        """The verdict; None where there is no goal."""
        return None if self.goal is None else self.goal.met(self.ours, self.ratio)


class Bench:
    """One run: how long to measure, and where its files are."""

    def __init__(self, directory: Path, *, quick: bool = False, long: bool = False) -> None:
        self.directory = directory
        self.quick = quick
        self.long = long
        self.rounds = 3 if quick else 9
        self.rounds_max = 3 if quick else 27

    def either(self, normal: float, quick: float) -> float:
        """A size or a duration, smaller in a quick run."""
        return quick if self.quick else normal

    def sizes(self, *, normal: list[int], quick: list[int], long: list[int]) -> list[int]:
        """Several sizes, for a subject that shows how cost grows."""
        return quick if self.quick else long if self.long else normal

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """A fresh directory on the disk under test, removed afterwards."""
        path = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.directory))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def measure(self, contestants: Mapping[str, Contestant], rounds: int | None = None) -> Rounds:
        """Let each run once to warm up, then in turns; what each returned in each round.

        Without a fixed number of rounds there are as many as the noise asks for.
        """
        names = list(contestants)
        found: Rounds = {name: [] for name in names}
        for contestant in contestants.values():
            contestant()
        for turn in range(rounds or self.rounds_max):
            if rounds is None and turn >= self.rounds and scatter(found) <= SCATTER_MAX:
                break
            at = turn % len(names)
            for name in names[at:] + names[:at]:
                gc.collect()
                found[name].append(contestants[name]())
        return found


def scatter(found: Rounds) -> float:
    """How far apart the middle half of the worst contestant's ratios to the first one lies."""
    raw, *others = found.values()
    worst = 0.0
    for values in others or [raw]:
        ratios = [mine / its for mine, its in zip(values, raw if others else [1.0] * len(raw), strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        worst = max(worst, (high - low) / middle)
    return worst


def compare(
    subject: str,
    what: str,
    rounds: Rounds,
    name: str,
    *,
    unit: str = "messages/s",
    raw: str = "raw",
    raw_is: str = "",
    goal: Goal | None = None,
) -> Row:
    """The row of one contestant beside the raw limit of the same rounds."""
    ours, limit = rounds[name], rounds[raw]
    ratio = median([mine / its for mine, its in zip(ours, limit, strict=True)])
    return Row(
        subject=subject, what=what, unit=unit, ours=median(ours), raw=median(limit), raw_is=raw_is, ratio=ratio,
        goal=goal, rounds={"raw": limit, "ours": ours},
    )  # fmt: skip


def rate_for(seconds: float, step: Callable[[], object], per_step: int = 1) -> float:
    """How often a second ``step`` can be done, for about so many seconds."""
    done, started = 0, perf_counter()
    until = started + seconds
    while (now := perf_counter()) < until:
        step()
        done += per_step
    return done / (now - started)


def rate_of(count: int, work: Callable[[], object]) -> float:
    """How many a second, when ``work`` does ``count`` of them."""
    started = perf_counter()
    work()
    return count / (perf_counter() - started)
