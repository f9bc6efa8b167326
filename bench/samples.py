"""The messages that are measured: small ones, as alerts and measurements are. A stored line has about 350 bytes."""

from __future__ import annotations

from typing import Any

CHANNEL = "measurements"
TYPE = "com.example.measurement.v1"

PAYLOADS: list[dict[str, Any]] = [
    {"host": f"web-{number % 7}", "metric": "cpu", "value": number / 7, "message": "system problem!"}
    for number in range(100)
]
