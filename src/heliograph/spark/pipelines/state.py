"""What is to be seen of a pipeline, and asked of it, from any process that has the station's directory.

DATA/pipelines/NAME/lock            held while it runs: one at a time
DATA/pipelines/NAME/status.json     what it does; looked at, not relied on
DATA/pipelines/NAME/stop            somebody asked it to end
DATA/pipelines/NAME/declared.json   what its checkpoint belongs to
DATA/pipelines/NAME/checkpoint/     Spark's
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import msgspec

from heliograph.config.units import human_duration
from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import Busy, ConfigError, NotFound
from heliograph.log.locks import FileLock
from heliograph.names import check_name
from heliograph.spark.pipelines.declared import Input, Option, Output, Pipeline
from heliograph.spark.pipelines.run import Progress

FOLDER: Final = "pipelines"
State: TypeAlias = Literal["starting", "running", "stopping", "stopped", "done", "failed", "killed"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """status.json: a run, as it last said."""

    name: str
    state: State
    """``stopped``: somebody asked; ``done``: nothing was left to do; ``killed``: its process is gone without a word."""
    pid: int
    host: str
    started: datetime
    updated: datetime
    trigger: str
    output: str
    checkpoint: str | None = None
    progress: Progress = Progress()
    error: str = ""


def folder(root: Path, name: str) -> Path:
    """Where everything about a pipeline is."""
    return root / FOLDER / check_name(name, "pipeline")


# -- one at a time ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lease(root: Path, name: str) -> Iterator[Path]:
    """Be the one who runs a pipeline; its folder. Busy if somebody else does."""
    place = folder(root, name)
    with explaining(f"cannot run pipeline '{name}'"):
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / "lock", SYSTEM_DISK)
    try:
        if not lock.try_exclusive():
            raise Busy(
                f"pipeline '{name}' is running already ({lock.noted() or 'another process'}): "
                f"'helio pipeline status {name}' shows it, 'helio pipeline stop {name}' ends it"
            )
        lock.note(f"process {os.getpid()} on {socket.gethostname()}")
        (place / "stop").unlink(missing_ok=True)
        yield place
    finally:
        lock.release()


def running(root: Path, name: str) -> bool:
    """Whether some process runs it."""
    with contextlib.suppress(FileNotFoundError):
        lock = FileLock(folder(root, name) / "lock", SYSTEM_DISK, create=False)
        try:
            return not lock.free()
        finally:
            lock.release()
    return False


def ask_to_stop(root: Path, name: str) -> None:
    """Have whoever runs a pipeline end after what it is at; NotFound if nobody does."""
    if not running(root, name):
        raise NotFound(f"pipeline '{name}' is not running; 'helio pipeline status' shows which are")
    with explaining(f"cannot stop pipeline '{name}'"):
        (folder(root, name) / "stop").touch()


def asked_to_stop(place: Path) -> bool:
    """Whether somebody asked."""
    return (place / "stop").exists()


# -- status -----------------------------------------------------------------------------------------------------------

_decode: Final = msgspec.json.Decoder(Status).decode


class Teller:
    """Writes the status of one run. Nothing is synced: it is looked at."""

    def __init__(
        self, place: Path, pipeline: Pipeline, *, trigger: str, output: Output, checkpoint: str | None
    ) -> None:
        now = datetime.now(UTC)
        self._path = place / "status.json"
        self.status = Status(
            name=pipeline.name, state="starting", pid=os.getpid(), host=socket.gethostname(), started=now, updated=now,
            trigger=trigger, output="its own" if pipeline.procedural else str(output), checkpoint=checkpoint,
        )  # fmt: skip
        self.tell()

    def tell(self, **changes: Any) -> None:
        """Write what is new."""
        self.status = msgspec.structs.replace(self.status, updated=datetime.now(UTC), **changes)
        temporary = self._path.with_name(f"status.json.tmp-{os.getpid()}")
        with contextlib.suppress(OSError):  # a full disk is told by whoever needs it
            temporary.write_bytes(msgspec.json.encode(self.status) + b"\n")
            temporary.replace(self._path)


def statuses(root: Path) -> list[Status]:
    """Every pipeline that was ever run for a station, as it is now."""
    try:
        names = sorted(path.name for path in (root / FOLDER).iterdir() if (path / "status.json").is_file())
    except FileNotFoundError:
        return []
    return [found for name in names if (found := status(root, name)) is not None]


def status(root: Path, name: str) -> Status | None:
    """One of them; None if it was never run."""
    place = folder(root, name)
    try:
        found = _decode(SYSTEM_DISK.read_file(place / "status.json"))
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    if not running(root, name):
        if found.state in {"starting", "running", "stopping"}:
            found = msgspec.structs.replace(found, state="killed")
    elif asked_to_stop(place):
        found = msgspec.structs.replace(found, state="stopping")
    return found


# -- what a checkpoint belongs to -------------------------------------------------------------------------------------


class Belongs(msgspec.Struct, frozen=True, kw_only=True):
    """declared.json."""

    checkpoint: str
    life: str
    """Differs for each checkpoint that the pipeline ever had: tables recognise batches by it."""
    inputs: dict[str, tuple[str, str]]
    output: tuple[str, str, str, tuple[str, ...]]
    fixed: dict[str, str] = {}
    """Options that have to stay as they are, as they are said on the command line."""


def belongs(
    place: Path,
    pipeline: Pipeline,
    inputs: Mapping[str, Input],
    output: Output,
    checkpoint: str,
    there: Callable[[str], bool] = lambda _: False,
    options: Mapping[str, Any] | None = None,
) -> Belongs:
    """What the checkpoint belongs to, written down when it is new; ConfigError if it belongs to something else.

    ``there`` is asked where this process does not see one.
    """
    now = Belongs(
        checkpoint=checkpoint,
        life=os.urandom(8).hex(),
        inputs={name: (one.channel, one.station or one.options.get("hub", "")) for name, one in inputs.items()},
        output=(output.kind, output.to, output.mode, output.partition_by),
        fixed={one.name: _said(one, (options or {})[one.name]) for one in pipeline.options if one.fixed and options},
    )
    path = place / "declared.json"
    before = None
    with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
        before = msgspec.json.decode(SYSTEM_DISK.read_file(path), type=Belongs)
    if before is not None and before.checkpoint == checkpoint and (Path(checkpoint).exists() or there(checkpoint)):
        for what, old, new in (("reads", before.inputs, now.inputs), ("writes", before.output, now.output)):
            if old != new:
                raise ConfigError(
                    f"pipeline '{pipeline.name}' {what} {_told(new)} now, and its checkpoint {checkpoint} belongs to "
                    f"{_told(old)}. Give it another name to have both; or run it with --reset, which sets the "
                    "checkpoint aside: then everything is read, and written, from the beginning"
                )
        _check_fixed(pipeline, checkpoint, before.fixed, now.fixed)
        now = msgspec.structs.replace(before, fixed=now.fixed)  # an older version wrote none down
        if now == before:
            return before
    with explaining(f"cannot write {path}"):
        SYSTEM_DISK.replace_file(path, msgspec.json.encode(now) + b"\n")
    return now


def _check_fixed(pipeline: Pipeline, checkpoint: str, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    for name, value in now.items():
        if before.get(name, value) != value:
            option = "--" + name.replace("_", "-")
            raise ConfigError(
                f"pipeline '{pipeline.name}' is run with {option} {value} now, and its checkpoint {checkpoint} holds "
                f"what was counted with {option} {before[name]}. Run it with {option} {before[name]}; or with another "
                "--checkpoint and --to, to have both; or with --reset, which sets the checkpoint aside: then "
                "everything is read, and written, from the beginning"
            )


def _said(option: Option, value: Any) -> str:
    """An option as it is said on the command line."""
    if option.kind == "duration" and isinstance(value, int | float):
        return str(human_duration(value, "s"))
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _told(what: Any) -> str:
    if isinstance(what, dict):
        return ", ".join(f"{name}={':'.join(filter(None, reversed(one)))}" for name, one in what.items())
    kind, to, mode, by = what
    return f"{kind} {to} ({mode}{' by ' + ', '.join(by) if by else ''})"


def settled(checkpoint: str) -> str:
    """Where a checkpoint is, from whatever directory it is named; a URL says it by itself."""
    path = checkpoint.removeprefix("file://")
    return checkpoint if "://" in path else str(Path(path).absolute())


def reset(checkpoint: str) -> Path | None:
    """Set a checkpoint aside, so that the next run begins anew; where it is then."""
    if "://" in checkpoint:
        raise ConfigError(f"--reset cannot rename {checkpoint}: begin anew with another --checkpoint")
    place = Path(checkpoint)
    if not place.exists():
        return None
    aside = place.with_name(f"{place.name}-until-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    with explaining("cannot set the checkpoint aside"):
        place.rename(aside)
    return aside
