"""Names of an earlier version that users' files contain: units and postgresql.conf name modules."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("name", ["sidecar", "archiver", "archiver.archive_command"])
def test_an_earlier_name_runs_the_same_program(name: str) -> None:
    present = name.replace("archiver.", "tidemark_archiver.") if "." in name else f"tidemark_{name}"
    earlier, now = (
        subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
        for module in (name, present)
    )
    assert earlier.stdout.partition("\n")[2] == now.stdout.partition("\n")[2]  # after the name of the program
    assert "--s" in earlier.stdout
    assert ("deprecated: use python -m tidemark_" in earlier.stderr) is ("." not in name)
    assert now.stderr == ""
