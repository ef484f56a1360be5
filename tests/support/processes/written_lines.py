"""Lines of files that another process writes."""

from pathlib import Path


def complete_lines(file: Path) -> list[str]:
    """Return the complete lines; without a file, none: a reader may see a part of a write, and a kill may cut one."""
    text = file.read_text() if file.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
