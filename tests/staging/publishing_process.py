"""Publishes what is laid aside for a batch in steps of a few messages: ROOT QUERY BATCH SECTIONS(JSON). Is killed."""

from __future__ import annotations

import sys

import msgspec

from heliograph.staging import appending
from heliograph.staging.files import Section
from heliograph.staging.publishing import publish_batch

if __name__ == "__main__":
    root, query, batch, sections = sys.argv[1:]
    appending.SPARK_APPEND_BYTES = 20_000  # type: ignore[misc]
    print("running", flush=True)
    publish_batch(root, query, batch, msgspec.json.decode(sections, type=list[Section]))
