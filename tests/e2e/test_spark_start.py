"""What the start of the pipeline does not do: search for data sources, and parse classes that an archive has."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.jvm import BUILD
from tests.support.processes.spark_process import SparkProcess
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.pipeline.driver.class_archive import FOLDER

SEED = 4
GROUPS = 10
BATCH_BYTES = 60_000
ARCHIVED_MIN = 0.9  # of the classes of Spark that a start loads
IMPORTED = "from pathlib import Path; Path({path!r}).touch()\n"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class ObservedStart:
    """A start with an archive and with a package on Python's path that Spark would find; it wrote all changes."""

    found: Path  # exists if Spark imported the package
    classes: list[str]  # of Spark, that were loaded


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> ObservedStart:
    root = tmp_path_factory.mktemp("start")
    state, found, loaded = root / "state", root / "imported", root / "loaded"
    (root / "path" / "pyspark_other").mkdir(parents=True)
    (root / "path" / "pyspark_other" / "__init__.py").write_text(IMPORTED.format(path=str(found)))
    make_state(state)
    feed(state, RandomTables(SEED).groups(GROUPS))
    # The archive is created by this command for the folder `build`, here or for all tests before them.
    succeeded(cdcctl("spark", "prepare", "--state", str(BUILD), "--if-missing"))
    shutil.copytree(BUILD / FOLDER, state / FOLDER)
    (archive,) = (state / FOLDER).iterdir()
    made = archive.stat()
    succeeded(cdcctl("spark", "prepare", "--state", str(state), "--if-missing"))
    assert archive.stat() == made
    path = os.pathsep.join([str(root / "path"), os.environ.get("PYTHONPATH", "")])
    spark = SparkProcess(state, root / "lake", root / "log", batch_bytes=BATCH_BYTES)
    spark.start("--once", PYTHONPATH=path, SPARK_SUBMIT_OPTS=f"-Xlog:class+load=info:file={loaded}")
    try:
        spark.wait()
    finally:
        spark.end_all()
    assert spark.is_drained()
    return ObservedStart(found, [line for line in loaded.read_text().splitlines() if " org.apache." in line])


def test_the_pipeline_does_not_let_spark_search_for_data_sources(start: ObservedStart) -> None:
    assert not start.found.exists()


def test_a_prepared_start_maps_the_classes_of_spark_from_the_archive(start: ObservedStart) -> None:
    mapped = sum("source: shared objects file" in line for line in start.classes)
    parsed = sum("source: file:" in line for line in start.classes)
    assert mapped >= ARCHIVED_MIN * (mapped + parsed) > 1000, (mapped, parsed)
