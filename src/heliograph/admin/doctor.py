"""Is this a good place for a station, and is the station there well?

Every check stands for itself: one that cannot be made is a finding, too. The station is opened without a trace; only
the disk's speed is tried with a file that is removed again.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Final, Literal

import google_crc32c
import msgspec

from heliograph.admin.wellbeing import station_findings
from heliograph.config import Config
from heliograph.config.units import GIB, MIB
from heliograph.disk import SYSTEM_DISK, Disk, file_system, over_network
from heliograph.log.channel import somebodys

SYNC_S: Final = 1.0
"""How long the disk is tried."""

SLOW_SYNC_MS: Final = 20.0
SUSPICIOUS_SYNC_MS: Final = 0.02
"""A sync that is quicker reaches no medium: a disk in memory, or one that lies."""

DESCRIPTORS_PER_PARTITION: Final = 4
DESCRIPTORS_BESIDE: Final = 64
LIBRARIES: Final = ("heliograph", "msgspec", "google-crc32c", "uuid_utils", "PyYAML", "click", "rich")

Status = Literal["ok", "warn", "bad"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at: how it is, and what to do if it is not well."""

    name: str
    status: Status
    value: str
    advice: str = ""


Check = Callable[[Path, Config, Disk], Finding]


def examine(path: Path | str, config: Config, *, disk: Disk = SYSTEM_DISK) -> list[Finding]:
    """Look at the machine, the directory (which need not be there yet) and the station in it."""
    path = Path(path)
    found: list[Finding] = []
    for name, check in CHECKS.items():
        try:
            found.append(check(path, config, disk))
        except Exception as error:  # noqa: BLE001 - a check that fails says something about the machine, too
            value, advice = f"cannot be checked: {error}", "Find out why; the check needs nothing but the directory."
            found.append(Finding(name=name, status="warn", value=value, advice=advice))
    if somebodys(path, disk):
        found += [
            Finding(name=name, status=status, value=value, advice=advice)
            for name, status, value, advice in station_findings(path, config, disk)
        ]
    else:
        found.append(Finding(name="station", status="ok", value="none yet; 'helio init' makes one"))
    return found


def _existing(path: Path) -> Path:
    """The directory itself, or the one that it would be made in."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


# -- the machine -----------------------------------------------------------------------------------------------------


def _versions(path: Path, config: Config, disk: Disk) -> Finding:  # noqa: ARG001 - all checks are called alike
    parts = [f"Python {platform.python_version()}"]
    for library in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(f"{library} {metadata.version(library)}")
    value = ", ".join(parts)
    if google_crc32c.implementation != "c":
        advice = "google-crc32c has no compiled part here: checksums take a hundred times longer. Install its wheel."
        return Finding(name="versions", status="warn", value=value, advice=advice)
    return Finding(name="versions", status="ok", value=value)


def _open_files(path: Path, config: Config, disk: Disk) -> Finding:  # noqa: ARG001
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = config.storage.open_partitions_max * DESCRIPTORS_PER_PARTITION + DESCRIPTORS_BESIDE
    value = f"{soft} allowed, up to {need} needed (storage.open_partitions_max is {config.storage.open_partitions_max})"
    if soft not in (resource.RLIM_INFINITY, -1) and soft < need:
        advice = f"Raise it (ulimit -n {need}, or LimitNOFILE= in the unit), or lower storage.open_partitions_max."
        return Finding(name="open files", status="warn", value=value, advice=advice)
    return Finding(name="open files", status="ok", value=value)


def _inotify(path: Path, config: Config, disk: Disk) -> Finding:  # noqa: ARG001
    directory = Path("/proc/sys/fs/inotify")
    if not directory.exists():
        return Finding(name="notification", status="ok", value=f"not inotify ({sys.platform})")
    watches = int((directory / "max_user_watches").read_text())
    instances = int((directory / "max_user_instances").read_text())
    value = f"{watches} watches, {instances} instances per user"
    if watches < 2 * config.storage.open_partitions_max or instances < 16:
        advice = (
            "Raise fs.inotify.max_user_watches and max_user_instances (sysctl): without, readers look once a second."
        )
        return Finding(name="notification", status="warn", value=value, advice=advice)
    return Finding(name="notification", status="ok", value=value)


# -- the directory -----------------------------------------------------------------------------------------------------


def _permissions(path: Path, config: Config, disk: Disk) -> Finding:  # noqa: ARG001
    place = _existing(path)
    if not place.is_dir():
        advice = "Choose another storage.data_dir."
        return Finding(name="permissions", status="bad", value=f"{place} is no directory", advice=advice)
    info = place.stat()
    value = f"{place} belongs to user {info.st_uid}, mode {info.st_mode & 0o7777:o}; this is user {os.geteuid()}"
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        advice = "Give this user the right to read and write there, or open with read_only=True."
        return Finding(name="permissions", status="bad", value=value, advice=advice)
    if place == path.absolute() and info.st_mode & 0o002:
        return Finding(
            name="permissions", status="warn", value=value, advice=f"Anybody can write there: chmod o-w {place}"
        )
    return Finding(name="permissions", status="ok", value=value)


def _file_system(path: Path, config: Config, disk: Disk) -> Finding:  # noqa: ARG001
    place = _existing(path)
    kind = file_system(place)
    if over_network(kind):
        if config.storage.single_process:
            advice = "Locks do not reach other hosts: make sure that only one process ever opens it."
            return Finding(name="file system", status="warn", value=f"{kind} (network)", advice=advice)
        advice = "Use a local disk, or set storage.single_process if only one process will ever open it."
        return Finding(name="file system", status="bad", value=f"{kind} (network)", advice=advice)
    if kind in ("tmpfs", "ramfs"):
        advice = "It lives in memory: everything is gone after a reboot."
        return Finding(name="file system", status="warn", value=kind, advice=advice)
    return Finding(name="file system", status="ok", value=kind or "unknown")


def _free_space(path: Path, config: Config, disk: Disk) -> Finding:  # noqa: ARG001
    place = _existing(path)
    usage, files = shutil.disk_usage(place), os.statvfs(place)
    percent = 100 * usage.free / max(1, usage.total)
    value = f"{usage.free / GIB:.1f} GiB of {usage.total / GIB:.1f} GiB ({percent:.0f} %)"
    advice = "Free some, or set retention (storage.retention_bytes, retention_age_s): a full disk refuses messages."
    if usage.free < max(64 * MIB, config.storage.segment_bytes):
        return Finding(name="free space", status="bad", value=value, advice=advice)
    if files.f_files and files.f_favail < 1000:
        return Finding(name="free space", status="bad", value=f"{value}, {files.f_favail} files", advice=advice)
    if usage.free < GIB or percent < 5:
        return Finding(name="free space", status="warn", value=value, advice=advice)
    return Finding(name="free space", status="ok", value=value)


def _sync_speed(path: Path, config: Config, disk: Disk) -> Finding:
    times_ms = sorted(_sync_times_ms(_existing(path), disk))
    middle = statistics.median(times_ms)
    worst = times_ms[min(len(times_ms) - 1, len(times_ms) * 99 // 100)]
    value = f"p50 {middle:.2f} ms, p99 {worst:.2f} ms ({len(times_ms)} times write and sync of 256 bytes)"
    if middle > SLOW_SYNC_MS and config.storage.durability == "always":
        advice = (
            "Every publish waits for one. Publish in batches or from many threads, which share syncs; use a disk "
            "with a protected cache; or set storage.durability to interval."
        )
        return Finding(name="sync speed", status="warn", value=value, advice=advice)
    if middle < SUSPICIOUS_SYNC_MS:
        advice = "Too quick to be true: this disk says it is done before it is. A power cut may cost messages."
        return Finding(name="sync speed", status="warn", value=value, advice=advice)
    return Finding(name="sync speed", status="ok", value=value)


def _sync_times_ms(place: Path, disk: Disk) -> Iterator[float]:
    fd, name = tempfile.mkstemp(prefix=".doctor-", dir=place)
    try:
        data, stop_s = b"x" * 256, time.monotonic() + SYNC_S
        while True:
            start_s = time.perf_counter()
            disk.write(fd, data)
            disk.fdatasync(fd)
            yield (time.perf_counter() - start_s) * 1000
            if time.monotonic() > stop_s:
                break
    finally:
        os.close(fd)
        os.unlink(name)


CHECKS: Final[dict[str, Check]] = {
    "versions": _versions,
    "permissions": _permissions,
    "file system": _file_system,
    "free space": _free_space,
    "sync speed": _sync_speed,
    "open files": _open_files,
    "notification": _inotify,
}
