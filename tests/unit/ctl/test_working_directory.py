"""Programs that `cdcctl` starts do not import files of the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemark.model.errors import ExitCode

ABSENT = "absent"


@pytest.mark.parametrize(
    "command",
    [
        ["run", "sidecar", "--state", ABSENT],
        ["run", "archiver", "--state", ABSENT],
        ["run", "server", "--state", ABSENT],
        ["lake", "list", "--lake", ABSENT],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_program_does_not_import_files_of_the_working_directory(command: list[str], tmp_path: Path) -> None:
    (tmp_path / "tidemark.py").write_text("raise SystemExit('imported from the working directory')")
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tidemark_ctl", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (ExitCode.CONFIG, ExitCode.STATE), done.stderr
    assert ABSENT in done.stderr
