"""A batch is a message of Arrow's IPC format: the same bytes in either build, and equal to pyarrow's message."""

import struct
from array import array
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.property.decode_types.test_columns_equal_values import tables
from tests.support.examples import examples
from tests.support.forged import tuple_forms as forms
from tests.support.forged.spans import add, inserts
from tests.support.oracles import slow_batches
from tidemark.decode.arrow import batches
from tidemark.decode.arrow.batch_body import META_BUFFERS, META_NODES
from tidemark.decode.arrow.batch_message import MessageForm, message_form
from tidemark.decode.arrow.batches import BatchBuilder, RowSpans
from tidemark.decode.arrow.column_plans import ColumnPlan
from tidemark.decode.arrow.small_batch import SmallBatches
from tidemark.decode.types.registry import column_codec
from tidemark.model.change import ChangeBatch, RowsMessage, batch_schema
from tidemark.model.lsn import Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation, TypeDescription
from tidemark.wire.items import decode_item, encode_item

ALIGNMENT = 8  # of a buffer in a message (Arrow's columnar format)


def made(builder: type[BatchBuilder], relation: Relation, tuples: list[bytes]) -> ChangeBatch:
    rows = RowSpans(bytearray())
    for at, packed in enumerate(tuples):
        add(rows, packed if at % 2 else None, None if at % 3 == 2 else packed)
    (batch,) = builder(Oid(5), relation).build(rows)
    return batch


def made_in(small: SmallBatches, builder: type[BatchBuilder], relation: Relation, tuples: list[bytes]) -> ChangeBatch:
    """Return the same batch, built in the memory for small batches, of rows that have others around them."""
    rows = RowSpans(bytearray())
    add(rows, None, tuples[0])
    for at, packed in enumerate(tuples):
        add(rows, packed if at % 2 else None, None if at % 3 == 2 else packed)
    add(rows, tuples[0], None)
    alone = builder(Oid(5), relation).build(rows.part(1, len(rows) - 1))
    together = builder(Oid(5), relation, small=small).build(rows, 1, len(rows) - 1)
    assert list(map(bounds_of, together)) == list(map(bounds_of, alone))
    assert list(map(message_of, together)) == list(map(message_of, alone))
    return together[0]


def bounds_of(batch: ChangeBatch) -> tuple[Position, Position]:
    assert isinstance(batch.given, RowsMessage)
    return batch.given.first, batch.given.last


def message_of(batch: ChangeBatch) -> bytes:
    assert isinstance(batch.given, RowsMessage)
    return bytes(batch.given.message)


def litter(byte_count: int) -> None:
    """Let the next buffer of this size be one that was used before."""
    for _ in range(8):
        memoryview(pa.allocate_buffer(byte_count + 7 & ~7)).cast("B")[:] = b"\xa5" * (byte_count + 7 & ~7)


@settings(max_examples=examples(300), deadline=None)
@given(tables())
def test_both_builds_make_the_same_message_whatever_was_in_memory(table: tuple[Relation, list[bytes]]) -> None:
    relation, tuples = table
    first = message_of(made(BatchBuilder, relation, tuples))
    for space in range(len(first), len(first) + 256, 8):
        litter(space)
    assert message_of(made(BatchBuilder, relation, tuples)) == first
    assert message_of(made(slow_batches.batches.BatchBuilder, relation, tuples)) == first


@settings(max_examples=examples(300), deadline=None)
@given(tables())
def test_a_batch_in_reused_memory_is_the_same_message_in_both_builds(table: tuple[Relation, list[bytes]]) -> None:
    relation, tuples = table
    if not tuples:
        return
    compiled, slow = SmallBatches(), slow_batches.small.SmallBatches()
    for small in (compiled, slow):
        memoryview(small.out)[:] = b"\xa5" * len(small.out)
        memoryview(small.counts)[:] = array("q", [77]) * len(small.counts)
    batch = made_in(compiled, BatchBuilder, relation, tuples)
    again = made_in(slow, slow_batches.batches.BatchBuilder, relation, tuples)
    assert message_of(batch) == message_of(again) == message_of(made_in(compiled, BatchBuilder, relation, tuples))


def test_rows_of_plain_values_are_built_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    relation = forms.relation_of(forms.INT4, forms.TEXT)
    rows = inserts([forms.form_tuple(relation.columns, [struct.pack("<i", 7), forms.short(b"seven")])] * 5)

    def refuse(_form: MessageForm, _body_bytes: int) -> RowsMessage:
        raise AssertionError("left to the general way")

    monkeypatch.setattr(batches, "BatchMessage", refuse)
    (batch,) = BatchBuilder(Oid(5), relation, small=SmallBatches()).build(rows)
    assert batch.rows.column("_after").to_pylist() == [{"c1": 7, "c2": "seven"}] * 5


@settings(max_examples=examples(300), deadline=None)
@given(tables())
def test_a_batch_is_what_pyarrow_makes_of_its_values(table: tuple[Relation, list[bytes]]) -> None:
    relation, tuples = table
    batch = made(BatchBuilder, relation, tuples)
    rows = batch.rows
    rows.validate(full=True)
    plain = pa.RecordBatch.from_pylist(rows.to_pylist(), schema=rows.schema)
    for column, other in zip(rows.columns, plain.columns, strict=True):
        assert all(buffer is None or buffer.address % ALIGNMENT == 0 for buffer in column.buffers())
        assert (column.null_count, column.is_valid()) == (other.null_count, other.is_valid())
        pairs = [(column, other)]
        if pa.types.is_struct(column.type):  # NB: a field's value is undefined where the struct is NULL
            pairs = list(zip(column.flatten(), other.flatten(), strict=True))
        for ours, theirs in pairs:
            assert (ours.null_count, ours.to_string()) == (theirs.null_count, theirs.to_string())
    back = decode_item(*encode_item(batch))
    assert isinstance(back, ChangeBatch)
    assert repr(back.rows.to_pylist()) == repr(rows.to_pylist())
    assert rows.schema.equals(back.rows.schema, check_metadata=True)


def changed(*, origin: int, before: bool, external: bool, of: TypeDescription) -> RowSpans:
    """Return 13 rows: which of them have an origin, an old row, and an unchanged value."""
    relation = forms.relation_of(of, forms.TEXT)
    plain = {forms.BOOL: b"\x01", forms.INT8: bytes(range(8))}[of]
    kept = forms.form_tuple(relation.columns, [plain, forms.short(b"text")])
    moved = forms.form_tuple(relation.columns, [plain, forms.EXTERNAL])
    rows = RowSpans(bytearray())
    for at in range(13):
        add(rows, kept if before and at % 2 else None, moved if external and at % 3 else kept, before_kind=2 * before)
        rows.origin[at] = origin * (at % 2)
    return rows


@pytest.mark.parametrize("of", [forms.BOOL, forms.INT8], ids=["bool", "int8"])
@pytest.mark.parametrize("external", [False, True], ids=["known", "unchanged"])
@pytest.mark.parametrize("before", [False, True], ids=["inserts", "updates"])
@pytest.mark.parametrize("origin", [0, 7], ids=["local", "replicated"])
def test_columns_of_zeros_are_stored_once_and_others_apart(
    *, origin: int, before: bool, external: bool, of: TypeDescription
) -> None:
    relation = forms.relation_of(of, forms.TEXT)
    litter(4096)
    for small, builder in (
        (None, BatchBuilder),
        (SmallBatches(), BatchBuilder),
        (None, slow_batches.batches.BatchBuilder),
    ):
        if small is not None:
            memoryview(small.out)[:] = b"\xa5" * len(small.out)
        (batch,) = builder(Oid(5), relation, small=small).build(
            changed(origin=origin, before=before, external=external, of=of)
        )
        rows = batch.rows
        rows.validate(full=True)
        assert rows.column("_origin").to_pylist() == [origin * (at % 2) for at in range(13)]
        assert rows.column("_before_kind").to_pylist() == [2 * before] * 13
        unknown = [external and at % 3 > 0 and not (before and at % 2) for at in range(13)]  # the old row has others
        unchanged = [b"\x02" if is_unknown else None for is_unknown in unknown]
        assert rows.column("_unchanged").to_pylist() == unchanged
        assert [row is not None for row in rows.column("_before").to_pylist()] == [
            bool(before and at % 2) for at in range(13)
        ]
        assert [row["c2"] for row in rows.column("_after").to_pylist()] == [
            None if is_unknown else "text" for is_unknown in unknown
        ]
        zeros = rows.column("_unchanged").buffers()[1].address
        shared = {
            name
            for name, column in (("_origin", rows.column("_origin")), ("_before_kind", rows.column("_before_kind")))
            if column.buffers()[1].address == zeros
        }
        expected = {name for name, is_zero in (("_origin", not origin), ("_before_kind", not before)) if is_zero}
        assert shared == (set() if external else expected)
        if not external:
            assert (rows.column("_before").buffers()[0].address == zeros) == (not before)


@settings(max_examples=examples(100))
@given(tables())
def test_the_form_of_a_message_goes_by_nodes_and_buffers_alone(table: tuple[Relation, list[bytes]]) -> None:
    plan = ColumnPlan([column_codec(column) for column in table[0].live_columns])
    form = message_form(META_NODES + 2 * len(plan.levels), META_BUFFERS + 2 * len(plan.units))
    schema = batch_schema(BatchBuilder(Oid(5), table[0]).struct_type)
    written = MessageForm(
        pa.record_batch([pa.nulls(1, field.type) for field in schema], schema=schema).serialize().to_pybytes()
    )
    assert (form.nodes, form.buffers, form.length, form.body_length) == (
        written.nodes,
        written.buffers,
        written.length,
        written.body_length,
    )
    assert len(form.head) == len(written.head)


def test_the_columns_outlive_the_batch_and_the_decoder() -> None:
    relation = forms.relation_of(forms.TEXT)
    rows = inserts([forms.form_tuple(relation.columns, [forms.short(b"kept")])])
    (batch,) = BatchBuilder(Oid(5), relation).build(rows)
    column = batch.rows.column("_after").field(0)
    rows.data[:] = bytes(len(rows.data))
    del batch, rows
    litter(2048)
    assert column.to_pylist() == ["kept"]


def test_text_longer_than_its_guess_makes_the_message_longer() -> None:
    relation = forms.relation_of(forms.NUMERIC, forms.JSONB, forms.INT4)
    number = forms.short(struct.pack("<HhH", 0, 2000, 7))  # 7 * 10000 ** 2000
    document = forms.plain(forms.jsonb_payload("\x01" * 500))
    packed = forms.form_tuple(relation.columns, [number, document, struct.pack("<i", 5)])
    (batch,) = BatchBuilder(Oid(5), relation).build(inserts([packed] * 3))
    batch.rows.validate(full=True)
    assert (
        batch.rows.column("_after").to_pylist()
        == [{"c1": "7" + "0" * 8000, "c2": '"' + "\\u0001" * 500 + '"', "c3": 5}] * 3
    )


NUMBER = struct.pack("<Hhhhh", 0, 2, 1111, 2222, 3333)


@pytest.mark.parametrize(
    ("described", "payload", "value"),
    [
        (forms.TEXT, forms.short(b"123456789012"), "123456789012"),
        (forms.NUMERIC, forms.short(NUMBER), "111122223333"),
        (forms.UUID, bytes(16), "00000000-0000-0000-0000-000000000000"),
        (forms.MOOD, struct.pack("<I", 50_001), "sad"),
    ],
    ids=["text", "numeric", "uuid", "enum"],
)
def test_more_text_than_offsets_reach_goes_into_further_batches(
    described: TypeDescription, payload: bytes, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 12 if described is forms.MOOD else 40 if described is forms.UUID else 20
    for kernel in (slow_batches.columns, slow_batches.put):
        monkeypatch.setattr(kernel, "TEXT_BYTES_MAX", bound)
    relation = forms.relation_of(described)
    packed = forms.form_tuple(relation.columns, [payload])
    split = slow_batches.batches.BatchBuilder(Oid(5), relation).build(inserts([packed] * 3))
    assert [batch.rows.num_rows for batch in split] == [1, 1, 1]
    assert [row for batch in split for row in batch.rows.column("_after").to_pylist()] == [{"c1": value}] * 3


def test_tables_with_the_same_columns_share_what_their_batches_have_in_common() -> None:
    relation = forms.relation_of(forms.INT4, forms.MOOD)
    other = replace(relation, oid=Oid(77), name="other")
    shorter = replace(relation, columns=relation.columns[:1])
    builders = [BatchBuilder(Oid(5), one) for one in (relation, other, shorter)]
    types = [builder.struct_type for builder in builders]
    assert types[0] is types[1]
    assert types[2] is not types[0]
