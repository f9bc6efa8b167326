"""Payload types: checked before anything is written, decoded on arrival.

A type has a versioned name; when the class changes, the name does, and old messages keep their meaning.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile

import msgspec

import heliograph as hg


class Alert(msgspec.Struct):
    message: str
    level: int = 1


@dataclasses.dataclass
class Reading:
    sensor: str
    celsius: float


def main(directory: str) -> None:
    with hg.open(directory, name="host1") as station:
        station.register("com.example.alert.v1", Alert)
        station.register("com.example.reading.v1", Reading)

        station.publish("house", Alert("somebody is at the door"), key="door")
        station.publish("house", Reading("kitchen", 21.5), key="kitchen")
        station.publish("house", {"message": "a dict will do", "level": 2}, type="com.example.alert.v1")

        try:
            station.publish("house", {"message": "how urgent?", "level": "very"}, type="com.example.alert.v1")
        except hg.PayloadMismatch as error:
            print(f"refused, nothing written: {error}")

        for message in station.read("house"):
            match message.data:
                case Alert(message=text, level=level):
                    print(f"offset {message.offset}: alert of level {level}: {text}")
                case Reading(sensor=sensor, celsius=celsius):
                    print(f"offset {message.offset}: {sensor} has {celsius} °C")

    # Whoever has not registered the types gets plain data.
    with hg.open(directory) as station:
        first = next(iter(station.read("house")))
        print(f"without the type: {first.type} {first.data}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="heliograph-"))
