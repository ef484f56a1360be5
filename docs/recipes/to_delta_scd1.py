"""The current rows as a Delta table, by Delta's connector: python to_delta_scd1.py STATE CHECKPOINT TABLE JARS

JARS is a folder with the jars of Delta's connector for Spark 4.2 (README.md). A batch that comes twice changes nothing.
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
    .options(state=state, table="public.orders", reader="orders_to_delta", columns="before_after")
    .load()
)
columns = orders.select("_after.*").columns
# A large value that an update did not change is only in the old row, with REPLICA IDENTITY FULL.
ROW = ", ".join(
    f"IF(array_contains(_unchanged, '{name}'), _before.{name}, _after.{name}) AS {name}" for name in columns
)
# The last change of each key after the last row `t`, of a TRUNCATE or before a new copy of the table. A row whose key
# changes is deleted under the old one.
LAST = f"""
SELECT key, max_by(struct(is_deleted, row), at) AS last FROM (
  SELECT _before.id AS key, true AS is_deleted, struct({ROW}) AS row, array(_tli, _commit_lsn, _ordinal, 0) AS at
  FROM {{changes}} WHERE _before.id IS NOT NULL AND NOT (_before.id <=> _after.id)
  UNION ALL
  SELECT _after.id, false, struct({ROW}), array(_tli, _commit_lsn, _ordinal, 1)
  FROM {{changes}} WHERE _after IS NOT NULL
) WHERE at > array({{timeline}}L, {{lsn}}L, {{ordinal}}L, 2L) GROUP BY key
"""
MERGE = f"""
MERGE INTO delta.`{table}` USING {{last}} ON id = key
WHEN MATCHED AND last.is_deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET {", ".join(f"{name} = last.row.{name}" for name in columns)}
WHEN NOT MATCHED AND NOT last.is_deleted
  THEN INSERT ({", ".join(columns)}) VALUES ({", ".join(f"last.row.{name}" for name in columns)})
"""


def merge(changes: DataFrame, _batch_id: int) -> None:
    run = changes.sparkSession.sql
    emptied = run(
        "SELECT max(struct(_tli, _commit_lsn, _ordinal)) AS at FROM {changes} WHERE _op = 't'", changes=changes
    ).first()
    timeline, lsn, ordinal = emptied.at or (0, 0, -1)
    if emptied.at:
        run(f"DELETE FROM delta.`{table}`")
    run(MERGE, last=run(LAST, changes=changes, timeline=timeline, lsn=lsn, ordinal=ordinal))


spark.createDataFrame([], orders.select("_after.*").schema).write.format("delta").mode("ignore").save(table)
query = orders.writeStream.foreachBatch(merge).option("checkpointLocation", checkpoint).trigger(availableNow=True)
query.start().awaitTermination()
