"""The page of the stage table agrees with the table."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "mode_page.py"


def test_the_architecture_page_draws_the_table_as_it_is() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert checked.returncode == 0, "run .venv/bin/python scripts/mode_page.py"
