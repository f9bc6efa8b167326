"""Two pipelines over a channel of orders, as Python functions.

helio pipeline list --file examples/pipelines/orders.py
helio pipeline run large --file examples/pipelines/orders.py --above 500
helio pipeline run sales --file examples/pipelines/orders.py --trigger '10 seconds'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.spark.pipelines import Input, Option, Output, pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORDERS = Input("orders", schema="time TIMESTAMP, key STRING, data STRUCT<item: STRING, total: DOUBLE>")


@pipeline(
    "large",
    inputs={"orders": ORDERS},
    options=(Option("above", "Only orders above this sum.", kind="decimal", default=1000.0),),
)
def large(orders: DataFrame, above: float) -> DataFrame:
    """List orders that somebody should look at."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    found = orders.where(F.col("data.total") > above)
    return found.select("time", F.col("key").alias("customer"), "data.item", "data.total").orderBy(F.desc("total"))


@pipeline(
    "sales",
    inputs={"orders": ORDERS},
    output=Output("channel", "sales", options={"type": "com.example.sales.v1"}),
    trigger="10 seconds",
)
def sales(orders: DataFrame) -> DataFrame:
    """Publish how much of each item was sold, every five minutes."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    windows = orders.withWatermark("time", "1 minute").groupBy(F.window("time", "5 minutes"), "data.item")
    sums = windows.agg(F.count("*").alias("orders"), F.sum("data.total").alias("total"))
    return sums.select(
        F.col("item").alias("key"),
        F.to_json(F.struct(F.col("window.start").alias("start"), "item", "orders", "total")).alias("data"),
    )
