"""The modules that Spark's helpers load for a query: three processes load them before the first batch."""

import subprocess
import sys
from pathlib import Path

from tests.support.workloads.feeder import RandomTables, feed, make_state

PROGRAM = """
import pickle
import sys

import pyspark.sql.streaming.python_streaming_source_runner
import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.plan_data_source_read

before = set(sys.modules)
from tidemark.pipeline.source.format import OutboxSource

source = pickle.loads(pickle.dumps(OutboxSource({"state": sys.argv[1], "startingSequence": "0"})))
reader = source.streamReader(source.schema())
start, end = reader.initialOffset(), reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
assert sum(batch.num_rows for part in reader.partitions(start, end) for batch in reader.read(part))
print(*sorted((set(sys.modules) - before) & set(sys.argv[2:])))
"""
# Modules that only a log, a server of the outbox, or rows in the form of Debezium need.
NOT_LOADED = ("asyncio", "importlib.metadata", "pyarrow._flight", "rich", "ssl", "structlog")


def test_helpers_of_a_query_of_a_state_folder_load_no_module_of_other_queries(tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    feed(tmp_path / "state", RandomTables(1).groups(3))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "state"), *NOT_LOADED, "lmdb"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["lmdb"], "")
