"""The page of features: each citation has a row, each row a test, and the list of tests is current."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "features_page.py"


def test_each_cited_feature_has_a_row_and_each_row_has_its_tests() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr or "run .venv/bin/python scripts/features_page.py"
