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
# The last row `t`, of a TRUNCATE or before a new copy of the table: it removes all orders before it.
EMPTIED = "SELECT max(struct(_tli, _commit_lsn, _ordinal)) AS at FROM {changes} WHERE _op = 't' AND _seq > {after}"
# Needs the whole old row of updates and deletes: ALTER TABLE orders REPLICA IDENTITY FULL.
SUMS = """
WITH changed AS (
  SELECT * FROM {changes}
  WHERE _seq > {after} AND array(_tli, _commit_lsn, _ordinal) > array({timeline}L, {lsn}L, {ordinal}L)
)
SELECT customer, sum(sign) AS orders, CAST(sum(sign * total) * 100 AS BIGINT) AS cents FROM (
  SELECT -1 AS sign, _before.customer, _before.total FROM changed WHERE _before IS NOT NULL
  UNION ALL
  SELECT 1, _after.customer, _after.total FROM changed WHERE _after IS NOT NULL
) GROUP BY customer
"""


def add(changes: DataFrame, _batch_id: int) -> None:
    with sqlite3.connect(database) as target:
        (after,) = target.execute("SELECT sequence FROM progress").fetchone()
        run = changes.sparkSession.sql
        (emptied,) = run(EMPTIED, changes=changes, after=after).first()
        timeline, lsn, ordinal = emptied or (0, 0, -1)
        sums = run(SUMS, changes=changes, after=after, timeline=timeline, lsn=lsn, ordinal=ordinal).collect()
        (end,) = changes.agg({"_seq": "max"}).first()
        if emptied:
            target.execute("DELETE FROM totals")
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
