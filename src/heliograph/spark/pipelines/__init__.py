"""Pipelines: functions over DataFrames that read channels and write channels or tables, run by ``helio pipeline``.

Declaring one
=============
A pipeline is a function from DataFrames to a DataFrame. Its inputs are channels; it gets them by name::

    from heliograph.spark.pipelines import Input, Option, Output, pipeline

    @pipeline(
        "large",
        inputs={"orders": Input("orders")},
        options=(Option("above", "Only orders above this sum.", kind="decimal", default=1000.0),),
        output=Output("channel", "orders.large"),
        trigger="10 seconds",
    )
    def large(orders, above):
        '''Orders that somebody should look at.'''
        return orders.where(f"get_json_object(data, '$.total') > {above}")

``helio pipeline run large --file orders.py --above 500`` runs it. The function is pure: it neither reads nor writes,
so a test calls ``large.function(some_dataframe, above=500)``. With trigger ``batch`` it gets tables that hold what is
there, with any other trigger streams.

Built-in jobs
=============
Every module of ``heliograph.spark.jobs`` whose name does not begin with ``_`` is looked through for pipelines: whatever
:func:`pipeline` and :func:`procedure` made there is a job that ``helio pipeline list`` shows. Rules for such a module:

- It can be imported without pyspark: ``from pyspark.sql import functions as F`` stands inside functions, types under
  ``if TYPE_CHECKING``.
- Options are :class:`Option`; they become ``--name`` on the command line (``_`` is written ``-``) and keyword arguments
  of the function. Inputs that depend on them are a function of the options::

      @pipeline(
          "trace",
          options=(Option("correlation", "The correlation id.", needed=True),
                   Option("channel", "Look only here.", kind="channel", default=">")),
          inputs=lambda channel, **_: {"messages": Input(channel, {"includeArchive": "true"})},
          examples="helio pipeline run trace --correlation c-1",
      )
      def trace(messages, correlation, channel):
          '''The timeline of a correlation id across channels and stations.'''
          return messages.where(messages.correlationid == correlation).orderBy("time")

- The result is a DataFrame, or several by name (``{"missing": …, "differing": …}``). With the output ``table`` (the
  default) the rows are printed as a table with the columns' names as headings, in the order they have (at most
  ``--limit`` of each), or as JSON with ``--json``. A number is aligned right; a timestamp is shown in UTC. Whoever runs
  it may send the rows elsewhere: ``--to parquet:DIR``, ``--to channel:NAME``, ``--to delta:DIR``.
- A stream (rollup) declares another trigger and an output that keeps rows, and calls ``withWatermark`` by itself.
- What is more than a function from tables to tables (it publishes, repairs, writes a file) is a :func:`procedure`. It
  is given a :class:`~heliograph.spark.pipelines.run.Run` and its options, and returns a
  :class:`~heliograph.spark.pipelines.run.Result`: facts, and tables to be printed. It calls its own pure functions::

      @procedure("reconcile", options=(Option("repair", "Publish what is missing.", kind="flag", default=False), …))
      def reconcile(run, repair, also):
          '''Compare the logs of several stations.'''
          mine = run.read(Input(">"))
          others = [run.read(Input(">", station=directory)) for directory in also]
          found = compare(mine, others)
          if repair:
              run.publish(missing(found))     # all or nothing; column `channel` says where
          return Result({"missing": found}, {"repaired": …})

- ``helio pipeline run NAME --help`` is made of the docstring, the options and ``examples``; ``docs/cli.md`` too
  (``python docs/generate.py``).

Running
=======
``DATA/pipelines/NAME/`` holds everything about a pipeline: ``lock`` (held while it runs: one at a time),
``status.json`` (what it does), ``stop`` (somebody asked it to end), ``declared.json`` (what its checkpoint belongs to),
``checkpoint/``, and ``spark.log``. See docs/pipelines.md.
"""

from __future__ import annotations

from heliograph.spark.pipelines.declared import Input, Option, Output, Pipeline, pipeline, procedure
from heliograph.spark.pipelines.run import Result, Run

__all__ = ["Input", "Option", "Output", "Pipeline", "Result", "Run", "pipeline", "procedure"]
