"""New orders with the country of their customer, as CSV: python join.py STATE CHECKPOINT OUT CUSTOMERS

CUSTOMERS is a static table in Parquet. It can as well be a replica in the lake (docs/spark.md, "Reading the tables").
"""

import os
import sys

from pyspark.sql import SparkSession

match sys.argv[1:]:
    case [state, checkpoint, out, customers]:
        pass
    case _:
        sys.exit(__doc__)
os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages that this Python has
spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
orders = (
    spark.readStream.format("tidemark")
    .options(state=state, table="public.orders", reader="orders_by_country", startingPosition="earliest")
    .load()
)
new = orders.filter("_op IN ('i', 'c')").select("id", "customer", "total")
joined = new.join(spark.read.parquet(customers), "customer", "left").select("id", "country", "total")
writer = joined.writeStream.format("csv").option("path", out).option("checkpointLocation", checkpoint)
writer.trigger(availableNow=True).start().awaitTermination()
