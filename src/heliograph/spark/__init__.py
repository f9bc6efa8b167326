"""Channels in Spark: tables, streams, and a sink. ``pip install 'heliograph[spark]'``; see docs/spark.md."""

from __future__ import annotations

from heliograph.spark.session import session

__all__ = ["session"]
