"""All changes as Parquet, in a folder for each day of commit: python to_parquet.py STATE CHECKPOINT OUT

Spark reads each change exactly once, by the list of files that it keeps in OUT/_spark_metadata. For other readers, a
killed query may leave a file that is not in the list.
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
spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # others read INT96 wrongly beyond 2262
changes = (
    spark.readStream.format("tidemark")
    .options(state=state, table="public.orders", reader="orders_to_parquet", startingPosition="earliest")
    .load()
)
by_day = changes.selectExpr("*", "to_date(_commit_time) AS _day")
writer = by_day.writeStream.format("parquet").option("path", out).option("checkpointLocation", checkpoint)
writer.partitionBy("_day").trigger(availableNow=True).start().awaitTermination()
