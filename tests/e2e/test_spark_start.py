"""What the start of the pipeline does not do."""

import os
from pathlib import Path

import pytest

from tests.support.processes.spark_process import SparkProcess
from tests.support.workloads.feeder import RandomTables, feed, make_state

SEED = 4
GROUPS = 10
BATCH_BYTES = 60_000
IMPORTED = "from pathlib import Path; Path({path!r}).touch()\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_pipeline_does_not_let_spark_search_for_data_sources(tmp_path: Path) -> None:
    found = tmp_path / "imported"
    (tmp_path / "path" / "pyspark_other").mkdir(parents=True)
    (tmp_path / "path" / "pyspark_other" / "__init__.py").write_text(IMPORTED.format(path=str(found)))
    make_state(tmp_path / "state")
    feed(tmp_path / "state", RandomTables(SEED).groups(GROUPS))
    spark = SparkProcess(tmp_path / "state", tmp_path / "lake", tmp_path / "log", batch_bytes=BATCH_BYTES)
    path = os.pathsep.join([str(tmp_path / "path"), os.environ.get("PYTHONPATH", "")])
    spark.start("--once", PYTHONPATH=path)
    try:
        spark.wait()
    finally:
        spark.end_all()
    assert spark.is_drained()
    assert not found.exists()
