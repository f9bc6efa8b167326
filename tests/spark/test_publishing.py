"""What tasks lay aside and the driver publishes: all of a batch, once, whatever dies when. Without a Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import ArrayType, MapType, StringType, StructType, VariantType, YearMonthIntervalType

import heliograph as hg
from heliograph.admin.verify import verify
from heliograph.config import Messages
from heliograph.errors import (
    ConfigError,
    Damaged,
    InvalidMessage,
    InvalidName,
    MessageTooLarge,
    NotFound,
    OutOfSequence,
)
from heliograph.limits import SPARK_APPEND_BYTES
from heliograph.log.lines import TAIL_BYTES_MAX
from heliograph.log.packed import Packed
from heliograph.payloads import DEFAULT_TYPE
from heliograph.spark import checking
from heliograph.spark.bodies import check_columns
from heliograph.spark.options import write_options
from heliograph.spark.sink import BatchWriter, Staged, StreamWriter
from heliograph.spark.staging import Settings, Stage
from heliograph.staging import appending, publishing
from heliograph.staging.files import PRODUCER_BYTES_MAX, Section
from heliograph.staging.publishing import drop_batch, publish_batch, tidy
from heliograph.station.producer import Producer
from tests.spark.reading_back import ddl

QUERY = "6f1e"
SETTINGS = Settings(messages=Messages(max_bytes=10_000_000))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with hg.open(tmp_path / "data", name="host1", durability="os") as station:
        station.create_channel("out", partitions=3)
    return tmp_path / "data"


def stage(root: Path, batch: str, rows: dict[str, list[Any]], name: str = "0-0", **options: Any) -> list[Section]:
    options.setdefault("channel", "out")
    said = write_options({"path": str(root), **options})
    return Stage(said, QUERY, batch, name, SETTINGS).write(iter([pa.RecordBatch.from_pydict(rows)]))


def numbers(root: Path, channel: str = "out") -> list[int]:
    with hg.open(root, read_only=True) as station:
        return sorted(message.data for message in station.read(channel))


def texts(*values: int) -> dict[str, list[Any]]:
    return {"data": [str(value) for value in values], "key": [f"k{value}" for value in values]}


def staged(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "spark" / "staged").rglob("*.lines"))


def test_nothing_is_visible_before_the_batch_is_published(root: Path) -> None:
    sections = stage(root, "0", texts(*range(10))) + stage(root, "0", texts(*range(10, 20)), "1-0")
    assert numbers(root) == []
    publish_batch(str(root), QUERY, "0", sections)
    assert numbers(root) == list(range(20))
    assert staged(root) == []


@pytest.mark.parametrize("harm", ["lock", "sweep"])
def test_a_batch_that_is_published_does_not_fail_because_of_what_others_left(
    root: Path, harm: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files of another user, for example. Who was told of a failure would write the table again."""
    (root / "spark").mkdir(exist_ok=True)
    (root / "spark" / "other.json").write_text('{"batch":"0","done":false}')
    if harm == "lock":
        (root / "spark" / "other.lock").mkdir()
    else:
        monkeypatch.setattr(publishing, "sweep", lambda *_: os.listdir(root / "nowhere"))
    said = write_options({"path": str(root), "channel": "out"})
    schema = StructType().add("data", "string")
    for number, writer in enumerate([BatchWriter(said, schema, overwrite=False), StreamWriter(said, schema)]):
        (section,) = stage(root, "0", {"data": [str(number)]})
        if isinstance(writer, BatchWriter):
            writer.commit([Staged(None, [section])])
        else:
            writer.commit([Staged(QUERY, [section])], 0)
    assert numbers(root) == [0, 1]
    assert caplog.records


def test_a_batch_that_comes_again_is_published_once(root: Path) -> None:
    publish_batch(str(root), QUERY, "0", stage(root, "0", texts(1, 2)))
    publish_batch(str(root), QUERY, "0", stage(root, "0", texts(1, 2)))
    publish_batch(str(root), QUERY, "1", stage(root, "1", texts(3)))
    publish_batch(str(root), QUERY, "0", stage(root, "0", texts(1, 2)))
    assert numbers(root) == [1, 2, 3]
    assert staged(root) == []


def test_a_checkpoint_older_than_what_was_published_is_refused(root: Path) -> None:
    """Spark repeats its last batch only: another one has new rows under a number that is taken."""
    writer = StreamWriter(write_options({"path": str(root), "channel": "out"}), ddl("data STRING, key STRING"))
    for number in range(3):
        writer.commit([Staged(QUERY, stage(root, str(number), texts(number)))], number)
    writer.commit([Staged(QUERY, stage(root, "2", texts(2)))], 2)
    writer.commit([Staged(QUERY, [])], 1)  # nothing is lost with nothing
    copy = [Staged(QUERY, stage(root, "1", texts(10, 11)))]
    with pytest.raises(ConfigError, match="it is at batch 1, and batch 2 of the same query is there"):
        writer.commit(copy, 1)
    writer.abort(copy, 1)
    assert (numbers(root), staged(root)) == ([0, 1, 2], [])


def test_a_table_of_foreach_batch_is_published_once(root: Path) -> None:
    schema = ddl("data STRING, key STRING")

    def write(batch: int, value: int) -> None:
        said = write_options({"path": str(root), "channel": "out", "query": QUERY, "batch": str(batch)})
        writer = BatchWriter(said, schema, overwrite=False)
        laid = [writer.write(iter([pa.RecordBatch.from_pydict(texts(value))]))]
        try:
            writer.commit([*laid])
        except BaseException:
            writer.abort([*laid])
            raise

    for batch in (0, 0, 1):
        write(batch, batch)
    with pytest.raises(ConfigError, match="it is at batch 0, and batch 1 of the same query is there"):
        write(0, 9)
    assert (numbers(root), staged(root)) == ([0, 1], [])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"query": "a"}, "go together"),
        ({"batch": "1"}, "go together"),
        ({"query": "batches", "batch": "1"}, "option 'query' is 'batches'"),
        ({"query": "../a", "batch": "1"}, "option 'query' is '../a'"),
        ({"query": "a", "batch": "one"}, "option 'batch' is 'one'"),
    ],
)
def test_a_batch_of_a_query_has_a_name_and_a_number(said: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_options({"path": "data", **said})


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"channel": "sensors.>"}, InvalidName, "'sensors.>' is not a channel name"),
        ({"channel": "a,b"}, InvalidName, "'a,b' is not a channel name"),
        ({"channel": "out", "type": ""}, InvalidMessage, "a type name is a text"),
        ({"channel": "out", "service": "line\nbreak"}, ConfigError, "'service' is a printable text"),
        ({"channel": "out", "service": "s" * 256}, ConfigError, "'service' is a printable text of at most 255"),
    ],
)
def test_what_is_said_of_all_rows_is_checked_before_a_task_runs(
    said: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_options({"path": "data", **said})


def test_a_stream_is_a_query_of_its_own(root: Path) -> None:
    said = write_options({"path": str(root), "channel": "out", "query": "a", "batch": "1"})
    with pytest.raises(ConfigError, match="are for tables in foreachBatch"):
        StreamWriter(said, ddl("data STRING"))


def test_the_same_number_of_another_query_is_another_batch(root: Path) -> None:
    publish_batch(str(root), QUERY, "0", stage(root, "0", texts(1)))
    publish_batch(str(root), "another", "0", stage(root, "0", texts(2)))
    assert numbers(root) == [1, 2]


class Died(BaseException):
    """Nothing catches it, as nothing runs in a killed process."""


@pytest.mark.parametrize("size", [SPARK_APPEND_BYTES, 300])
@pytest.mark.parametrize("deaths", range(1, 9))
def test_a_driver_that_dies_anywhere_is_finished_by_the_next(
    root: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, size: int
) -> None:
    """It dies before the nth thing that changes the disk; the batch comes again with other rows in other tasks."""
    publish_batch(str(root), QUERY, "0", stage(root, "0", texts(100)))
    calls = 0
    real_save, real_publish = publishing._save, Producer.publish_encoded

    def step() -> None:
        nonlocal calls
        calls += 1
        if calls == deaths:
            raise Died

    def save(*args: Any) -> None:
        step()
        real_save(*args)
        step()

    def publish(*args: Any, **more: Any) -> int:
        step()
        return real_publish(*args, **more)

    monkeypatch.setattr(publishing, "_save", save)
    monkeypatch.setattr(Producer, "publish_encoded", publish)
    monkeypatch.setattr(appending, "SPARK_APPEND_BYTES", size)
    sections = stage(root, "1", texts(*range(10))) + stage(root, "1", texts(*range(10, 20)), "1-0")
    try:
        publish_batch(str(root), QUERY, "1", sections)
        died = False
    except Died:
        died = True
    monkeypatch.undo()
    again = stage(root, "1", texts(*reversed(range(20))), "0-0")  # Spark does not say that rows keep their order
    publish_batch(str(root), QUERY, "1", again)
    assert numbers(root) == [*range(20), 100]
    assert staged(root) == []
    assert died or deaths > 5


def test_a_batch_that_happened_is_finished_though_its_query_never_comes_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sections = stage(root, "0", texts(*range(5)))
    monkeypatch.setattr(Producer, "publish_encoded", _dies)
    with pytest.raises(Died):
        publish_batch(str(root), QUERY, "0", sections)
    monkeypatch.undo()
    drop_batch(str(root), QUERY, "0")  # a late abort changes nothing about that
    assert numbers(root) == []
    tidy(str(root))
    assert numbers(root) == list(range(5))


def _dies(*_: Any, **__: Any) -> int:
    raise Died


def test_the_channel_is_deleted_before_a_dead_drivers_batch_is_finished(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_batch(str(root), QUERY, "0", stage(root, "0", texts(1, 2, 3)))
    sections = stage(root, "1", texts(4, 5))
    monkeypatch.setattr(Producer, "publish_encoded", _dies)
    with pytest.raises(Died):
        publish_batch(str(root), QUERY, "1", sections)
    monkeypatch.undo()
    with hg.open(root) as station:
        station.delete_channel("out")
        station.create_channel("out", partitions=3)
    publish_batch(str(root), QUERY, "1", [])
    assert numbers(root) == [4, 5]


def test_the_channel_is_made_anew_with_fewer_partitions_before_its_batch_is_published(root: Path) -> None:
    sections = stage(root, "0", texts(*range(20)))
    assert {section.partition for section in sections} == {0, 1, 2}
    with hg.open(root) as station:
        station.delete_channel("out")
    publish_batch(str(root), QUERY, "0", sections)  # makes it, with one
    publish_batch(str(root), QUERY, "1", stage(root, "1", texts(20)))
    assert numbers(root) == list(range(21))


def test_what_failed_tasks_laid_aside_goes(root: Path) -> None:
    stage(root, "0", texts(1), "0-0")
    drop_batch(str(root), QUERY, "0")
    assert staged(root) == []
    stage(root, "1", texts(1), "0-0")
    publish_batch(str(root), QUERY, "1", stage(root, "1", texts(1), "0-1"))  # the first try of that task died
    assert staged(root) == []
    assert numbers(root) == [1]
    stage(root, "2", texts(2))
    tidy(str(root))
    assert len(staged(root)) == 1  # it may still be wanted
    (folder,) = (root / "spark" / "staged").glob("*/2")
    os.utime(folder, (0, 0))
    tidy(str(root))
    assert staged(root) == []


def test_a_row_that_goes_nowhere_is_refused(root: Path) -> None:
    rows: dict[str, list[Any]] = {"data": ["1", "2"], "channel": ["out", None]}
    said = write_options({"path": str(root)})
    with pytest.raises(InvalidName, match="column 'channel' is null in a row"):
        Stage(said, QUERY, "0", "0-0", SETTINGS).write(iter([pa.RecordBatch.from_pydict(rows)]))
    assert staged(root) == []


def test_keys_have_their_partitions_in_a_channel_that_is_yet_to_be_made(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_STORAGE_PARTITIONS", "4")
    writer = BatchWriter(
        write_options({"path": str(root), "channel": "new"}), ddl("data STRING, key STRING"), overwrite=False
    )
    writer.commit([writer.write(iter([pa.RecordBatch.from_pydict(texts(*range(40)))]))])
    with hg.open(root, read_only=True) as station:
        found = {message.key: message.partition for message in station.read("new")}
    assert found == {f"k{number}": crc32(f"k{number}".encode()) % 4 for number in range(40)}


def test_a_channel_that_is_not_made_is_told_in_the_task(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_STORAGE_AUTO_CREATE", "false")
    writer = BatchWriter(
        write_options({"path": str(root), "channel": "new"}), ddl("data STRING, key STRING"), overwrite=False
    )
    with pytest.raises(NotFound, match="there is no channel 'new'"):
        writer.write(iter([pa.RecordBatch.from_pydict(texts(1))]))
    assert staged(root) == []


def test_damaged_staged_files_are_not_published_and_can_be_given_up(root: Path) -> None:
    sections = stage(root, "0", texts(*range(5)))
    (file,) = (root / "spark" / "staged").rglob("*.lines")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(Damaged, match=f"is damaged, though the batch .* remove spark/{QUERY}.json"):
        publish_batch(str(root), QUERY, "0", sections)
    there = numbers(root)
    assert len(there) < 5
    (root / "spark" / f"{QUERY}.json").unlink()
    publish_batch(str(root), QUERY, "1", stage(root, "1", texts(7)))
    assert numbers(root) == [*there, 7]


def test_rows_that_fail_in_the_middle_of_a_task_leave_no_file(root: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict(texts(1))
        raise ValueError("broken row")

    with pytest.raises(ValueError, match="broken row"):
        Stage(write_options({"path": str(root), "channel": "out"}), QUERY, "0", "0-0", SETTINGS).write(rows())
    assert staged(root) == []


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ({"data": ["not json"]}, InvalidMessage, "holds 'not json', which is not JSON"),
        ({"data": ["1,2"]}, InvalidMessage, "not JSON"),
        ({"data": ["[1", "2],3"]}, InvalidMessage, r"holds '\[1', which is not JSON"),  # only both together are
        ({"data": ['"a', 'b"', "1,2"]}, InvalidMessage, "which is not JSON"),
        ({"data": ["[" * 5_000 + "]" * 5_000]}, InvalidMessage, "recursion"),
        ({"data": ["1", "[" * 501 + "]" * 501]}, InvalidMessage, "nested too deeply: 501 levels"),
        ({"data": ['{"a":\n' * 501 + "1" + "}" * 501]}, InvalidMessage, "nested too deeply: 501 levels"),
        ({"data": ["1", "1e400"]}, InvalidMessage, r"holds '1e400', which is not JSON \(Number out of range\)"),
        ({"data": [None, '{"a":[0, -1.5E+309]}']}, InvalidMessage, "Number out of range"),
        ({"data": ['{\n"a":1E0308,\n"b":2E0308}']}, InvalidMessage, "Number out of range"),
        ({"data": ["9" * 309 + ".5"]}, InvalidMessage, "Number out of range"),
        ({"data": ["9" * 250 + "e59"]}, InvalidMessage, "Number out of range"),
        ({"data": ["9" * 5_000]}, InvalidMessage, "out of range"),
        ({"data": [1.0, float("inf")]}, InvalidMessage, "column 'data' is double.* holds inf"),
        ({"data": [{"a": [float("nan")]}]}, InvalidMessage, r"holds nan at \$.a\[0\]"),
        ({"data": ["1"], "id": ["has space"]}, InvalidMessage, "'has space' is no id.* without quotes and spaces"),
        ({"data": ["1"], "channel": ["../etc"]}, InvalidName, "is not a channel name"),
        ({"data": ["1"], "channel": ["out.dead-letter"]}, InvalidName, "is reserved"),
        ({"data": ["1"], "channel": ["_reply.x"]}, InvalidName, "is reserved"),
        ({"data": ["1"], "headers": [[("type", "x")]]}, InvalidMessage, "header name 'type'"),
        ({"data": ["1"], "time": [datetime(1960, 1, 1, tzinfo=UTC)]}, InvalidMessage, "outside of the years"),
        ({"data": ['"' + "y" * 10_000_000 + '"']}, MessageTooLarge, "messages.max_bytes allows"),
        ({"data": ["1"], "key": ["k" * 70_000]}, InvalidMessage, "column 'key' holds more than"),
        ({"data": ["1"], "type": ["line\nbreak"]}, InvalidMessage, "cannot be printed"),
    ],
)
def test_what_cannot_be_a_message_is_refused(root: Path, rows: dict[str, Any], error: type, message: str) -> None:
    if "headers" in rows:
        rows = {**rows, "headers": pa.array(rows["headers"], pa.map_(pa.string(), pa.string()))}
    with pytest.raises(error, match=message):
        stage(root, "0", rows)
    assert staged(root) == []


def test_payloads_as_deep_as_readers_can_decode_are_published(root: Path) -> None:
    payloads = ["[" * 500 + "]" * 500, '"' + "[" * 2_000 + '"', "[" + "[1]," * 1_000 + "2]"]
    publish_batch(root, QUERY, "0", stage(root, "0", {"data": payloads}))
    with hg.open(root, read_only=True) as station:
        assert sorted(msgspec.json.encode(one.data).decode() for one in station.read("out")) == sorted(payloads)


def test_large_numbers_that_can_be_read_are_published_as_they_are(root: Path) -> None:
    """And what only looks like one that cannot."""
    numbers = ["1.7e308", "-1e+0308", "1e-999", "9" * 400, "0." + "1" * 400]
    payloads = [*numbers, '"1e400"', '[1,"2, 3e400 , 4",5]', '{"1e400":0}']
    publish_batch(str(root), QUERY, "0", stage(root, "0", {"data": payloads}))
    with hg.open(root, read_only=True) as station:
        assert [message.data for message in station.read("out")] == [msgspec.json.decode(one) for one in payloads]


numbers_and_noise = st.lists(
    st.sampled_from(["e", "E", "+", "-", "1", "23", "456", "7" * 199, "0" * 13, ".", ",", ":", "[", " ", "x", "ü"]),
    max_size=12,
)


@given(numbers_and_noise)
@example(["1", "E", "+", "456"])
@example(["7" * 199, "1"])
@example(["x", "7" * 199, "1", "x"])
def test_whatever_may_be_too_large_is_looked_at(parts: list[str]) -> None:
    text = "".join(parts)
    if pc.match_substring_regex(pa.array([text]), checking._LARGE)[0].as_py():
        assert checking.may_hold_large(text.encode())


@pytest.mark.parametrize("places", range(64))
def test_two_hundred_digits_are_looked_at_wherever_they_begin(places: int) -> None:
    assert checking.may_hold_large(b"x" * places + b"9" * 200 + b"x")
    assert not checking.may_hold_large(b"x" * places + b"9" * 100 + b"x" * 16 + b"9" * 100)


def test_rows_of_which_no_envelope_is_like_the_other(root: Path) -> None:
    """What is the same in all rows is put together beforehand: here nothing is."""
    moments = [datetime(2026, 11, 15, 20, 30, at, tzinfo=UTC) for at in range(3)]
    rows = {
        "data": ["1", "2", "3"], "time": moments, "type": ["a.b", None, "c.d"], "key": ["k", None, 'q"'],
        "subject": [None, "s", ""], "id": [None, "own", None],
    }  # fmt: skip
    sections = stage(root, "0", rows) + stage(root, "0", {"data": ["4"], "time": moments[:1]}, "1-0")
    publish_batch(str(root), QUERY, "0", sections)
    with hg.open(root, read_only=True) as station:
        found = {message.data: message for message in station.read("out")}
    assert [found[n].type for n in (1, 2, 3, 4)] == ["a.b", "heliograph.data.v1", "c.d", "heliograph.data.v1"]
    assert [found[n].time for n in (1, 2, 3, 4)] == [*moments, moments[0]]
    assert [found[n].key for n in (1, 2, 3, 4)] == ["k", None, 'q"', None]
    assert [found[n].subject for n in (1, 2, 3, 4)] == [None, "s", None, None]
    assert found[2].id == "own"
    assert len({message.id for message in found.values()}) == 4


@pytest.mark.parametrize("more", [{}, {"type": ["a.b", None]}, {"time": [datetime(2026, 11, 15, tzinfo=UTC), None]}])
def test_how_many_messages_begin_is_laid_aside_once(root: Path, more: dict[str, list[Any]]) -> None:
    count = 1200
    rows = texts(*range(count)) | {name: values * (count // 2) for name, values in more.items()}
    with hg.open(root) as station:
        station.create_channel("one", partitions=1)
    sections = stage(root, "0", rows, channel="one", service="spark")
    assert b'"id"' not in b"".join(path.read_bytes() for path in (root / "spark" / "staged").rglob("*.lines"))
    publish_batch(str(root), QUERY, "0", sections)
    with hg.open(root, read_only=True) as station:
        found = list(station.read("one"))
        assert verify(station).ok
    assert [message.data for message in found] == list(range(count))
    assert [message.key for message in found] == rows["key"]
    assert {message.source for message in found} == {"host1/spark"}
    assert [message.type for message in found[:2]] == [more.get("type", [None])[0] or DEFAULT_TYPE, DEFAULT_TYPE]
    assert [found[0].time == moment for moment in more.get("time", ())] == [True, False][: len(more.get("time", ()))]
    ids = [message.id for message in found]
    assert ids == sorted(set(ids))


def test_few_messages_and_those_with_ids_are_laid_aside_whole(root: Path) -> None:
    few = stage(root, "0", texts(1, 2))
    own = stage(root, "0", texts(*range(3, 1000)) | {"id": [f"own{n}" for n in range(3, 1000)]}, "1-0")
    assert {section.begin for section in few + own} == {None}
    publish_batch(str(root), QUERY, "0", few + own)
    assert numbers(root) == list(range(1, 1000))


def test_how_a_message_begins_counts_for_its_size(root: Path) -> None:
    said = write_options({"path": str(root), "channel": "out", "service": "s" * 250})
    rows = pa.RecordBatch.from_pydict({"data": ["1"] * 700})
    limit = 250 + TAIL_BYTES_MAX + PRODUCER_BYTES_MAX

    def limited(size: int) -> Settings:
        return Settings(messages=Messages(max_bytes=size))

    with pytest.raises(MessageTooLarge, match=r"a row for 'out' makes a message of about 4[0-9][0-9] bytes"):
        Stage(said, QUERY, "0", "0-0", limited(limit)).write(iter([rows]))
    assert staged(root) == []
    assert Stage(said, QUERY, "0", "0-0", limited(limit + 200)).write(iter([rows]))


def test_many_small_rows_are_not_laid_aside_all_at_once(root: Path) -> None:
    """What is appended at once is bounded, and so is the memory that it takes."""
    sections = stage(root, "0", {"data": ["1"] * 50_000})
    assert max(section.size() for section in sections) <= 1.2 * SPARK_APPEND_BYTES
    publish_batch(str(root), QUERY, "0", sections)
    assert numbers(root) == [1] * 50_000


@pytest.mark.parametrize("column", ["data", "key", "subject", "type", "channel"])
def test_bytes_that_are_no_text_are_refused(root: Path, column: str) -> None:
    """As Spark has them after reading a file in Latin-1, or CAST(… AS STRING): no reader could decode the message."""
    wrong = pa.array([b'"caf\xe9"'])
    as_text = pa.StringArray.from_buffers(1, *wrong.buffers()[1:])
    with pytest.raises(InvalidMessage, match=f"column '{column}' holds text that is not UTF-8"):
        stage(root, "0", {"data": ["1"], column: as_text})
    assert staged(root) == []


def test_columns_of_nothing_but_null_are_as_if_they_were_not_there(root: Path) -> None:
    """``NULL AS channel`` in SQL has no type of its own."""
    names = ("channel", "key", "type", "id", "time", "subject", "headers", "bytes")
    sections = stage(root, "0", {"data": ["1", "2"], **{name: pa.nulls(2) for name in names}})
    publish_batch(str(root), QUERY, "0", sections)
    assert numbers(root) == [1, 2]


def test_text_that_spark_hands_over_with_large_offsets_is_as_any_text(root: Path) -> None:
    """spark.sql.execution.arrow.useLargeVarTypes: JSON text was published as a text that holds JSON."""
    large = pa.large_string()
    payload = pa.array([{"a": "x", "l": [b"y"], "m": [("k", "v")]}], pa.struct(
        {"a": large, "l": pa.list_(pa.large_binary()), "m": pa.map_(large, large)})
    )  # fmt: skip
    stages = [
        {
            "data": pa.array(['{"n":1}'], large),
            "key": pa.array(["k"], large),
            "headers": pa.array([[("h", "v")]], pa.map_(large, large)),
        },
        {"data": payload, "key": pa.array([None], large)},
        {"bytes": pa.array([b"z"], pa.large_binary())},
    ]  # fmt: skip
    publish_batch(str(root), QUERY, "0", [one for rows in stages for one in stage(root, "0", rows, channel="one")])
    with hg.open(root, read_only=True) as station:
        found = [(message.data, message.key, message.headers) for message in station.read("one")]
    assert found == [
        ({"n": 1}, "k", {"h": "v"}), ({"a": "x", "l": ["eQ=="], "m": {"k": "v"}}, None, {}), (b"z", None, {}),
    ]  # fmt: skip


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "GMT+8", "UTC+08:00", "Z", "PST"])
def test_a_time_in_a_payload_is_the_same_in_every_time_zone_of_a_session(root: Path, zone: str) -> None:
    """Python knows fewer zones than Spark, and of long ago JSON has no room for the seconds of their difference."""
    moments = [datetime(2026, 10, 25, 1, 30, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)]
    payloads = pa.array([{"t": [moment]} for moment in moments], pa.struct({"t": pa.list_(pa.timestamp("us", zone))}))
    publish_batch(str(root), QUERY, "0", stage(root, "0", {"data": payloads}))
    with hg.open(root, read_only=True) as station:
        assert [message.data for message in station.read("out")] == [
            {"t": ["2026-10-25T01:30:00Z"]}, {"t": ["1900-01-01T00:00:00Z"]},
        ]  # fmt: skip


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")])
def test_a_year_that_no_reader_knows_is_told(root: Path, kind: pa.DataType) -> None:
    beyond = pa.array(
        [[3_000_000 if kind == pa.date32() else 2**58]], pa.list_(pa.int32() if kind == pa.date32() else pa.int64())
    )
    with pytest.raises(InvalidMessage, match="not of the years 1 to 9999 in UTC"):
        stage(root, "0", {"data": beyond.cast(pa.list_(kind))})


def test_an_id_that_is_null_is_made(root: Path) -> None:
    publish_batch(str(root), QUERY, "0", stage(root, "0", {"data": ["1", "2", "3"], "id": [None, "own", None]}))
    with hg.open(root, read_only=True) as station:
        ids = {message.data: message.id for message in station.read("out")}
    assert ids[2] == "own"
    assert len({*ids.values()}) == 3
    assert len(ids[1]) == len(ids[3]) == 36


def test_a_map_becomes_an_object(root: Path) -> None:
    map_ = pa.map_(pa.string(), pa.int64())
    kind = pa.struct([("m", map_), ("more", pa.list_(map_)), ("by", pa.map_(pa.int64(), pa.string()))])
    rows = [{"m": [("a", 1)], "more": [[("b", 2)], None], "by": [(7, "x")]}, {"m": None, "more": [], "by": None}, None]
    publish_batch(str(root), QUERY, "0", stage(root, "0", {"data": pa.array(rows, kind)}))
    with hg.open(root, read_only=True) as station:
        found = [message.data for message in station.read("out")]
    assert found == [
        {"m": {"a": 1}, "more": [{"b": 2}, None], "by": {"7": "x"}}, {"m": None, "more": [], "by": None}, None,
    ]  # fmt: skip
    by_list = pa.array([[(["a"], 1)]], pa.map_(pa.list_(pa.string()), pa.int64()))
    with pytest.raises(InvalidMessage, match="does not become JSON"):
        stage(root, "1", {"data": by_list})


def test_columns_that_mean_nothing_are_refused() -> None:
    options = write_options({"path": "data"})
    for columns, message in {
        "channel STRING, data STRING, n INT": "column 'n' has no meaning",
        "channel STRING": "neither a column 'data'",
        "data STRING": "where to",
        "channel STRING, data STRING, key BIGINT": "column 'key' is BIGINT, and must be STRING",
        "channel STRING, data STRING, time STRING": "column 'time' is STRING, and must be TIMESTAMP",
    }.items():
        with pytest.raises(ConfigError, match=message):
            check_columns(ddl(columns), options)


def test_a_payload_that_arrow_has_as_something_else_is_refused() -> None:
    options = write_options({"path": "data", "channel": "out"})
    for kind in (VariantType(), YearMonthIntervalType()):
        for payload in (kind, StructType().add("v", kind), ArrayType(kind), MapType(StringType(), kind)):
            with pytest.raises(ConfigError, match=r"column 'data' is or holds .*: use to_json"):
                check_columns(StructType().add("data", payload), options)


def test_two_fields_of_one_name_are_refused() -> None:
    options = write_options({"path": "data", "channel": "out"})
    twice = StructType().add("n", StringType()).add("m", StringType()).add("n", StringType())
    for payload in (twice, StructType().add("deep", twice), ArrayType(twice)):
        with pytest.raises(ConfigError, match="column 'data' has or holds two fields 'n'"):
            check_columns(StructType().add("data", payload), options)


def test_a_section_out_of_turn_is_refused(root: Path) -> None:
    with hg.open(root) as station, station.producer("p") as producer:
        head = b'{"specversion":"1.0","id":"a","source":"s","type":"t","time":"2026-11-15T20:30:01Z","channel":"out"'
        body = Packed.of([head + b',"data":1'])
        assert producer.publish_encoded("out", 0, body, seq=1, times_us=(1, 1)) == 1
        assert producer.publish_encoded("out", 0, body, seq=1, times_us=(1, 1)) == 0
        with pytest.raises(OutOfSequence):
            producer.publish_encoded("out", 0, body, seq=3, times_us=(1, 1))
    assert numbers(root) == [1]


def test_ids_that_nobody_gave_are_those_of_a_batch(root: Path) -> None:
    publish_batch(str(root), QUERY, "0", stage(root, "0", texts(*range(700))))
    publish_batch(str(root), QUERY, "1", stage(root, "1", texts(*range(700, 710))))
    with hg.open(root, read_only=True) as station:
        ids = [message.id for message in station.read("out")]
    assert ids == sorted(set(ids))
    assert {(UUID(one).version, len(one)) for one in ids} == {(7, 36)}
