"""Every version of each row in a Delta table (SCD 2): python to_delta_scd2.py STATE CHECKPOINT TABLE JARS

A version is valid in [valid_from, valid_to), two commit LSNs; the current one has no valid_to. LSNs are in the order of
the source, which times of commits are not. Of the changes of a row in one transaction only the last is a version. A
new copy of the table begins a new version of each row. Versions that `cdcctl rewind` gave up, of an earlier timeline,
may end before they begin. JARS is a folder with the jars of Delta's connector for Spark 4.2 (README.md). A batch that
comes twice changes nothing.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

match sys.argv[1:]:
    case [state, checkpoint, table, jars]:
        pass
    case _:
        sys.exit(__doc__)
os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages that this Python has
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.shuffle.partitions", "2")  # as many as cores; 200 by default
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
orders = (
    spark.readStream.format("tidemark")
    .options(state=state, table="public.orders", reader="versions_to_delta", columns="before_after")
    .load()
)
columns = orders.select("_after.*").columns
# A large value that an update did not change is only in the old row, with REPLICA IDENTITY FULL.
ROW = ", ".join(
    f"IF(array_contains(_unchanged, '{name}'), _before.{name}, _after.{name}) AS {name}" for name in columns
)
# The state of each key after each transaction: NULL for a row that is gone. A row `t`, of a TRUNCATE or before a new
# copy of the table, removes all that are there.
STATES = f"""
WITH changed AS (
  SELECT _before.id AS key, _tli AS timeline, _commit_lsn AS lsn, struct(_ordinal, 0) AS at,
    IF(false, struct({ROW}), NULL) AS row, _commit_time AS time
  FROM {{changes}} WHERE _before.id IS NOT NULL AND NOT (_before.id <=> _after.id)
  UNION ALL
  SELECT _after.id, _tli, _commit_lsn, struct(_ordinal, 1), struct({ROW}), _commit_time
  FROM {{changes}} WHERE _after IS NOT NULL
), emptied AS (
  SELECT key, _tli, _commit_lsn, struct(_ordinal, 0), NULL, _commit_time FROM {{changes}} CROSS JOIN (
    SELECT key FROM changed UNION SELECT id FROM delta.`{table}` WHERE valid_to IS NULL
  ) WHERE _op = 't'
)
SELECT key, timeline, lsn, max_by(struct(row), at).row AS row, max(time) AS time
FROM (SELECT * FROM changed UNION ALL SELECT * FROM emptied) GROUP BY key, timeline, lsn
"""
VERSIONS = """
SELECT *, lead(lsn) OVER (PARTITION BY key ORDER BY timeline, lsn) AS next_lsn,
  lag(lsn) OVER (PARTITION BY key ORDER BY timeline, lsn) IS NULL AS is_first
FROM {states}
"""
MERGE = f"""
MERGE INTO delta.`{table}` AS t USING (
  SELECT key, timeline, lsn, lsn AS end_lsn, NULL AS row, time, true AS closes FROM {{versions}} WHERE is_first
  UNION ALL
  SELECT key, timeline, lsn, next_lsn, row, time, false FROM {{versions}} WHERE row IS NOT NULL
) AS s
ON t.id = s.key AND IF(s.closes,
  t.valid_to IS NULL AND struct(t.timeline, t.valid_from) < struct(s.timeline, s.lsn),
  t.timeline = s.timeline AND t.valid_from = s.lsn)
WHEN MATCHED THEN UPDATE SET valid_to = coalesce(t.valid_to, s.end_lsn)
WHEN NOT MATCHED AND NOT s.closes THEN INSERT ({", ".join(columns)}, timeline, valid_from, valid_to, changed_at)
  VALUES ({", ".join(f"s.row.{name}" for name in columns)}, s.timeline, s.lsn, s.end_lsn, s.time)
"""


def merge(changes: DataFrame, _batch_id: int) -> None:
    run = changes.sparkSession.sql
    run(MERGE, versions=run(VERSIONS, states=run(STATES, changes=changes)))


empty = orders.selectExpr(
    "_after.*", "_tli AS timeline", "_commit_lsn AS valid_from", "_commit_lsn AS valid_to", "_commit_time AS changed_at"
)
spark.createDataFrame([], empty.schema).write.format("delta").mode("ignore").save(table)
query = orders.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint).trigger(availableNow=True)
query.start().awaitTermination()
