"""Plots and tables as HTML and inline SVG: no script, nothing loaded, colours by the page's style, light and dark."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

WIDTH: Final = 920
HEIGHT: Final = 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
COLOURS: Final = 6
"""So many series have a colour of their own (classes ``c0`` … in the page's style); the last is for all others."""


class Series(NamedTuple):
    """A row of numbers, one for each moment; None where there is none."""

    name: str
    values: Sequence[float | None]


def nice(most: float, steps: int = 4) -> list[float]:
    """Round numbers from 0 to at least ``most``, for an axis.

    >>> nice(87), nice(0.03), nice(0)
    ([0.0, 25.0, 50.0, 75.0, 100.0], [0.0, 0.01, 0.02, 0.03], [0.0, 1.0])
    """
    if most <= 0:
        return [0.0, 1.0]
    raw = most / steps
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(size * one for one in (1, 2, 2.5, 5, 10) if size * one >= raw * 0.999)
    return [round(step * at, 12) for at in range(math.ceil(most / step - 1e-9) + 1)]


def short(number: float) -> str:
    """A number in few characters.

    >>> short(1234567), short(12.5), short(0.004), short(950)
    ('1.23 M', '12.5', '0.004', '950')
    """
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def stacked(times: Sequence[datetime], series: Sequence[Series], unit: str) -> str:
    """Bars on top of each other, one for each moment."""
    sums = [sum(one.values[at] or 0 for one in series) for at in range(len(times))]
    frame = _Frame(times, nice(max(sums, default=0)))
    parts: list[str] = []
    below = [0.0] * len(times)
    gap = 1 if frame.step > 4 else 0
    for number, one in enumerate(series):
        for at, value in enumerate(one.values):
            if value:
                top, bottom = frame.y(below[at] + value), frame.y(below[at])
                below[at] += value
                parts.append(
                    f'<rect class="c{number % COLOURS}" x="{frame.x(at):.1f}" y="{top:.1f}" '
                    f'width="{max(frame.step - gap, 0.5):.1f}" height="{max(bottom - top, 0.5):.1f}">'
                    f"<title>{times[at]:%Y-%m-%d %H:%M:%S} · {escape(one.name)}: {value:,.0f} {unit}</title></rect>"
                )
    return frame.drawn("".join(parts), unit)


def lines(times: Sequence[datetime], series: Sequence[Series], unit: str) -> str:
    """A line for each series, broken where there is no number."""
    most = max((value for one in series for value in one.values if value is not None), default=0)
    frame = _Frame(times, nice(most))
    parts: list[str] = []
    for number, one in enumerate(series):
        known = [(at, value) for at, value in enumerate(one.values) if value is not None]
        points = [(frame.x(at) + frame.step / 2, frame.y(max(value, 0)), value, at) for at, value in known]
        for before, after in pairwise(points):
            if after[3] == before[3] + 1:
                parts.append(
                    f'<line class="s{number % COLOURS}" x1="{before[0]:.1f}" y1="{before[1]:.1f}" x2="{after[0]:.1f}" '
                    f'y2="{after[1]:.1f}"/>'
                )
        parts += [
            f'<circle class="c{number % COLOURS}" cx="{x:.1f}" cy="{y:.1f}" r="2.5">'
            f"<title>{times[at]:%Y-%m-%d %H:%M:%S} · {escape(one.name)}: {value:,.3g} {unit}</title></circle>"
            for x, y, value, at in points
        ]
    return frame.drawn("".join(parts), unit)


class _Frame:
    """Axes: moments to the right, numbers upwards."""

    def __init__(self, times: Sequence[datetime], ticks: list[float]) -> None:
        self._times = times
        self._ticks = ticks
        self.step = (WIDTH - _LEFT - _RIGHT) / max(len(times), 1)

    def x(self, at: int) -> float:
        """Where the moment of a number begins."""
        return _LEFT + at * self.step

    def y(self, value: float) -> float:
        """How high a number is."""
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * value / self._ticks[-1]

    def drawn(self, inside: str, unit: str) -> str:
        grid = "".join(
            f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{self.y(tick):.1f}" y2="{self.y(tick):.1f}"/>'
            f'<text class="tick" x="{_LEFT - 8}" y="{self.y(tick) + 4:.1f}" text-anchor="end">{short(tick)}</text>'
            for tick in self._ticks
        )
        every = max(1, math.ceil(len(self._times) / 8))
        days = len({moment.date() for moment in self._times}) > 1
        seconds = any(moment.second for moment in self._times)
        pattern = ("%d %b " if days else "") + ("%H:%M:%S" if seconds else "%H:%M")
        if self._times and (self._times[-1] - self._times[0]).days > 300:
            pattern = "%Y-%m-%d"
        labels = "".join(
            f'<text class="tick" x="{self.x(at) + self.step / 2:.1f}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{self._times[at].strftime(pattern)}</text>"
            for at in range(0, len(self._times), every)
        )
        return (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(unit)} over time">'
            f"{grid}{labels}{inside}</svg>"
        )


def legend(names: Sequence[str]) -> str:
    """What the colours mean."""
    return '<p class="legend">' + "".join(
        f'<span><i class="b{at % COLOURS}"></i>{escape(name)}</span>' for at, name in enumerate(names)
    ) + "</p>"  # fmt: skip


def share(percent: float | None) -> str:
    """A share as a bar with its number; a dash where there is none."""
    if percent is None:
        return '<span class="dim">–</span>'
    return f'<span class="share"><i style="width:{percent:.0f}%"></i><b>{percent:g} %</b></span>'


class Column(NamedTuple):
    """A column of a table: its heading, what is in it, and whether it is a number."""

    title: str
    cell: Callable[[Any], str]
    number: bool = False


def table(columns: Sequence[Column], rows: Sequence[Any]) -> str:
    """Rows as HTML; cells are HTML already."""
    heads = "".join(f"<th{' class=n' if one.number else ''}>{escape(one.title)}</th>" for one in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if one.number else ''}>{one.cell(row)}</td>" for one in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
