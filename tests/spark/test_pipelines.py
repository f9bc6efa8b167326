"""Pipelines: declared, found, run one at a time, seen and stopped from elsewhere."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark import SparkContext

import heliograph as hg
from heliograph.errors import Busy, ConfigError, HeliographError, InvalidMessage, NotFound
from heliograph.spark.jobs.archive import place
from heliograph.spark.jobs.rollup import rollup
from heliograph.spark.pipelines import Input, Option, Output, Pipeline, Result, Run, pipeline, procedure, running, state
from heliograph.spark.pipelines.declared import check_trigger, interval_s, output_of
from heliograph.spark.pipelines.finding import builtin, declared, find, in_file
from heliograph.spark.pipelines.launch import java_ended
from heliograph.spark.pipelines.mishaps import explained
from heliograph.spark.pipelines.outputs import write_delta
from heliograph.spark.pipelines.run import Progress
from heliograph.spark.pipelines.running import How, Listener, has_checkpoint, run, settled
from heliograph.spark.pipelines.tables import rows_of
from tests.cli.harness import wait_until
from tests.opening import Opener

pytestmark = pytest.mark.timeout(600)  # a loaded machine takes long to start Spark


@pipeline(
    "large",
    inputs={"orders": Input("orders", {"maxMessagesPerTrigger": "40"})},
    output=Output("channel", "orders.large"),
    options=(Option("above", "Only orders above this sum.", kind="number", default=50),),
)
def large(orders: Any, above: int) -> Any:
    """Orders that somebody should look at."""
    return orders.where(f"CAST(get_json_object(data, '$.total') AS INT) >= {above}").select("key", "data")


EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "pipelines"
SQL = """
name: totals
help: What there is.
inputs: {orders: orders}
sql: SELECT count(*) AS orders, max(time) AS newest FROM orders WHERE offset >= :from
options: [{name: from, help: From this offset on., kind: number, default: 0}]
"""
SQL_SOME = """
name: some
inputs: {orders: orders}
sql: SELECT count(*) AS orders FROM orders WHERE array_contains(:only, offset)
options: [{name: only, help: Only these., kind: number, several: true}]
"""


@pytest.fixture
def data(root: Path, opened: Opener) -> Path:
    with opened() as station:
        station.publish_many("orders", [{"total": n} for n in range(100)])
    return root


def totals(path: Path, channel: str) -> list[int]:
    with hg.open(path, read_only=True) as station:
        return [message.data["total"] for message in station.read(channel)]


# -- declared and found -----------------------------------------------------------------------------------------------


def test_triggers_and_outputs_are_understood_or_refused_with_what_to_do() -> None:
    assert [interval_s(text) for text in ("10 seconds", "500ms", "1 minute", "250 milliseconds")] == [10, 0.5, 60, 0.25]
    assert output_of("parquet:out/x") == Output("parquet", "out/x")
    for wrong in ("often", "0 seconds", ""):
        with pytest.raises(ConfigError, match="trigger"):
            check_trigger(wrong)
    for wrong in ("printer", "parquet:", "channel", "delta:", "table:x"):
        with pytest.raises(ConfigError, match="use table, console, channel:NAME"):
            output_of(wrong)


def test_what_cannot_be_meant_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ConfigError, match="give its function a docstring"):
        pipeline("x", inputs={"a": Input("a")})(lambda a: a)
    with pytest.raises(ConfigError, match="'a' is there twice"):
        pipeline("x", inputs={"a": Input("a")}, options=(Option("a", ""),))(large.function)
    for wrong, instead in (("min-total", "min_total"), ("a b", "a_b"), ("", "…"), ("1st", "…")):
        with pytest.raises(ConfigError, match=f"option '{wrong}' cannot be called so.*as in '{instead}'"):
            pipeline("x", inputs={"a": Input("a")}, options=(Option(wrong, ""),))(large.function)
    with pytest.raises(ConfigError, match="goes nowhere"):
        pipeline("x", inputs={"a": Input("a")}, output=Output("parquet"))(large.function)
    with pytest.raises(ConfigError, match="trigger is 'batch'"):
        pipeline("x", inputs={"a": Input("a")}, trigger="1 second")(large.function)


def test_pipelines_are_found_in_files_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(SQL)
    (tmp_path / "two.toml").write_text('[[pipelines]]\nname = "t"\nsql = "SELECT 1"\n[pipelines.inputs]\na = "a.>"\n')
    (tmp_path / "three.py").write_text(
        "from heliograph.spark.pipelines import Input, pipeline\n"
        "@pipeline('three', inputs={'a': Input('a')})\ndef three(a):\n    'All.'\n    return a\n"
    )
    files = [str(tmp_path / name) for name in ("one.yaml", "two.toml", "three.py")]
    found = declared(files)
    assert {"totals", "t", "three"} < found.keys() >= builtin().keys()
    assert found["t"].reads({}) == {"a": Input("a.>")}
    assert find("three", files).help == "All."
    with pytest.raises(NotFound, match="did you mean 'totals'"):
        find("total", files)
    (tmp_path / "bad.yaml").write_text("name: x\nsql: SELECT 1\ninputs: {}\nouput: {}\n")
    with pytest.raises(ConfigError, match="unknown field `ouput`"):
        in_file(str(tmp_path / "bad.yaml"))
    twice = "pipelines:\n  - {name: x, inputs: {a: a}, sql: SELECT 1}\n  - {name: x, inputs: {a: a}, sql: SELECT 2}\n"
    (tmp_path / "twice.yaml").write_text(twice)
    with pytest.raises(ConfigError, match="declares pipeline 'x' twice"):
        in_file(str(tmp_path / "twice.yaml"))
    three = (tmp_path / "three.py").read_text()
    (tmp_path / "two.py").write_text(three + three.partition("\n")[2].replace("def three", "def four"))
    with pytest.raises(ConfigError, match="declares pipeline 'three' twice"):
        in_file(str(tmp_path / "two.py"))
    (tmp_path / "taken.yaml").write_text(SQL.replace("totals", "archive"))
    with pytest.raises(ConfigError, match="which there is already"):
        declared([str(tmp_path / "taken.yaml")])


def test_every_built_in_pipeline_is_declared_without_spark() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from heliograph.spark.pipelines.finding import builtin; found = builtin();"
        "assert not {'pyspark', 'pyarrow'} & set(sys.modules), 'import Spark where it is used';"
        "print(*found)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"archive", "compact", "replay"} <= set(said)


# -- one at a time, seen from elsewhere -------------------------------------------------------------------------------


def test_one_at_a_time(tmp_path: Path) -> None:
    with state.lease(tmp_path, "large"):
        assert state.running(tmp_path, "large")
        with pytest.raises(Busy, match=r"running already \(process \d+"), state.lease(tmp_path, "large"):
            pass
        with state.lease(tmp_path, "other"):
            pass
    with state.lease(tmp_path, "large"):
        pass


def test_a_run_that_died_is_seen_as_killed(tmp_path: Path) -> None:
    with state.lease(tmp_path, "large") as place:
        teller = state.Teller(place, large, trigger="1 second", output=large.output, checkpoint=None)
        teller.tell(state="running", progress=Progress(rows=7))
        found = state.status(tmp_path, "large")
        assert found is not None
        assert (found.state, found.progress.rows) == ("running", 7)
        state.ask_to_stop(tmp_path, "large")
        (found,) = state.statuses(tmp_path)
        assert found.state == "stopping"
    found = state.status(tmp_path, "large")
    assert found is not None
    assert found.state == "killed"
    with pytest.raises(NotFound, match="is not running"):
        state.ask_to_stop(tmp_path, "large")


def test_directories_of_others_among_those_of_pipelines_are_passed_over(tmp_path: Path) -> None:
    """A volume that is mounted there has one, for example."""
    for name in ("lost+found", ".snapshot"):
        (tmp_path / "pipelines" / name).mkdir(parents=True)
    with state.lease(tmp_path, "large") as place:
        state.Teller(place, large, trigger="1 second", output=large.output, checkpoint=None)
        assert [found.name for found in state.statuses(tmp_path)] == ["large"]


def test_a_wish_to_stop_is_not_left_for_the_next_run(tmp_path: Path) -> None:
    with state.lease(tmp_path, "large"):
        state.ask_to_stop(tmp_path, "large")
    with state.lease(tmp_path, "large") as place:
        assert not state.asked_to_stop(place)


@pytest.mark.parametrize(("command", "asked"), [("exit 0", True), ("exit 0", False), ("sleep 9", True)])
def test_java_that_is_stopped_together_with_the_pipeline_is_no_failure(
    root: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch, command: str, asked: bool
) -> None:
    """As by a service manager, which signals all processes of a service."""
    opened().close()
    java = subprocess.Popen(["sh", "-c", f"exec {command}"])
    monkeypatch.setattr(running, "launched", lambda *_: None)
    monkeypatch.setattr(running, "java_ended", lambda: java_ended(0.3))
    monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))

    @procedure("lost", options=())
    def lost(run: Run) -> Result:
        """It loses its Java."""
        raise ConnectionRefusedError(111, "Connection refused")

    try:
        ended = asked and command == "exit 0"
        with nullcontext() if ended else pytest.raises(HeliographError, match="Connection refused"):
            run(lost, {}, root, listener=Listener(asked=lambda: asked))
        found = state.status(root, "lost")
        assert found is not None
        assert found.state == ("stopped" if ended else "failed")
    finally:
        java.kill()
        java.wait()


def test_a_table_is_not_written_over_the_station(root: Path, opened: Opener) -> None:
    opened().close()
    for wrong in (".", "..", "channels", "spark/staged", str(root), str(root.parent), "out/../channels"):
        with pytest.raises(ConfigError, match="the station keeps its own files there"):
            run(large, {}, root, How(trigger="batch", output=Output("parquet", wrong, "complete")))
    assert settled(Output("delta", "out/x"), root).to == str(root / "out/x")
    assert settled(Output("parquet", str(root.parent / "lake")), root).to == str(root.parent / "lake")


def test_a_directory_that_is_a_file_is_told_before_anything_runs(root: Path, opened: Opener) -> None:
    opened().close()
    (root / "notes").write_text("mine")
    for trigger in ("batch", "available-now"):
        with pytest.raises(ConfigError, match="notes: that is a file"):
            run(large, {}, root, How(trigger=trigger, output=Output("parquet", "notes", "append")))
    with pytest.raises(ConfigError, match="notes: that is a file"):
        place(root, str(root / "notes"), 1)


def test_an_archive_is_not_written_among_what_the_station_keeps(tmp_path: Path) -> None:
    for wrong in (".", "..", "channels", "spark/staged", "archived"):
        with pytest.raises(ConfigError, match="the station keeps its own files there"):
            place(tmp_path, str(tmp_path / wrong), 1)
    assert place(tmp_path, None, 1) == place(tmp_path, str(tmp_path / "archive"), 1) == tmp_path / "archive"
    assert place(tmp_path, str(tmp_path / "archive" / "old"), 1) == tmp_path / "archive" / "old"
    assert place(tmp_path, str(tmp_path.parent / "archives"), 1) == tmp_path.parent / "archives"
    with pytest.raises(ConfigError, match="--file-bytes 0"):
        place(tmp_path, None, 0)


def test_every_directory_of_a_station_is_its_own(tmp_path: Path) -> None:
    """As docs/format.md lists them."""
    listed = (Path(__file__).parents[2] / "docs" / "format.md").read_text().split("DATA/\n", 1)[1].split("```", 1)[0]
    found = set(re.findall(r"^  ([a-z]+)/", listed, re.MULTILINE))
    assert {"channels", "links", "trash"} <= found
    for name in sorted(found):
        with pytest.raises(ConfigError, match="the station keeps its own files there"):
            settled(Output("parquet", name), tmp_path)


def test_a_checkpoint_that_only_spark_sees_keeps_its_life(tmp_path: Path) -> None:
    def life(there: bool, channel: str = "orders") -> str:
        inputs = {"orders": Input(channel)}
        return state.belongs(tmp_path, large, inputs, large.output, "s3a://bucket/large", lambda _: there).life

    first = life(False)
    assert life(True) == first  # tables recognise batches by it
    with pytest.raises(ConfigError, match="belongs to orders=orders"):
        life(True, "orders.>")
    assert life(False) != first  # somebody removed it: its batches are numbered anew
    with pytest.raises(ConfigError, match="begin anew with another --checkpoint"):
        state.reset("s3a://bucket/large")


def test_what_a_stream_counts_by_stays_as_it_is_under_its_checkpoint(tmp_path: Path) -> None:
    checkpoint = tmp_path / "data" / "pipelines" / "rollup" / "checkpoint"
    place = checkpoint.parent

    def begin(every: float | None) -> state.Belongs:
        options = None if every is None else {**rollup.defaults(), "every": every}
        return state.belongs(place, rollup, {}, rollup.output, str(checkpoint), options=options)

    checkpoint.mkdir(parents=True)
    first = begin(None)  # by a version that wrote no options down
    assert begin(60.0).life == first.life
    with pytest.raises(ConfigError, match=r"--every 1h now.*counted with --every 1m\. Run it with --every 1m.*--reset"):
        begin(3600.0)
    assert begin(60.0).life == first.life
    state.reset(str(checkpoint))
    assert begin(3600.0).life != first.life


def test_a_checkpoint_is_the_same_from_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert state.settled("place") == state.settled(f"file://{tmp_path}/place") == str(tmp_path / "place")
    assert state.settled("hdfs://namenode/place") == "hdfs://namenode/place"


# -- errors in a line -------------------------------------------------------------------------------------------------


def test_an_error_of_ours_is_found_at_the_bottom_of_a_page() -> None:
    page = "An error occurred while calling o12.x\n: org…\n heliograph.errors.InvalidMessage: no JSON\n  at a.b.C\n"
    found = explained(RuntimeError(page))
    assert (type(found), str(found)) == (InvalidMessage, "no JSON")
    assert "\n" not in str(explained(RuntimeError("boom\nat x\nCaused by: java.lang.FooException: deep\n")))


def test_an_error_of_a_pipelines_own_code_is_told_as_what_it_is() -> None:
    assert str(explained(KeyError("total"))) == "the pipeline failed: KeyError: 'total' (--verbose shows all of it)"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("x = 1\ndef (", "line 2: SyntaxError: invalid syntax"),
        ("x = 1\nimport nothing_there", "line 2: ModuleNotFoundError: No module named 'nothing_there'"),
        ("def f():\n    return 1 / 0\n\nf()", "line 2: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_somebodys_own_error(tmp_path: Path, code: str, told: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"mine.py, {told}"):
            find("x", [str(tmp_path / "mine.py")])
    with pytest.raises(NotFound, match="is neither a file"):
        find("x", ["."])


def test_a_missing_extra_is_one_clear_line(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(ConfigError, match=r"pip install 'heliograph\[delta\]'"):
        run(large, {}, data, How(output=Output("delta", "x")))


# -- with Spark -------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_spark(spark: Any) -> Iterator[Any]:
    zone = spark.conf.get("spark.sql.session.timeZone")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", zone)


def test_a_stream_is_stopped_from_elsewhere_and_goes_on_with_each_row_once(
    data: Path, in_spark: Any, opened: Opener
) -> None:
    told: list[Progress] = []
    refused: list[str] = []

    def elsewhere() -> None:
        try:
            wait_until(lambda: (found := state.status(data, "large")) is not None and found.progress.rows == 100, 300)
            with pytest.raises(Busy) as busy:
                run(large, {}, data)
            refused.append(str(busy.value))
        finally:
            state.ask_to_stop(data, "large")

    other = threading.Thread(target=elsewhere)
    other.start()
    result = run(large, {}, data, How(trigger="200 milliseconds"), Listener(progress=told.append))
    other.join()
    assert "running already" in refused[0]
    assert result == Result({}, {"rows": 100})
    assert (told[-1].rows, told[-1].batches, told[-1].lag) == (100, 3, 0)
    assert status(data).state == "stopped"
    assert sorted(totals(data, "orders.large")) == list(range(50, 100))

    with opened(data) as station:
        station.publish("orders", {"total": 1000})
    run(large, {}, data)
    assert sorted(totals(data, "orders.large")) == [*range(50, 100), 1000]
    assert (status(data).state, status(data).progress.rows) == ("done", 1)

    other_input = msgspec.structs.replace(large, inputs={"orders": Input("orders.>")})
    with pytest.raises(ConfigError, match=r"reads orders=orders\.> now.*belongs to orders=orders\. .*--reset"):
        run(other_input, {}, data)
    with pytest.raises(ConfigError, match="writes channel big"):
        run(large, {}, data, How(output=Output("channel", "big")))
    notes: list[str] = []
    run(large, {"above": 99}, data, How(output=Output("channel", "big"), reset=True), Listener(note=notes.append))
    assert totals(data, "big") == [99, 1000]
    assert "everything is read from the beginning" in notes[0]


def status(path: Path, name: str = "large") -> state.Status:
    found = state.status(path, name)
    assert found is not None
    return found


def test_sql_from_a_file_makes_a_table(data: Path, in_spark: Any, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(SQL)
    one = find("totals", [str(tmp_path / "one.yaml")])
    found = rows_of(run(one, {"from": 60}, data).tables["totals"], 10)
    assert [row["orders"] for row in found.rows] == [40]
    with hg.open(data, read_only=True) as station:
        assert found.rows[0]["newest"] == station.read("orders", start=99).__next__().time


def test_an_option_that_is_given_several_times_is_an_array_in_sql(data: Path, in_spark: Any, tmp_path: Path) -> None:
    (tmp_path / "some.yaml").write_text(SQL_SOME)
    one = find("some", [str(tmp_path / "some.yaml")])
    for chosen, count in (((3, 5, 3), 2), ((), 0)):
        assert rows_of(run(one, {"only": chosen}, data).tables["some"], 10).rows == [{"orders": count}]
    (tmp_path / "none.yaml").write_text("name: none\ninputs: {}\nsql: SELECT 1\n")
    with pytest.raises(ConfigError, match="pipeline 'none' has no inputs"):
        find("none", [str(tmp_path / "none.yaml")])


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_rows_that_change_do_not_go_where_the_old_ones_stay(tmp_path: Path, kind: Any) -> None:
    output = Output(kind, "out", "update")
    with pytest.raises(ConfigError, match="mode update writes rows again that have changed"):
        pipeline("changing", inputs={"orders": Input("orders")}, output=output)(large.function)
    for trigger in ("available-now", "10 seconds"):
        with pytest.raises(ConfigError, match=r"pipeline 'large': mode update.*Say mode: append"):
            run(large, {}, tmp_path, How(output=output, trigger=trigger))
    assert pipeline("all", inputs={}, output=output, trigger="batch")(large.function).output == output
    assert (
        pipeline("told", inputs={}, output=Output("channel", "x", "update"))(large.function).trigger == "available-now"
    )


def test_rows_reach_a_delta_table_once(data: Path, in_spark: Any) -> None:
    deltalake = pytest.importorskip("deltalake")
    one = msgspec.structs.replace(large, name="delta", output=Output("delta", "out/delta"))
    run(one, {}, data)
    for noted in ("2", ".2.crc"):  # it died before Spark noted the batch
        (data / "pipelines" / "delta" / "checkpoint" / "commits" / noted).unlink()
    run(one, {}, data)
    assert deltalake.DeltaTable(data / "out" / "delta").count() == 50
    rows = in_spark.range(3)
    for number in (7, 7, 8, 3):
        write_delta(rows, str(data / "out" / "more"), Output("delta", "x"), ("app", number))
    assert deltalake.DeltaTable(data / "out" / "more").count() == 6
    for number, count in ((0, 3), (1, 0), (2, 2), (3, 0)):  # what the table is now, which may be nothing
        write_delta(in_spark.range(count), str(data / "out" / "all"), Output("delta", "x", "complete"), ("app", number))
        assert deltalake.DeltaTable(data / "out" / "all").count() == count


def test_a_batch_is_written_to_parquet(data: Path, in_spark: Any) -> None:
    run(large, {}, data, How(trigger="batch", output=Output("parquet", "out/parquet")))
    assert in_spark.read.parquet(str(data / "out" / "parquet")).count() == 50
    with pytest.raises(ConfigError, match="is there already"):
        run(large, {}, data, How(trigger="batch", output=Output("parquet", "out/parquet")))
    with pytest.raises(ConfigError, match="already exists"):
        run(large, {"above": 99}, data, How(trigger="batch", output=Output("parquet", f"file://{data}/out/parquet")))
    assert in_spark.read.parquet(str(data / "out" / "parquet")).count() == 50


def test_a_failure_is_told_in_a_line_and_in_the_status(data: Path, in_spark: Any) -> None:
    @pipeline("broken", inputs={"orders": Input("orders")}, output=Output("channel", "x"))
    def broken(orders: Any) -> Any:
        """Publishes what is no JSON."""
        return orders.selectExpr("'{' AS data")

    with pytest.raises(InvalidMessage, match="which is not JSON"):
        run(broken, {}, data)
    found = state.status(data, "broken")
    assert found is not None
    assert (found.state, "which is not JSON" in found.error) == ("failed", True)


@pytest.mark.parametrize("trigger", ["batch", "available-now"])
def test_a_function_that_forgot_its_return_is_told_so(data: Path, in_spark: Any, trigger: str) -> None:
    @pipeline("forgetful", inputs={"orders": Input("orders")}, output=Output("channel", "x"), trigger=trigger)
    def forgetful(orders: Any) -> Any:
        """Looks for large orders."""
        orders.where("offset > 50").select("data")

    with pytest.raises(ConfigError, match="pipeline 'forgetful' returns no table 'forgetful': is a return missing"):
        run(forgetful, {}, data)


def test_a_table_that_fails_when_its_rows_are_taken_is_no_success(data: Path, in_spark: Any) -> None:
    @pipeline("broken", inputs={"orders": Input("orders", {"startingOffsets": "50"})})
    def broken(orders: Any) -> Any:
        """Fails late."""
        return orders.selectExpr("if(offset = 70, raise_error('a broken row'), offset) AS offset")

    with pytest.raises(hg.HeliographError, match="a broken row"):
        run(broken, {}, data, How(rows=1000))
    found = status(data, "broken")
    assert (found.state, "a broken row" in found.error) == ("failed", True)
    taken = run(broken, {}, data, How(rows=5)).tables["broken"]
    assert ([row["offset"] for row in taken.rows], taken.more, rows_of(taken, 1)) == ([50, 51, 52, 53, 54], True, taken)
    assert status(data, "broken").state == "done"


def test_a_checkpoint_in_spark_s_own_words(tmp_path: Path, in_spark: Any) -> None:
    assert not has_checkpoint(in_spark, f"file://{tmp_path}")
    (tmp_path / "metadata").write_text('{"id":"6f1e"}')
    assert has_checkpoint(in_spark, f"file://{tmp_path}")


def test_a_procedure_gets_a_run_and_its_options(data: Path, in_spark: Any) -> None:
    @procedure("mine", options=(Option("n", "How many.", kind="number", needed=True),))
    def mine(run: Any, n: int) -> Result:
        """Publish some."""
        run.publish(run.read(Input("orders")).limit(n).select("data"), "copy")
        run.tell(Progress(rows=n))
        return Result({"t": [{"a": 1}]}, {"published": n})

    assert run(mine, {"n": 3}, data).facts == {"published": 3}
    assert len(totals(data, "copy")) == 3
    with pytest.raises(ConfigError, match="needs option 'n'"):
        run(mine, {}, data)
    assert isinstance(mine, Pipeline)


def test_the_examples_run(root: Path, opened: Opener, in_spark: Any) -> None:
    with opened() as station:
        for n, total in enumerate((1200.0, 80.0, 2500.0, -30.0)):
            station.publish("orders", {"item": f"i{n % 2}", "total": total}, key=f"customer-{n % 3}")
    files = [str(EXAMPLES / "orders.py"), str(EXAMPLES / "orders.yaml")]
    found = rows_of(run(find("large", files), {"above": 1000.0}, root).tables["large"], 10)
    assert [(row["customer"], row["total"]) for row in found.rows] == [("customer-2", 2500.0), ("customer-0", 1200.0)]
    customers = find("customers", files)
    assert customers.defaults() == {"least": 0}
    options = {"path": str(root), "channel": "orders"}
    schema = "time TIMESTAMP, key STRING, data STRUCT<item: STRING, total: DOUBLE>"
    typed = in_spark.read.format("heliograph").options(**options).schema(schema).load()
    best = customers.function(orders=typed, least=1000).collect()
    assert [(row.customer, row.orders) for row in best] == [("customer-2", 1), ("customer-0", 2)]
    sums = [msgspec.json.decode(row.data) for row in find("sales", files).function(orders=typed).collect()]
    assert sorted((one["item"], one["orders"], one["total"]) for one in sums) == [("i0", 2, 3700.0), ("i1", 2, 50.0)]
    refunds = find("refunds", files).function(orders=in_spark.read.format("heliograph").options(**options).load())
    assert [msgspec.json.decode(row.data)["total"] for row in refunds.collect()] == [-30.0]
