"""The public API: open a station, publish, subscribe, read."""

from heliograph.station.station import Station, open_station

__all__ = ["Station", "open_station"]
