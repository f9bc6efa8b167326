"""Numbered publishing beside plain publishing: what it costs to be recognised for ever."""

from __future__ import annotations

from functools import partial
from itertools import cycle

import heliograph as hg
from bench.harness import Bench, Goal, Row, compare, rate_for
from bench.samples import CHANNEL, PAYLOADS, TYPE

RAW = "the same without a producer"


def run(bench: Bench) -> list[Row]:
    """One message at a time and a hundred at once, synced and not."""
    return [*durable(bench), *interval(bench)]


def durable(bench: Bench) -> list[Row]:
    """Every message synced."""
    seconds = bench.either(0.5, 0.1)
    with (
        bench.scratch("producers") as path,
        hg.open(path, name="bench") as station,
        station.producer("bench") as producer,
    ):
        payloads = cycle(PAYLOADS)
        rounds = bench.measure(
            {
                "raw": lambda: rate_for(seconds, lambda: station.publish(CHANNEL, next(payloads), type=TYPE)),
                "numbered": lambda: rate_for(seconds, lambda: producer.publish(CHANNEL, next(payloads), type=TYPE)),
            }
        )
    row = partial(compare, "producers", rounds=rounds, raw_is=RAW, goal=Goal(ratio_min=0.8))
    return [row("idempotent publish, durable", name="numbered")]


def interval(bench: Bench) -> list[Row]:
    """Written at once, synced later."""
    seconds = bench.either(0.5, 0.1)
    with (
        bench.scratch("producers-interval") as path,
        hg.open(path, name="bench", durability="interval") as station,
        station.producer("bench") as producer,
    ):
        payloads, many = cycle(PAYLOADS), len(PAYLOADS)
        rounds = bench.measure(
            {
                "raw": lambda: rate_for(seconds, lambda: station.publish(CHANNEL, next(payloads), type=TYPE, key="k")),
                "numbered": lambda: rate_for(
                    seconds, lambda: producer.publish(CHANNEL, next(payloads), type=TYPE, key="k")
                ),
                "batches": lambda: rate_for(
                    seconds, lambda: station.publish_many(CHANNEL, PAYLOADS, type=TYPE, key="k"), many
                ),
                "numbered batches": lambda: rate_for(
                    seconds, lambda: producer.publish_many(CHANNEL, PAYLOADS, type=TYPE, key="k"), many
                ),
            }
        )
    row = partial(compare, "producers", rounds=rounds, raw_is=RAW)
    return [
        row("idempotent publish with a key, interval", name="numbered", goal=Goal(ratio_min=0.8)),
        row(f"idempotent publish_many of {many}, interval", name="numbered batches", raw="batches"),
    ]
