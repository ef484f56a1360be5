"""Writes docs/types.md from the registry of codecs; --check only returns, by its exit code, if the page is current."""

import sys
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tidemark.decode.types.arrays import ArrayCodec  # noqa: E402 - found by the line above
from tidemark.decode.types.codec import Dialect  # noqa: E402
from tidemark.decode.types.composites import CompositeCodec  # noqa: E402
from tidemark.decode.types.encodings import PYTHON_ENCODINGS  # noqa: E402
from tidemark.decode.types.families.numeric import DecimalCodec  # noqa: E402
from tidemark.decode.types.families.strings import EnumCodec, RawCodec  # noqa: E402
from tidemark.decode.types.ranges import MultirangeCodec, RangeCodec  # noqa: E402
from tidemark.decode.types.registry import BUILT_IN, NUMERIC, OF_EXTENSIONS  # noqa: E402

PAGE = ROOT / "docs" / "types.md"

SPARK = {
    pa.bool_(): "BOOLEAN",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.list_(pa.float32()): "ARRAY<FLOAT>",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}

MADE: dict[str, type[EnumCodec | RangeCodec | MultirangeCodec | CompositeCodec]] = {
    "enums": EnumCodec,
    "ranges": RangeCodec,
    "multiranges": MultirangeCodec,
    "composite types, and tables' row types": CompositeCodec,
}

HEAD = """\
# Types

<!-- Written by scripts/types_page.py from the codecs; do not edit. -->

The form of each PostgreSQL type in a change batch (Arrow), and therefore in Spark and in the Delta tables.
The text form (`--format test_decoding`) is, byte for byte, the output of PostgreSQL's own output function, for every
type in this table except the `reg` types, which are printed as numbers (`docs/test-decoding.md`). A type whose Arrow
form is a string without a remark has this text.

| PostgreSQL | Arrow | Spark, Delta | |
|---|---|---|---|
"""

TAIL = """
If Arrow, Spark or Delta cannot represent a value of PostgreSQL, the value is changed as the table states; no other
value is.

* **Dates beyond the years 0001 to 9999, and infinities,** are clamped, not set to NULL: the order of values is kept,
  and so is NOT NULL. Readers of Delta tables fail on anything wider.
* **NaN in `numeric(p, s)`** is NULL: a decimal has no NaN. A column of plain `numeric` keeps it.
* **Arrays** of any number of dimensions become one flat list, because a column has one type and PostgreSQL does
  not enforce the number of dimensions.
* **Domains** have the form of their base type.
* **Composite types** are printed with the attributes that they have when a row is written. `ALTER TYPE ... ADD
  ATTRIBUTE` and similar statements write no rows: the change log keeps the old text, the rows of a replica get the new
  attributes.
* **Types of extensions** are recognised by their name, in any schema.
* **`money`** has two fractional digits: the number depends on the node's `lc_monetary`, which is not in WAL.
* **An unchanged TOASTed value** that is not in WAL is NULL in `_after`, and its bit in `_unchanged` is set. One that
  the old row has is that value in `_after` too: the columns of the replica identity, and with FULL every column.
* **Virtual generated columns** (PostgreSQL 18) are not stored, and are NULL.
* **Text that is not valid in the database's encoding** (possible in SQL_ASCII) has U+FFFD in place of the invalid
  bytes, in values and in names; the text form keeps the bytes. A table with such a name cannot be copied: no statement
  can name it.
* **In a key**, rows are distinguished by the values in the lake: two dates that are clamped to the same value become
  one row of a replica.
* **An enum's label that was renamed** (`RENAME VALUE`) is renamed in the replica; the change log keeps the old label.
* **A type that changes without a rewrite of the rows** (`numeric(p, s)` to `numeric`, `cidr` to `inet`, `oid` to
  `integer`) converts the rows of the lake from their current values: a NaN that became NULL remains NULL.

## Other forms

The section `[types]` of the configuration selects them, for all tables of a capture, including arrays and domains.
`cdcctl init` fixes them, because the tables have these forms. The text form never changes.

| key | value | form |
|---|---|---|
| `decimals` | `precise` | as in the table above |
| | `string` | `numeric` and `money` as text with all their digits, NaN and infinities |
| | `double` | `numeric` and `money` as double, rounded; infinite or 0 beyond its range |
| `binary` | `bytes` | `bytea` unchanged |
| | `base64`, `hex` | as text |
| `intervals` | `postgres`, `iso_8601` | text, as the server prints it with that IntervalStyle |
| | `microseconds` | int64, as `extract(epoch from ...)` counts (a year has 365.25 days, a month 30), clamped |
| `time_precision` | `microseconds` | as in the table above |
| | `milliseconds` | `time` in milliseconds; timestamps without smaller parts (their Arrow type is unchanged) |
| `out_of_range` | `clamp` | as in the table above |
| | `null` | infinities, BC and years over 9999 are NULL, also in columns that are NOT NULL |
| | `string` | `date` and timestamps as text, nothing is lost |

## Encodings

Database encodings other than UTF8 are transcoded, each character as by the server itself: {encodings}.
Others (EUC_TW, MULE_INTERNAL) are refused by name.
"""


def rows() -> list[str]:
    """Return the table's rows in order: by name, then types of extensions, then composed types."""
    dialect = Dialect()
    found = [(f"`{name}`", make(dialect)) for oid, (name, make) in BUILT_IN.items() if oid != NUMERIC]
    found.append(("`numeric`", BUILT_IN[NUMERIC][1](dialect)))
    lines = [row(name, codec.arrow_type, codec.note) for name, codec in found]
    lines.append(f"| `numeric(p, s)` | decimal128(p, s) | DECIMAL(p, s) | {DecimalCodec.note} |\n")
    lines.sort(key=lambda line: line.split("|")[1].strip('`" '))
    for name in sorted(OF_EXTENSIONS):
        codec = OF_EXTENSIONS[name](dialect)
        lines.append(row(f"`{name}` (extension)", codec.arrow_type, codec.note))
    for name, made in MADE.items():
        lines.append(row(name, made.arrow_type, made.note))
    lines.append(f"| arrays of all these | list | ARRAY | {ArrayCodec.note} |\n")
    return [*lines, row("any other type, and types that contain it", RawCodec.arrow_type, RawCodec.note)]


def row(name: str, arrow: pa.DataType, note: str) -> str:
    """Return one row of the table."""
    spark = f"DECIMAL({arrow.precision},{arrow.scale})" if pa.types.is_decimal(arrow) else SPARK[arrow]
    return f"| {name} | {arrow} | {spark} | {note} |\n"


def page() -> str:
    """Return docs/types.md."""
    table = rows()
    others = sorted(set(PYTHON_ENCODINGS) - {"UTF8"})
    return HEAD + "".join(table) + TAIL.format(encodings=", ".join(others))


def main() -> int:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
