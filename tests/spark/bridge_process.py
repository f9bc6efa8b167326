"""A Spark of its own that copies channel ``in`` to another until it is killed: ``ROOT CHECKPOINT CHANNEL``."""

from __future__ import annotations

import sys


def main(root: str, checkpoint: str, channel: str) -> None:
    from heliograph.spark import session

    spark = session("bridge", master="local[2]", spark__driver__memory="1g")
    stream = spark.readStream.format("heliograph").option("path", root).option("channel", "in")
    query = (
        stream.option("maxMessagesPerTrigger", "500").load()
        .selectExpr("data", "key", f"'{channel}' AS channel")
        .repartition(3)
        .writeStream.format("heliograph").option("path", root).option("checkpointLocation", checkpoint)
        .trigger(processingTime="0 seconds").start()
    )  # fmt: skip
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
