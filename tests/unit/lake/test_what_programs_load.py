"""The packages that the programs of lake commands load at their start."""

import subprocess
import sys

PROGRAM = """
import sys
from pyspark_tidemark import backup_replay, earlier_changes, missed_changes
assert "pyspark" not in sys.modules
from pyspark_tidemark import DefaultSource
print(DefaultSource.name())
"""


def test_programs_that_start_no_spark_load_none_and_spark_finds_its_format_beside_them() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stdout == "tidemark\n", done.stderr
