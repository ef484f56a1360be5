import struct

import pytest

from tests.support.forged.catalog_rows import attribute_row, enum_row, heap, layout, varlena
from tidemark.decode.catalog.heap import COMMITTED_SNAPSHOT, ELIDED, format_tid, make_tid
from tidemark.decode.catalog.layout import (
    PG_ATTRIBUTE,
    PG_ENUM,
    PG_NAMESPACE,
    CatalogColumn,
    CatalogLayout,
    UnknownCatalogShape,
    data_at,
)
from tidemark.decode.catalog.seeding.missing import is_from_seed, missing_from_text
from tidemark.model.lsn import Oid, Xid


def test_fixed_columns_are_placed_by_alignment() -> None:
    assert layout(PG_ATTRIBUTE).offsets == {
        "attrelid": 0,
        "attname": 4,
        "atttypid": 68,
        "attnum": 72,
        "attisdropped": 74,
    }
    assert layout(PG_ATTRIBUTE).fixed_bytes == 75


def test_a_catalog_without_a_key_column_is_refused() -> None:
    columns = [CatalogColumn(1, "oid", Oid(26), 4, "i", not_null=True)]
    with pytest.raises(UnknownCatalogShape, match="enumtypid"):
        CatalogLayout(PG_ENUM, columns)


def test_a_catalog_with_a_gap_in_its_columns_is_refused() -> None:
    columns = [CatalogColumn(2, "oid", Oid(26), 4, "i", not_null=True)]
    with pytest.raises(UnknownCatalogShape, match="column 1 is missing"):
        CatalogLayout(PG_NAMESPACE, columns)


def test_a_projection_in_another_order_than_the_catalog_has_is_refused() -> None:
    with pytest.raises(UnknownCatalogShape, match="another order"):
        layout(PG_ENUM).projection("enumlabel", "oid")


def test_a_value_after_nulls_is_found() -> None:
    datum = varlena(b"value")
    packed = attribute_row(7, 1, missing=datum)
    place = layout(PG_ATTRIBUTE).locate(packed, "attmissingval")
    assert place is not None
    assert packed[place[0] : place[1]] == datum
    assert (place[0] - data_at(packed)) % 8 == 0
    assert layout(PG_ATTRIBUTE).locate(packed, "attacl") is None


def test_a_value_with_a_short_header_is_found_unaligned() -> None:
    made = layout(PG_ATTRIBUTE)
    whole = attribute_row(7, 1, missing=varlena(b"12345"))
    short = whole[: data_at(whole) + made.fixed_bytes] + bytes([(6 << 1) | 1]) + b"12345"
    place = made.locate(short, "attmissingval")
    assert place is not None
    assert short[place[0] : place[1]] == b"\x0d12345"


@pytest.mark.parametrize("damage", [b"", b"\x04\x00\x00", b"\x05\x00\x00\x08\x18\x00", b"\x04\x00\x00\x08\x10"])
def test_bytes_that_are_no_row_do_not_fit(damage: bytes) -> None:
    assert not layout(PG_ENUM).fits(damage)
    assert layout(PG_ENUM).fits(enum_row(1, 2))
    assert not layout(PG_ENUM).fits(enum_row(1, 2)[:-1])


def test_rows_of_system_columns_are_kept_as_locations_only() -> None:
    attributes = heap(PG_ATTRIBUTE)
    attributes.insert(make_tid(0, 1), attribute_row(7, -6))
    attributes.insert(make_tid(0, 2), attribute_row(7, 1))
    assert attributes.rows[make_tid(0, 1)] == ELIDED
    assert list(attributes.find("attrelid", 7, COMMITTED_SNAPSHOT)) == [attribute_row(7, 1)]


def test_an_insert_replaces_the_earlier_tuple_at_its_offset() -> None:
    enums = heap(PG_ENUM)
    tid = make_tid(3, 4)
    enums.insert(tid, enum_row(1, 2))
    assert list(enums.find("enumtypid", 2, COMMITTED_SNAPSHOT))
    enums.deleter[tid] = Xid(9)
    enums.insert(tid, enum_row(5, 6), Xid(10))
    assert not list(enums.find("enumtypid", 2, COMMITTED_SNAPSHOT))
    enums.commit(tid, Xid(9))
    assert tid in enums.rows
    assert format_tid(tid) == "(3,4)"


def test_during_the_seed_wal_takes_precedence_over_sql() -> None:
    enums = heap(PG_ENUM, seeding=True)
    inserted, dead, reused, imaged, open_end, plain = (make_tid(0, offset) for offset in range(1, 7))
    enums.insert(inserted, enum_row(1, 1))
    enums.deleter[dead] = Xid(9)
    enums.commit(dead, Xid(9))
    enums.insert(reused, enum_row(2, 1), Xid(10))
    enums.abort(reused, Xid(10))
    assert enums.seeding is not None
    enums.seeding.images[imaged] = enum_row(3, 1, "real")
    enums.deleter[open_end] = Xid(11)
    seen = [inserted, dead, reused, imaged, open_end, plain]
    enums.add_seeded([(tid, enum_row(100 + tid, 1, "seed")) for tid in seen])
    enums.end_seed()
    assert enums.rows.keys() == {inserted, imaged, open_end, plain}
    assert enums.rows[inserted] == enum_row(1, 1)
    assert enums.rows[imaged] == enum_row(3, 1, "real")
    enums.commit(open_end, Xid(11))
    assert open_end not in enums.rows


def test_a_missing_value_of_a_seed_is_distinguished_from_a_real_one() -> None:
    made = missing_from_text(b"text")
    assert is_from_seed(made)
    real = bytearray(made)
    struct.pack_into("<i", real, 20, 1)
    assert not is_from_seed(bytes(real))
    assert not is_from_seed(None)
    assert not is_from_seed(b"\x0bshort")
