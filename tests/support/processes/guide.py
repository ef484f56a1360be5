"""The programs of a page of the guide, exactly as printed there."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(page: str) -> dict[str, str]:
    """Return the Python blocks of a page by the heading above each; with a number after the first under a heading."""
    text = (DOCS / page).read_text()
    found: dict[str, str] = {}
    for block in _PROGRAM.finditer(text):
        heading = re.findall(r"^## (.+)$", text[: block.start()], re.MULTILINE)[-1]
        number = sum(name.split(" #")[0] == heading for name in found) + 1
        found[heading if number == 1 else f"{heading} #{number}"] = block[1]
    return found
