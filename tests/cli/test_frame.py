from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import heliograph as hg
from heliograph.cli.logs import Lines
from heliograph.cli.main import cli
from tests.cli.harness import Child, Helio, one_line_error, wait_until


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))


ALL = dict(commands(cli))
LEAVES = {path: command for path, command in ALL.items() if not isinstance(command, click.Group)}


# -- help ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_fits_eighty_columns_and_teaches_by_example(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    examples = result.stdout.partition("Examples:\n")[2]
    assert f"helio {path[0]}" in examples if path else "helio " in examples
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_example_uses_options_that_exist(path: tuple[str, ...]) -> None:
    for line in (ALL[path].epilog or "").splitlines():
        for called in re.findall(r"helio ((?:(?!\||helio |#|\)).)+)", line):
            words = [word for word in re.sub(r"'[^']*'", "x", called).split() if word != "now"]
            command = cli
            while words and isinstance(command, click.Group) and words[0] in command.commands:
                command = command.commands[words.pop(0)]
            known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
            for word in words:
                if word.startswith("-") and len(word) > 1 and not re.fullmatch(r"-\d+[a-z]", word):
                    assert word in known, f"{' '.join(path)}: {line}"


def test_help_is_quick_because_it_brings_in_little() -> None:
    code = "import sys, heliograph.cli.main; print([name for name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    for name in ("rich", "yaml", "asyncio", "subprocess", "tempfile", "difflib", "textual", "ssl", "cryptography"):
        assert f"'{name}'" not in loaded, name


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(cli, ["--version"]).stdout == f"helio {hg.__version__}\n"


@pytest.mark.parametrize("module", ["heliograph", "heliograph.cli"])
def test_it_is_found_as_a_module(module: str) -> None:
    ran = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout == f"helio {hg.__version__}\n"


# -- failures -----------------------------------------------------------------------------------------------

PIPELINES: dict[tuple[str, ...], list[str]] = {
    ("explain", "rollup"): [],
    ("explain", "rollup-channel"): [],
    ("run", "archive"): [],
    ("run", "compact"): [],
    ("run", "reconcile"): ["--also", "hub"],
    ("run", "replay"): ["--into", "again", "--channel", "alerts"],
    ("run", "report"): [],
    ("run", "rollup"): [],
    ("run", "rollup-channel"): [],
    ("run", "trace"): ["--of", "order-4711"],
    ("run", "triage"): [],
    ("run", "types"): [],
}
ARGUMENTS = {
    ("init",): None,
    ("pub",): None,
    ("sub",): None,
    ("reply",): None,
    ("completion",): None,
    ("config", "show"): None,
    ("config", "validate"): None,
    ("config", "describe"): None,
    ("doctor",): None,
    ("keygen", "ca"): None,
    ("keygen", "instance"): None,
    ("keygen", "inspect"): None,
    ("keygen", "renew"): None,
    ("keygen", "revoke"): None,
    ("restore",): None,
    ("serve",): None,
    ("links",): [],
    ("trace",): ["some-id"],
    ("sync",): ["hub.example:7740", "alerts"],
    ("read",): ["alerts"],
    ("get",): ["some-id"],
    ("redact",): ["some-id", "--yes"],
    ("request",): ["alerts", "hello"],
    ("channels", "list"): [],
    ("channels", "show"): ["alerts"],
    ("channels", "create"): ["alerts"],
    ("channels", "alter"): ["alerts", "--compress"],
    ("channels", "delete"): ["alerts", "--yes", "alerts"],
    ("subscriptions", "list"): [],
    ("subscriptions", "seek"): ["alerts", "pager", "--to", "first"],
    ("subscriptions", "forget"): ["alerts", "pager"],
    ("producers", "list"): [],
    ("producers", "forget"): ["alerts", "importer"],
    ("groups", "list"): [],
    ("groups", "show"): ["alerts", "sums"],
    ("types", "list"): [],
    ("types", "show"): ["alerts", "com.example.alert.v1"],
    ("types", "diff"): ["alerts", "com.example.alert.v1"],
    ("queue", "list"): [],
    ("queue", "show"): ["images", "resize"],
    ("queue", "release"): ["images", "resize", "--all"],
    ("queue", "redrive"): ["images", "resize"],
    ("dead", "list"): [],
    ("dead", "show"): ["some-id"],
    ("dead", "replay"): ["alerts"],
    ("dead", "purge"): ["alerts", "--yes"],
    ("dead", "export"): [],
    ("schedule", "list"): [],
    ("schedule", "recurring"): [],
    ("schedule", "count"): [],
    ("schedule", "show"): ["some-id"],
    ("schedule", "cancel"): ["some-id"],
    ("schedule", "add"): ["nightly", "alerts", "x", "--cron", "0 3 * * *"],
    ("schedule", "remove"): ["nightly"],
    ("stats",): [],
    ("top",): [],
    ("verify",): [],
    ("backup",): ["copy"],
    ("export",): ["alerts"],
    ("import",): ["-"],
    ("pipeline", "list"): None,
    ("pipeline", "show"): None,
    ("pipeline", "status"): [],
    ("pipeline", "stop"): ["archive"],
    ("pipeline", "report"): [],
    **{("pipeline", *path): args for path, args in PIPELINES.items()},
}


def test_every_command_is_tried_without_a_station() -> None:
    assert set(ARGUMENTS) == set(LEAVES)


@pytest.mark.parametrize("path", [path for path, args in ARGUMENTS.items() if args is not None], ids=" ".join)
def test_a_missing_station_is_an_error_that_says_how_to_make_one(
    helio: Helio, data: Path, path: tuple[str, ...]
) -> None:
    error = one_line_error(helio(*path, *(ARGUMENTS[path] or [])), 3)
    assert "helio init" in error
    assert "--data" in error
    assert not data.exists()


HOSTILE = [
    "..",
    "../../etc",
    "a/b",
    "/etc/passwd",
    "a\x00b",
    "",
    "x" * 201,
    ".hidden",
    "naïve",
    "a\nb",
    "\x1b[31m",
    "-",
]
WITH_CHANNEL = {
    ("pub",): ["CHANNEL", "hello"],
    ("sub",): ["CHANNEL", "--count", "1"],
    ("read",): ["CHANNEL"],
    ("request",): ["CHANNEL", "hello"],
    ("reply",): ["CHANNEL", "--exec", "true"],
    ("get",): ["some-id", "--channel", "CHANNEL"],
    ("trace",): ["some-id", "--channel", "CHANNEL"],
    ("redact",): ["some-id", "--yes", "--channel", "CHANNEL"],
    ("channels", "show"): ["CHANNEL"],
    ("channels", "create"): ["CHANNEL"],
    ("channels", "alter"): ["CHANNEL", "--compress"],
    ("channels", "delete"): ["CHANNEL", "--yes", "CHANNEL"],
    ("subscriptions", "list"): ["CHANNEL"],
    ("subscriptions", "seek"): ["CHANNEL", "pager", "--to", "first"],
    ("subscriptions", "forget"): ["CHANNEL", "pager"],
    ("producers", "list"): ["CHANNEL"],
    ("producers", "forget"): ["CHANNEL", "importer"],
    ("groups", "list"): ["CHANNEL"],
    ("groups", "show"): ["CHANNEL", "sums"],
    ("types", "list"): ["CHANNEL"],
    ("types", "show"): ["CHANNEL", "com.example.alert.v1"],
    ("types", "diff"): ["CHANNEL", "com.example.alert.v1"],
    ("queue", "list"): ["CHANNEL"],
    ("queue", "show"): ["CHANNEL", "resize"],
    ("queue", "release"): ["CHANNEL", "resize", "--all"],
    ("queue", "redrive"): ["CHANNEL", "resize"],
    ("dead", "list"): ["CHANNEL"],
    ("dead", "show"): ["some-id", "--channel", "CHANNEL"],
    ("dead", "replay"): ["CHANNEL"],
    ("dead", "purge"): ["CHANNEL", "--yes"],
    ("dead", "export"): ["CHANNEL"],
    ("schedule", "list"): ["CHANNEL"],
    ("schedule", "count"): ["CHANNEL"],
    ("schedule", "add"): ["nightly", "CHANNEL", "x", "--cron", "0 3 * * *"],
    ("verify",): ["CHANNEL"],
    ("export",): ["CHANNEL"],
    ("import",): ["-", "--channel", "CHANNEL"],
    ("pipeline", "report"): ["--channel", "CHANNEL"],
    **{("pipeline", *path): [*args, "--channel", "CHANNEL"] for path, args in PIPELINES.items()},
}


def test_every_command_that_takes_a_channel_is_tried_with_hostile_names() -> None:
    takes = {path for path, command in LEAVES.items() if any(param.name == "channel" for param in command.params)}
    assert takes == set(WITH_CHANNEL)


@pytest.mark.parametrize("path", WITH_CHANNEL, ids=" ".join)
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_channel_name_is_refused_with_one_line(
    helio: Helio, data: Path, path: tuple[str, ...], name: str
) -> None:
    hg.open(data, name="host1").close()
    before = sorted(data.parent.rglob("*"))
    args = [name if arg == "CHANNEL" else arg for arg in WITH_CHANNEL[path]]
    error = one_line_error(helio(*path, "--", *args) if "--" not in "".join(args) else helio(*path, *args), 2)
    assert "\x1b" not in error
    made = set(data.parent.rglob("*")) - set(before)
    assert not [file for file in made if file.suffix != ".lock"]


@pytest.mark.parametrize("path", [("sub",), ("subscriptions", "seek"), ("subscriptions", "forget")], ids=" ".join)
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_subscription_name_is_refused_with_one_line(
    helio: Helio, station: hg.Station, path: tuple[str, ...], name: str
) -> None:
    station.publish("alerts", 1)
    args = {"sub": ["alerts", "--name", name], "seek": ["alerts", name, "--to", "first"], "forget": ["alerts", name]}
    one_line_error(helio(*path, *args[path[-1]]), 2)


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["pubb"], "pub"),
        (["pub"], "CHANNEL"),
        (["read", "alerts", "--limit", "0"], "--limit"),
        (["read", "alerts", "--starts", "first"], "--start"),
        (["channels", "alter", "alerts"], "--retention-age"),
        (["dead", "show", "17"], "--channel"),
        (["read", "alerts", "--follow", "--end", "7"], "--follow"),
        (["sub", "alerts", "--max-retries", "3"], "--exec"),
        (["sub", "alerts", "--name", "pager", "--exec", " "], "--exec': it is empty"),
        (["reply", "alerts", "--exec", ""], "--exec': it is empty"),
        (["completion"], "Choose from: bash, zsh, fish (see"),
        (["pub", "alerts", "x", "--rate", "nan"], "--rate"),
        (["stats", "--watch", "--interval", "nan"], "--interval"),
        (["stats", "--watch", "--interval", "1e300"], "--interval"),
        (["links", "--watch", "--interval", "inf"], "--interval"),
        (["top", "--json", "--interval", "nan"], "--interval"),
    ],
)
def test_wrong_use_is_one_line_that_helps_and_exit_code_2(
    helio: Helio, station: hg.Station, args: list[str], hint: str
) -> None:
    assert hint in one_line_error(helio(*args), 2)


def test_a_wrong_setting_is_named_with_a_suggestion(helio: Helio, tmp_path: Path) -> None:
    file = tmp_path / "heliograph.yaml"
    file.write_text("storage:\n  durabilty: always\n")
    assert "storage.durability" in one_line_error(helio("-c", file, "pub", "alerts", "hello"), 2)


def test_something_unknown_is_exit_code_3(helio: Helio, station: hg.Station) -> None:
    station.publish("alerts", 1)
    one_line_error(helio("read", "nothing"), 3)
    one_line_error(helio("channels", "delete", "nothing", "--yes", "nothing"), 3)
    one_line_error(helio("subscriptions", "seek", "alerts", "nobody", "--to", "first"), 3)
    one_line_error(helio("subscriptions", "forget", "alerts", "nobody"), 3)
    one_line_error(helio("pub", "alerts", "--file", "/does/not/exist"), 3)
    assert "nobody" not in {info.name for info in station.subscriptions()}


def test_what_is_in_use_is_exit_code_4(helio: Helio, station: hg.Station) -> None:
    with station.subscribe("alerts", print, name="pager"):
        assert "live already" in one_line_error(helio("sub", "alerts", "--name", "pager"), 4)
        one_line_error(helio("subscriptions", "seek", "alerts", "pager", "--to", "first"), 4)
        one_line_error(helio("channels", "delete", "alerts", "--yes", "alerts"), 4)


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/self/mounts").exists(), reason="root writes anywhere")
def test_storage_that_cannot_be_used_is_exit_code_5(helio: Helio, data: Path) -> None:
    data.write_text("a file where a directory should be")
    one_line_error(helio("pub", "alerts", "hello"), 5)


def test_a_newer_format_is_refused_with_its_version(helio: Helio, data: Path) -> None:
    hg.open(data, name="host1").close()
    file = data / "station.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 99}))
    assert "99" in one_line_error(helio("channels", "list"), 5)


@pytest.mark.parametrize("command", [["pub", "alerts", "hello"], ["read", "alerts"], ["init"], ["verify"]], ids=str)
def test_a_station_file_that_is_missing_is_not_made_anew(helio: Helio, data: Path, command: list[str]) -> None:
    with hg.open(data, name="host1") as station:
        station.publish("alerts", 1)
    (data / "station.json").unlink()
    assert "station.json is missing" in one_line_error(helio(*command), 5)
    assert not (data / "station.json").exists()


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_an_option_without_its_value_points_to_the_help_of_its_own_command(path: tuple[str, ...]) -> None:
    options = [one for one in ALL[path].params if isinstance(one, click.Option) and not one.is_flag and not one.count]
    assert options
    for option in options:
        for name in option.opts:
            said = one_line_error(CliRunner().invoke(cli, [*path, name]), 2)
            assert said.endswith(f"(see '{' '.join(('helio', *path))} --help')"), said
            assert f"option '{name}' needs a value: {name} " in said


def test_what_an_option_needs_is_said_as_its_help_says_it() -> None:
    said = one_line_error(CliRunner().invoke(cli, ["--data"]), 2)
    assert said == "error: option '--data' needs a value: --data DIR (see 'helio --help')"


def test_a_traceback_is_only_for_those_who_ask(helio: Helio) -> None:
    assert "Traceback" not in helio("read", "alerts").stderr
    assert "Traceback" in helio("read", "alerts", "--verbose").stderr


# -- common options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args", [["--json", "channels", "list"], ["channels", "--json", "list"], ["channels", "list", "--json"]]
)
def test_json_works_before_and_after_the_command(helio: Helio, station: hg.Station, args: list[str]) -> None:
    station.publish("alerts", 1)
    assert [channel["name"] for channel in json.loads(helio(*args).stdout)] == ["alerts"]


def test_the_directory_may_come_from_option_environment_or_file(data: Path, tmp_path: Path) -> None:
    with hg.open(data) as station:
        station.publish("alerts", 1)
    file = tmp_path / "heliograph.toml"
    file.write_text(f'[storage]\ndata_dir = "{data}"\n')
    for args, env in (
        (["channels", "list", "-d", str(data)], {}),
        (["channels", "list"], {"HELIOGRAPH_STORAGE_DATA_DIR": str(data)}),
        (["channels", "list", "--config", str(file)], {}),
        (["channels", "list"], {"HELIOGRAPH_CONFIG": str(file)}),
    ):
        assert "alerts" in CliRunner().invoke(cli, args, env=env).stdout


def test_quiet_prints_only_what_was_asked_for(helio: Helio) -> None:
    result = helio("pub", "alerts", "hello", "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    assert "hello" in helio("read", "alerts", "--quiet").stdout


def test_reading_commands_leave_no_trace(helio: Helio, data: Path) -> None:
    with hg.open(data) as station:
        message_id = station.publish("alerts", 1).id

    def state() -> dict[str, tuple[int, int]]:
        return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in data.rglob("*")}

    before = state()
    for args in (
        ["read", "alerts"], ["get", message_id], ["channels", "list"], ["channels", "show", "alerts"], ["stats"],
        ["subscriptions", "list"], ["export", "alerts"], ["verify"], ["dead", "list"], ["config", "show"],
    ):  # fmt: skip
        assert helio(*args).exit_code == 0, args
    assert state() == before


# -- output -------------------------------------------------------------------------------------------------


def test_a_reader_that_goes_away_ends_it_quietly(data: Path) -> None:
    with hg.open(data) as station:
        station.publish_many("numbers", [{"n": n, "padding": "x" * 100} for n in range(5_000)])
    helio = f"{sys.executable} -m heliograph.cli -d {data}"
    result = subprocess.run(
        ["bash", "-c", f"{helio} read numbers --json | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    first, code = result.stdout.splitlines()
    assert json.loads(first)["data"]["n"] == 0
    assert code == "141"
    assert result.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_to_a_full_disk_is_an_error(data: Path) -> None:
    with hg.open(data) as station:
        station.publish("numbers", 1)
    command = [sys.executable, "-m", "heliograph.cli", "-d", str(data), "read", "numbers"]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 5
    assert result.stderr == "error: cannot print: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("args", [["--help"], ["--version"], ["read", "--help"], [], ["channels"]], ids=" ".join)
def test_help_that_cannot_be_printed_is_an_error_too(args: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "heliograph.cli", *args]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (5, "error: cannot print: No space left on device\n")


def test_help_that_nobody_reads_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "heliograph.cli", "--help"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_names_that_are_not_utf8_are_json_all_the_same(helio: Helio, tmp_path: Path) -> None:
    data = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    try:
        os.mkdir(data)
    except OSError:
        pytest.skip("the file system wants UTF-8")
    assert helio("-d", data, "pub", "alerts", "x").exit_code == 0
    for args in (
        ["stats"],
        ["verify"],
        ["doctor"],
        ["config", "show"],
        ["backup", f"{data}.backup"],
        ["trace", "\udce9"],
    ):
        result = helio("-d", data, "--json", *args)
        assert "\udce9" in json.dumps(json.loads(result.stdout), ensure_ascii=False), result.stderr


def test_a_message_cannot_speak_to_the_terminal(helio: Helio, station: hg.Station) -> None:
    message_id = station.publish("alerts", "\x1b[2J\x9b31m gone", key="\x07bell").id
    for args in (["read", "alerts"], ["get", message_id]):
        shown = helio(*args).stdout
        assert "gone" in shown
        assert not [c for c in shown if not c.isprintable() and c != "\n"]


def test_what_the_other_side_says_cannot_either_not_even_in_a_traceback(
    helio: Helio, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        logging.getLogger("heliograph.client").error("no", exc_info=hg.NotAllowed("\x1b]0;log\a"))
        raise hg.NotAllowed("\x1b[2Jgone\x9b31m")

    monkeypatch.setattr("heliograph.client.connect", refused)
    for verbose in ([], ["--verbose"]):
        told = helio("read", "alerts", "--hub", "localhost:1", *verbose).stderr
        assert "\\x1b[2Jgone" in told
        assert not {"\x1b", "\a", "\x9b"} & set(told), told


def test_nor_in_the_log_of_who_serves(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    record = logging.LogRecord("heliograph.links", logging.ERROR, __file__, 1, "no", (), None)
    record.exc_info = (hg.NotAllowed, hg.NotAllowed("\x1b[2Jgone"), None)
    Lines(json=False, verbose=True).emit(record)
    told = capsysbinary.readouterr().out
    assert b"\x1b" not in told
    assert told.count(b"\\x1b[2Jgone") == 2


def test_ctrl_c_ends_following_with_130_and_sigterm_with_0(data: Path, station: hg.Station, spawn: type[Child]) -> None:
    import signal

    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        station.publish("alerts", "hello")
        child = spawn("read", "alerts", "--follow", "--json")
        assert json.loads(child.stdout.readline())["data"] == "hello"
        child.signal(number)
        returned, _, err = child.end()
        assert (returned, err) == (code, "")
    wait_until(lambda: True)


def test_closed_standard_streams_are_no_way_into_the_log(data: Path) -> None:
    with hg.open(data) as station:
        station.publish_many("alerts", range(3))
    helio = f"{sys.executable} -m heliograph.cli -d {data}"
    command = f"{helio} sub alerts --name w --start first --count 3 --exec 'echo out; echo err >&2' <&- >&- 2>&-"
    subprocess.run(["bash", "-c", command], check=True)
    result = subprocess.run([*helio.split(), "verify", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout)["lines"] == 3


def test_a_background_job_that_shall_ignore_ctrl_c_does(station: hg.Station, data: Path) -> None:
    station.publish("alerts", 1)
    script = f"""
    trap '' INT
    {sys.executable} -m heliograph.cli -d {data} read alerts --follow --json &
    sleep 1; kill -INT $!; sleep 0.5; kill -0 $! && echo alive; kill $!
    """
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert "alive" in result.stdout


def test_an_empty_directory_name_is_refused_not_taken_for_the_default(helio: Helio) -> None:
    one_line_error(CliRunner().invoke(cli, ["-d", "", "channels", "list"]), 2)
    one_line_error(CliRunner().invoke(cli, ["-c", "", "channels", "list"]), 2)
