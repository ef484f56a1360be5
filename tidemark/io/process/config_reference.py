"""Where the description of every key of the configuration is: in a clone, or in an environment with the package."""

import sys
from collections.abc import Iterable
from pathlib import Path

NAME = Path("conf", "tidemark.toml")
PLACES = (Path(__file__).parents[3], Path(sys.prefix, "share", "tidemark"))  # `[tool.setuptools.data-files]`


def reference_in(places: Iterable[Path]) -> str:
    """Return the path of the description below the first place that has it; its name if none has it."""
    return str(next((place / NAME for place in places if (place / NAME).is_file()), NAME))


CONFIG_REFERENCE = reference_in(PLACES)
