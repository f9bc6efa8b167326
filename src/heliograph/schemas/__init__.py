"""JSON Schemas of payload types: which are the same, which can read what another wrote, and what differs.

Nothing here touches a file. A schema is what ``msgspec.json.schema`` or pydantic's ``model_json_schema`` makes of a
class, as plain dicts.
"""

from heliograph.schemas.canonical import Schema, digest
from heliograph.schemas.compatible import Conflict, conflicts
from heliograph.schemas.differences import Change, differences, fields
from heliograph.schemas.made import schema_of

__all__ = ["Change", "Conflict", "Schema", "conflicts", "differences", "digest", "fields", "schema_of"]
