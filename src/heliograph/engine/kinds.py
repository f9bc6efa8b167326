"""What kind a subscription is: subscriptions/images/resize/kind.json, {"kind":"queue", …}; a plain one has none.

A name is of one kind for as long as it is not forgotten. Two who make it at once are kept apart by its lock: a plain
subscriber holds it alone, the workers of a queue hold it together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import msgspec

from heliograph.disk import Disk
from heliograph.engine.port import Kind
from heliograph.errors import AlreadyExists, Damaged

PLAIN: Final = "plain"


def load(directory: Path, disk: Disk) -> dict[str, Any]:
    """What kind.json says, with the kind; a subscription that has none is plain."""
    path = directory / "kind.json"
    try:
        found = msgspec.json.decode(disk.read_file(path), type=dict[str, Any])
    except FileNotFoundError:
        return {"kind": PLAIN}
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Damaged(f"{path} cannot be read ({error}). Restore it, or forget the subscription.") from None
    return {"kind": PLAIN, **found}


def kind(directory: Path, disk: Disk) -> Kind:
    """What a subscription is."""
    return cast(Kind, load(directory, disk)["kind"])


def save(directory: Path, content: dict[str, Any], disk: Disk) -> None:
    disk.replace_file(directory / "kind.json", msgspec.json.encode(content) + b"\n")


def check(directory: Path, wanted: str, disk: Disk) -> None:
    """Refuse a name that is of another kind already."""
    found = load(directory, disk)["kind"]
    used = found != PLAIN or any(name.removesuffix(".json").isdigit() for name in disk.listdir(directory))
    if used and found != wanted:
        raise AlreadyExists(
            f"subscription '{directory.name}' of '{directory.parent.name}' is a {_named(found)}, not a "
            f"{_named(wanted)}. Choose another name, or 'helio subscriptions forget {directory.parent.name} "
            f"{directory.name}' first."
        )


def _named(kind: str) -> str:
    return "plain subscription" if kind == PLAIN else kind
