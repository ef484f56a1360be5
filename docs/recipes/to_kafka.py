"""The changes in Debezium's form, to a topic of Kafka: python to_kafka.py STATE CHECKPOINT SERVERS TOPIC JARS

JARS is a folder with the jars of Spark's connector for Kafka (README.md). Each key is in one partition of the topic, in
the order of the source. A batch can come twice, and so can its messages: `source.lsn` and `source.txId` identify them.
A message with the op `t`, of a TRUNCATE or before a copy of the table (`source.snapshot`), has the key `{}`, and so one
partition. It removes each row whose last message has a smaller `source.lsn`, also one that is read later.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

match sys.argv[1:]:
    case [state, checkpoint, servers, topic, jars]:
        pass
    case _:
        sys.exit(__doc__)
os.environ["PYSPARK_PYTHON"] = sys.executable  # workers need the packages that this Python has
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", ",".join(map(str, Path(jars).glob("*.jar"))))
    .config("spark.sql.session.timeZone", "UTC")
    .getOrCreate()
)
orders = (
    spark.readStream.format("tidemark")
    .options(state=state, table="public.orders", reader="orders_to_kafka", columns="debezium")
    .load()
)
times = {  # all microseconds: by default, Spark's JSON has the milliseconds only
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
key = f.struct(f.coalesce("after.id", "before.id").alias("id"))
value = f.struct("before", "after", "source", "op", "ts_ms")
messages = orders.coalesce(1).select(  # one task writes the changes in their order
    f.to_json(key, times).alias("key"), f.to_json(value, {**times, "ignoreNullFields": "false"}).alias("value")
)
writer = messages.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
