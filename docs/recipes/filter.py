"""Orders from a total of 100 on, as JSON: python filter.py STATE CHECKPOINT OUT

Each run writes the changes since the last one; without `.trigger(availableNow=True)` it runs continuously.
"""

import os
import sys

from pyspark.sql import SparkSession

match sys.argv[1:]:
    case [state, checkpoint, out]:
        pass
    case _:
        sys.exit(__doc__)
os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages that this Python has
spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
orders = (
    spark.readStream.format("tidemark")
    .options(state=state, table="public.orders", reader="large_orders", startingPosition="earliest")
    .load()
)
large = orders.filter("_op IN ('i', 'c', 'u') AND total >= 100").select("id", "customer", "total", "_op", "_commit_lsn")
writer = large.writeStream.format("json").option("path", out).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
