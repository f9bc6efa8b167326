"""A hub whose channels are read both ways: through it, and in its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import heliograph as hg
from heliograph.spark.columns import default_schema
from heliograph.spark.options import read_options
from heliograph.spark.source import FilteringReader
from tests.client.conftest import Hub
from tests.spark.reading_back import ddl, reader, rows

READER = {"name": "reader", "subscribe": [">"]}


class ReadHub(Hub):
    """A hub, and readers of it."""

    def __init__(self, directory: Path, **storage: Any) -> None:
        super().__init__(directory)
        few = {"name": "few", "subscribe": ["alerts", "sensors.a.>"]}
        self.station("hub", peers=[READER, few, {"name": "nobody"}], storage={"durability": "os", **storage})

    @property
    def root(self) -> Path:
        return self.path("hub")

    def serve(self) -> hg.Station:
        return self.open("hub")

    def options(self, channel: str, peer: str = "reader", url: str | None = None, **more: Any) -> dict[str, str]:
        tls = self.tls(peer)
        files = {"tlsCert": tls["cert"], "tlsKey": tls["key"], "tlsCa": tls["ca"], "tlsCrl": tls["crl"]}
        said = {"hub": url or self.url, "channel": channel, **files, **more}
        return {name: str(value) for name, value in said.items()}

    def reader(self, channel: str, schema: str | None = None, **more: Any) -> FilteringReader:
        options = read_options(self.options(channel, **more), streaming=False)
        return FilteringReader(options, ddl(schema) if schema else default_schema(None, gaps=not options.fail_on_gap))

    def both(
        self, channel: str, schema: str | None = None, filters: list[Any] | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        """What is read in the directory, which has to be what is read through the hub; errors as well."""
        readers = [reader(self.root, channel, schema, **more), self.reader(channel, schema, **more)]
        for one in readers:
            one.pushFilters(filters or [])
        here, there = (outcome(one) for one in readers)
        assert here == there
        return [] if isinstance(here, tuple) else list(here)


def outcome(one: FilteringReader) -> Any:
    """The rows in the order of their places; or the error, by its name and text."""
    try:
        found = rows(one)
    except hg.HeliographError as error:
        return (type(error).__name__, str(error))
    return sorted(found, key=lambda row: (row.get("channel", ""), row.get("partition", 0), row["offset"]))
