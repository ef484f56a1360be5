"""`jsonpath` (`jsonpath.h`, `jsonPathToCstring`, PG 17): items that refer to each other by offset.

An item is a byte with its kind; aligned, the offset of the next item in the path; and the contents of its kind: text, a
number, the offsets of arguments. Offsets are relative to the item. Kinds above `LIKE_REGEX` were added in 17.
"""

import struct
from enum import IntEnum

from tidemark.decode.datum.varlena import BadDatum, datum_length, inline_payload
from tidemark.decode.types.codec import Dialect, TextCodec
from tidemark.decode.types.families.json_binary import quoted
from tidemark.decode.types.families.numeric import numeric_text

LAX = 0x80000000
ITEMS_AT = 4  # after version and flags
ITEM_BYTES_MIN = 5
LAST = 0xFFFFFFFF  # as a bound of `**`
REGEX_FLAGS = ((1, "i"), (2, "s"), (4, "m"), (8, "x"), (16, "q"))
_U32 = struct.Struct("<I")


class ItemType(IntEnum):
    """Kinds of items with a special text (`JsonPathItemType`)."""

    STRING = 1
    NUMERIC = 2
    BOOL = 3
    NOT = 6
    IS_UNKNOWN = 7
    PLUS = 19
    MINUS = 20
    ANY_KEY = 22
    INDEX_ARRAY = 23
    ANY = 24
    KEY = 25
    VARIABLE = 28
    FILTER = 29
    EXISTS = 30
    LIKE_REGEX = 42


# Symbol and priority (`operationPriority`) of the binary operators.
BINARY = {
    4: ("&&", 1), 5: ("||", 0), 8: ("==", 2), 9: ("!=", 2), 10: ("<", 2), 11: (">", 2), 12: ("<=", 2), 13: (">=", 2),
    14: ("+", 3), 15: ("-", 3), 16: ("*", 4), 17: ("/", 4), 18: ("%", 4), 41: ("starts with", 2),
}  # fmt: skip
UNARY = {ItemType.PLUS: "+", ItemType.MINUS: "-"}
UNARY_PRIORITY = 5
PRIORITY_OF_OTHERS = 6
AROUND = {
    ItemType.NOT: ("!(", ")"),
    ItemType.IS_UNKNOWN: ("(", ") is unknown"),
    ItemType.FILTER: ("?(", ")"),
    ItemType.EXISTS: ("exists (", ")"),
}
CONSTANT = {
    0: "null", 21: "[*]", 26: "@", 27: "$", 31: ".type()", 32: ".size()", 33: ".abs()", 34: ".floor()",
    35: ".ceiling()", 36: ".double()", 38: ".keyvalue()", 40: "last", 43: ".bigint()", 44: ".boolean()", 45: ".date()",
    47: ".integer()", 48: ".number()", 49: ".string()",
}  # fmt: skip
# Methods with optional arguments: name, number of arguments.
METHODS = {37: ("datetime", 1), 46: ("decimal", 2), 50: ("time", 1), 51: ("time_tz", 1), 52: ("timestamp", 1),
           53: ("timestamp_tz", 1)}  # fmt: skip


class _PathItem:
    """One item; `follows`: it comes after another, `brackets`: an operator gets parentheses."""

    __slots__ = ("_at", "_content", "_payload", "behind", "brackets", "follows", "kind")

    def __init__(self, payload: bytes, at: int, *, follows: bool = False, brackets: bool = False) -> None:
        self._payload = payload
        self._at = at
        fields_at = at + 1 + -(at + 1) % _U32.size
        self._content = fields_at + _U32.size
        self.kind = payload[at]
        (self.behind,) = _U32.unpack_from(payload, fields_at)
        self.follows = follows
        self.brackets = brackets

    @property
    def dot(self) -> str:
        """The text before a key."""
        return "." if self.follows else ""

    @property
    def priority(self) -> int:
        """The priority of an operator."""
        if self.kind in BINARY:
            return BINARY[self.kind][1]
        return UNARY_PRIORITY if self.kind in UNARY else PRIORITY_OF_OTHERS

    def next(self) -> "_PathItem":
        """Return the next item in the path."""
        return _PathItem(self._payload, self._at + self.behind, follows=True, brackets=True)

    def number(self, index: int) -> int:
        """Return the u32 of that index in the item's contents."""
        return int(_U32.unpack_from(self._payload, self._content + index * _U32.size)[0])

    def argument(self, index: int, priority: int = -1) -> "_PathItem":
        """Return the item at the offset of that index; it gets parentheses unless it has a higher priority."""
        found = _PathItem(self._payload, self._at + self.number(index))
        found.brackets = found.priority <= priority
        return found

    def text(self, index: int = 0) -> bytes:
        """Return the text whose length is the number of that index."""
        begin = self._content + (index + 1) * _U32.size
        raw = self._payload[begin : begin + self.number(index)]
        if len(raw) != self.number(index):
            raise BadDatum(f"text in a jsonpath ends at byte {begin + self.number(index)} of {len(self._payload)}")
        return raw

    def rest(self) -> bytes:
        """Return everything from the item's contents on."""
        return self._payload[self._content :]


class JsonPathCodec(TextCodec):
    """`jsonpath`."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def text(self, payload: bytes) -> str:
        """Return the path. NB: pending nested items are in a list, without recursion."""
        try:
            return self._text(payload)
        except (struct.error, IndexError) as error:
            raise BadDatum(f"jsonpath of {len(payload)} bytes is cut off") from error

    def _text(self, payload: bytes) -> str:
        (head,) = _U32.unpack_from(payload)
        out = [] if head & LAX else ["strict "]
        pending: list[str | _PathItem] = [_PathItem(payload, ITEMS_AT, brackets=True)]
        items = 0
        while pending:
            step = pending.pop()
            if isinstance(step, str):
                out.append(step)
                continue
            items += 1
            if items * ITEM_BYTES_MIN > len(payload):
                raise BadDatum(f"items of a jsonpath of {len(payload)} bytes point in a circle")
            if step.behind:
                pending.append(step.next())
            pending.extend(reversed(self._steps(step)))
        return "".join(out)

    def _steps(self, item: _PathItem) -> "list[str | _PathItem]":
        """Return the parts of an item's text."""
        if item.kind in CONSTANT:
            return [CONSTANT[item.kind]]
        if item.kind in METHODS:
            return _method(item)
        if item.kind in AROUND:
            before, after = AROUND[ItemType(item.kind)]
            return [before, item.argument(0), after]
        if item.kind in BINARY or item.kind in UNARY or item.kind == ItemType.LIKE_REGEX:
            steps = self._operation(item)
            return ["(", *steps, ")"] if item.brackets else steps
        if item.kind == ItemType.INDEX_ARRAY:
            return _subscripts(item)
        return [self._leaf(item)]

    def _leaf(self, item: _PathItem) -> str:
        match item.kind:
            case ItemType.STRING | ItemType.VARIABLE | ItemType.KEY:
                lead = {ItemType.STRING: "", ItemType.VARIABLE: "$", ItemType.KEY: item.dot}[ItemType(item.kind)]
                return lead + self._quoted(item.text())
            case ItemType.ANY_KEY:
                return item.dot + "*"
            case ItemType.ANY:
                return item.dot + _any_text(item.number(0), item.number(1))
            case ItemType.BOOL:
                return "true" if item.rest()[0] else "false"
            case ItemType.NUMERIC:
                rest = item.rest()
                number = numeric_text(inline_payload(rest[: datum_length(rest, 0)]))
                return f"({number})" if item.behind and self._dialect.number_brackets else number
        raise BadDatum(f"item of kind {item.kind} in a jsonpath")

    def _operation(self, item: _PathItem) -> "list[str | _PathItem]":
        if item.kind == ItemType.LIKE_REGEX:  # flags, operand, pattern
            letters = "".join(letter for bit, letter in REGEX_FLAGS if item.number(0) & bit)
            shown = f' flag "{letters}"' if letters else ""
            return [item.argument(1, item.priority), f" like_regex {self._quoted(item.text(2))}{shown}"]
        if item.kind in UNARY:
            return [UNARY[ItemType(item.kind)], item.argument(0, item.priority)]
        return [item.argument(0, item.priority), f" {BINARY[item.kind][0]} ", item.argument(1, item.priority)]

    def _quoted(self, raw: bytes) -> str:
        return quoted(self._dialect.decode(raw))


def _method(item: _PathItem) -> "list[str | _PathItem]":
    name, arguments = METHODS[item.kind]
    steps: list[str | _PathItem] = [f".{name}("]
    for index in range(arguments):
        if item.number(index):
            steps += ["," if index else "", item.argument(index)]
    return [*steps, ")"]


def _subscripts(item: _PathItem) -> "list[str | _PathItem]":
    steps: list[str | _PathItem] = ["["]
    for index in range(1, 1 + item.number(0) * 2, 2):
        if index > 1:
            steps.append(",")
        steps.append(item.argument(index))
        if item.number(index + 1):
            steps += [" to ", item.argument(index + 1)]
    return [*steps, "]"]


def _any_text(first: int, last: int) -> str:
    if (first, last) == (0, LAST):
        return "**"
    low, high = ("last" if bound == LAST else str(bound) for bound in (first, last))
    return f"**{{{low}}}" if first == last else f"**{{{low} to {high}}}"
