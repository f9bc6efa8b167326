"""Schemas at the door: what is published under a registered type has to be readable with what was published before.

The first time this process publishes a type to a channel, its schema is held against those stored with the channel.
Known: nothing to do. Compatible with all of them (see schemas/compatible.py): it becomes the next version. Otherwise
``SchemaConflict``, or a warning, as the setting messages.schemas says. After that a type costs nothing any more, until
it is registered again or the channel is deleted.

What is published without a registered type is plain data and is not checked, whatever the channel knows of its type.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from heliograph.disk import explaining
from heliograph.engine.files import FilesEngine
from heliograph.engine.schemas import SchemaFile
from heliograph.errors import HeliographError, NotFound, SchemaConflict
from heliograph.limits import CHECKED_TYPES_MAX, TYPE_VERSIONS_MAX
from heliograph.message import Draft
from heliograph.payloads import Payloads, next_version
from heliograph.station.info import TypeInfo

if TYPE_CHECKING:
    from heliograph.schemas import Schema

logger = logging.getLogger("heliograph.types")
_REASONS_SHOWN = 5
_TRIES = 8


class Types:
    """Checks the registered types of one station, and lists what is stored."""

    def __init__(self, engine: FilesEngine, payloads: Payloads) -> None:
        self._engine = engine
        self._payloads = payloads
        self._policy = engine.config.messages.schemas
        self._checked: set[tuple[str, str]] = set()

    def must_look(self, channel: str, type_name: str | None, batch: Iterable[Any]) -> bool:
        """Whether publishing these payloads reads or writes schemas first, which takes a moment."""
        if not self._payloads.registered or self._policy == "off":
            return False
        return any((channel, name) not in self._checked for name in self._types_of(type_name, batch))

    def _types_of(self, type_name: str | None, batch: Iterable[Any]) -> Iterator[str]:
        for item in batch:
            draft = item if isinstance(item, Draft) else Draft(data=item)
            name = self._payloads.checked(draft.type or type_name or self._payloads.type_of(draft.data))
            if self._payloads.decoder(name) is not None:
                yield name

    def check(self, channel: str, type_name: str) -> None:
        """Refuse a registered type that cannot read what the channel holds under its name; cheap when known."""
        if (channel, type_name) in self._checked:
            return
        if self._payloads.decoder(type_name) is not None and self._policy != "off":
            self._check(channel, type_name)
        if len(self._checked) >= CHECKED_TYPES_MAX:
            self._checked.clear()
        self._checked.add((channel, type_name))

    def forget(self, channel: str | None = None) -> None:
        """Look again at everything, or at what is published to one channel."""
        if channel is None:
            self._checked.clear()
        else:
            self._checked -= {pair for pair in self._checked.copy() if pair[0] == channel}

    def _check(self, channel: str, type_name: str) -> None:
        from heliograph.schemas import digest  # here, because most stations never register a type

        try:
            schema = self._payloads.schema(type_name)
            sha256 = digest(schema)
        except Exception as error:  # noqa: BLE001 - a library that cannot describe a class must not keep it from working
            logger.warning("%s has no JSON Schema, so its changes are not noticed: %s", type_name, error)
            return
        try:
            self._agree(channel, type_name, schema, sha256)
        except HeliographError as error:
            if self._policy == "refuse":
                raise
            logger.warning("%s", error)

    @explaining("cannot look at the stored schemas")
    def _agree(self, channel: str, type_name: str, schema: Schema, sha256: str) -> None:
        """Find the schema among the stored ones, or add it."""
        outcome = "Nothing was published" if self._policy == "refuse" else "It is published all the same"

        def is_new(known: Sequence[SchemaFile]) -> bool:
            if any(one.sha256 == sha256 for one in known):
                return False
            _refuse_conflict(channel, type_name, known, schema, outcome)
            return True

        for attempt in range(_TRIES):
            self._engine.ensure(channel)
            try:
                if not is_new(self._engine.schemas.versions(channel, type_name)):
                    return
                added = self._engine.schemas.add(channel, type_name, schema, is_new)
            except NotFound:
                if attempt == _TRIES - 1:
                    raise
                continue  # deleted in this moment
            if added is not None:
                self._engine.audit.write("schema-added", channel=channel, type=type_name, version=added.version)
            return

    def stored(self, channel: str | None = None) -> list[TypeInfo]:
        """Every version of every type, of one channel or all."""
        if channel is not None:
            self._engine.describe(channel)
        names = self._engine.channel_names() if channel is None else [channel]
        return [
            TypeInfo(channel=name, type=one.type, version=one.version, schema=one.schema, created=one.created)
            for name in names
            for one in self._engine.schemas.all(name)
        ]


def _refuse_conflict(channel: str, type_name: str, known: Sequence[SchemaFile], schema: Schema, outcome: str) -> None:
    """Every stored version may have messages in the log, so all of them have to be readable."""
    from heliograph.schemas import conflicts

    if len(known) >= TYPE_VERSIONS_MAX:
        raise SchemaConflict(
            f"{type_name} has {len(known)} versions in channel '{channel}', more are not kept. "
            f"Register the class under a new name, {next_version(type_name)}."
        )
    for version in reversed(known):
        found = conflicts(version.schema, schema)
        if found:
            reasons = "; ".join(map(str, found[:_REASONS_SHOWN]))
            more = f"; and {len(found) - _REASONS_SHOWN} more" if len(found) > _REASONS_SHOWN else ""
            raise SchemaConflict(
                f"{type_name} as registered here cannot read what channel '{channel}' holds under that name (version "
                f"{version.version}): {reasons}{more}. {outcome}. Register the changed class under a new "
                f"name, {next_version(type_name)}; 'helio types show {channel} {type_name}' shows what is stored."
            )
