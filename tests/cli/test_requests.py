"""``helio request`` and ``helio reply``."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import heliograph as hg
from tests.cli.harness import Child, Helio, lines, one_line_error, wait_until

PATIENT = ("--timeout", "60s")


def test_a_request_prints_the_reply(helio: Helio, station: hg.Station) -> None:
    with station.reply("prices", lambda request: {"price": request.data["n"] * 2}):
        shown = helio("request", "prices", '{"n": 21}', *PATIENT)
        assert shown.exit_code == 0, shown.output
        assert json.loads(shown.stdout) == {"price": 42}
        (whole,) = lines(helio("request", "prices", "-", *PATIENT, "--json", input='{"n": 1}'))
        assert whole["data"] == {"price": 2}
    requests = list(station.read("prices"))
    assert whole["replyfor"] == requests[1].id
    assert [info.name for info in station.channels(replies=True)] == ["prices"], "its channel of replies was left"


def test_what_is_said_about_a_request_is_stored(helio: Helio, station: hg.Station) -> None:
    with station.reply("prices", lambda request: "ok"):
        helio("request", "prices", "x", *PATIENT, "--type", "com.example.ask.v1", "--key", "k", "-H", "region=eu")
    (request,) = station.read("prices")
    assert (request.type, request.key, request.headers["region"]) == ("com.example.ask.v1", "k", "eu")


def test_errors_have_exit_codes(helio: Helio, station: hg.Station) -> None:
    assert "nobody replied" in one_line_error(helio("request", "prices", "x", "--timeout", "50ms"), 4)
    assert "timeout" in one_line_error(helio("request", "prices", "x", "--timeout", "0s"), 2)
    assert "not a duration" in one_line_error(helio("request", "prices", "x", "--timeout", "soon"), 2)
    one_line_error(helio("request", "../x", "x"), 2)
    one_line_error(helio("request", "prices.*", "x"), 2)
    with station.reply("prices", lambda request: 1 / 0, retry=hg.Retry(max_retries=0)):
        assert "ZeroDivisionError" in one_line_error(helio("request", "prices", "x", *PATIENT), 1)


def test_a_command_answers_with_what_it_prints(data: Path, station: hg.Station, spawn: Callable[..., Child]) -> None:
    command = 'if grep -q bad; then echo "no such thing" >&2; exit 3; fi; echo "{\\"key\\": \\"$HELIOGRAPH_KEY\\"}"'
    child = spawn("reply", "prices", "--name", "clerk", "--exec", command, "--type", "com.example.price.v1")
    assert "replying to requests on prices" in child.stderr.readline()
    answer = station.request("prices", "good", key="lamp", timeout=60)
    assert (answer.data, answer.type) == ({"key": "lamp"}, "com.example.price.v1")
    with pytest.raises(hg.ReplyFailed, match="exit code 3: no such thing"):
        station.request("prices", "bad", timeout=60)
    child.signal(signal.SIGTERM)
    assert child.end()[0] == 0
    wait_until(lambda: [info.offset for info in station.subscriptions("prices")] == [2])


def test_channels_of_replies_are_listed_when_asked_for(helio: Helio, station: hg.Station) -> None:
    with station.reply("prices", lambda request: 1):
        station.request("prices", timeout=60)
        assert "_reply." not in helio("channels", "list").stdout
        assert "_reply." in helio("channels", "list", "--replies").stdout
        assert "_reply." not in helio("stats").stdout
