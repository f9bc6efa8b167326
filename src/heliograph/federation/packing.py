"""zstd on the wire, when it helps.

Packing pays where the line is the bottleneck and the lines are alike. Both change; so the decision looks at what was
seen recently: whether the socket is full, and what packing the last bodies brought. After a body that hardly shrank
some go as they are, more each time.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Literal, TypeAlias

from heliograph.errors import ProtocolError
from heliograph.federation.frames import Buffer

Mode: TypeAlias = Literal["auto", "always", "never"]

LEVEL: Final = 1
WORTH: Final = 0.8
"""A body has to shrink to this part of its size, or it was not worth it."""
BYTES_MIN: Final = 512
"""Smaller bodies go as they are."""
PAUSE_MAX: Final = 64
"""At least every so many bodies packing is tried again."""


class Squeeze:
    """Whether to pack the next body of a stream.

    >>> squeeze = Squeeze("auto")
    >>> squeeze.wanted(100_000, congested=False), squeeze.wanted(100_000, congested=True)
    (False, True)
    >>> squeeze.packed(100_000, 99_000)  # it did not help: the next one goes as it is
    >>> squeeze.wanted(100_000, congested=True), squeeze.wanted(100_000, congested=True)
    (False, True)
    """

    __slots__ = ("_mode", "_pause", "_skip", "ratio")

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._pause = 1
        self._skip = 0
        self.ratio = 1.0
        """What became of the last bodies, packed to unpacked, the newest counting a quarter."""

    @property
    def always(self) -> bool:
        """Whether to pack though the line is quick."""
        return self._mode == "always"

    def wanted(self, size: int, *, congested: bool) -> bool:
        """Whether to try. ``congested``: the socket has not taken what it was given before."""
        if self._mode == "never" or size < BYTES_MIN or not (congested or self._mode == "always"):
            return False
        if self._skip:
            self._skip -= 1
            return False
        return True

    def packed(self, before: int, after: int) -> None:
        """What a try brought."""
        self.ratio += (after / before - self.ratio) / 4
        if after <= before * WORTH:
            self._pause = 1
        else:
            self._skip = self._pause
            self._pause = min(PAUSE_MAX, self._pause * 2)


def pack(body: Buffer) -> bytes:
    """The body as one zstd frame that tells its size."""
    packed: bytes = _zstd().compress(body, LEVEL)
    return packed


def unpack(body: Buffer, size: int) -> bytes:
    """What was packed; a ProtocolError unless it is one whole frame of ``size`` bytes.

    >>> unpack(pack(b"abc" * 1000), 3000) == b"abc" * 1000
    True
    """
    zstd = _zstd()
    unpacker = zstd.ZstdDecompressor()
    try:
        said = zstd.get_frame_info(bytes(body[:18])).decompressed_size
        if said != size:
            raise ProtocolError(f"a packed body says that it has {said} bytes and its header {size}")
        lines: bytes = unpacker.decompress(body, size)
        if len(lines) != size or not unpacker.eof or unpacker.unused_data:
            raise ProtocolError(f"a packed body does not unpack to {size} bytes")
    except zstd.ZstdError as error:
        raise ProtocolError(f"a packed body cannot be unpacked: {error}") from None
    return lines


def _zstd() -> Any:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
