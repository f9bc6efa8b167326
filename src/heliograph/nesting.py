"""How deeply JSON is nested: deeper than a reader's stack allows, it would be stored and could not be delivered.

msgspec decodes recursively, and how far it gets depends on the stack of whoever reads. So there is a bound that leaves
room for readers in the midst of other code, and for what a dead letter puts around its original.

Looking costs next to nothing: what is short cannot be deep, and the rest is done by a few calls on bytes as a whole.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Final

from heliograph.errors import InvalidMessage
from heliograph.limits import PAYLOAD_DEPTH_MAX

SHALLOW_BYTES_MAX: Final = 2 * PAYLOAD_DEPTH_MAX
"""What is no longer than this is not too deep: each level takes two brackets."""
_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_ROUNDS: Final = 8


def refuse_too_deep(encoded: bytes, *, around: int = 0) -> None:
    """InvalidMessage if the JSON of a payload has too many levels, besides those ``around`` it."""
    brackets = _brackets(encoded)
    if not _may_be_deep(brackets):
        return
    levels = max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets))
    if levels > PAYLOAD_DEPTH_MAX + around:
        raise InvalidMessage(
            f"the payload is nested too deeply: {levels} levels, and not every reader could decode more than "
            f"{PAYLOAD_DEPTH_MAX}. Make it flatter, or publish its JSON as text or bytes"
        )


def any_long(lines: bytes) -> bool:
    """Whether one of many lines is so long that it may be deep. Each is ended by a line break.

    Hops from line break to line break, as far as may be: most lines are not looked at.

    >>> any_long(b"[1]\\n" * 1000), any_long(b"[1]\\n" + b"[" * 500 + b"1" + b"]" * 500 + b"\\n")
    (False, True)
    """
    at, end = 0, len(lines)
    while end - at > SHALLOW_BYTES_MAX + 1:
        at = lines.rfind(b"\n", at, at + SHALLOW_BYTES_MAX + 1) + 1
        if not at:
            return True
    return False


def _brackets(encoded: bytes) -> bytes:
    """The brackets of JSON, without those in its texts.

    >>> _brackets(b'{"a":["}",{"]\\\\"":1}]}')
    b'{[{}]}'
    """
    if b"\\" in encoded:
        encoded = encoded.replace(b"\\\\", b"").replace(b'\\"', b"")  # now each quote begins or ends a text
    # Two quotes next to each other may be taken out: what is within a text stays within one.
    left = encoded.translate(None, _BUT_BRACKETS).replace(b'""', b"")
    return b"".join(left.split(b'"')[::2])


def _may_be_deep(brackets: bytes) -> bool:
    """Takes the innermost levels away, at most two in a round: of ordinary payloads, however long, nothing is left."""
    for _ in range(_ROUNDS):
        brackets = brackets.replace(b"{}", b"").replace(b"[]", b"")
    return len(brackets) // 2 + 2 * _ROUNDS > PAYLOAD_DEPTH_MAX
