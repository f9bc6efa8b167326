"""Stations with some history, and ways to damage them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import heliograph as hg
from heliograph.admin.verify import VerifyReport

CHANNEL = "alerts"
MESSAGES = 200


def open_station(path: Path, **settings: Any) -> hg.Station:
    settings.setdefault("segment_bytes", 8192)
    return hg.open(path, name="host1", **settings)


def fill(station: hg.Station, count: int = MESSAGES, channel: str = CHANNEL, first: int = 0) -> None:
    for number in range(first, first + count):
        station.publish(channel, {"n": number, "text": "x" * 60}, key=f"k{number % 3}")


def numbers(station: hg.Station, channel: str = CHANNEL) -> list[int]:
    return [message.data["n"] for message in station.read(channel)]


def by_offset(station: hg.Station, channel: str = CHANNEL) -> dict[int, int]:
    return {message.offset: message.data["n"] for message in station.read(channel)}


def partition(path: Path, channel: str = CHANNEL) -> Path:
    return path / "channels" / channel / "0"


def segments(path: Path, suffix: str = ".jsonl", channel: str = CHANNEL) -> list[Path]:
    return sorted(partition(path, channel).glob(f"*{suffix}"))


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def damaged(report: VerifyReport) -> list[int]:
    """The offsets a report calls lost."""
    return [
        offset
        for channel in report.channels
        for part in channel.partitions
        for one in part.damaged
        for offset in range(one.first, one.next)
    ]


def kinds(report: VerifyReport) -> list[str]:
    return sorted({trouble.kind for trouble in report.troubles})
