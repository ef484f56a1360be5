"""Mask: values of a column replaced by a keyed hash, a part of the text, a constant or NULL.

NULL remains NULL, so an unknown old value and a value that is not in WAL are not mistaken for a mask. A column of the
key is refused: rows are matched by it, here and in every target.
"""

import hmac
from collections.abc import Callable, Mapping
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.model.secret import Secret
from tidemark.transforms.column_names import ColumnName
from tidemark.transforms.transform import BadTransform, BoundTransform, TableShape, Transform, children, rebuilt

Masking = Callable[[pa.Array], pa.Array]


class Mask(Transform):
    """Masks columns on both sides of a row, in the stream and in first copies.

    Without more arguments, values become NULL. `key` makes them a keyed hash (HMAC-SHA256 of the text, in hexadecimal):
    equal values remain equal. `keep_first`, `keep_last` keep this number of characters of a text and replace others by
    `*`; a text that is not longer than both is replaced as a whole. `truncate_to` keeps only this number of characters.
    `constant` replaces each value.
    """

    def __init__(
        self,
        *columns: str,
        key: Secret | None = None,
        keep_first: int = 0,
        keep_last: int = 0,
        truncate_to: int | None = None,
        constant: str | float | bool | None = None,
        has_column: str | None = None,
    ) -> None:
        """`columns`: patterns `schema.table.column`. `key`: from `secret_file` or `secret_environment`."""
        super().__init__(has_column=has_column)
        self._columns = tuple(ColumnName.parse(column) for column in columns)
        if not columns:
            raise BadTransform("Mask() needs columns", hint='for example Mask("public.customers.email")')
        if key is not None and not isinstance(key, Secret):
            raise BadTransform(
                f"{self}: key is a {type(key).__name__}, not a Secret",
                hint="read it by secret_file or secret_environment",
            )
        keeps = keep_first != 0 or keep_last != 0
        chosen = [key is not None, constant is not None, keeps, truncate_to is not None]
        if sum(chosen) > 1:
            raise BadTransform(f"{self}: give one of key, constant, truncate_to, and keep_first with keep_last")
        if min(keep_first, keep_last, truncate_to or 0) < 0:
            raise BadTransform(f"{self}: keep_first, keep_last and truncate_to must be 0 or greater")
        self._key = key
        self._kept = (keep_first, keep_last) if keeps else None
        self._truncate_to = truncate_to
        self._constant = constant

    def __str__(self) -> str:
        return f"Mask({', '.join(repr(column.text) for column in self._columns)})"

    def named(self, shape: TableShape) -> Mapping[str, bool]:
        """Return the patterns for columns, and whether the table has a matching one."""
        return {column.text: column.is_in(shape) for column in self._columns}

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the masked columns; raise `BadTransform` for one of the key."""
        masked = {name for column in self._columns for name in column.find(shape, self)}
        if not masked:
            return None
        if keys := [name for name in shape.key if name in masked]:
            raise BadTransform(
                f"{self}: {', '.join(keys)} of {shape.table} is in the key: after masking, rows could not be matched",
                hint="mask other columns, or give the table another key (REPLICA IDENTITY USING INDEX)",
            )
        maskings: dict[int, Masking] = {}
        fields: list[pa.Field] = []
        for at, field in enumerate(shape.columns):
            if field.name in masked:
                kind, maskings[at] = self._masking(field, shape)
                fields.append(pa.field(field.name, kind))
            else:
                fields.append(field)

        def change(side: pa.StructArray) -> pa.StructArray:
            columns = children(side)
            for at, masking in maskings.items():
                columns[at] = masking(columns[at])
            return rebuilt(side, fields, columns)

        changed = shape.with_columns(fields).with_hidden(masked)
        return BoundTransform(changed, lambda batch: (batch.with_sides(change),))

    def _masking(self, field: pa.Field, shape: TableShape) -> tuple[pa.DataType, Masking]:
        """Return the type of a masked column and the function that masks its values."""
        where = f"{self}: {field.name} of {shape.table} has the type {field.type}"
        if self._key is not None:
            if pa.types.is_nested(field.type):
                raise BadTransform(f"{where}, which has no text to hash", hint="use Mask without key for it")
            return pa.string(), self._hashed
        if self._kept is not None or self._truncate_to is not None:
            if not pa.types.is_string(field.type):
                raise BadTransform(f"{where}: only text has characters", hint="use key or constant for it")
            return field.type, self._truncated if self._kept is None else self._partial
        if self._constant is not None:
            try:
                constant = pa.scalar(self._constant).cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                raise BadTransform(f"{where}, and constant={self._constant!r} is not a value of this type") from None
            return field.type, lambda values: pc.if_else(pc.is_valid(values), constant, pa.scalar(None, field.type))
        return field.type, lambda values: pa.nulls(len(values), values.type)

    def _hashed(self, values: pa.Array) -> pa.Array:
        assert self._key is not None, "chosen by it"
        encoded = (values if pa.types.is_binary(values.type) else values.cast(pa.string())).dictionary_encode()
        hashes = [_hash(self._key, value) for value in encoded.dictionary.to_pylist()]
        return pa.array(hashes, pa.string()).take(encoded.indices)

    def _truncated(self, values: pa.Array) -> pa.Array:
        return pc.utf8_slice_codeunits(values, 0, self._truncate_to)

    def _partial(self, values: pa.Array) -> pa.Array:
        assert self._kept is not None, "chosen by it"
        first, last = self._kept
        lengths = pc.utf8_length(values)
        stars = pc.binary_repeat("*", pc.max_element_wise(pc.subtract(lengths, first + last), 0))
        head = pc.utf8_slice_codeunits(values, 0, first)
        tail = pc.utf8_slice_codeunits(values, -last) if last else ""
        is_longer = pc.greater(lengths, first + last)
        return pc.if_else(is_longer, pc.binary_join_element_wise(head, stars, tail, ""), pc.binary_repeat("*", lengths))


def _hash(key: Secret, value: str | bytes) -> str:
    return hmac.new(key.content, value.encode() if isinstance(value, str) else value, sha256).hexdigest()
