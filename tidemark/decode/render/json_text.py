"""Arrow columns as JSON text, whole columns at a time: no object a value.

A column's text is a few *pieces* to be put side by side in each row: constant text, or an array of text without NULLs.
What is constant stays out of the arrays until a row is whole, so that it is copied once.
"""

from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

NULL = "null"
SPACE = 0x20  # the first character that is none of control
QUOTE, BACKSLASH = '"', "\\"
TEXT = pa.large_string()

Piece: TypeAlias = str | pa.Array
Pieces: TypeAlias = list[Piece]


def joined(pieces: Sequence[Piece], count: int) -> pa.Array:
    """Return the text of `count` rows, the pieces side by side in each."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if len(merged) == 1:
        (only,) = merged
        return pa.repeat(pa.scalar(only, TEXT), count) if isinstance(only, str) else only
    parts = [pa.scalar(part, TEXT) if isinstance(part, str) else part for part in merged]
    return pc.binary_join_element_wise(*parts, pa.scalar("", TEXT))


def chosen(where: pa.Array, pieces: Sequence[Piece], otherwise: Piece) -> Pieces:
    """Return the pieces of rows that `where` is true of, and `otherwise` of the rest."""
    if where.true_count == len(where):
        return list(pieces)
    if where.true_count == 0:
        return [otherwise]
    other = pa.scalar(otherwise, TEXT) if isinstance(otherwise, str) else otherwise
    return [pc.if_else(where, joined(pieces, len(where)), other)]


def or_null(column: pa.Array, pieces: Sequence[Piece]) -> Pieces:
    """Return the pieces where `column` has a value, and null where it has none."""
    return chosen(column.is_valid(), pieces, NULL) if column.null_count else list(pieces)


def text(column: pa.Array) -> pa.Array:
    """Return the values as Arrow prints them."""
    return column.cast(TEXT)


def quoted(texts: pa.Array) -> Pieces:
    """Return texts as JSON strings."""
    return or_null(texts, [QUOTE, escaped(texts.cast(TEXT)), QUOTE])


def escaped(texts: pa.Array) -> pa.Array:
    """Return texts as they stand inside a JSON string: most need nothing, and are looked through, not copied."""
    found = texts.buffers()[2]
    data = bytes(found) if found is not None else b""
    for special in (BACKSLASH, QUOTE):  # NB: in this order: an escape begins with a backslash
        if special.encode() in data:
            texts = pc.replace_substring(texts, pattern=special, replacement=BACKSLASH + special)
    codes = np.frombuffer(data, np.uint8)
    if len(codes) and codes.min() < SPACE:
        for code in np.unique(codes[codes < SPACE]):
            control = chr(code)
            texts = pc.replace_substring(texts, pattern=control, replacement=encode_basestring(control)[1:-1])
    return texts


def numbers(column: pa.Array) -> Pieces:
    """Return integers, or booleans."""
    return or_null(column, [text(column)])


def floats(column: pa.Array) -> Pieces:
    """Return floating-point numbers, whole ones with a fraction; what is no number as text."""
    texts = text(column)
    whole = pc.invert(pc.match_substring_regex(texts, "[.en]"))  # no fraction, exponent, nan, inf
    if pc.any(whole).as_py():
        texts = pc.if_else(whole, joined([texts, ".0"], len(texts)), texts)
    if not pc.all(pc.is_finite(column), min_count=0).as_py():
        for value, name in ((np.nan, "NaN"), (np.inf, "Infinity"), (-np.inf, "-Infinity")):
            here = pc.is_nan(column) if name == "NaN" else pc.equal(column, pa.scalar(value, column.type))
            texts = pc.if_else(here, pa.scalar(QUOTE + name + QUOTE, TEXT), texts)
    return or_null(column, [texts])


def each(column: pa.Array, form: Callable[[object], str]) -> Pieces:
    """Return JSON that is made value by value: for what is rare."""
    made = [NULL if value is None else form(value) for value in column.to_pylist()]
    return [pa.array(made, TEXT)]


def lists(column: pa.Array, of_values: Callable[[pa.Array], Pieces]) -> Pieces:
    """Return lists as arrays, their values as `of_values` has them."""
    values = column.flatten()
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(column) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    texts = joined(of_values(values), len(values)) if len(values) else pa.array([], TEXT)
    inside = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), texts), pa.scalar(",", TEXT))
    return or_null(column, ["[", inside, "]"])
