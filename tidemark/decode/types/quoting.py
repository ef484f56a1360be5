"""How parts are quoted inside the text of a larger value: rows, ranges and arrays (`record_out` and so on, PG 16)."""

import re
from collections.abc import Callable
from functools import cache

_SPACE = r"\s"  # with re.ASCII what isspace() has in the C locale
ROW_SPECIAL = re.compile(rf'[{_SPACE}"\\(),]', re.ASCII)
RANGE_SPECIAL = re.compile(rf'[{_SPACE}"\\()\[\],]', re.ASCII)


def quoted_part(text: str, special: re.Pattern[str]) -> str:
    """Return `text`, in quotes if it is empty or has one of the `special` characters; quotes and backslashes double."""
    if text and not special.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{escaped}"'


NULL_ELEMENT = "NULL"
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ELEMENT = r'"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^"\\{}DELIMITER]+)|[{}DELIMITER]'


@cache
def element_pattern(delimiter: str) -> re.Pattern[str]:
    """Return what finds the elements of an array's text: groups `quoted` and `plain`."""
    return re.compile(_ELEMENT.replace("DELIMITER", re.escape(delimiter)), re.DOTALL)


@cache
def _array_special(delimiter: str) -> re.Pattern[str]:
    return re.compile(rf'[{_SPACE}"\\{{}}{re.escape(delimiter)}]', re.ASCII)


def quoted_element(text: str, delimiter: str) -> str:
    """Return `text` as an element of an array stands there; unlike in rows, backslashes escape."""
    if text and text.upper() != NULL_ELEMENT and not _array_special(delimiter).search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def told_element(part: re.Match[str]) -> str | None:
    """Return what an element says that `element_pattern` found; None for NULL."""
    if part.lastgroup == "quoted":
        return _ESCAPE.sub(r"\1", part["quoted"])
    return None if part["plain"] == NULL_ELEMENT else part["plain"]


def with_elements(text: str, delimiter: str, tell: Callable[[str], str]) -> str:
    """Return an array's text with each element said otherwise; NULL, dimensions and bounds stay."""

    def retold(part: re.Match[str]) -> str:
        reported = told_element(part) if part.lastgroup else None
        return part[0] if reported is None else quoted_element(tell(reported), delimiter)

    body_at = text.index("{")
    return text[:body_at] + element_pattern(delimiter).sub(retold, text[body_at:])
