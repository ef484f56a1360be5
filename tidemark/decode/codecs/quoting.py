"""How parts are quoted inside the text of a larger value: rows (`record_out`) and ranges (`range_out`, PG 16)."""

import re

_SPACE = r"\s"  # with re.ASCII what isspace() has in the C locale
ROW_SPECIAL = re.compile(rf'[{_SPACE}"\\(),]', re.ASCII)
RANGE_SPECIAL = re.compile(rf'[{_SPACE}"\\()\[\],]', re.ASCII)


def quoted_part(text: str, special: re.Pattern[str]) -> str:
    """Return `text`, in quotes if it is empty or has one of the `special` characters; quotes and backslashes double."""
    if text and not special.search(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '""')
    return f'"{escaped}"'
