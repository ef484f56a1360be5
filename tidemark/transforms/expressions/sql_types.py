"""Types of the values in an expression: what PostgreSQL compares of a column whose Arrow type is that of another one.

Many types are text or bytes in Arrow (docs/types.md), and two texts of one value can differ: trailing spaces of a
`character(n)`, digits of a `numeric`, letters of a `citext`. A literal in quotes gets the type of the value beside it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import Enum

import pyarrow as pa

from tidemark.model.relation import TypeDescription, TypeKind

UTC = pa.timestamp("us", tz="UTC")
NAIVE = pa.timestamp("us")


class ComparedAs(Enum):
    """How values of a type are compared."""

    PLAIN = "as Arrow compares its type, except NaN"
    TEXT = "equality by characters; the order is that of a collation"
    PADDED = "as text without trailing spaces"
    NUMERIC = "text of a number with any digits, NaN or an infinity"
    ENUM = "equality by label, the order by position"
    UUID = "text in one form"
    BYTES = "byte after byte"
    ONE_TEXT = "equal exactly if the texts are; a literal could have another text"
    OPAQUE = "equal values can have different texts"


_OF_TEXTS = {
    **dict.fromkeys(("text", "varchar", "name"), ComparedAs.TEXT),
    # A number as text: a transform made it so.
    **dict.fromkeys(("int2", "int4", "int8", "float4", "float8", "bool", "oid", "xid", "cid", "xid8"), ComparedAs.TEXT),
    **dict.fromkeys(("inet", "cidr", "macaddr", "macaddr8", "bit", "varbit", "pg_lsn", "bytea"), ComparedAs.ONE_TEXT),
    **dict.fromkeys(
        ("date", "timestamp", "timestamptz", "money"), ComparedAs.ONE_TEXT
    ),  # text by the section `[types]`
    "bpchar": ComparedAs.PADDED,
    "numeric": ComparedAs.NUMERIC,
    "uuid": ComparedAs.UUID,
}
_PRINTED_OTHERWISE = {"money", "time", "interval"}  # and the types `reg...`: their text is not that of the Arrow value
_HINTS = {
    "citext": "cast it, and compare as it does: lower(column::text)",
    "money": "cast it: column::numeric",
}
_TRUTHS = {
    **dict.fromkeys(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"), True),
    **dict.fromkeys(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"), False),
}
_UUID = re.compile(r"\{?((?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})\}?")
_HEX_BYTES = re.compile(r"\\x(?:[0-9a-fA-F]{2}|[ \n\t\r])*")
_ESCAPED_BYTES = re.compile(r"(?:[^\\]|\\\\|\\[0-3][0-7]{2})*", re.DOTALL)
_ESCAPE = re.compile(rb"\\(\\|[0-7]{3})")
SPACES = " \t\n\v\f\r"


class UnfitType(Exception):
    """A literal or an operand does not fit; `hint` says what does."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class SqlType:
    """The type of a value in an expression."""

    arrow: pa.DataType
    kind: ComparedAs = ComparedAs.PLAIN
    name: str = ""  # in SQL, of a column
    labels: tuple[str, ...] = ()  # of an enum, in order
    is_ordered: bool = False  # of a text: by its bytes, as the collation "C"

    def __str__(self) -> str:
        return str(self.arrow) if self.kind in (ComparedAs.PLAIN, ComparedAs.TEXT) or not self.name else self.name

    @property
    def is_number(self) -> bool:
        """Return whether it has arithmetic here: PostgreSQL's own for `money` is another one, and `time` has none."""
        is_plain = self.kind is ComparedAs.PLAIN and is_number(self.arrow)
        return is_plain and not _is_printed_otherwise(self.name)

    @property
    def has_text(self) -> bool:
        """Return whether its Arrow value tells PostgreSQL's text of it."""
        if self.kind in (ComparedAs.BYTES, ComparedAs.PLAIN):
            is_rounded = self.name == "numeric" and pa.types.is_floating(self.arrow)
            return self.kind is ComparedAs.PLAIN and not (is_rounded or _is_printed_otherwise(self.name))
        return is_text(self.arrow)

    @property
    def is_oid(self) -> bool:
        """Return whether PostgreSQL takes a negative integer beside it for an unsigned one."""
        return self.name == "oid" or self.name.startswith("reg")

    @property
    def has_mask(self) -> bool:
        """Return whether a cast to text adds the length of the network mask."""
        return self.name == "inet"


def plain(arrow: pa.DataType) -> SqlType:
    """Return the type that values of an Arrow type have if nothing else is known of them."""
    if is_text(arrow):
        return SqlType(arrow, ComparedAs.TEXT)
    return SqlType(arrow, ComparedAs.BYTES if pa.types.is_binary(arrow) else ComparedAs.PLAIN)


def type_of_column(described: TypeDescription | None, arrow: pa.DataType) -> SqlType:
    """Return the type of a column; `described`: None if its values are not those of the source."""
    if described is None:
        return plain(arrow)
    base = described.ultimate()
    is_own = base.namespace == "pg_catalog" and base.kind is TypeKind.BASE
    name = base.name if is_own else base.display_name
    if is_text(arrow):
        if base.kind is TypeKind.ENUM:
            return SqlType(arrow, ComparedAs.ENUM, name, tuple(each.label for each in base.labels))
        kind = _OF_TEXTS.get(name, ComparedAs.OPAQUE) if is_own else ComparedAs.OPAQUE
        return SqlType(arrow, kind, "character(n)" if kind is ComparedAs.PADDED else name, is_ordered=name == "name")
    if pa.types.is_binary(arrow):
        return SqlType(arrow, ComparedAs.BYTES if name == "bytea" else ComparedAs.OPAQUE, name)
    return SqlType(arrow, ComparedAs.OPAQUE if name == "interval" else ComparedAs.PLAIN, name)


def is_text(arrow: pa.DataType) -> bool:
    """Return whether an Arrow type has text."""
    return bool(pa.types.is_string(arrow) or pa.types.is_large_string(arrow))


def is_number(arrow: pa.DataType) -> bool:
    """Return whether an Arrow type has numbers."""
    return bool(pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow))


def literal_of(text: str, wanted: SqlType) -> pa.Scalar:
    """Return a literal in quotes as a value of the type beside it, as PostgreSQL reads it. Raise `UnfitType`."""
    if wanted.kind in (ComparedAs.ONE_TEXT, ComparedAs.OPAQUE):
        raise UnfitType(f"a literal of {wanted} cannot be compared", hint_of(wanted))
    try:
        return _read(text, wanted)
    except (ValueError, InvalidOperation, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UnfitType(f"'{text}' is not a valid {wanted}", _hint_of_literal(wanted)) from None


def _read(text: str, wanted: SqlType) -> pa.Scalar:
    if wanted.kind is ComparedAs.PLAIN:
        return plain_literal(text, wanted.arrow)
    if wanted.kind is ComparedAs.BYTES:
        return pa.scalar(_bytes(text), wanted.arrow)
    match wanted.kind:
        case ComparedAs.PADDED:
            text = text.rstrip(" ")
        case ComparedAs.NUMERIC:
            text = str(Decimal(text.strip(SPACES)))
        case ComparedAs.UUID:
            text = _uuid(text)
        case ComparedAs.ENUM if text not in wanted.labels:
            raise ValueError(text)
    return pa.scalar(text, wanted.arrow)


def hint_of(found: SqlType) -> str | None:
    """Return what an expression can do with a type that an operator does not apply to."""
    if found.kind is ComparedAs.NUMERIC:
        return "cast it: column::numeric(38, 10), or column::double precision"
    if found.kind is ComparedAs.TEXT:
        return 'name the collation: column COLLATE "C" compares by bytes; no other is known here'
    if found.name in _HINTS:
        return _HINTS[found.name]
    if (
        found.kind in (ComparedAs.PADDED, ComparedAs.ONE_TEXT, ComparedAs.OPAQUE, ComparedAs.ENUM, ComparedAs.UUID)
        and found.has_text
    ):
        return f"cast it: column::text is the text of the {found}"
    if found.kind is ComparedAs.OPAQUE and pa.types.is_integer(found.arrow):
        return "cast it: column::bigint"
    return None


def _hint_of_literal(wanted: SqlType) -> str | None:
    if wanted.kind is ComparedAs.ENUM:
        return f"the labels are {', '.join(wanted.labels)}"
    if wanted.name == "time":
        return "a time is the number of microseconds, or milliseconds, since midnight (docs/types.md)"
    return None


def truth_of(text: str) -> bool:
    """Return the boolean that a text is, or raise ValueError."""
    found = text.strip(SPACES).lower()
    if found not in _TRUTHS:
        raise ValueError("no boolean")
    return _TRUTHS[found]


def plain_literal(text: str, wanted: pa.DataType) -> pa.Scalar:
    """Return a text as a value of an Arrow type, or raise an error of Arrow, or ValueError."""
    stripped = text.strip(SPACES)
    if pa.types.is_boolean(wanted):
        return pa.scalar(truth_of(text))
    literal = pa.scalar(stripped)
    if not (pa.types.is_timestamp(wanted) and wanted.tz is not None):
        return literal.cast(wanted)
    try:
        return literal.cast(wanted)
    except pa.ArrowInvalid:  # without a time zone: UTC, as in the batches
        return literal.cast(NAIVE).cast(wanted)


def _uuid(text: str) -> str:
    found = _UUID.fullmatch(text)
    if found is None or text.startswith("{") != text.endswith("}"):
        raise ValueError(text)
    digits = found[1].replace("-", "").lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bytes(text: str) -> bytes:
    if text.startswith("\\x"):
        if not _HEX_BYTES.fullmatch(text):
            raise ValueError(text)
        return bytes.fromhex(text[2:])
    if not _ESCAPED_BYTES.fullmatch(text):
        raise ValueError(text)
    return _ESCAPE.sub(lambda found: b"\\" if found[1] == b"\\" else bytes([int(found[1], 8)]), text.encode())


def _is_printed_otherwise(name: str) -> bool:
    return name in _PRINTED_OTHERWISE or name.startswith("reg")


def common_type(types: Sequence[SqlType]) -> SqlType:
    """Return the type of which COALESCE makes its arguments. Raise `UnfitType`."""
    first = types[0]
    numbers = [each for each in types if each.is_number or each.kind is ComparedAs.NUMERIC]
    if len(numbers) == len(types):
        return _common_number(numbers)
    if any(not is_alike(first, each) for each in types):
        raise UnfitType("the types differ", "cast them to one type")
    return first


def _common_number(numbers: Sequence[SqlType]) -> SqlType:
    arrows = [each.arrow for each in numbers]
    if pa.float64() in arrows:
        return plain(pa.float64())
    if pa.float32() in arrows:
        return plain(pa.float32())
    texts = [each for each in numbers if each.kind is ComparedAs.NUMERIC]
    if texts:
        return texts[0]
    return plain(decimal_of(arrows) if any(map(pa.types.is_decimal, arrows)) else pa.int64())


def decimal_of(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return a decimal for all values of decimals and integers. Raise `UnfitType`."""
    digits = [(each.precision, each.scale) if pa.types.is_decimal(each) else (19, 0) for each in types]
    scale = max(scale for _, scale in digits)
    precision = max(precision - scale for precision, scale in digits) + scale
    if precision > 76:
        raise UnfitType(f"{precision} digits are more than 76")
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def is_alike(left: SqlType, right: SqlType) -> bool:
    """Return whether values of both have one type in PostgreSQL; numbers and times are not looked at."""
    if left.kind is not right.kind:
        return False
    if left.kind in (ComparedAs.ENUM, ComparedAs.ONE_TEXT, ComparedAs.OPAQUE):
        return left.name == right.name
    return left.kind is not ComparedAs.PLAIN or left.arrow == right.arrow
