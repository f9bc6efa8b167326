"""What is archived of a channel: ``_manifest.json``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from heliograph.disk import SYSTEM_DISK, explaining
from heliograph.errors import ConfigError, Damaged, NotFound, UnsupportedFormat
from heliograph.names import check_name
from heliograph.spark.positions import Reached
from heliograph.station.archived import DIRECTORY, Archived

FORMAT: Final = 1
MANIFEST: Final = "_manifest.json"
STAGED: Final = "_staged"
OLD: Final = "_old"
DEFAULT: Final = "archive"
"""Where it is, below a station's directory, unless somebody says otherwise."""


class Range(NamedTuple):
    """Offsets from ``first`` to ``next - 1``."""

    first: int
    next: int


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file: messages of one channel and one date."""

    name: str
    date: str
    life: int
    rows: int
    bytes: int
    times_us: tuple[int, int]
    """The smallest and the largest event time."""
    ranges: dict[int, Range]
    """Between which offsets of each partition its messages are."""


class Hole(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that could not be read when it was their turn."""

    life: int
    partition: int
    range: Range
    reason: str


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """A channel from when it was made, or lost messages, until the next time that happens."""

    incarnation: str
    firsts: dict[int, int]
    reached: dict[int, Reached]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is archived of a channel."""

    format: int = FORMAT
    channel: str
    station: str = ""
    """Whose channel it is; empty in an archive that was made before this was written down."""
    lives: list[Life] = []
    files: list[File] = []
    holes: list[Hole] = []

    @property
    def last(self) -> Life | None:
        """The life that the channel had when it was archived last."""
        return self.lives[-1] if self.lives else None


_decode: Final = msgspec.json.Decoder(Manifest).decode


def home(root: Path, channel: str) -> Path:
    """Where a channel is in an archive."""
    return root / f"channel={check_name(channel)}"


def load(root: Path, channel: str) -> Manifest:
    """What is archived of a channel; nothing, if it was never archived."""
    path = home(root, channel) / MANIFEST
    try:
        found = _decode(SYSTEM_DISK.read_file(path))
    except FileNotFoundError:
        return Manifest(channel=channel)
    except msgspec.MsgspecError as error:
        raise Damaged(
            f"{path} cannot be read ({error}): it says what is archived. Restore it from a backup; without it the "
            "channel would be archived once more, from its first message on."
        ) from None
    if found.format > FORMAT:
        raise UnsupportedFormat(f"{path} has format {found.format}; this Heliograph knows {FORMAT}. Upgrade it.")
    return found


def check_there(root: Path, manifest: Manifest, noted: Archived | None, incarnation: str) -> None:
    """Refuse an archive that is not where the station knows it to be: on a disk that is not mounted, perhaps.

    What is archived would be missing without a word, or be archived once more beside it.
    """
    if manifest.lives or noted is None or noted.archive != str(root) or noted.incarnation != incarnation:
        return
    if any(noted.positions.values()):
        raise NotFound(
            f"channel '{manifest.channel}' was archived in {root}, and its {MANIFEST} is not there: is that disk "
            f"mounted? If the archive is gone for good, remove {DIRECTORY}/{manifest.channel}.json from the station's "
            "directory"
        )


def check_owner(root: Path, manifest: Manifest, station: str, incarnation: str) -> None:
    """Refuse the channel of another station: by turns each would begin a new life, and archive all of it once more."""
    another = f"'{manifest.station}'" if manifest.station not in {"", station} else ""
    if not another and incarnation in [life.incarnation for life in manifest.lives[:-1]]:
        another = "another station, which has the same name,"  # this life is over, by what was archived since
    if another:
        raise ConfigError(
            f"channel '{manifest.channel}' of {another} is archived in {root}, and this is '{station}': give every "
            "station a directory of its own (--to)"
        )


def save(root: Path, manifest: Manifest) -> None:
    """From here on it is so."""
    place = home(root, manifest.channel)
    with explaining(f"cannot write the manifest of '{manifest.channel}'"):
        if not place.is_dir():
            place.mkdir(parents=True)
            SYSTEM_DISK.sync_directory(root)
        SYSTEM_DISK.replace_file(place / MANIFEST, msgspec.json.encode(manifest) + b"\n")


def channels(root: Path) -> list[str]:
    """The channels that are in an archive."""
    return sorted(path.parent.name.removeprefix("channel=") for path in root.glob(f"channel=*/{MANIFEST}"))


def current(manifest: Manifest, incarnation: str, id_at: Callable[[int, int], str]) -> Life | None:
    """The last life, if the log is the one that was archived then; None if it is another.

    A channel gets a new incarnation also when its directory is moved or restored: then the message that was archived
    last tells whether the log goes on behind it.
    """
    life = manifest.last
    if life is None or life.incarnation == incarnation:
        return life
    known = [(number, reached) for number, reached in life.reached.items() if reached.offset > 0]
    fits = known and all(reached.id and id_at(number, reached.offset - 1) == reached.id for number, reached in known)
    return life if fits else None


# -- files ------------------------------------------------------------------------------------------------------------


def place_of(root: Path, channel: str, file: File) -> Path:
    """Where a file belongs."""
    return home(root, channel) / f"date={file.date}" / file.name


def find_file(root: Path, channel: str, file: File) -> Path:
    """Where a file is: in its place, on its way there, or out of the way since it was merged with others."""
    for path in (place_of(root, channel, file), root / STAGED / file.name, root / OLD / file.name):
        if path.exists():
            return path
    raise FileNotFoundError(place_of(root, channel, file))


def settle(root: Path, manifest: Manifest) -> None:
    """Put every file where the manifest has it, and those out of the way that it does not have. Idempotent."""
    with explaining(f"cannot tidy the archive of '{manifest.channel}'"):
        wanted = {file.name: place_of(root, manifest.channel, file) for file in manifest.files}
        _put_aside(
            root, (path for path in home(root, manifest.channel).glob("date=*/*.parquet") if path.name not in wanted)
        )
        touched: set[Path] = set()
        for path in _staged(root):
            target = wanted.get(path.name)
            if target is not None:
                target.parent.mkdir(exist_ok=True)
                SYSTEM_DISK.rename(path, target)
                touched |= {target.parent, target.parent.parent}
        for folder in touched:
            SYSTEM_DISK.sync_directory(folder)


def _staged(root: Path) -> Iterable[Path]:
    return sorted((root / STAGED).glob("*.parquet"))


def _put_aside(root: Path, paths: Iterable[Path]) -> None:
    for path in list(paths):
        (root / OLD).mkdir(exist_ok=True)
        SYSTEM_DISK.rename(path, root / OLD / path.name)


def sweep(root: Path, older_than_s: float, now_s: float) -> int:
    """Remove what is staged and was never archived, and what is out of the way and nobody reads any more; how many."""
    removed = 0
    for folder in (STAGED, OLD):
        for path in (root / folder).glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ctime < now_s - older_than_s:  # when it was moved there
                    path.unlink()
                    removed += 1
    return removed
