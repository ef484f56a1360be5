"""`jsonb` (`jsonb.h`, `JsonbToCString`, PG 16): a tree of containers, each a count, entries, then the children's data.

An entry has 32 bits: 28 of length (or, every 32nd, the offset of its end), three of type; the highest bit marks an
offset.
"""

import struct

from tidemark.decode.datum.varlena import BadDatum, inline_payload
from tidemark.decode.types.codec import ColumnKind, Dialect, TextCodec
from tidemark.decode.types.families.numeric import numeric_text

COUNT_MASK = 0x0FFFFFFF
FORM_SHIFT = 28
OBJECT, ARRAY, BARE_SCALAR = 2, 4, 5  # JB_FOBJECT, JB_FARRAY, JB_FARRAY | JB_FSCALAR, of the outermost container only
ENTRY_LENGTH_MASK = 0x0FFFFFFF
ENTRY_TYPE_SHIFT = 28
ENTRY_TYPE_MASK = 7
ENTRY_HAS_OFFSET = 1 << 31
STRING, NUMERIC, FALSE, TRUE, NULL, CONTAINER = range(6)
CONSTANTS = {FALSE: "false", TRUE: "true", NULL: "null"}
ENTRY_BYTES = 4
_U32 = struct.Struct("<I")
_SHORT_ESCAPES = {0x08: "\\b", 0x0C: "\\f", 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x22: '\\"', 0x5C: "\\\\"}
ESCAPES = {code: f"\\u{code:04x}" for code in range(0x20)} | _SHORT_ESCAPES


def quoted(text: str) -> str:
    """Return a JSON string (`escape_json`)."""
    return f'"{text.translate(ESCAPES)}"'


class JsonbCodec(TextCodec):
    """`jsonb`; text in Arrow.

    NB: only the server's stack bounds the nesting (thousands of levels): containers wait in a list, without recursion.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        if dialect.encoding == "utf-8":
            self.kind = ColumnKind.JSONB

    def text(self, payload: bytes) -> str:
        """Return the JSON with a blank after each colon and comma."""
        out: list[str] = []
        pending: list[str | int] = [0]  # to be written, in reverse order: text, or the offset of a container
        try:
            while pending:
                item = pending.pop()
                if isinstance(item, str):
                    out.append(item)
                else:
                    pending.extend(reversed(self._container(payload, item)))
        except struct.error as error:
            raise BadDatum(f"jsonb of {len(payload)} bytes is cut off") from error
        return "".join(out)

    def _container(self, data: bytes, at: int) -> list[str | int]:
        """Return the texts of the container at `at`, with the offsets of child containers between them."""
        (head,) = _U32.unpack_from(data, at)
        count, form = head & COUNT_MASK, head >> FORM_SHIFT
        if form not in {OBJECT, ARRAY} and (form, count, at) != (BARE_SCALAR, 1, 0):
            raise BadDatum(f"jsonb container of {count} that is of kind {form}")
        entries_count = count * 2 if form == OBJECT else count
        if entries_count * ENTRY_BYTES > len(data):
            raise BadDatum(f"jsonb container of {count} in {len(data)} bytes")
        entries = struct.unpack_from(f"<{entries_count}I", data, at + ENTRY_BYTES)
        base = at + ENTRY_BYTES + entries_count * ENTRY_BYTES
        children: list[str | int] = []
        start = 0
        for number, entry in enumerate(entries):
            length = entry & ENTRY_LENGTH_MASK
            end = length if entry & ENTRY_HAS_OFFSET else start + length
            if end < start or base + end > len(data):
                raise BadDatum(f"jsonb child from {start} to {end} in {len(data)} bytes")
            kind = entry >> ENTRY_TYPE_SHIFT & ENTRY_TYPE_MASK
            if kind != STRING and form == OBJECT and number < count:
                raise BadDatum(f"jsonb key of kind {kind}")
            children.append(self._child(data, base + start, base + end, kind))
            start = end
        if form == BARE_SCALAR:
            return children
        texts: list[str | int] = []
        if form == OBJECT:
            for key, value in zip(children[:count], children[count:], strict=True):
                texts += [", " if texts else "{", key, ": ", value]
            return [*texts, "}"] if texts else ["{}"]
        for child in children:
            texts += [", " if texts else "[", child]
        return [*texts, "]"] if texts else ["[]"]

    def _child(self, data: bytes, at: int, end: int, kind: int) -> str | int:
        if kind in CONSTANTS:
            return CONSTANTS[kind]
        if kind == STRING:
            return quoted(self._dialect.decode(data[at:end]))
        aligned = at + -at % ENTRY_BYTES  # numbers and containers; their length includes the padding
        if kind == NUMERIC:
            return numeric_text(inline_payload(data[aligned:end]))
        if kind == CONTAINER:
            return aligned
        raise BadDatum(f"jsonb child of kind {kind}")
