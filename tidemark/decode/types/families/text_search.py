"""`tsvector` and `tsquery` (`ts_type.h`, `tsvectorout`, `tsqueryout`, PG 16)."""

import struct

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import Dialect, TextCodec

ENTRY_BYTES = 4
HAS_POSITIONS = 1
LENGTH_SHIFT, LENGTH_MASK = 1, 0x7FF
POSITION_SHIFT = 12
POSITION_MASK = 0x3FFF
WEIGHT_SHIFT = 14
WEIGHT_LETTERS = ("", "C", "B", "A")  # of a position: D is not shown
ITEM = struct.Struct("<bBbxiI")  # QueryOperand: type, weight, prefix, crc, length and distance
OPERATOR = struct.Struct("<bbhI4x")  # QueryOperator: type, oper, distance, left
OPERAND_LENGTH_BITS = 12
IS_OPERAND, IS_OPERATOR = 1, 2
NOT, AND, OR, PHRASE = 1, 2, 3, 4
PRIORITY = {NOT: 4, AND: 2, OR: 1, PHRASE: 3}  # tsearch_op_priority
OPERAND_PRIORITY = 5
QUERY_WEIGHTS = ((8, "A"), (4, "B"), (2, "C"), (1, "D"))
_COUNT = struct.Struct("<i")
_U16 = struct.Struct("<H")


def quoted_lexeme(text: str) -> str:
    """Return a lexeme in quotes; quotes and backslashes are doubled."""
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


class TsvectorCodec(TextCodec):
    """`tsvector`: lexemes in order, each with its positions."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the lexemes, separated by blanks."""
        count = _count(payload, ENTRY_BYTES)
        texts_at = _COUNT.size + count * ENTRY_BYTES
        entries = struct.unpack_from(f"<{count}I", payload, _COUNT.size)
        return " ".join(self._lexeme(payload, texts_at, entry) for entry in entries)

    def _lexeme(self, payload: bytes, texts_at: int, entry: int) -> str:
        place, length = entry >> POSITION_SHIFT, entry >> LENGTH_SHIFT & LENGTH_MASK
        end = place + length
        if texts_at + end > len(payload):
            raise BadDatum(f"lexeme ends at byte {texts_at + end} of {len(payload)}")
        text = quoted_lexeme(self._dialect.decode(payload[texts_at + place : texts_at + end]))
        if not entry & HAS_POSITIONS:
            return text
        try:
            at = texts_at + end + end % 2
            (count,) = _U16.unpack_from(payload, at)
            positions = struct.unpack_from(f"<{count}H", payload, at + 2)
        except struct.error as error:
            raise BadDatum(f"positions of a lexeme are cut off after {len(payload)} bytes") from error
        shown = (f"{position & POSITION_MASK}{WEIGHT_LETTERS[position >> WEIGHT_SHIFT]}" for position in positions)
        return f"{text}:{','.join(shown)}"


class _QueryTerm:
    """A part of a query: its text, in pieces that are joined once, and what determines its parentheses."""

    __slots__ = ("operator", "pieces", "priority")

    def __init__(self, pieces: "list[str | _QueryTerm]", priority: int, operator: int = 0) -> None:
        self.pieces = pieces
        self.priority = priority
        self.operator = operator

    def inside(self, parent: int, *, right: bool) -> "list[str | _QueryTerm]":
        """Return the term as an argument of the operator `parent`."""
        phrase_on_the_right = right and parent == PHRASE and self.operator == PHRASE
        if self.priority < PRIORITY[parent] or phrase_on_the_right:
            return ["( ", self, " )"]
        return [self]

    def text(self) -> str:
        """Return the complete text. NB: a query of thousands of operators is nested as deep: no recursion."""
        out: list[str] = []
        pending: list[str | _QueryTerm] = [self]
        while pending:
            piece = pending.pop()
            if isinstance(piece, str):
                out.append(piece)
            else:
                pending.extend(reversed(piece.pieces))
        return "".join(out)


class TsqueryCodec(TextCodec):
    """`tsquery`: operators before their arguments, the right one first."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the query with the fewest parentheses that its operators need."""
        count = _count(payload, ITEM.size)
        if count == 0:
            return ""
        texts_at = _COUNT.size + count * ITEM.size
        terms: list[_QueryTerm] = []
        for at in range(texts_at - ITEM.size, 0, -ITEM.size):
            kind = payload[at]
            if kind == IS_OPERAND:
                terms.append(self._operand(payload, at, texts_at))
            elif kind == IS_OPERATOR:
                terms.append(_operator(payload, at, terms))
            else:
                raise BadDatum(f"item of kind {kind} in a tsquery")
        if len(terms) != 1:
            raise BadDatum(f"tsquery of {len(terms)} queries")
        return terms[0].text()

    def _operand(self, payload: bytes, at: int, texts_at: int) -> _QueryTerm:
        _, weights, prefix, _, place = ITEM.unpack_from(payload, at)
        start = texts_at + (place >> OPERAND_LENGTH_BITS)
        end = start + (place & (1 << OPERAND_LENGTH_BITS) - 1)
        if end > len(payload):
            raise BadDatum(f"operand of a tsquery ends at byte {end} of {len(payload)}")
        text = quoted_lexeme(self._dialect.decode(payload[start:end]))
        if weights or prefix:
            letters = "".join(letter for bit, letter in QUERY_WEIGHTS if weights & bit)
            text += f":{'*' * bool(prefix)}{letters}"
        return _QueryTerm([text], OPERAND_PRIORITY)


def _operator(payload: bytes, at: int, terms: list[_QueryTerm]) -> _QueryTerm:
    """Return the operator at `at` over the last of `terms`, which are removed."""
    _, operator, distance, _ = OPERATOR.unpack_from(payload, at)
    if operator not in PRIORITY or len(terms) < (1 if operator == NOT else 2):
        raise BadDatum(f"operator {operator} over {len(terms)} operands in a tsquery")
    right = terms.pop()
    if operator == NOT:
        return _QueryTerm(["!", *right.inside(NOT, right=False)], PRIORITY[NOT], NOT)
    left = terms.pop()
    sign = {AND: "&", OR: "|", PHRASE: "<->" if distance == 1 else f"<{distance}>"}[operator]
    pieces = [*left.inside(operator, right=False), f" {sign} ", *right.inside(operator, right=True)]
    return _QueryTerm(pieces, PRIORITY[operator], operator)


def _count(payload: bytes, item_bytes: int) -> int:
    """Return the number of items in the header of a vector or query."""
    if len(payload) < _COUNT.size:
        raise BadDatum(f"text search value of {len(payload)} bytes is cut off")
    count = int(_COUNT.unpack_from(payload)[0])
    if count < 0 or _COUNT.size + count * item_bytes > len(payload):
        raise BadDatum(f"text search value of {count} items in {len(payload)} bytes")
    return count
