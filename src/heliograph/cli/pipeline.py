"""``helio pipeline``: list, show, run, explain, status, stop, report."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from heliograph.cli import exits, output
from heliograph.cli.common import Common, missing, plain, station_in
from heliograph.cli.durations import duration
from heliograph.cli.frame import command, group
from heliograph.cli.jobs import (
    PIPELINE,
    ROWS,
    Jobs,
    command_of,
    file_option,
    files,
    limits,
    run_options,
    session_options,
)
from heliograph.cli.names import CHANNELS
from heliograph.cli.signals import Stop
from heliograph.errors import Busy, ConfigError, NotFound

if TYPE_CHECKING:
    from heliograph.spark.pipelines import Pipeline, Result
    from heliograph.spark.pipelines.run import Progress
    from heliograph.spark.pipelines.running import How
    from heliograph.spark.pipelines.state import Status

_STYLES: Final = {"running": "green", "failed": "red", "killed": "red", "stopping": "yellow"}


@group(
    "pipeline",
    examples="""
helio pipeline list
helio pipeline run archive
helio pipeline run large --file orders.yaml
helio pipeline status
""",
)
def pipeline() -> None:
    """Spark pipelines: channels as tables, results back into channels.

    They need Spark (pip install 'heliograph[spark]'). One is declared as a Python function over DataFrames, or as SQL
    in a YAML or TOML file; docs/pipelines.md shows how.
    """


# -- looking ----------------------------------------------------------------------------------------------------------


@command("list", examples="helio pipeline list\nhelio pipeline list --file orders.yaml --json")
@file_option
@click.pass_obj
def list_(common: Common, file: tuple[str, ...]) -> None:
    """List the pipelines: the built-in ones, and those that are declared in files."""
    from heliograph.spark.pipelines.finding import builtin, declared

    own = builtin()
    found = declared(files(common, file))
    if common.json:
        output.document([_described(one) for one in found.values()])
        return
    output.table(
        ["NAME", "TRIGGER", "OUTPUT", "~WHAT IT DOES"],
        [
            (one.name, one.trigger, "its own" if one.procedural else str(one.output), one.help.partition("\n")[0])
            for one in sorted(found.values(), key=lambda one: (one.name not in own, one.name))
        ],
    )


def _described(one: Pipeline) -> dict[str, Any]:
    return {
        "name": one.name, "help": one.help, "trigger": one.trigger,
        "inputs": None if callable(one.inputs) else plain(dict(one.inputs)),
        "output": None if one.procedural else plain(one.output), "options": plain(one.options), "sql": one.sql,
    }  # fmt: skip


@command("show", examples="helio pipeline show archive\nhelio pipeline show large --file orders.yaml")
@click.argument("name", type=PIPELINE)
@file_option
@click.pass_obj
def show(common: Common, name: str, file: tuple[str, ...]) -> None:
    """Show what a pipeline reads, does and writes, and which options it has."""
    from heliograph.spark.pipelines.finding import find

    one = find(name, files(common, file))
    if common.json:
        output.document(_described(one))
        return
    reads = "as its options say" if callable(one.inputs) else ", ".join(
        f"{name} = {given.channel}" for name, given in one.inputs.items()
    )  # fmt: skip
    output.facts([
        ("pipeline", one.name), ("does", " ".join(one.help.split())), ("reads", "" if one.procedural else reads),
        ("writes", "" if one.procedural else str(one.output)), ("trigger", one.trigger), ("sql", one.sql),
    ])  # fmt: skip
    if one.options:
        print()
        output.table(
            ["OPTION", "DEFAULT", "~MEANING"],
            [
                (f"--{option.name.replace('_', '-')}", "needed" if option.needed else option.default, option.help)
                for option in one.options
            ],
        )


@command("status", examples="helio pipeline status\nhelio pipeline status archive --json | jq .progress.lag")
@click.argument("name", type=PIPELINE, required=False)
@click.pass_obj
def status(common: Common, name: str | None) -> int:
    """Show the pipelines that run, or ran, for a station: rows, rate, lag, watermark.

    It may be asked from any process. Exit code 1 if one that is shown has failed, or was killed.
    """
    from heliograph.spark.pipelines import state

    root = _root(common)
    found = state.statuses(root) if name is None else [one for one in [state.status(root, name)] if one is not None]
    if name is not None and not found:
        raise NotFound(f"pipeline '{name}' was never run in {root}; 'helio pipeline run {name}' does")
    if common.json:
        output.document(plain(found if name is None else found[0]))
    elif not found:
        common.note("no pipeline was run yet; 'helio pipeline list' shows which there are")
    else:
        output.table(
            ["NAME", "STATE", ">PID", "STARTED", ">ROWS", ">ROWS/S", ">LAG", "WATERMARK", "~OUTPUT"],
            [_status_row(one) for one in found],
        )
        for one in found:
            if one.error:
                common.note(f"{one.name}: {one.error}")
    return exits.BAD if any(one.state in {"failed", "killed"} for one in found) else exits.OK


def _status_row(one: Status) -> tuple[Any, ...]:
    told = one.progress
    return (
        one.name, output.Mark(one.state, _STYLES.get(one.state, "")), str(one.pid), one.started, told.rows,
        told.rows_per_s, told.lag, told.watermark, one.output,
    )  # fmt: skip


@command("stop", examples="helio pipeline stop archive\nhelio pipeline stop large --timeout 5m")
@click.argument("name", type=PIPELINE)
@click.option(
    "--timeout", metavar="TIME", default="60s", show_default=True, callback=duration,
    help="How long to wait until it has ended; 0 only asks.",
)  # fmt: skip
@click.pass_obj
def stop(common: Common, name: str, timeout: float) -> None:
    """End a running pipeline after what it is at. It goes on from there when it is run again."""
    from heliograph.spark.pipelines import state

    root = _root(common)
    state.ask_to_stop(root, name)
    deadline = time.monotonic() + timeout
    while timeout and state.running(root, name):
        if time.monotonic() > deadline:
            raise Busy(
                f"pipeline '{name}' was asked, and is still at something; 'helio pipeline status {name}' shows it"
            )
        time.sleep(0.1)
    if common.json:
        output.document({"pipeline": name, "stopped": not state.running(root, name)})
    elif not common.quiet:
        print(f"{name} has stopped" if timeout else f"{name} was asked to stop")


def _root(common: Common) -> Path:
    config = common.config()
    if not station_in(config):
        raise NotFound(missing(config))
    return Path(config.storage.data_dir).resolve()


# -- running ----------------------------------------------------------------------------------------------------------


def _how(common: Common, given: dict[str, Any]) -> How:
    """How it is run; what is left in ``given`` are the pipeline's own options."""
    from heliograph.spark.pipelines.declared import output_of
    from heliograph.spark.pipelines.running import How

    settings: dict[str, str] = {}
    for text in given.pop("settings"):
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: write KEY=VALUE, as in spark.executor.memory=4g")
        settings[key] = value
    target = given.pop("target", None)
    return How(
        master=given.pop("master"), remote=given.pop("remote"), settings=settings, trigger=given.pop("trigger", None),
        output=None if target is None else output_of(target), checkpoint=given.pop("checkpoint", None),
        reset=given.pop("reset", False), verbose=common.verbose,
    )  # fmt: skip


def _runner(one: Pipeline) -> click.Command:
    def run(common: Common, **given: Any) -> int:
        from heliograph.spark.pipelines.running import Listener
        from heliograph.spark.pipelines.running import run as start

        limit = ROWS if limits(one) else given.pop("limit", ROWS)
        how = msgspec.structs.replace(_how(common, given), rows=limit)
        common.log()
        root = _root(common)
        with Stop() as asked:
            listener = Listener(
                progress=_Watching(common, one.name), show=None if common.json else _show_batch, note=common.note,
                asked=asked.asked.is_set, waiting=asked.waiting,
            )  # fmt: skip
            result = start(one, given, root, how, listener)
            _print(common, one, result, limit)
        if asked.signal:
            return asked.exit_code
        return exits.BAD if result.bad else exits.OK

    return command_of(one, run, run_options(one))


def _explainer(one: Pipeline) -> click.Command:
    def run(common: Common, **given: Any) -> None:
        from heliograph.spark.pipelines.running import explain

        how = _how(common, given)
        plans = explain(one, given, _root(common), how)
        if common.json:
            output.document({"pipeline": one.name, "plans": plans})
            return
        for name, plan in plans.items():
            output.heading(name)
            print(plan)

    made = command_of(one, run, session_options())
    made.epilog = f"helio pipeline explain {one.name}"
    return made


class _Watching:
    """Tells on stderr how far a run is: when it is new, and not more often than once a second."""

    def __init__(self, common: Common, name: str) -> None:
        self._common = common
        self._name = name
        self._next = 0.0
        self._told: tuple[int, int | None] | None = None

    def __call__(self, progress: Progress) -> None:
        new = (progress.rows, progress.lag)
        if new == self._told or (time.monotonic() < self._next and progress.lag):
            return
        self._told = new
        self._next = time.monotonic() + 1.0
        self._common.note(f"{self._name}: {told(progress)}")


def told(progress: Progress) -> str:
    """Progress in a line."""
    parts = [output.several(progress.rows, "row"), f"{progress.rows_per_s:,.0f}/s"]
    parts += [] if progress.lag is None else [f"{progress.lag:,} behind"]
    parts += [] if progress.watermark is None else [f"watermark {progress.watermark}"]
    return ", ".join(parts + ([progress.note] if progress.note else []))


def _show_batch(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    output.heading(title)
    output.table([name.upper() for name in columns], rows)
    sys.stdout.flush()


@command("report", examples="helio pipeline report -o report.html\nhelio pipeline report -o today.html --start -1d")
@click.option("-o", "--output", metavar="FILE", default="report.html", show_default=True, help="The file to write.")
@click.option(
    "--channel", type=CHANNELS, metavar="CHANNEL", default=">", help="Only these: one, several (a,b) or a pattern."
)
@click.option("--start", metavar="WHERE", default="first", help="Where to begin: first, a time or an age such as -1d.")
@click.option("--title", metavar="TEXT", help="What stands at the top.")
@click.pass_context
def report(ctx: click.Context, /, **given: Any) -> Any:
    """Write an HTML report of a station: messages, latency, channels, dead letters, payload types.

    The same as 'helio pipeline run report', which takes options for Spark as well.
    """
    return ctx.invoke(run.commands["report"], **given)


# -- results ----------------------------------------------------------------------------------------------------------


def _print(common: Common, one: Pipeline, result: Result, limit: int) -> None:
    from heliograph.spark.pipelines.tables import rows_of

    tables = {name: rows_of(table, limit) for name, table in result.tables.items()}
    if common.json:
        output.document({
            "pipeline": one.name, "facts": dict(result.facts),
            "tables": {name: found.rows for name, found in tables.items()},
        })  # fmt: skip
        return
    if result.facts and not common.quiet:
        output.facts([(name, _listed(value)) for name, value in result.facts.items()])
    for name, found in tables.items():
        if len(tables) > 1 or result.facts:
            print()
            output.heading(name)
        if not found.rows:
            common.note(f"{name}: no rows")
            continue
        output.table(
            _headings(found.columns, found.rows), [[_listed(row[name]) for name in found.columns] for row in found.rows]
        )
        if found.more:
            more = "" if one.procedural else ", --to parquet:DIR keeps all"
            common.note(f"{name}: only the first {limit:,} rows; --limit shows more{more}")


def _listed(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _headings(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Numbers stand at the right; the last text may take what room is left."""

    def numeric(name: str) -> bool:
        return any(isinstance(row[name], int | float) and not isinstance(row[name], bool) for row in rows)

    return [
        (">" if numeric(name) else "~" if name == columns[-1] else "") + name.upper().replace("_", " ")
        for name in columns
    ]


run = Jobs(
    "run",
    make=_runner,
    params=[
        click.Option(
            ["--file", "-f", "file"], multiple=True, metavar="FILE",
            help="A file (.py, .yaml, .toml) or module that declares pipelines; may also stand behind the name.",
        )
    ],
    help="Run a pipeline until there is no more to do, or, with a trigger such as '10 seconds', until it is stopped.",
    epilog="helio pipeline run archive\nhelio pipeline run large --file orders.yaml",
)  # fmt: skip
explain = Jobs(
    "explain",
    make=_explainer,
    procedures=False,
    params=[click.Option(["--file", "-f", "file"], multiple=True, metavar="FILE", help="As with 'run'.")],
    help="Show how Spark would run a pipeline: its plan. Nothing is read or written.",
    epilog="helio pipeline explain large --file orders.yaml",
)
for _command in (list_, show, run, status, stop, explain, report):
    pipeline.add_command(_command)
