"""AUTO CDC over the typed source, as far as it goes without a jar: the formats of Spark itself refuse the flow."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged import groups
from tests.support.workloads.feeder import feed, make_state

ROOT = Path(__file__).parents[3]
SPEC = """
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""
RUN_S = 300
REFUSAL = "[AUTOCDC_TARGET_DOES_NOT_SUPPORT_MERGE]"


@pytest.mark.timeout(400)
def test_a_target_of_sparks_own_refuses_auto_cdc_by_name(tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    relation = replace(groups.text_relation("customer", "total", "placed_at", "note"), name="orders")
    feed(tmp_path / "state", [groups.insert(100, relation, "1", "2", "3", "4")])
    (tmp_path / "transformations").mkdir()
    shutil.copy(ROOT / "docs" / "recipes" / "auto_cdc.py", tmp_path / "transformations")
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    python = sys.executable
    settings = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [Path(python).parent / "spark-pipelines", "run", "--spec", tmp_path / "spark-pipeline.yml"],
        cwd=tmp_path,
        env={**os.environ, **settings, "STATE": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert REFUSAL in said, said[-4000:]
    assert "the target table `spark_catalog`.`default`.`orders` (format: parquet)" in said
