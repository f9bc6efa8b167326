from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Child, Helio, lines, one_line_error, wait_until


def offset_of(data: Path, channel: str, name: str) -> int:
    with hg.open(data, read_only=True) as station:
        return next((info.offset for info in station.subscriptions(channel) if info.name == name), -1)


def letters(data: Path, channel: str) -> list[dict[str, object]]:
    with hg.open(data, read_only=True) as station:
        return [message.data for message in station.read(f"{channel}.dead-letter")]


# -- printing -----------------------------------------------------------------------------------------------


def test_a_durable_subscription_resumes_where_it_stopped(helio: Helio, station: hg.Station) -> None:
    station.publish_many("numbers", range(10))
    args = ("sub", "numbers", "--name", "pager", "--start", "first", "--json", "--count")
    assert [message["data"] for message in lines(helio(*args, 3))] == [0, 1, 2]
    assert [message["data"] for message in lines(helio(*args, 4))] == [3, 4, 5, 6]


def test_the_json_of_a_message_is_its_envelope_with_its_place(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", {"level": 3}, key="cpu", headers={"offset": "mine"})
    (message,) = lines(helio("sub", "alerts", "--start", "first", "--count", 1, "--json"))
    assert (message["offset"], message["partition"], message["partitionkey"]) == (0, 0, "cpu")
    assert message["data"] == {"level": 3}


@pytest.mark.parametrize(("start", "first"), [("7", 7), ("-1h", 0), ("2020-01-01T00:00:00Z", 0)])
def test_it_begins_where_it_is_told_to(helio: Helio, station: hg.Station, start: str, first: int) -> None:
    station.publish_many("numbers", range(10))
    assert lines(helio("sub", "numbers", "--start", start, "--count", 1, "--json"))[0]["data"] == first


@pytest.mark.parametrize("shape", ["table", "json", "raw"])
def test_every_format_shows_the_message(helio: Helio, station: hg.Station, shape: str) -> None:
    station.publish("alerts", "system problem!")
    result = helio("sub", "alerts", "--start", "first", "--count", 1, "--format", shape)
    assert "system problem!" in result.stdout


def test_a_new_channel_is_made_and_what_comes_is_printed(data: Path, spawn: type[Child]) -> None:
    child = spawn("sub", "alerts", "--json")
    assert "made a new station" in child.stderr.readline()
    assert "subscribed to alerts" in child.stderr.readline()
    with hg.open(data) as station:
        station.publish("alerts", "system problem!")
        assert json.loads(child.stdout.readline())["data"] == "system problem!"
        child.signal(signal.SIGTERM)
        assert child.end()[0] == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_ends_it_in_order_and_keeps_the_position(
    data: Path, station: hg.Station, spawn: type[Child], number: signal.Signals, code: int
) -> None:
    station.publish_many("numbers", range(5))
    child = spawn("sub", "numbers", "--name", "pager", "--start", "first", "--json")
    seen = [json.loads(child.stdout.readline())["data"] for _ in range(5)]
    child.signal(number)
    returned, out, err = child.end()
    assert (returned, out, seen) == (code, "", [0, 1, 2, 3, 4])
    assert "Traceback" not in err
    assert "5 messages delivered; position 5" in err
    assert offset_of(data, "numbers", "pager") == 5


def test_signals_while_messages_pour_in_lose_and_repeat_nothing(
    data: Path, station: hg.Station, spawn: type[Child]
) -> None:
    station.publish_many("numbers", range(20_000))
    seen: list[int] = []
    while len(seen) < 20_000:
        child = spawn("sub", "numbers", "--name", "pager", "--start", "first", "--json", "--quiet")
        seen += [json.loads(child.stdout.readline())["data"]]
        child.signal(signal.SIGTERM)
        code, out, err = child.end()
        assert (code, err) == (0, "")
        seen += [json.loads(line)["data"] for line in out.splitlines()]
        if len(seen) < 20_000:
            rest = spawn("sub", "numbers", "--name", "pager", "--json", "--quiet", "--count", str(20_000 - len(seen)))
            code, out, err = rest.end()
            assert (code, err) == (0, "")
            seen += [json.loads(line)["data"] for line in out.splitlines()]
    assert seen == list(range(20_000))


@pytest.mark.parametrize("max_retries", ["0", "5"])
def test_a_reader_that_goes_away_makes_no_dead_letter(data: Path, station: hg.Station, max_retries: str) -> None:
    station.publish_many("numbers", ["x" * 1_000] * 2_000)
    command = f"{sys.executable} -m heliograph.cli -q -d {data} sub numbers --name pager --start first -o raw"
    result = subprocess.run(
        ["bash", "-c", f"{command} | head -1 | wc -l; echo ${{PIPESTATUS[0]}}"], capture_output=True, text=True,
        check=True, env={**os.environ, "HELIOGRAPH_SUBSCRIBERS_MAX_RETRIES": max_retries},
    )  # fmt: skip
    assert result.stdout.split() == ["1", "141"]
    assert result.stderr == ""
    assert 1 <= offset_of(data, "numbers", "pager") < 2_000
    assert "numbers.dead-letter" not in [info.name for info in station.channels()]


def test_a_deleted_channel_ends_it_with_an_error(data: Path, spawn: type[Child]) -> None:
    with hg.open(data) as station:
        station.publish("alerts", 1)
        child = spawn("sub", "alerts", "--json", "--quiet", "--start", "first")
        assert child.stdout.readline()
        station.delete_channel("alerts")
        code, _, err = child.end()
    assert code == 1
    assert err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in err


# -- commands -----------------------------------------------------------------------------------------------


def test_a_command_gets_the_message_on_stdin_and_in_its_environment(
    helio: Helio, station: hg.Station, tmp_path: Path
) -> None:
    receipt = station.publish("alerts", {"level": 3}, type="com.example.alert.v1", key="cpu")
    script = (
        f"cat > {tmp_path}/stdin; echo $HELIOGRAPH_CHANNEL $HELIOGRAPH_OFFSET $HELIOGRAPH_ID "
        f"$HELIOGRAPH_TYPE $HELIOGRAPH_KEY > {tmp_path}/env"
    )
    result = helio("sub", "alerts", "--name", "pager", "--start", "first", "--count", 1, "--exec", script)
    assert result.exit_code == 0
    message = json.loads((tmp_path / "stdin").read_text())
    assert (message["id"], message["data"], message["offset"]) == (receipt.id, {"level": 3}, 0)
    assert (tmp_path / "env").read_text().split() == ["alerts", "0", receipt.id, "com.example.alert.v1", "cpu"]


def test_a_command_finds_a_key_that_the_locale_cannot_write(
    station: hg.Station, spawn: type[Child], tmp_path: Path
) -> None:
    station.publish("alerts", "hello", key="kühl")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    script = f'printf %s "$HELIOGRAPH_KEY" > {tmp_path}/key'
    options = ["--start", "first", "--count", "1", "--max-retries", "0"]
    code, _, err = spawn("sub", "alerts", *options, "--exec", script, env=plain).end()
    assert code == 0 and "dead letter" not in err, err
    assert (tmp_path / "key").read_bytes() == "kühl".encode()


def test_a_command_may_use_helio_itself(helio: Helio, station: hg.Station, data: Path) -> None:
    station.publish("alerts", "hello")
    script = f"{sys.executable} -m heliograph.cli -q -d {data} pub copies"
    result = helio("sub", "alerts", "--start", "first", "--count", 1, "--exec", script)
    assert result.exit_code == 0, result.stderr
    (copy,) = station.read("copies")
    assert copy.data["data"] == "hello"


def test_a_failing_command_becomes_a_dead_letter_with_what_it_said(
    helio: Helio, station: hg.Station, data: Path
) -> None:
    station.publish("alerts", "hello")
    script = "echo the mail server is down >&2; exit 3"
    result = helio(
        "sub", "alerts", "--name", "pager", "--start", "first", "--count", 1, "--max-retries", 1, "--exec", script,
        env={"HELIOGRAPH_SUBSCRIBERS_BACKOFF_BASE_MS": "1"},
    )  # fmt: skip
    assert result.exit_code == 0
    assert "1 dead letter" in result.stderr
    (letter,) = letters(data, "alerts")
    assert (letter["attempts"], letter["subscription"], letter["reason"]) == (2, "pager", "handler")
    assert "exit code 3: the mail server is down" in str(letter["error"])
    assert offset_of(data, "alerts", "pager") == 1


def test_a_key_that_is_longer_than_allowed_today_keeps_no_message_from_the_dead_letters(
    helio: Helio, station: hg.Station, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    station.publish("alerts", "hello", key="k" * 100)
    monkeypatch.setattr("heliograph.message.KEY_BYTES_MAX", 50)
    result = helio(
        "sub", "alerts", "--name", "pager", "--start", "first", "--count", 1, "--max-retries", 0, "--exec", "exit 1"
    )
    assert result.exit_code == 0
    (letter,) = letters(data, "alerts")
    assert letter["original"]["partitionkey"] == "k" * 100
    assert offset_of(data, "alerts", "pager") == 1


def test_count_counts_messages_not_attempts_and_begins_no_other(
    helio: Helio, station: hg.Station, data: Path, tmp_path: Path
) -> None:
    station.publish_many("alerts", range(5))
    script = f"echo $HELIOGRAPH_OFFSET >> {tmp_path}/tried; test $HELIOGRAPH_OFFSET = 0"
    helio(
        "sub", "alerts", "--name", "pager", "--start", "first", "--count", 2, "--max-retries", 1, "--exec", script,
        env={"HELIOGRAPH_SUBSCRIBERS_BACKOFF_BASE_MS": "1"},
    )  # fmt: skip
    assert (tmp_path / "tried").read_text().split() == ["0", "1", "1"]
    assert offset_of(data, "alerts", "pager") == 2
    assert len(letters(data, "alerts")) == 1


def test_a_command_that_takes_too_long_is_killed_and_has_failed(helio: Helio, station: hg.Station, data: Path) -> None:
    station.publish("alerts", "hello")
    started = time.monotonic()
    helio(
        "sub", "alerts", "--name", "pager", "--start", "first", "--count", 1, "--max-retries", 0,
        "--timeout", "200ms", "--exec", "sleep 60",
    )  # fmt: skip
    assert time.monotonic() - started < 20
    (letter,) = letters(data, "alerts")
    assert "longer than 0.2 s" in str(letter["error"])


def test_ctrl_c_lets_the_command_finish_its_message(
    data: Path, station: hg.Station, spawn: type[Child], tmp_path: Path
) -> None:
    station.publish_many("alerts", range(3))
    script = f"touch {tmp_path}/begun; sleep 1; echo done >> {tmp_path}/done"
    child = spawn("sub", "alerts", "--name", "pager", "--start", "first", "--exec", script)
    wait_until((tmp_path / "begun").exists)
    child.signal(signal.SIGINT)
    code, _, err = child.end()
    assert code == 130
    assert "Traceback" not in err
    assert (tmp_path / "done").read_text() == "done\n"
    assert offset_of(data, "alerts", "pager") == 1


def test_a_second_ctrl_c_ends_the_command_and_its_message_is_delivered_again(
    data: Path, station: hg.Station, spawn: type[Child], tmp_path: Path
) -> None:
    station.publish_many("alerts", range(3))
    child = spawn(
        "sub", "alerts", "--name", "pager", "--start", "first", "--max-retries", "0",
        "--exec", f"touch {tmp_path}/begun; sleep 600",
    )  # fmt: skip
    wait_until((tmp_path / "begun").exists)
    child.signal(signal.SIGINT)
    assert "subscribed" in child.stderr.readline()
    assert "finishing the message at hand" in child.stderr.readline()
    child.signal(signal.SIGINT)
    code, _, err = child.end()
    assert code == 130
    assert "Traceback" not in err
    assert offset_of(data, "alerts", "pager") == 0
    assert "alerts.dead-letter" not in [info.name for info in station.channels()]


def test_a_command_that_leaves_something_running_holds_up_nothing(helio: Helio, station: hg.Station) -> None:
    station.publish_many("alerts", range(2))
    started = time.monotonic()
    result = helio("sub", "alerts", "--start", "first", "--count", 2, "--exec", "sleep 20 & exit 0")
    assert result.exit_code == 0
    assert time.monotonic() - started < 15


def test_commands_of_different_keys_run_at_once(
    data: Path, station: hg.Station, spawn: type[Child], tmp_path: Path
) -> None:
    for n in range(20):
        station.publish("jobs", n, key=f"key-{n}")
    begun = tmp_path / "begun"
    begun.mkdir()
    # Each waits for another one to begin: one after the other they would never end.
    script = f"touch {begun}/$HELIOGRAPH_KEY; while [ $(ls {begun} | wc -l) -lt 2 ]; do sleep 0.05; done"
    child = spawn("sub", "jobs", "--name", "worker", "--start", "first", "--concurrency", "8", "--exec", script)
    wait_until(lambda: offset_of(data, "jobs", "worker") == 20)
    child.signal(signal.SIGTERM)
    assert child.end()[0] == 0


def test_options_that_belong_to_commands_are_refused_without_one(helio: Helio, data: Path) -> None:
    for args in (["--timeout", "1s"], ["--concurrency", "2"], ["--max-retries", "1"]):
        assert "--exec" in one_line_error(helio("sub", "alerts", *args), 2)
    assert not data.exists()
