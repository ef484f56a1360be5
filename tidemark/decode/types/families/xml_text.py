"""`xml` (`xml_out`, PG 16): stored as written, printed without the encoding in its declaration.

The declaration is generated again, and omitted if it contains only version 1.0. If none is printed, one newline
after it, or at the start, is omitted too.
"""

import re

from tidemark.decode.types.codec import Dialect, TextCodec

DEFAULT_VERSION = "1.0"
_SPACE = "[ \t\r\n]"
_DECLARATION = re.compile(
    rf"<\?xml{_SPACE}+version{_SPACE}*={_SPACE}*(?P<q>['\"])(?P<version>.*?)(?P=q)"
    rf"(?:{_SPACE}+encoding{_SPACE}*={_SPACE}*(?P<e>['\"]).*?(?P=e))?"
    rf"(?:{_SPACE}+standalone{_SPACE}*={_SPACE}*(?P<s>['\"])(?P<standalone>yes|no)(?P=s))?{_SPACE}*\?>"
)


class XmlCodec(TextCodec):
    """`xml`."""

    note = "as PostgreSQL prints it: the declaration without the encoding"

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the document with its declaration as the server prints it."""
        text = self._dialect.decode(payload)
        found = _DECLARATION.match(text)
        rest = text[found.end() :] if found else text
        version = found["version"] if found else DEFAULT_VERSION
        standalone = found["standalone"] if found else None
        if version == DEFAULT_VERSION and standalone is None:
            return rest.removeprefix("\n")
        return f'<?xml version="{version}"' + (f' standalone="{standalone}"' if standalone else "") + "?>" + rest
