"""Plug-ins of tests. The packages in `examples/` become importable, here and in the daemons that import a plug-in."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "examples" / "tidemark-sqlite"))
