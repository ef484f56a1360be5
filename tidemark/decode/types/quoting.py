"""Quoting of parts inside the text of a larger value: rows, ranges and arrays (`record_out` etc., PG 16)."""

import re
from collections.abc import Callable
from functools import cache

_SPACE = r"\s"  # with re.ASCII, equal to isspace() in the C locale
ROW_SPECIAL = re.compile(rf'[{_SPACE}"\\(),]', re.ASCII)
RANGE_SPECIAL = re.compile(rf'[{_SPACE}"\\()\[\],]', re.ASCII)


def quoted_part(text: str, special: re.Pattern[str]) -> str:
    """Return `text`, in quotes if it is empty or has a `special` character; quotes and backslashes are doubled."""
    if text and not special.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{escaped}"'


NULL_ELEMENT = "NULL"
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ELEMENT = r'"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^"\\{}DELIMITER]+)|[{}DELIMITER]'


@cache
def element_pattern(delimiter: str) -> re.Pattern[str]:
    """Return a pattern for the elements of an array's text: groups `quoted` and `plain`."""
    return re.compile(_ELEMENT.replace("DELIMITER", re.escape(delimiter)), re.DOTALL)


@cache
def _array_special(delimiter: str) -> re.Pattern[str]:
    return re.compile(rf'[{_SPACE}"\\{{}}{re.escape(delimiter)}]', re.ASCII)


def quoted_element(text: str, delimiter: str) -> str:
    """Return `text` as an element in an array's text; unlike in rows, a backslash is the escape character."""
    if text and text.upper() != NULL_ELEMENT and not _array_special(delimiter).search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def unquoted_element(part: re.Match[str]) -> str | None:
    """Return the unquoted text of an element that `element_pattern` found; None for NULL."""
    if part.lastgroup == "quoted":
        return _ESCAPE.sub(r"\1", part["quoted"])
    return None if part["plain"] == NULL_ELEMENT else part["plain"]


def with_elements(text: str, delimiter: str, convert: Callable[[str], str]) -> str:
    """Return an array's text with each element replaced; NULL, dimensions and bounds are kept."""

    def converted(part: re.Match[str]) -> str:
        element = unquoted_element(part) if part.lastgroup else None
        return part[0] if element is None else quoted_element(convert(element), delimiter)

    body_at = text.index("{")
    return text[:body_at] + element_pattern(delimiter).sub(converted, text[body_at:])
