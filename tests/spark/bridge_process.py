"""A Spark of its own that copies channel ``in`` to another until it is killed.

``ROOT CHECKPOINT CHANNEL [SINK [MASTER [SETTING=VALUE …]]]``; ``ROOT``: the directory, or options of the source as
JSON; ``SINK``: options of the sink as JSON, if it is not the same.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def bridge(spark: Any, root: str, checkpoint: str, channel: str, sink: dict[str, str] | None = None) -> Any:
    """The stream, not yet started."""
    place = json.loads(root) if root.startswith("{") else {"path": root}
    stream = spark.readStream.format("heliograph").options(**place).option("channel", "in")
    rows = stream.option("maxMessagesPerTrigger", "500").load().selectExpr("data", "key", f"'{channel}' AS channel")
    write = rows.repartition(3).writeStream.format("heliograph").options(**(sink or place))
    return write.option("checkpointLocation", checkpoint)


def main(
    root: str, checkpoint: str, channel: str, sink: str = "null", master: str = "local[2]", *settings: str
) -> None:
    from heliograph.spark import session

    spark = session(
        "bridge", master=master, **{"spark.driver.memory": "1g", **dict(one.split("=") for one in settings)}
    )
    query = bridge(spark, root, checkpoint, channel, json.loads(sink)).trigger(processingTime="0 seconds").start()
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
