"""What the start of the pipeline does not do: search for data sources, and parse classes that an archive has."""

import os
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.spark_process import SparkProcess
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.pipeline.driver.class_archive import FOLDER

SEED = 4
GROUPS = 10
BATCH_BYTES = 60_000
ARCHIVED_MIN = 0.9  # of the classes of Spark that a start loads
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


def test_a_prepared_start_maps_the_classes_of_spark_from_the_archive(tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    feed(tmp_path / "state", RandomTables(SEED).groups(GROUPS))
    succeeded(cdcctl("spark", "prepare", "--state", str(tmp_path / "state"), "--if-missing"))
    (archive,) = (tmp_path / "state" / FOLDER).iterdir()
    made = archive.stat()
    succeeded(cdcctl("spark", "prepare", "--state", str(tmp_path / "state"), "--if-missing"))
    assert archive.stat() == made
    loaded = tmp_path / "loaded"
    spark = SparkProcess(tmp_path / "state", tmp_path / "lake", tmp_path / "log", batch_bytes=BATCH_BYTES)
    spark.start("--once", SPARK_SUBMIT_OPTS=f"-Xlog:class+load=info:file={loaded}")
    try:
        spark.wait()
    finally:
        spark.end_all()
    assert spark.is_drained()
    classes = [line for line in loaded.read_text().splitlines() if " org.apache." in line]
    mapped = sum("source: shared objects file" in line for line in classes)
    parsed = sum("source: file:" in line for line in classes)
    assert mapped >= ARCHIVED_MIN * (mapped + parsed) > 1000, (mapped, parsed)
