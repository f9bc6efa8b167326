"""Guards of the layout: what a reviewer would otherwise have to remember."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "heliograph"
MODULES = sorted(SRC.rglob("*.py"))
TEXTS = sorted(
    path
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("*.toml"),
        ROOT / "Makefile",
        *(path for room in ("src", "tests", "docs", "examples", "bench", ".ci") for path in (ROOT / room).rglob("*")),
    ]
    if path.is_file() and path.suffix in {".py", ".md", ".toml", ".yaml", ".yml", ""}
)

LINES_MAX = 400
# path below src/heliograph -> why one subject needs that many lines
LONG: dict[str, str] = {
    "message.py": "the envelope: every attribute of it, written and read in one place",
    "delivery/lane.py": "what becomes of a message that fails, in one course",
    "log/partition.py": "append, rotate, sync and fence change one state under one lock",
    "engine/files.py": "the port of the files engine: every method of it, a few lines each",
    "aio.py": "the public API once more, awaited",
    "station/station.py": "the public API: every method of it, documented, a few lines each",
}

UNTESTED = {
    "errors": "a tree of classes; every other test raises and catches them",
    "limits": "numbers only",
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{name(path)} has no docstring"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_has_one_subject(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    if path.relative_to(SRC).as_posix() not in LONG:
        assert lines <= LINES_MAX, f"{name(path)} has {lines} lines: split it, or list it in LONG with a reason"


def test_the_list_of_long_modules_is_not_longer_than_needed() -> None:
    for module, reason in LONG.items():
        assert reason
        assert len((SRC / module).read_text().splitlines()) > LINES_MAX, f"{module} need not be in LONG any more"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_nothing_is_printed_but_by_the_command_line(path: Path) -> None:
    if path.is_relative_to(SRC / "cli"):
        return
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]


def test_no_loose_ends() -> None:
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
    assert not [name(path) for path in TEXTS if marks.search(path.read_text())]


def test_no_path_of_somebodys_machine() -> None:
    machine = re.compile(r"(?<![\w.~])/(home|Users|root|work)/\w")
    assert not [name(path) for path in TEXTS if machine.search(path.read_text())]


def test_code_uses_the_words_of_the_glossary() -> None:
    foreign = re.compile(r"\b\w*(topic|consumer_group|queue_group)\w*\b", re.IGNORECASE)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            for word in (getattr(node, field, None) for field in ("id", "name", "arg", "attr")):
                assert not (isinstance(word, str) and foreign.fullmatch(word)), f"{name(path)}: {word}; say channel"


def test_tests_mirror_the_rooms() -> None:
    rooms = {path.stem if path.is_file() else path.name for path in SRC.iterdir() if path.suffix in {".py", ""}}
    rooms -= {"__init__", "__pycache__", "__main__", *UNTESTED}
    for room in sorted(rooms):
        alone, several = ROOT / "tests" / f"test_{room}.py", ROOT / "tests" / room
        assert alone.exists() or any(several.glob("test_*.py")), f"nothing in tests/ mirrors {room}"


def test_a_folder_of_tests_mirrors_a_room() -> None:
    beside = {"typing", "__pycache__", "proof"}  # the typed API; runs that cross all rooms
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()} - beside
    assert not [folder for folder in folders if not (SRC / folder).is_dir()]


def test_every_public_name_is_documented() -> None:
    import heliograph

    for public in heliograph.__all__:
        assert getattr(getattr(heliograph, public), "__doc__", None), f"heliograph.{public} has no docstring"


def test_the_asynchronous_station_has_the_same_names_and_parameters() -> None:
    import heliograph

    sync, other = heliograph.Station, heliograph.AsyncStation
    internal = {"open_range"}  # what both kinds of read() are made from
    for method, function in inspect.getmembers(sync, inspect.isfunction):
        if method.startswith("_") or method in internal:
            continue
        assert hasattr(other, method), f"AsyncStation has no {method}"
        here, there = (set(inspect.signature(f).parameters) for f in (function, getattr(other, method)))
        assert here - there <= {"event_loop"}, f"AsyncStation.{method} lacks {here - there}"
        assert there <= here, f"Station.{method} lacks {there - here}"
