"""Lines as another station would send them, and what a log holds by identity, read from its bytes alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import google_crc32c

from heliograph.seen import SeenSet
from tests.proof.tools import segment_lines

HOST2 = "host2.aaaaaa"
Identity = tuple[str, int, int]


def line(
    seq: int,
    origin: str = HOST2,
    partition: int = 0,
    *,
    channel: str = "alerts",
    extra: bytes = b"",
    data: bytes = b"1",
) -> bytes:
    """A stored line without its newline; ``extra`` are attributes before the payload."""
    time = b"2026-11-15T23:%02d:%02d.%06dZ" % (seq // 60 % 60, seq % 60, seq % 1_000_000)
    body = (
        b'{"specversion":"1.0","id":"%b-%d-%d","source":"%b","type":"heliograph.data.v1","time":"%b","channel":"%b"%b,'
        b'"data":%b,"origin":"%b","originseq":"%d/%d"'
        % (
            origin.encode(), partition, seq, origin.rpartition(".")[0].encode(), time, channel.encode(), extra, data,
            origin.encode(), partition, seq,
        )
    )  # fmt: skip
    return sealed(body)


def sealed(body: bytes) -> bytes:
    """A body with its checksum and closing brace."""
    return b'%b,"crc":"%08x"}' % (body, google_crc32c.value(body))


def lines(first: int, following: int, origin: str = HOST2, partition: int = 0, **more: bytes) -> list[bytes]:
    return [line(seq, origin, partition, **more) for seq in range(first, following)]  # type: ignore[arg-type]


def keyed(seq: int, key: str) -> bytes:
    return line(seq, extra=b',"partitionkey":"%b"' % key.encode())


def stored(root: Path, channel: str = "alerts") -> list[bytes]:
    """Every line of a channel that is not blank, partition by partition; its checksum is right."""
    found: list[bytes] = []
    for directory in sorted((root / "channels" / channel).iterdir()):
        if directory.name.isdigit():
            for _, some in segment_lines(directory):
                found += [one for one in some if one.strip(b" ")]
    assert all(sealed(one[:-18]) == one for one in found), "a line is damaged"
    return found


def identity(one: bytes) -> Identity:
    envelope = json.loads(one)
    partition, _, sequence = envelope["originseq"].partition("/")
    return envelope["origin"], int(partition), int(sequence)


def identities(root: Path, channel: str = "alerts") -> list[Identity]:
    return [identity(one) for one in stored(root, channel)]


def foreign(found: Iterable[Identity], station: str = "host1") -> list[Identity]:
    """Those that were not published by the station itself."""
    return [one for one in found if one[0].rpartition(".")[0] != station]


def members(seen: SeenSet) -> set[Identity]:
    return {(*key, number) for key, found in seen for first, following in found for number in range(first, following)}


def doubled(root: Path, channel: str = "alerts") -> list[Identity]:
    return [one for one, count in Counter(identities(root, channel)).items() if count > 1]
