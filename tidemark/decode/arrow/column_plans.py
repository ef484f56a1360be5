"""Plans, once for each relation version, how a kernel puts its columns into a batch."""

from array import array
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidemark.decode.arrow.batch_body import BITS, OFFSETS
from tidemark.decode.arrow.batch_columns import STEP, ColumnKernel
from tidemark.decode.types.arrays import ArrayCodec
from tidemark.decode.types.codec import Codec, ColumnKind, without_escapes
from tidemark.decode.types.families.calendar import EPOCH_2000_DAYS
from tidemark.decode.types.families.datetimes import FIRST_DAY, FIRST_INSTANT, LAST_DAY, LAST_INSTANT
from tidemark.decode.types.families.numeric import DecimalCodec
from tidemark.decode.types.families.strings import EnumCodec
from tidemark.model.commit_time import USECS_PER_DAY

EPOCH_2000_USECS = EPOCH_2000_DAYS * USECS_PER_DAY
# Bounds before the epoch is added, with the sign bit flipped, as the clamping kernels require.
DAY_BOUNDS = (FIRST_DAY - EPOCH_2000_DAYS + (1 << 31), LAST_DAY - EPOCH_2000_DAYS + (1 << 31), EPOCH_2000_DAYS)
INSTANT_BOUNDS = (
    FIRST_INSTANT - EPOCH_2000_USECS + (1 << 63),
    LAST_INSTANT - EPOCH_2000_USECS + (1 << 63),
    EPOCH_2000_USECS,
)
FIXED = {16: ColumnKernel.FIXED_16, 32: ColumnKernel.FIXED_32, 64: ColumnKernel.FIXED_64}
KERNELS = {
    ColumnKind.BOOL: ColumnKernel.BOOL,
    ColumnKind.BYTES: ColumnKernel.BYTES,
    ColumnKind.DATE: ColumnKernel.DATE,
    ColumnKind.ENUM: ColumnKernel.LABELS,
    ColumnKind.JSONB: ColumnKernel.JSONB,
    ColumnKind.NUMERIC: ColumnKernel.DECIMAL,
    ColumnKind.NUMERIC_TEXT: ColumnKernel.NUMERIC_TEXT,
    ColumnKind.TEXT: ColumnKernel.TEXT,
    ColumnKind.TIMESTAMP: ColumnKernel.TIMESTAMP,
    ColumnKind.UNSIGNED4: ColumnKernel.UNSIGNED,
    ColumnKind.UUID: ColumnKernel.UUID,
}
# Bytes of text for each row beyond those of its tuple: an estimate, exact for UUIDs.
TEXT_BYTES = {ColumnKernel.UUID: 36, ColumnKernel.NUMERIC_TEXT: 16, ColumnKernel.JSONB: 32}


class ColumnPlan:
    """The columns of a struct, or the single column of a list's elements."""

    __slots__ = ("codecs", "elements", "has_jsonb", "kernels", "labels", "levels", "numbers", "row_bytes", "units")

    def __init__(self, codecs: Sequence[Codec], *, in_struct: bool = True) -> None:
        self.codecs = codecs
        # For each array, its depth in lists; for each buffer, its bytes for each row. The struct comes first.
        self.levels = array("q", [0] if in_struct else [])
        self.units = array("q", [BITS] if in_struct else [])
        self.numbers = array("Q")
        self.elements: dict[int, ColumnPlan] = {}  # element plans of list columns, by slot
        enums: list[tuple[int, EnumCodec]] = []
        for slot, codec in enumerate(codecs):
            numbers = [_kernel(codec), len(self.levels), len(self.units), *_parameters(codec)]
            self.numbers.extend(numbers + [0] * (STEP - len(numbers)))
            for level, units in _shape(codec.arrow_type):
                self.levels.append(level)
                self.units.extend(units)
            if isinstance(codec, ArrayCodec) and codec.kind is ColumnKind.ARRAY:
                self.elements[slot] = ColumnPlan([codec.element_codec], in_struct=False)
            if numbers[0] == ColumnKernel.LABELS and isinstance(codec, EnumCodec):
                enums.append((slot, codec))
        self.labels = self._append_labels(enums)
        self.kernels = [ColumnKernel(kernel) for kernel in self.numbers[: len(codecs) * STEP : STEP]]
        self.has_jsonb = ColumnKernel.JSONB in self.kernels
        widths = sum(unit if unit > 0 else 4 for unit in self.units)
        longest = sum(self.numbers[slot * STEP + 5] for slot, _ in enums)
        self.row_bytes = widths + longest + sum(TEXT_BYTES.get(kernel, 0) for kernel in self.kernels)

    def _append_labels(self, enums: list[tuple[int, EnumCodec]]) -> bytes:
        """Append the labels' OIDs and the offsets of their texts (start of each, end of the last); return the texts."""
        texts = bytearray()
        for slot, codec in enums:
            oids = sorted(codec.labels)
            labels = [without_escapes(codec.labels[oid]).encode() for oid in oids]
            self.numbers[slot * STEP + 3 : slot * STEP + 6] = array(
                "Q", [len(self.numbers), len(oids), max(map(len, labels))]
            )
            self.numbers.extend([*oids, len(texts)])
            for label in labels:
                texts += label
                self.numbers.append(len(texts))
        return bytes(texts)


def _kernel(codec: Codec) -> ColumnKernel:
    if codec.kind is ColumnKind.FIXED:
        return FIXED[codec.arrow_type.bit_width]
    if isinstance(codec, EnumCodec) and not codec.labels:
        return ColumnKernel.OTHER
    return KERNELS.get(codec.kind, ColumnKernel.OTHER)


def _parameters(codec: Codec) -> tuple[int, ...]:
    """Return the additional parameters of a type's kernel."""
    if codec.kind is ColumnKind.DATE:
        return DAY_BOUNDS
    if codec.kind is ColumnKind.TIMESTAMP:
        return INSTANT_BOUNDS
    if codec.kind is ColumnKind.NUMERIC:
        assert isinstance(codec, DecimalCodec), codec
        return codec.precision, codec.scale
    return ()


def _shape(arrow_type: pa.DataType, level: int = 0) -> Iterator[tuple[int, list[int]]]:
    """Yield the arrays of a column: the depth in lists, and the bytes for each row of each buffer."""
    counted = level == 0
    if pa.types.is_list(arrow_type):
        yield level, [BITS, OFFSETS] if counted else [0, 0]
        yield from _shape(arrow_type.value_type, level + 1)
    elif pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type):
        yield level, [BITS, OFFSETS, 0] if counted else [0, 0, 0]
    else:
        width = BITS if pa.types.is_boolean(arrow_type) else arrow_type.bit_width // 8
        yield level, [BITS, width] if counted else [0, 0]
