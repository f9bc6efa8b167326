"""Heliograph: durable publish/subscribe for Python. A directory, no server."""
