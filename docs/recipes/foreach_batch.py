"""The number and total of the orders of each customer, in SQLite: python foreach_batch.py STATE CHECKPOINT DATABASE

A batch can come twice: if the program dies before Spark's checkpoint has it. Its end is therefore stored in the
transaction of its changes.
"""

import os
import sqlite3
import sys

from pyspark.sql import DataFrame, SparkSession

match sys.argv[1:]:
    case [state, checkpoint, database]:
        pass
    case _:
        sys.exit(__doc__)
os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages that this Python has
TABLES = """
CREATE TABLE IF NOT EXISTS totals (customer INTEGER PRIMARY KEY, orders INTEGER NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS progress (id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER NOT NULL);
INSERT INTO progress VALUES (1, 0) ON CONFLICT DO NOTHING;
"""
ADD = """
INSERT INTO totals VALUES (?, ?, ?)
ON CONFLICT (customer) DO UPDATE SET orders = orders + excluded.orders, cents = cents + excluded.cents
"""
# Needs the whole old row of updates and deletes: ALTER TABLE orders REPLICA IDENTITY FULL.
SUMS = """
SELECT customer, sum(sign) AS orders, CAST(sum(sign * total) * 100 AS BIGINT) AS cents FROM (
  SELECT _seq, -1 AS sign, _before.customer, _before.total FROM {changes} WHERE _before IS NOT NULL
  UNION ALL
  SELECT _seq, 1, _after.customer, _after.total FROM {changes} WHERE _after IS NOT NULL
) WHERE _seq > {after} GROUP BY customer
"""


def add(changes: DataFrame, _batch_id: int) -> None:
    with sqlite3.connect(database) as target:
        (after,) = target.execute("SELECT sequence FROM progress").fetchone()
        sums = changes.sparkSession.sql(SUMS, changes=changes, after=after).collect()
        (end,) = changes.agg({"_seq": "max"}).first()
        target.executemany(ADD, sums)
        target.execute("UPDATE progress SET sequence = max(sequence, ?)", [end or 0])


with sqlite3.connect(database) as new:
    new.executescript(TABLES)
spark = SparkSession.builder.master("local[2]").config("spark.sql.session.timeZone", "UTC").getOrCreate()
orders = (
    spark.readStream.format("tidemark")
    .options(state=state, table="public.orders", reader="customer_totals", columns="before_after")
    .load()
)
query = orders.writeStream.foreachBatch(add).option("checkpointLocation", checkpoint).trigger(availableNow=True)
query.start().awaitTermination()
