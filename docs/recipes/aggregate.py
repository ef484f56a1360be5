"""The total of new orders in each hour, as Parquet: python aggregate.py STATE CHECKPOINT OUT

An hour is written when the newest order is ten minutes later than its end; orders of the hour that arrive after that
are left out.
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

match sys.argv[1:]:
    case [state, checkpoint, out]:
        pass
    case _:
        sys.exit(__doc__)
os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages that this Python has
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.sql.session.timeZone", "UTC")
    .config("spark.sql.shuffle.partitions", "2")
    .getOrCreate()
)
orders = (
    spark.readStream.format("tidemark")
    .options(state=state, table="public.orders", reader="hourly_totals", startingPosition="earliest")
    .load()
)
hours = (
    orders.filter("_op IN ('i', 'c')")
    .withWatermark("placed_at", "10 minutes")
    .groupBy(f.window("placed_at", "1 hour"))
    .agg(f.count("*").alias("orders"), f.sum("total").alias("total"))
    .select(f.col("window.start").alias("hour"), "orders", "total")
)
writer = hours.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
