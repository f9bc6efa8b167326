"""What there shall be: a table of orders, a view of customers, and a channel of large orders. Spark finds the order."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

spark = SparkSession.active()
DATA = spark.conf.get("spark.shop.data")


@dp.table
def orders() -> DataFrame:
    """Every message of the channel, once."""
    stream = spark.readStream.format("heliograph").option("path", DATA).option("channel", "orders")
    typed = stream.schema("time TIMESTAMP, key STRING, data STRUCT<item: STRING, total: DOUBLE>").load()
    return typed.selectExpr("time", "key AS customer", "data.item", "data.total")


@dp.materialized_view
def customers() -> DataFrame:
    """Who ordered for how much."""
    return spark.read.table("orders").groupBy("customer").agg(F.sum("total").alias("total"))


dp.create_sink("large_orders", format="heliograph", options={"path": DATA, "channel": "orders.large"})


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Orders that somebody should look at."""
    found = spark.readStream.table("orders").where("total > 1000")
    return found.selectExpr("customer AS key", "to_json(struct(time, item, total)) AS data")
