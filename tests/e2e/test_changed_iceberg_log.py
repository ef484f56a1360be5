"""A log of Iceberg tables that another writer changed: a copy is refused, and a rollback lets the pipeline continue."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.lakes.iceberg import iceberg_rows, iceberg_table
from tests.support.processes.captures import Sidecar, initialised
from tests.support.processes.cdcctl import Done, cdcctl, refused, succeeded
from tests.support.processes.spark import SparkJvm
from tests.support.servers.postgres import Cluster
from tidemark.model.errors import ExitCode

pytestmark = [
    pytest.mark.feature("L14"),
    pytest.mark.feature("I30"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("forked"),
]
PIPELINE = (sys.executable, "-m", "tidemark.pipeline")  # what `cdcctl spark run` executes


def run_pipeline(sidecar: Sidecar, lake: Path, jvm: SparkJvm) -> Done:
    sidecar.catch_up()
    options = ("--master", "local[2]", "--once", "--no-metrics", "--log-format", "console", "--format", "iceberg")
    where = ("--state", sidecar.folder.root, "--lake", lake)
    return cdcctl(*where, *options, program=PIPELINE, **sidecar.options, **jvm.lend())


def test_a_copy_is_refused_until_the_log_is_rolled_back_to_the_named_snapshot(
    cluster: Cluster, database: str, tmp_path: Path, jvm: SparkJvm
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY); INSERT INTO item VALUES (1)", database)
    lake, folder = tmp_path / "lake", f"{database}/public/item"
    with initialised(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.start()
        succeeded(run_pipeline(sidecar, lake, jvm))
        foreign = iceberg_table(lake, folder)
        foreign.append(foreign.scan().to_arrow())
        cluster.sql("INSERT INTO item VALUES (2)", database)
        assert "another writer" in run_pipeline(sidecar, lake, jvm).err
        recopy = ("table", "recopy", "--state", sidecar.folder.root, "item")
        refusal = cdcctl(*recopy, **sidecar.options)
        refused(refusal, ExitCode.CONFIG, f"the lake {lake} is not written", "changed by another writer")
        named = re.search(r"rollback_to_snapshot\((\d+)\)", refusal.err)
        assert named is not None
        assert "item log: changed" in succeeded(cdcctl("status", "--state", sidecar.folder.root)).out.decode()
        iceberg_table(lake, folder).manage_snapshots().rollback_to_snapshot(int(named[1])).commit()
        succeeded(run_pipeline(sidecar, lake, jvm))
        assert [(row["_op"], row["id"]) for row in iceberg_rows(lake, folder)] == [("c", 1), ("i", 2)]
        succeeded(cdcctl(*recopy, **sidecar.options))
        succeeded(run_pipeline(sidecar, lake, jvm))
        assert [(row["_op"], row["id"]) for row in iceberg_rows(lake, folder)[2:]] == [("c", 1), ("c", 2)]
