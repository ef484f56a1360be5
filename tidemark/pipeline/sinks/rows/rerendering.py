"""Converts values whose text changes after DDL although no row changed: labels of enums, and composite values.

The server stores a composite value in the shape that its type had when it was written, and prints it in the present
shape (`record_out`, PG 16): added attributes are empty, and dropped ones are omitted. The lake stores the text, so its
rows are converted when the type changes. The conversion covers composites, enums, ranges, arrays of these and domains
over these, inside a composite, an array within one, or a range.
"""

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa

from tidemark.decode.types.quoting import RANGE_SPECIAL, ROW_SPECIAL, quoted_part, with_elements
from tidemark.model.change import AFTER, BEFORE
from tidemark.model.relation import Column, Relation, TypeDescription, TypeKind
from tidemark.pipeline.lake.layout import label_names, relabelled, renamed_labels

Conversion = Callable[[pa.Array], pa.Array]
Conversions = Mapping[int, Conversion]
"""By column: the conversion of its values to their present text."""
_Rerender = Callable[[str], str]
_Value = str | list["_Value"] | None
_NESTED = 2  # lists of lists: arrays of a domain over arrays


def rerenderings(before: Relation | None, after: Relation) -> Conversions:
    """Return the columns whose text differs between two versions, with the conversions."""
    found: dict[int, Conversion] = {
        number: partial(relabelled, names=names) for number, names in renamed_labels(before, after).items()
    }
    was = {column.number: column for column in before.live_columns} if before is not None else {}
    for column in after.live_columns:
        reshape = _of_column(was[column.number], column) if column.number in was else None
        if reshape is not None:
            found[column.number] = partial(_rerendered, reshape=reshape)
    return found


def rerendered_rows(changes: pa.Table, was: Relation, now: Relation) -> pa.Table:
    """Return changes of one version with their values rendered for another version with the same columns."""
    conversions = rerenderings(was, now)
    if not conversions:
        return changes
    for name in (BEFORE, AFTER):
        rows = changes.column(name).combine_chunks()
        children = [
            conversions[column.number](values) if column.number in conversions else values
            for column, values in zip(was.live_columns, rows.flatten(), strict=True)
        ]
        rendered = pa.StructArray.from_arrays(children, fields=list(rows.type), mask=rows.is_null())
        changes = changes.set_column(changes.schema.get_field_index(name), changes.schema.field(name), rendered)
    return changes


def _of_column(was: Column, now: Column) -> _Rerender | None:
    if was.type is None or now.type is None:
        return None
    old, new = was.type.ultimate(), now.type.ultimate()
    lists = 0
    while old.element is not None and new.element is not None:
        old, new = old.element.ultimate(), new.element.ultimate()
        lists += 1
    # Enum labels directly in a column or in a list are handled by `renamed_labels`.
    return _of_parts(old, new) if lists < _NESTED else _of_value(old, new)


def _of_parts(old: TypeDescription, new: TypeDescription) -> _Rerender | None:
    """Return how the text of a value changes with the types of its parts."""
    return _of_ranges(old, new) if old.subtype is not None else _of_row(old, new)


def _of_ranges(old: TypeDescription, new: TypeDescription) -> _Rerender | None:
    """Return how the text of a range or multirange changes with the type of its bounds."""
    if old.subtype is None or new.subtype is None or old.oid != new.oid:
        return None
    within = _of_value(old.subtype, new.subtype)  # a multirange's subtype is its range
    if within is None:
        return None
    return partial(_each_range if new.kind is TypeKind.MULTIRANGE else _bounded, reshape=within)


def _of_row(old: TypeDescription, new: TypeDescription) -> _Rerender | None:
    """Return how the text of a composite value changes; None if it does not."""
    if TypeKind.COMPOSITE not in (old.kind, new.kind) or old.kind is not new.kind or old.oid != new.oid:
        return None
    live = [column for column in old.attributes if not column.dropped]
    there = {column.number: (index, column) for index, column in enumerate(live)}
    parts: list[tuple[int, _Rerender | None] | None] = []
    for column in new.attributes:
        if not column.dropped:
            known = there.get(column.number)
            parts.append((known[0], _of_part(known[1], column)) if known is not None else None)
    same = [(index, None) for index in range(len(live))]
    return None if parts == same else partial(_reshaped, parts=parts)


def _of_part(was: Column, now: Column) -> _Rerender | None:
    return None if was.type is None or now.type is None else _of_value(was.type, now.type)


def _of_value(was: TypeDescription, now: TypeDescription) -> _Rerender | None:
    """Return how the text of a value inside another value changes; None if it does not."""
    old, new = was.ultimate(), now.ultimate()
    if old.element is not None and new.element is not None:
        convert = _of_value(old.element, new.element)
        return convert and partial(with_elements, delimiter=new.element.delimiter, convert=convert)
    names = label_names(old, new)
    if names:
        return partial(_renamed, names=names)
    return _of_parts(old, new)


def _renamed(label: str, names: Mapping[str, str]) -> str:
    return names.get(label, label)


def _reshaped(text: str, parts: list[tuple[int, _Rerender | None] | None]) -> str:
    stored = split_row(text)
    rendered = []
    for part in parts:
        # NB: a row rendered in an older form than `old` has fewer parts; later attributes are NULL.
        raw = stored[part[0]] if part is not None and part[0] < len(stored) else ""
        if part is not None and part[1] is not None and raw:
            raw = quoted_part(part[1](unquoted(raw)), ROW_SPECIAL)
        rendered.append(raw)
    return f"({','.join(rendered)})"


def _bounded(text: str, reshape: _Rerender) -> str:
    if text == "empty":
        return text
    rendered = [raw and quoted_part(reshape(unquoted(raw)), RANGE_SPECIAL) for raw in split_row(text)]
    return f"{text[0]}{','.join(rendered)}{text[-1]}"


def _each_range(text: str, reshape: _Rerender) -> str:
    parts = split_row(text)  # commas occur inside each range and between ranges
    ranges = map(",".join, zip(parts[::2], parts[1::2], strict=False))
    return f"{{{','.join(map(reshape, ranges))}}}"


def split_row(text: str) -> list[str]:
    """Return the parts of a composite's or range's text, still quoted where they are; an empty part is NULL."""
    parts, start, in_quotes = [], 1, False
    for at, character in enumerate(text):
        if character == '"':  # a doubled quote ends and reopens the quoted part
            in_quotes = not in_quotes
        elif not in_quotes and (character == "," or at == len(text) - 1):
            parts.append(text[start:at])
            start = at + 1
    return parts


def unquoted(raw: str) -> str:
    """Return the value of a part without its quotes."""
    return raw[1:-1].replace('""', '"').replace("\\\\", "\\") if raw.startswith('"') else raw


def _rerendered(values: pa.Array, reshape: _Rerender) -> pa.Array:
    return pa.array([_rendered(value, reshape) for value in values.to_pylist()], values.type)


def _rendered(value: _Value, reshape: _Rerender) -> _Value:
    if isinstance(value, list):
        return [_rendered(one, reshape) for one in value]
    return value and reshape(value)
