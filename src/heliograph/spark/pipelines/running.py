"""Running a pipeline: under a lease, with a status that others can see, until it is done or asked to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from heliograph.errors import ConfigError, HeliographError
from heliograph.spark.pipelines import outputs, state
from heliograph.spark.pipelines.declared import BATCH, FILES, Output, Pipeline, check_mode, check_trigger
from heliograph.spark.pipelines.launch import java_ended, launch
from heliograph.spark.pipelines.mishaps import explained
from heliograph.spark.pipelines.outputs import Show
from heliograph.spark.pipelines.progress import Counter
from heliograph.spark.pipelines.run import Progress, Result, Run
from heliograph.spark.pipelines.tables import rows_of
from heliograph.spark.session import check_master

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OWN: Final = (
    "archive", "archived", "atomic", "audit", "channels", "dead", "links", "patterns", "pipelines", "producers",
    "quarantine", "replies", "schedule", "seen", "spark", "subscriptions", "trash",
)  # fmt: skip
"""What a station's directory holds, and nobody else puts files into."""
LOOK_S: Final = 0.25
"""How often a running query is looked at, and a wish to stop is heard."""


class How(msgspec.Struct, frozen=True, kw_only=True):
    """How a pipeline is run this time; what is None is as it is declared."""

    master: str | None = None
    remote: str | None = None
    settings: dict[str, str] = {}
    trigger: str | None = None
    output: Output | None = None
    checkpoint: str | None = None
    reset: bool = False
    verbose: bool = False
    """Whether what Java says is shown; otherwise it is in the pipeline's ``spark.log``."""
    rows: int | None = None
    """How many rows of each table are taken (``Rows``) before the run is done; without it they stay DataFrames."""


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told, and who may say that it is enough."""

    progress: Callable[[Progress], None] = lambda _: None
    show: Show | None = None
    note: Callable[[str], None] = lambda _: None
    asked: Callable[[], bool] = lambda: False
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    """Around what may be left at once, since nothing was begun: while Spark starts."""


def run(
    pipeline: Pipeline, options: Mapping[str, Any], path: Path, how: How | None = None, listener: Listener | None = None
) -> Result:
    """Run a pipeline for the station of a directory, to its end."""
    return _Running(pipeline, options, path, how or How(), listener or Listener()).run()


class _Running:
    """One run."""

    def __init__(
        self, pipeline: Pipeline, options: Mapping[str, Any], path: Path, how: How, listener: Listener
    ) -> None:
        self._pipeline = pipeline
        self._options = {**pipeline.defaults(), **options}
        self._path = path.resolve()
        self._how = how
        self._listener = listener
        self._spark: SparkSession | None = None
        self._trigger = check_trigger(how.trigger or pipeline.trigger)
        self._output = settled(how.output or pipeline.output, self._path)
        self._check()

    def _check(self) -> None:
        name = self._pipeline.name
        check_master(self._how.master)
        missing = [one.name for one in self._pipeline.options if one.needed and self._options[one.name] in (None, ())]
        if missing:
            raise ConfigError(f"pipeline '{name}' needs option '{missing[0]}'")
        if self._pipeline.procedural:
            if self._how.output is not None:
                raise ConfigError(f"pipeline '{name}' has an output of its own")
            return
        if (self._output.kind == "table") != (self._trigger == BATCH) and self._output.kind in {"table", "console"}:
            raise ConfigError(
                f"pipeline '{name}': output '{self._output.kind}' and trigger '{self._trigger}' do not go together: a "
                "table is printed by a batch, the console shows a stream"
            )
        check_mode(name, self._output, self._trigger)
        if self._output.kind == "console" and (self._how.remote or self._listener.show is None):
            raise ConfigError("output console prints tables here, which --json and --remote cannot: use another output")
        if self._output.kind == "delta" and not self._how.remote:  # there it is the server that writes
            outputs.needs_delta()

    def run(self) -> Result:
        """Under the lease."""
        with state.lease(self._path, self._pipeline.name) as place:
            checkpoint = self._checkpoint(place)
            teller = state.Teller(
                place, self._pipeline, trigger=self._trigger, output=self._output, checkpoint=checkpoint
            )
            try:
                result, final = self._run(place, checkpoint, teller)
                result = self._taken(result)
            except HeliographError as error:
                teller.tell(state="failed", error=str(error))
                raise
            except Exception as error:
                # What stops a service signals all of its processes, and Java does not wait for the micro-batch.
                if self._listener.asked() and java_ended():
                    teller.tell(state="stopped")
                    self._listener.note("Spark was ended, too: what it was at is done again by the next run")
                    return Result({}, {"rows": teller.status.progress.rows})
                clear = explained(error)
                teller.tell(state="failed", error=str(clear))
                raise clear from error
            except BaseException:
                teller.tell(state="stopped")
                raise
            teller.tell(state=final)
            return result

    def _checkpoint(self, place: Path) -> str | None:
        if self._trigger == BATCH or self._pipeline.procedural:
            return None
        return state.settled(self._how.checkpoint) if self._how.checkpoint else str(place / "checkpoint")

    def _taken(self, result: Result) -> Result:
        """The rows that are wanted: only now Spark does what a table asks for, which may fail."""
        if self._how.rows is None:
            return result
        tables = {name: rows_of(table, self._how.rows) for name, table in result.tables.items()}
        return msgspec.structs.replace(result, tables=tables)

    def _run(self, place: Path, checkpoint: str | None, teller: state.Teller) -> tuple[Result, state.State]:
        def stopping() -> bool:
            return self._listener.asked() or state.asked_to_stop(place)

        def tell(progress: Progress) -> None:
            teller.tell(state="stopping" if stopping() else "running", progress=progress)
            self._listener.progress(progress)

        life = self._belongs(place, checkpoint)
        spark = self._session(place)
        teller.tell(state="running")
        run = Run(spark, self._path, place, self._pipeline, trigger=self._trigger, stopping=stopping, tell=tell)
        if self._pipeline.procedural:
            result = self._pipeline.function(run, **self._options) or Result()
            return result, "stopped" if stopping() else "done"
        tables = called(run, self._options, streaming=checkpoint is not None)
        if checkpoint is None:
            return self._finish_batch(run, tables), "done"
        if len(tables) != 1:
            raise ConfigError(f"pipeline '{self._pipeline.name}' makes {len(tables)} tables; a stream makes one")
        query = outputs.start(run, next(iter(tables.values())), self._output, checkpoint, life, self._listener.show)
        stopped = watch(query, tell, stopping)
        return Result({}, {"rows": teller.status.progress.rows}), "stopped" if stopped else "done"

    def _belongs(self, place: Path, checkpoint: str | None) -> str:
        """See that the checkpoint, if there is one, is of this pipeline as it is; what it is known by."""
        if checkpoint is None:
            return ""
        if self._how.reset and (aside := state.reset(checkpoint)) is not None:
            self._listener.note(f"the checkpoint is {aside} now, and everything is read from the beginning")
        inputs = self._pipeline.reads(self._options)

        def there(found: str) -> bool:
            """In an object store, or where a cluster has its files, only Spark can look."""
            return has_checkpoint(self._session(place), found)

        return state.belongs(place, self._pipeline, inputs, self._output, checkpoint, there, self._options).life

    def _finish_batch(self, run: Run, tables: Mapping[str, Any]) -> Result:
        if self._output.kind == "table":
            return Result(tables)
        return Result({}, outputs.write(run, tables, self._output))

    def _session(self, place: Path) -> SparkSession:
        if self._spark is None:
            with self._listener.waiting():
                self._spark = launched(self._pipeline, self._how, place)
        return self._spark


def launched(pipeline: Pipeline, how: How, place: Path) -> SparkSession:
    """The session that a pipeline runs in."""
    return launch(
        f"heliograph {pipeline.name}", master=how.master, remote=how.remote, settings=how.settings,
        log=None if how.verbose or how.remote else place / "spark.log",
    )  # fmt: skip


def explain(pipeline: Pipeline, options: Mapping[str, Any], path: Path, how: How) -> dict[str, str]:
    """Spark's plan for each table that a pipeline makes; nothing is read or written."""
    import contextlib
    import io

    if pipeline.procedural:
        raise ConfigError(f"pipeline '{pipeline.name}' is a procedure: it has no plan that could be shown")
    chosen = {**pipeline.defaults(), **options}
    place = state.folder(path.resolve(), pipeline.name)
    place.mkdir(parents=True, exist_ok=True)
    spark = launched(pipeline, how, place)
    try:
        run = Run(spark, path.resolve(), place, pipeline, trigger=BATCH)
        plans: dict[str, str] = {}
        for name, table in called(run, chosen, streaming=False).items():
            with contextlib.redirect_stdout(io.StringIO()) as said:
                table.explain(mode="formatted")
            plans[name] = said.getvalue().strip()
    except Exception as error:
        raise explained(error) from error
    return plans


def called(run: Run, options: Mapping[str, Any], *, streaming: bool) -> dict[str, Any]:
    """What a pipeline makes of its inputs: tables by name."""
    one = run.pipeline
    read = run.stream if streaming else run.read
    inputs = {name: read(table) for name, table in one.reads(options).items()}
    made = one.function(**inputs, **options)
    tables = dict(made) if isinstance(made, Mapping) else {one.name: made}
    for name, table in tables.items():
        if table is None:
            raise ConfigError(f"pipeline '{one.name}' returns no table '{name}': is a return missing?")
    return tables


def settled(output: Output, path: Path) -> Output:
    """Directories that are not absolute are below the station's, and none is one that the station lives in."""
    if output.kind not in FILES or "://" in output.to:
        return output
    place = (path / output.to).resolve()
    check_apart(path, place, f"output {output.kind}")
    if place.exists() and not place.is_dir():
        raise ConfigError(f"output {output.kind} {place}: that is a file, and tables are directories. Choose another")
    return msgspec.structs.replace(output, to=str(path / output.to))


def check_apart(path: Path, place: Path, what: str, but: str = "") -> None:
    """Refuse a directory that the station of a path lives in; ``but`` one of them."""
    if path.is_relative_to(place) or (
        place.is_relative_to(path) and place.relative_to(path).parts[0] in {*_OWN} - {but}
    ):
        raise ConfigError(
            f"{what} {place}: the station keeps its own files there, and others would be among them, or in their "
            "place. Choose another directory"
        )


def has_checkpoint(spark: SparkSession, checkpoint: str) -> bool:
    """Whether a stream has begun there, wherever that is."""
    from pyspark.errors import AnalysisException

    try:
        return bool(spark.read.text(f"{checkpoint}/metadata").take(1))
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return False
        raise


def watch(query: Any, tell: Callable[[Progress], None], stopping: Callable[[], bool]) -> bool:
    """Wait for a query to end, or for a wish to stop and then the end of its micro-batch; whether it was the wish."""
    counter = Counter()
    asked_at: int | None = None
    try:
        while not query.awaitTermination(LOOK_S):
            progress = counter.look(query)
            if progress is not None:
                tell(progress)
            if not stopping():
                continue
            if asked_at is None:
                asked_at = counter.seen
                tell(progress or counter.progress)
            if counter.seen > asked_at or not query.status["isTriggerActive"]:
                return True
        progress = counter.look(query)
        if progress is not None:
            tell(progress)
        return False
    finally:
        query.stop()


def rounds(run: Run, sleep: Callable[[float], object]) -> Iterator[int]:
    """For procedures: once, or again and again at the times of the trigger, until somebody asks to stop."""
    import time

    from heliograph.spark.pipelines.declared import AVAILABLE, ONCE, interval_s

    yield 0
    if run.trigger in {BATCH, ONCE, AVAILABLE}:
        return
    number, pause_s = 0, interval_s(run.trigger)
    due = time.monotonic() + pause_s
    while not run.stopping():
        if time.monotonic() >= due:
            number += 1
            due = max(due + pause_s, time.monotonic())
            yield number
        else:
            sleep(min(LOOK_S, max(0.0, due - time.monotonic())))
