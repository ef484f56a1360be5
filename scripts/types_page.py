#!/usr/bin/env python3
"""Writes docs/types.md from the registry of codecs; with --check only says, by its status, if the page is current."""

import sys
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tidemark.decode.codecs.arrays import ArrayCodec  # noqa: E402 - found by the line above
from tidemark.decode.codecs.codec import PYTHON_ENCODINGS, Codec, Dialect  # noqa: E402
from tidemark.decode.codecs.numeric import DecimalCodec  # noqa: E402
from tidemark.decode.codecs.registry import BUILT_IN, NUMERIC  # noqa: E402
from tidemark.decode.codecs.strings import EnumCodec, RawCodec  # noqa: E402

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
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
}

HEAD = """\
# Types

<!-- Written by scripts/types_page.py from the codecs; do not edit. -->

What a column of each PostgreSQL type is in a change batch (Arrow), and so in Spark and in the Delta tables.
The text form (`--format test_decoding`) is what PostgreSQL's own output function prints, to the byte, for every type
in this table.

| PostgreSQL | Arrow | Spark, Delta | |
|---|---|---|---|
"""

TAIL = """
Where Arrow, Spark or Delta cannot hold what PostgreSQL can, the value is changed as the table says; nothing else is.

* **Dates beyond the years 0001 to 9999, and infinities,** are clamped, not set to NULL: the order of values is kept,
  and so is NOT NULL. Readers of Delta tables fail on anything wider.
* **NaN in `numeric(p, s)`** is NULL: a decimal has no NaN. A column of plain `numeric` keeps it.
* **Arrays** of any number of dimensions arrive as one flat list, because one column has one type and PostgreSQL does
  not enforce the number of dimensions.
* **Domains** are what they stand on.
* **An unchanged TOASTed value** that is not in WAL is NULL in `_after`, and its bit in `_unchanged` is set.
* **Virtual generated columns** (PostgreSQL 18) are not stored, and are NULL.
* **Text that is not valid in the database's encoding** (possible in SQL_ASCII) has U+FFFD in place of the invalid
  bytes, in values and in names; the text form keeps the bytes. A table with such a name cannot be copied: no statement
  can name it.
* **In a key** rows are told apart by what the lake has: two dates that are clamped to one make one row of a replica.
* **An enum's label that was renamed** (`RENAME VALUE`) is renamed in the replica; the change log keeps it as it was.
* **A type that changes without a rewrite of the rows** (`numeric(p, s)` to `numeric`, `cidr` to `inet`, `oid` to
  `integer`) leaves the lake's rows converted from what they were there: a NaN that was NULL stays NULL.

Database encodings other than UTF8 are transcoded: {encodings}. Others are refused by name.
"""


def rows() -> list[tuple[str, Codec]]:
    """Return what the table shows, in its order: by name, then what is made of other types."""
    dialect = Dialect()
    found = [(f"`{name}`", make(dialect)) for oid, (name, make) in BUILT_IN.items() if oid != NUMERIC]
    found.append(("`numeric(p, s)`", DecimalCodec(10, 2)))
    found.append(("`numeric`", BUILT_IN[NUMERIC][1](dialect)))
    found.sort(key=lambda row: row[0].strip('`"'))
    return [*found, ("enums", EnumCodec("", ())), ("any other type, and arrays of it", RawCodec(fixed_length=False))]


def line(name: str, codec: Codec) -> str:
    """Return one row of the table."""
    if isinstance(codec, DecimalCodec):
        return f"| {name} | decimal128(p, s) | DECIMAL(p, s) | {codec.note} |\n"
    arrow = codec.arrow_type
    spark = f"DECIMAL({arrow.precision},{arrow.scale})" if pa.types.is_decimal(arrow) else SPARK[arrow]
    return f"| {name} | {arrow} | {spark} | {codec.note} |\n"


def page() -> str:
    """Return docs/types.md."""
    table = [line(name, codec) for name, codec in rows()]
    table.insert(-1, f"| arrays of all these | list | ARRAY | {ArrayCodec.note} |\n")
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
