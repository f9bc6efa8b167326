"""Settings that are lists of things with settings of their own: the peers of a hub, the links of a station.

    links:
      - {hub: "hub.example:7740", publish: [alerts]}

In the environment a list is JSON: ``HELIOGRAPH_LINKS='[{"hub": "hub.example:7740", "publish": ["alerts"]}]'``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from typing import Any, get_args, get_type_hints

import msgspec

from heliograph.config import units
from heliograph.config.sections import Section


def item_of(annotation: Any) -> type[Section] | None:
    """What a setting is a list of; None if it is no list."""
    plain = getattr(annotation, "__origin__", annotation)
    arguments = get_args(plain)
    item = arguments[0] if getattr(plain, "__origin__", None) is tuple else None
    return item if isinstance(item, type) and issubclass(item, Section) else None


def read(said: object, item: type[Section], *, text: bool) -> list[Any]:
    """The list that somebody said, its sizes and durations as numbers; ValueError says what is wrong with it."""
    if text:
        try:
            said = msgspec.json.decode(str(said) or "[]")
        except msgspec.DecodeError as error:
            raise ValueError(f"in the environment a list is JSON: {error}") from None
    if said is None:  # all its lines are commented out
        return []
    if isinstance(said, str | bytes | Mapping) or not isinstance(said, Iterable):
        raise ValueError(f"must be a list, each with {', '.join(item.__struct_fields__)}")  # noqa: TRY004
    return [_item(one, item, at) for at, one in enumerate(said)]


def _item(said: object, item: type[Section], at: int) -> object:
    if isinstance(said, item):
        return msgspec.to_builtins(said)
    if not isinstance(said, Mapping):
        raise ValueError(f"number {at + 1} is {said!r}, which has none of {', '.join(item.__struct_fields__)}")  # noqa: TRY004
    defaults = {name: default for name, _, default in fields(item)}
    found: dict[str, Any] = {}
    for key, value in said.items():
        if key not in item.__struct_fields__:
            raise ValueError(f"number {at + 1} has no setting {key!r}{_suggest(str(key), item)}")
        found[key] = _read(value, key, f"number {at + 1}", names=isinstance(defaults[key], tuple))
    for key, default in defaults.items():
        if default is msgspec.NODEFAULT and key not in found:
            raise ValueError(f"number {at + 1} has no {key}, which it needs")
    return found


def _read(value: object, key: str, where: str, *, names: bool) -> object:
    if names and isinstance(value, str):
        raise ValueError(f"{where}: {key} must be a list, as in {key}: [{value}]")
    if isinstance(value, date):  # YAML and TOML read a time that is not in quotes; a datetime is a date, too
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, str) and "bytes" in key.split("_"):
        return units.parse_size(value)
    return value


def _suggest(wrong: str, item: type[Section]) -> str:
    import difflib

    near = difflib.get_close_matches(wrong, item.__struct_fields__, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(item.__struct_fields__)}"


def plain(items: Iterable[Any], *, human: bool) -> list[dict[str, Any]]:
    """What to write into a file; ``human=True``: sizes as a person would."""
    result = []
    for one in items:
        said = one if isinstance(one, Mapping) else msgspec.to_builtins(one)
        result.append({key: _plain(key, value, human=human) for key, value in said.items()})
    return result


def _plain(key: str, value: Any, *, human: bool) -> Any:
    if human and "bytes" in key.split("_"):
        return units.human_size(value)
    return list(value) if isinstance(value, tuple) else value


def fields(item: type[Section]) -> list[tuple[str, Any, Any]]:
    """Name, annotation and default of each setting of such a thing."""
    hints = get_type_hints(item, include_extras=True)
    return [(field.name, hints[field.name], field.default) for field in msgspec.structs.fields(item)]
