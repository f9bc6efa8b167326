from __future__ import annotations

import base64
import json
import signal
import time
from pathlib import Path

import pytest

import heliograph as hg
from heliograph.cli.pub import _repeat
from tests.cli.harness import Child, Helio, lines, one_line_error, wait_until


def published(data: Path, channel: str) -> list[object]:
    with hg.open(data, read_only=True) as station:
        return [message.data for message in station.read(channel)]


def test_an_argument_is_one_message_and_its_receipt_is_printed(helio: Helio, data: Path) -> None:
    result = helio("pub", "alerts", "system problem!")
    assert result.exit_code == 0
    assert "published to alerts at offset 0, id " in result.stdout
    assert published(data, "alerts") == ["system problem!"]


def test_the_receipt_as_json_names_the_place(helio: Helio, data: Path) -> None:
    receipt = json.loads(helio("pub", "alerts", "hello", "--json").stdout)
    assert (receipt["channel"], receipt["partition"], receipt["offset"]) == ("alerts", 0, 0)
    with hg.open(data) as station:
        found = station.get(receipt["id"])
    assert found is not None
    assert found.data == "hello"


def test_attributes_are_on_the_envelope(helio: Helio, data: Path) -> None:
    helio(
        "pub", "alerts", "{}", "--type", "com.example.alert.v1", "--key", "cpu", "--header", "region=eu",
        "-H", "note=a=b", "--correlation-id", "order-17",
    )  # fmt: skip
    with hg.open(data) as station:
        message = next(station.read("alerts"))
    assert (message.type, message.key, message.correlationid) == ("com.example.alert.v1", "cpu", "order-17")
    assert message.headers == {"region": "eu", "note": "a=b"}


@pytest.mark.parametrize(
    ("mode", "text", "data_of_it"),
    [
        ("auto", '{"level": 3}', {"level": 3}),
        ("auto", "[1, 2]", [1, 2]),
        ("auto", "17", "17"),
        ("auto", "[2026-11-15] a line of a log", "[2026-11-15] a line of a log"),
        ("json", "17", 17),
        ("json", '"text"', "text"),
        ("text", '{"level": 3}', '{"level": 3}'),
        ("base64", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ("bytes", "abc", b"abc"),
    ],
)
def test_what_a_message_is_taken_for(helio: Helio, data: Path, mode: str, text: str, data_of_it: object) -> None:
    assert helio("pub", "alerts", text, "--as", mode).exit_code == 0
    assert published(data, "alerts") == [data_of_it]


@pytest.mark.parametrize(("mode", "text"), [("json", "{oops"), ("base64", "%%%")])
def test_what_is_not_what_it_should_be_is_refused(helio: Helio, mode: str, text: str) -> None:
    one_line_error(helio("pub", "alerts", text, "--as", mode), 2)


def test_what_only_begins_like_json_is_published_as_text_with_a_warning(helio: Helio, data: Path) -> None:
    result = helio("pub", "alerts", "{level: 3}")
    assert result.stderr.count("warning: ") == 1
    assert "--as json" in result.stderr
    assert published(data, "alerts") == ["{level: 3}"]


def test_ten_thousand_lines_of_stdin_keep_their_order(helio: Helio, data: Path, spawn: type[Child]) -> None:
    child = spawn("pub", "numbers", "--json")
    code, out, err = child.end("".join(f"{n}\n" for n in range(10_000)))
    assert (code, err.count("error")) == (0, 0)
    summary = json.loads(out)
    assert (summary["published"], summary["first"], summary["last"]) == (10_000, 0, 9_999)
    assert published(data, "numbers") == [str(n) for n in range(10_000)]


def test_a_line_is_published_when_it_comes_not_when_the_pipe_ends(data: Path, spawn: type[Child]) -> None:
    child = spawn("pub", "logs", "--receipts", "--json")
    for word in ("first", "second"):
        child.stdin.write(word + "\n")
        child.stdin.flush()
        json.loads(child.stdout.readline())
        assert published(data, "logs")[-1] == word
    assert child.end("")[0] == 0


def test_the_last_line_needs_no_newline_and_empty_lines_are_messages(helio: Helio, data: Path) -> None:
    helio("pub", "logs", input="one\n\nthree")
    assert published(data, "logs") == ["one", "", "three"]


def test_bytes_that_are_no_text_are_published_as_bytes(helio: Helio, data: Path) -> None:
    helio("pub", "logs", input=b"\xff\xfe\ntext\n")
    assert published(data, "logs") == [b"\xff\xfe", "text"]


def test_a_bad_line_is_named_and_everything_before_it_is_published(helio: Helio, data: Path) -> None:
    error = one_line_error(helio("pub", "logs", "--as", "json", input="1\n2\noops\n4\n"), 2)
    assert "line 3" in error
    assert "2 messages before it published" in error
    assert published(data, "logs") == [1, 2]


def test_a_line_that_is_too_large_is_named_with_size_and_limit(helio: Helio, data: Path) -> None:
    result = helio("pub", "logs", input=f"small\n{'x' * 2_000}\n", env={"HELIOGRAPH_MESSAGES_MAX_BYTES": "1000"})
    error = one_line_error(result, 2)
    assert "line 2" in error
    assert "1000" in error
    assert published(data, "logs") == ["small"]


def test_receipts_say_where_each_line_is(helio: Helio) -> None:
    receipts = lines(helio("pub", "logs", "--receipts", "--json", input="a\nb\nc\n"))
    assert [receipt["offset"] for receipt in receipts] == [0, 1, 2]


def test_a_file_is_one_message(helio: Helio, data: Path, tmp_path: Path) -> None:
    (tmp_path / "cat.jpg").write_bytes(b"\x00\n\xff")
    (tmp_path / "note.json").write_text('{\n  "level": 3\n}\n')
    assert helio("pub", "files", "-f", tmp_path / "cat.jpg", "-f", tmp_path / "note.json").exit_code == 0
    assert published(data, "files") == [b"\x00\n\xff", {"level": 3}]


def test_count_repeats_a_message_and_bounds_stdin(helio: Helio, data: Path) -> None:
    assert "published 5 messages" in helio("pub", "alerts", "hello", "--count", "5").stdout
    assert published(data, "alerts") == ["hello"] * 5
    helio("pub", "logs", "--count", "2", input="a\nb\nc\nd\n")
    assert published(data, "logs") == ["a", "b"]


def test_what_is_repeated_is_appended_in_batches_of_a_bounded_size() -> None:
    assert [len(batch) for batch in _repeat([b"x"], 25_000)] == [10_000, 10_000, 5_000]
    assert [len(batch) for batch in _repeat([b"x" * 1_000_000, b"y"], 5)] == [4, 4, 2]
    assert [len(batch) for batch in _repeat([b"x" * 9_000_000], 3)] == [1, 1, 1]


def test_lines_longer_than_what_is_read_at_once_stay_whole(data: Path, spawn: type[Child]) -> None:
    given = ["short", "x" * 300_000, "", "y" * 700_001, "z"]
    assert spawn("pub", "logs", "--quiet").end("\n".join(given))[0] == 0
    assert published(data, "logs") == given


def test_rate_spreads_messages_over_time(helio: Helio, data: Path) -> None:
    started = time.monotonic()
    helio("pub", "alerts", "hello", "--count", "20", "--rate", "40")
    assert time.monotonic() - started >= 0.45
    with hg.open(data) as station:
        times = [message.time for message in station.read("alerts")]
    assert (times[-1] - times[0]).total_seconds() >= 0.4


def test_a_rate_without_limit_is_none(helio: Helio, data: Path) -> None:
    assert helio("pub", "alerts", "hello", "--count", "20", "--rate", "inf").exit_code == 0
    assert len(published(data, "alerts")) == 20


def test_ctrl_c_while_waiting_for_lines_keeps_what_was_published(data: Path, spawn: type[Child]) -> None:
    child = spawn("pub", "logs", "--receipts")
    child.stdin.write("one\n")
    child.stdin.flush()
    assert "offset 0" in child.stdout.readline()
    child.signal(signal.SIGINT)
    wait_until(lambda: child.process.poll() is not None)
    code, _, err = child.end()
    assert code == 130
    assert "Traceback" not in err
    assert "1 message published" in err
    assert published(data, "logs") == ["one"]


def test_dead_letters_cannot_be_published_by_hand(helio: Helio, data: Path) -> None:
    one_line_error(helio("pub", "alerts.dead-letter", "hello"), 2)
    assert not data.exists()


def test_a_file_that_is_not_there_makes_no_station(helio: Helio, data: Path, tmp_path: Path) -> None:
    assert "nofile" in one_line_error(helio("pub", "alerts", "--file", tmp_path / "nofile"), 3)
    assert not data.exists()


@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000, "9" * 400 + ".5"])
@pytest.mark.parametrize("option", ["--delay", "--ttl"])
def test_a_duration_that_is_no_number_of_this_world_is_refused(helio: Helio, option: str, digits: str) -> None:
    assert "not a duration" in one_line_error(helio("pub", "alerts", "hello", option, f"{digits}d"), 2)


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "alerts", "{x", "--as", "json"),
        ("pub", "alerts", "*", "--as", "base64"),
        ("pub", "alerts", "x", "-H", "A-B=1"),
        ("pub", "alerts", "x", "--type", ""),
        ("pub", "alerts", "x", "--key", "k" * 70_000),
        ("pub", "alerts", "x", "--ttl", "0s"),
        ("pub", "alerts", "x", "--delay", "4000d"),
        ("pub", "alerts", "x", "--at", "2999-01-01"),
        ("sub", "alerts", "--start", "nonsense"),
        ("sub", "sensors.>", "--start", "5"),
        ("reply", "alerts", "--exec", "cat", "--start", "nonsense"),
        ("reply", "sensors.>", "--exec", "cat", "--start", "5"),
    ],
)
def test_what_cannot_work_makes_no_station(helio: Helio, data: Path, arguments: tuple[str, ...]) -> None:
    result = helio(*arguments)
    assert result.exit_code != 0
    assert "made a new station" not in result.stderr
    assert not data.exists()


@pytest.mark.parametrize(("mode", "size"), [("auto", 2_000_000), ("bytes", 2_000_000), ("bytes", 80_000)])
def test_nor_does_a_file_that_is_too_large(
    helio: Helio, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, size: int
) -> None:
    monkeypatch.setenv("HELIOGRAPH_MESSAGES_MAX_BYTES", "100000")
    (tmp_path / "large").write_bytes(b"x" * size)
    refused = helio("pub", "alerts", "--file", tmp_path / "large", "--as", mode)
    assert "messages.max_bytes is" in one_line_error(refused, 2)
    assert not data.exists()


def test_but_white_space_between_base64_is_not_counted(
    helio: Helio, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_MESSAGES_MAX_BYTES", "4096")
    spaced = " ".join(base64.b64encode(b"x" * 1_700).decode())
    assert helio("pub", "alerts", spaced, "--as", "base64").exit_code == 0
    assert published(data, "alerts") == [b"x" * 1_700]
