"""The current rows of a table by AUTO CDC of Declarative Pipelines: STATE=FOLDER spark-pipelines run --spec FILE

The target needs a connector with row-level operations: Spark's own formats have none, and refuse the flow (README.md).
AUTO CDC of Spark cannot remove all rows of a target: after a TRUNCATE, and after each copy of the table but the first,
refresh it fully from a new copy, with another reader.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


@dp.temporary_view
def changes() -> DataFrame:
    spark = SparkSession.active()
    options = {"state": os.environ["STATE"], "table": "public.orders", "reader": "orders_auto_cdc"}
    return spark.readStream.format("tidemark").options(**options).load().filter("_op <> 't'")


dp.create_streaming_table("orders")
dp.create_auto_cdc_flow(
    target="orders",
    source="changes",
    keys=["id"],
    sequence_by=f.struct("_commit_lsn", "_ordinal"),
    apply_as_deletes=f.expr("_op = 'd'"),
    column_list=["id", "customer", "total", "placed_at", "note"],
    stored_as_scd_type=1,
)
