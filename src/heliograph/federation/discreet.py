"""What of an error is told to the other end of a link: all but where this station keeps its files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

DATA: Final = "DATA"
"""Stands for the data directory, as it does in the documents."""
ELSEWHERE: Final = "(a file of the hub)"


def discreet(error: BaseException, root: Path) -> str:
    """The text of an error without local paths: those of the data directory begin with DATA, others are left out.

    >>> discreet(ValueError("/srv/hub/channels/alerts/channel.json is missing"), Path("/srv/hub"))
    'DATA/channels/alerts/channel.json is missing'
    """
    text = str(error)
    for spelling in sorted({str(root), str(root.absolute()), str(root.resolve())}, key=len, reverse=True):
        text = _without_root(text, spelling)
    for name in _files(error):
        if os.path.isabs(name):
            text = text.replace(name, ELSEWHERE)
    return text


def _without_root(text: str, root: str) -> str:
    """A relative directory may be called like anything: it counts only where a path goes on behind it."""
    if root == os.curdir:
        return text
    behind = r"(?![\w-]|\.\w)" if os.path.isabs(root) else f"(?={re.escape(os.sep)})"
    return re.sub(r"(?<![\w./-])" + re.escape(root.rstrip(os.sep)) + behind, DATA, text)


def _files(error: BaseException | None) -> Iterator[str]:
    """The files that an error, or what it comes from, is about."""
    while error is not None:
        if isinstance(error, OSError):
            for name in (error.filename, error.filename2):
                if isinstance(name, str | os.PathLike):
                    yield os.fspath(name)
        error = error.__cause__
