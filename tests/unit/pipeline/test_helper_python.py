"""The Python of Spark's helpers: PySpark comes from its installation, not from the zip file that Spark adds."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tidemark.pipeline.driver.helper_python import helper_python

PRINT = "import pyspark, sys; print(pyspark.__file__); print(sys.executable); print(sys.argv[1:])"


def test_a_helper_imports_pyspark_with_its_byte_code(tmp_path: Path) -> None:
    installed = Path(pyspark.__file__).parent
    zipped = installed / "python" / "lib" / "pyspark.zip"
    assert zipped.exists(), "Spark puts it first in PYTHONPATH"
    path = os.pathsep.join([str(installed.parent), str(tmp_path / "it's here")])
    program = helper_python(path, tmp_path)
    environment = {**os.environ, "PYTHONPATH": f"{zipped}{os.pathsep}{path}"}
    done = subprocess.run(
        [program, "-c", PRINT, "a b"], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [pyspark.__file__, sys.executable, "['a b']"]


def test_a_folder_from_which_nothing_can_run_leaves_the_running_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert helper_python("", tmp_path) == sys.executable
