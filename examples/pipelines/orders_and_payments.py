"""Orders and payments, joined as they come: a stream of each, with state, and dead letters for what never matched.

    helio pipeline run paid --file examples/pipelines/orders_and_payments.py

An order waits for its payment, and a payment for its order, until ``--patience`` has passed in both streams. A pair
becomes a message in ``orders.paid``. What finds no partner becomes a dead letter of its own channel, with the original
in it: ``helio dead list`` shows it, and ``helio dead replay`` gives it another chance. Every message has one of the two
outcomes, once, whatever is killed when: Spark's state and the channel move together.

Time is that of the messages. So nothing is given up while nothing new comes: it takes a later order *and* a later
payment to know that the time is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.spark.pipelines import Input, Option, Output, pipeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

COLUMNS = "time TIMESTAMP, channel STRING, partition INT, offset BIGINT, origin STRING, data STRING, raw STRING"


@pipeline(
    "paid",
    inputs={"orders": Input("orders", schema=COLUMNS), "payments": Input("payments", schema=COLUMNS)},
    options=(Option("patience", "How long one waits for the other.", kind="duration", default=3600.0),),
    output=Output("channel", "orders.paid"),
    trigger="10 seconds",
    examples="helio pipeline run paid --file examples/pipelines/orders_and_payments.py --patience 1h",
)
def paid(orders: DataFrame, payments: DataFrame, patience: float) -> DataFrame:
    """Orders with their payments; what finds no partner becomes a dead letter."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    wait = f"INTERVAL {round(patience * 1000)} MILLISECONDS"
    order = side(orders, "order", wait)
    payment = side(payments, "payment", wait)
    near = F.expr(f"order_number = payment_number AND payment_time BETWEEN order_time - {wait} AND order_time + {wait}")
    both = order.join(payment, near, "full_outer")
    lonely = F.col("order_number").isNull() | F.col("payment_number").isNull()
    return both.select(
        F.when(lonely, F.concat(F.coalesce("order_channel", "payment_channel"), F.lit(".dead-letter")))
        .otherwise("orders.paid")
        .alias("channel"),
        F.when(lonely, "heliograph.dead-letter.v1").otherwise("com.example.paid.v1").alias("type"),
        F.coalesce("order_number", "payment_number").alias("key"),
        F.when(lonely, letter(patience)).otherwise(pair()).alias("data"),
    )


def side(messages: DataFrame, name: str, wait: str) -> DataFrame:
    """One of the two streams: its columns with its name before them, and what both are joined by."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    columns = [F.col(column).alias(f"{name}_{column}") for column in messages.columns]
    number = F.get_json_object("data", "$.order").alias(f"{name}_number")
    return messages.select(number, *columns).withWatermark(f"{name}_time", wait.removeprefix("INTERVAL "))


def pair() -> Column:
    """A paid order as JSON."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    def of(name: str, field: str) -> Column:
        return F.get_json_object(f"{name}_data", f"$.{field}")

    return F.to_json(
        F.struct(
            F.col("order_number").alias("order"),
            of("order", "total").cast("double").alias("total"),
            of("payment", "amount").cast("double").alias("paid"),
            F.round((F.unix_micros("payment_time") - F.unix_micros("order_time")) / 1e6, 3).alias("after_s"),
        )
    )


def letter(patience: float) -> Column:
    """What never matched, as a dead letter: the original as it was stored, and why."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    def of(column: str) -> Column:
        return F.coalesce(f"order_{column}", f"payment_{column}")

    missing = F.when(F.col("order_number").isNull(), "order").otherwise("payment")
    about = F.to_json(
        F.struct(
            F.lit("unmatched").alias("reason"),
            F.concat(F.lit("no "), missing, F.lit(f" came within {patience:g} s")).alias("error"),
            F.lit("Unmatched").alias("error_type"),
            F.lit(1).alias("attempts"),
            F.lit("").alias("subscription"),
            F.regexp_extract(of("origin"), r"[^.]*$", 0).alias("incarnation"),
            of("channel").alias("channel"),
            of("partition").alias("partition"),
            of("offset").alias("offset"),
        )
    )
    return F.concat(F.lit('{"original":'), of("raw"), F.lit(","), F.substring(about, 2, 1_000_000))
