"""Spark looks for packages whose names begin with ``pyspark_``: this is how it finds ``format("heliograph")``."""

from heliograph.spark.source import HeliographSource as DefaultSource

__all__ = ["DefaultSource"]
