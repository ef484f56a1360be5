"""The columns of the lake, and the effect of a type change on existing rows."""

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.support.lakes.scripted_table import ScriptedTable, column, missing_text
from tidemark.decode.types.codec import Dialect
from tidemark.model.lsn import Oid
from tidemark.model.relation import Align, EnumLabel, Relation, ReplicaIdentity, TypeDescription, TypeKind
from tidemark.pipeline.lake.layout import (
    Reshape,
    UnfitRows,
    constants_of,
    convert,
    key_names,
    lake_columns,
    numbered,
    plan_reshape,
    relabelled,
    renamed_labels,
    replica_schema,
    shape_of,
)
from tidemark.pipeline.sinks.rows.logshape import loses_nothing

ACLITEM = TypeDescription(Oid(1033), "pg_catalog", "aclitem", "aclitem", TypeKind.BASE, 16, False, Align.DOUBLE)


def relation(**changes: object) -> Relation:
    return replace(ScriptedTable().relation, **changes)  # type: ignore[arg-type]


def layout(of: Relation) -> pa.Schema:
    return replica_schema(of, shape_of(of))


@pytest.mark.feature("P06")
@pytest.mark.parametrize(
    ("identity", "identity_columns", "primary_key", "key"),
    [
        ("d", (1,), (1,), ("id",)),
        ("d", (), (), ()),
        ("d", (), (1,), ()),  # a deferrable primary key: the server writes no old key
        ("i", (2,), (1,), ("note",)),
        ("f", (), (1,), ("id",)),
        ("f", (), (), ()),
        ("n", (), (1,), ()),
    ],
)
def test_the_key_of_a_replica_is_what_the_server_writes_for_old_rows(
    identity: str, identity_columns: tuple[int, ...], primary_key: tuple[int, ...], key: tuple[str, ...]
) -> None:
    of = relation(
        replica_identity=ReplicaIdentity(identity), identity_columns=identity_columns, primary_key=primary_key
    )
    assert key_names(of) == key


def test_a_type_without_a_codec_cannot_be_a_key() -> None:
    address = replace(column(1, "id", "int8"), type=ACLITEM)
    assert key_names(relation(columns=(address, *relation().columns[1:]))) == ()


def test_virtual_columns_are_not_in_the_lake_and_reserved_names_are_changed() -> None:
    of = relation(
        columns=(
            column(1, "id", "int4"),
            replace(column(2, "computed", "text"), generated="v"),
            replace(column(3, "gone", "text"), dropped=True),
            column(4, "ID", "text"),
            column(5, "_seq", "int8"),
            column(6, "_seq_", "int8"),
            column(7, "id_8", "text"),
            column(8, "Id", "text"),
        )
    )
    assert [(c.number, c.index, c.name) for c in lake_columns(of)] == [
        (1, 0, "id"),
        (4, 2, "ID_4"),
        (5, 3, "_seq_"),
        (6, 4, "_seq__"),
        (7, 5, "id_8"),
        (8, 6, "Id_8_8"),
    ]


def test_a_column_is_identified_by_its_number_after_a_rename() -> None:
    of = relation()
    renamed = relation(columns=(*of.columns[:1], replace(of.columns[1], name="remark"), of.columns[2]))
    assert plan_reshape(layout(of), layout(of), {}) is None
    assert plan_reshape(layout(of), layout(renamed), {}) == Reshape((), rewrites=True)
    assert numbered(layout(renamed))[2].name == "remark"


def test_a_new_column_requires_a_rewrite_only_if_old_rows_have_a_value_in_it() -> None:
    of = relation()
    added = column(4, "extra", "text")
    wider = relation(columns=(*of.columns, added))
    plan = plan_reshape(layout(of), layout(wider), constants_of(wider))
    assert plan is not None
    assert not plan.rewrites
    assert [field.name for field in plan.added] == ["extra"]
    constant = relation(columns=(*of.columns, replace(added, missing=missing_text("x"))))
    assert constants_of(constant)[4].as_py() == "x"
    assert plan_reshape(layout(of), layout(constant), constants_of(constant)) == Reshape((), rewrites=True)


def test_a_constant_of_a_database_in_another_encoding_is_transcoded() -> None:
    added = replace(column(4, "extra", "text"), missing=missing_text("café", "latin-1"))
    of = relation(columns=(*relation().columns, added))
    assert constants_of(of, Dialect.of("LATIN1", 15))[4].as_py() == "café"


def test_renamed_labels_are_found_by_their_oids_and_written_into_the_rows() -> None:
    def version(*labels: str) -> Relation:
        enum_labels = tuple(EnumLabel(Oid(n), n, label) for n, label in enumerate(labels))
        mood = TypeDescription(Oid(1), "public", "mood", "mood", TypeKind.ENUM, 4, True, Align.INT, labels=enum_labels)
        moods = replace(mood, oid=Oid(2), kind=TypeKind.BASE, length=-1, labels=(), element=mood)
        one, many = (replace(column(n, f"c{n}", "int4"), type=kind) for n, kind in ((4, mood), (5, moods)))
        return relation(columns=(*relation().columns, one, many))

    names = {"ok": "fine", "sad": "ok"}
    assert renamed_labels(version("sad", "ok"), version("ok", "fine")) == {4: names, 5: names}
    assert renamed_labels(version("sad", "ok"), version("sad", "ok", "new")) == {}
    assert renamed_labels(None, version("sad")) == {}
    assert relabelled(pa.array(["sad", None, "ok", "odd"]), names).to_pylist() == ["ok", None, "fine", "odd"]
    lists = pa.array([["ok", None], None, []], pa.list_(pa.string()))
    assert relabelled(lists, names).to_pylist() == [["fine", None], None, []]


def test_decimals_become_text_as_postgresql_prints_them() -> None:
    small = pa.array([Decimal("0.0000001"), None, Decimal("-12.5000000")], pa.decimal128(12, 7))
    assert convert(small, pa.field("x", pa.string())).to_pylist() == ["0.0000001", None, "-12.5000000"]


def test_values_that_do_not_fit_are_an_error_and_an_empty_column_fits_any_type() -> None:
    with pytest.raises(UnfitRows, match="column x"):
        convert(pa.array(["a"]), pa.field("x", pa.int32()))
    assert convert(pa.array([4_294_967_295]), pa.field("x", pa.int32())).to_pylist() == [-1], "an oid that was"
    assert convert(pa.array([None], pa.string()), pa.field("x", pa.list_(pa.int32()))).null_count == 1


@pytest.mark.parametrize(
    ("old", "new", "so"),
    [
        (pa.int16(), pa.int32(), True),
        (pa.int64(), pa.int32(), False),
        (pa.int32(), pa.string(), True),
        (pa.string(), pa.int32(), False),
        (pa.int32(), pa.decimal128(10, 0), True),
        (pa.int32(), pa.decimal128(10, 2), False),
        (pa.decimal128(10, 2), pa.decimal128(12, 2), True),
        (pa.decimal128(10, 2), pa.decimal128(12, 1), False),
        (pa.decimal128(10, 2), pa.decimal128(10, 3), False),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), False),
        (pa.date32(), pa.string(), False),
    ],
)
def test_only_lossless_conversions_are_made_in_the_log(old: pa.DataType, new: pa.DataType, *, so: bool) -> None:
    assert loses_nothing(old, new) is so
