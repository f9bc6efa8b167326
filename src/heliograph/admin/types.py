"""Checking the schemas that are stored with a channel: can each be read, and is it what it was?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

from heliograph.engine.files import FilesEngine
from heliograph.engine.schemas import folder_of
from heliograph.errors import Damaged, UnsupportedFormat

LEFTOVER_AGE_S: Final = 60.0


class Wrong(NamedTuple):
    """One file that is not right."""

    kind: Literal["type", "leftover"]
    path: str
    what: str
    repaired: bool


def check_types(engine: FilesEngine, channel: str, *, repair: bool) -> Iterator[Wrong]:
    """Every schema of a channel that is not right. Repair sets it aside: the next publish stores it again."""
    for folder in engine.schemas.folders(channel):
        for number in engine.schemas.numbers(folder):
            path = folder / f"{number}.json"
            what, damaged = _wrong(engine, path)
            if what:
                if repair and damaged:
                    _set_aside(engine, channel, path)
                yield Wrong("type", _shown(engine, path), what, repair and damaged)
        yield from _leftovers(engine, folder, repair=repair)


def _shown(engine: FilesEngine, path: Path) -> str:
    return str(path.relative_to(engine.root))


def _wrong(engine: FilesEngine, path: Path) -> tuple[str, bool]:
    """What is wrong with a file, and whether it is damaged."""
    try:
        found = engine.schemas.load(path)
    except FileNotFoundError:  # deleted in this moment
        return "", False
    except UnsupportedFormat as error:
        return str(error), False
    except Damaged:
        return "cannot be used; repair sets it aside, and the next publish of the type stores its schema again", True
    if folder_of(found.type) != path.parent.name or f"{found.version}.json" != path.name:
        return f"says it is version {found.version} of {found.type}, which belongs elsewhere", True
    return "", False


def _set_aside(engine: FilesEngine, channel: str, path: Path) -> None:
    aside = engine.root / "quarantine" / channel / "types" / path.parent.name
    aside.mkdir(parents=True, exist_ok=True)
    now_us = engine.clock.time_ns() // 1000
    engine.disk.replace_file(aside / f"{path.name}-{now_us}.bad", engine.disk.read_file(path))
    engine.disk.unlink(path)
    engine.disk.sync_directory(path.parent)
    engine.audit.write("repaired", channel=channel, file=_shown(engine, path))


def _leftovers(engine: FilesEngine, folder: Path, *, repair: bool) -> Iterator[Wrong]:
    """What a crash left half written."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for entry in sorted(engine.disk.listdir(folder)):
            path = folder / entry
            if ".tmp-" in entry and time.time() - engine.disk.stat(path).st_mtime > LEFTOVER_AGE_S:
                if repair:
                    engine.disk.unlink(path)
                yield Wrong("leftover", _shown(engine, path), "was left behind half written", repair)
