"""docs/types.md agrees with the codecs."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "types_page.py"


def test_the_page_of_types_is_current() -> None:
    checked = subprocess.run([sys.executable, SCRIPT, "--check"], check=False, timeout=60)
    assert checked.returncode == 0, "run .venv/bin/python scripts/types_page.py"
