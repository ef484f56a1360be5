"""Plug-ins of tests. The packages in `examples/` become importable, here and in the daemons that import a plug-in."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[3] / "examples"

sys.path += [str(EXAMPLES / "tidemark-sqlite"), str(EXAMPLES / "tidemark-email-domain")]
