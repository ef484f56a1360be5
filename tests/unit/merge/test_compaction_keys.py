"""Compaction by key: keys that are equal in PostgreSQL are one row, and a change of an unknown row is refused."""

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal

import pyarrow as pa
import pytest

from tidemark.model.change import BeforeKind, batch_schema
from tidemark.model.errors import InternalError
from tidemark.pipeline.lake.layout import LakeColumn
from tidemark.pipeline.merge import compaction
from tidemark.pipeline.merge.compaction import Compacted, RowKey, compact


@pytest.fixture(scope="module", autouse=True, params=[compaction.LISTED_MAX, 0], ids=["listed", "by Arrow"])
def listed_max(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run each test with the way of few rows, and with that of more rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compaction, "LISTED_MAX", request.param)
        yield


COLUMNS = (LakeColumn(1, 0, "id"), LakeColumn(2, 1, "big"))
BIG_UNCHANGED = b"\2\0"
NAN = math.nan
FLOAT8 = pa.float64()
KeyValue = float | str | Decimal
Change = dict[str, object]


def change(
    op: str, new: KeyValue | None, old: KeyValue | None = None, *, big: str | None = None, keeps: bool = False
) -> Change:
    """Return a change of the row `new`, which was `old`; an update that `keeps` has no value of `big`."""
    return {
        "_op": op,
        "_before_kind": (BeforeKind.NONE if old is None else BeforeKind.KEY).value,
        "_unchanged": BIG_UNCHANGED if keeps else None,
        "_before": None if old is None else {"id": old, "big": None},
        "_after": None if new is None else {"id": new, "big": big},
    }


def nothing_to_fetch(keys: Sequence[RowKey], names: Sequence[str]) -> dict[RowKey, dict[str, object]]:
    pytest.fail(f"the replica is read for {names} of {keys}")


def compacted(*changes: Change, key_type: pa.DataType = FLOAT8) -> Compacted:
    """Compact changes for which the replica need not be read."""
    schema = batch_schema(pa.struct([pa.field("id", key_type), pa.field("big", pa.string())]))
    positions = [
        {"_tli": 1, "_commit_lsn": 1000, "_ordinal": ordinal, "_lsn": 900, "_xid": 7, "_commit_time": 0, "_origin": 0}
        for ordinal in range(len(changes))
    ]
    rows = [{**position, **change} for position, change in zip(positions, changes, strict=True)]
    return compact(pa.Table.from_pylist(rows, schema=schema), COLUMNS, ("id",), nothing_to_fetch)


def puts(found: Compacted) -> list[tuple[str, object]]:
    return [(repr(row["id"]), row["big"]) for row in found.puts.to_pylist()]


def removed(found: Compacted) -> list[str]:
    return [repr(key) for key in found.removed.column("id").to_pylist()]


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("other", [(0.0, -0.0), (-0.0, 0.0), (NAN, -NAN)], ids=repr)
def test_keys_that_are_equal_in_postgresql_are_one_row(other: tuple[float, float], *, keeps: bool) -> None:
    first, second = other
    beside = change("u", 5.0, keeps=keeps, big=None if keeps else "e")  # selects the path by which the run is compacted
    found = compacted(change("i", 5.0, big="e"), change("i", first, big="a"), change("d", None, second), beside)
    assert puts(found) == [("5.0", "e")]
    assert len(found.removed) == 1
    found = compacted(
        change("i", 5.0, big="e"), change("i", first, big="a"), change("u", second, first, keeps=keeps, big="a"), beside
    )
    assert sorted(puts(found)) == sorted([("5.0", "e"), (repr(second), "a")])
    assert not found.kept


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(
    ("first", "second", "key_type"), [(1.5, 2.5, FLOAT8), ("a", "b", pa.string())], ids=["float8", "text"]
)
def test_keys_that_differ_are_different_rows(
    first: KeyValue, second: KeyValue, key_type: pa.DataType, *, keeps: bool
) -> None:
    update = change("u", second, keeps=keeps, big=None if keeps else "y")
    inserts = [change("i", second, big="y"), change("i", first, big="x")]
    found = compacted(*inserts, update, key_type=key_type)
    assert sorted(puts(found)) == [(repr(first), "x"), (repr(second), "y")]
    found = compacted(*inserts, update, change("d", None, first), key_type=key_type)
    assert (puts(found), removed(found)) == ([(repr(second), "y")], [repr(first)])
    assert compacted(*inserts, key_type=key_type).only_new


@pytest.mark.parametrize("keys", [[1.0, 1.0], [0.0, -0.0], [2.0, 1.0, 2.0]], ids=repr)
def test_inserts_of_one_key_are_not_appended(keys: list[float]) -> None:
    found = compacted(*(change("i", key, big=f"{step}") for step, key in enumerate(keys)))
    assert not found.only_new
    assert len(found.puts) == len(set(keys))


def test_new_rows_with_a_numeric_key_are_appended_although_one_is_nan() -> None:
    """NaN of numeric is NULL in the lake."""
    inserts = [change("i", key, big="a") for key in (Decimal("1.5"), Decimal("2.5"))]
    inserts[1]["_after"] = {"id": None, "big": "b"}
    found = compacted(*inserts, key_type=pa.decimal128(10, 2))
    assert found.only_new
    assert puts(found) == [("Decimal('1.50')", "a"), ("None", "b")]


def test_a_delete_that_does_not_identify_its_row_is_refused_with_its_position() -> None:
    with pytest.raises(InternalError, match=r"does not identify its row: 1:0/3E8:1"):
        compacted(change("i", 1.0, big="x"), change("d", None))


def test_an_update_that_keeps_a_value_of_a_deleted_row_is_refused_with_its_position() -> None:
    with pytest.raises(InternalError, match=r"refers to a value of a row that does not exist: 1:0/3E8:1"):
        compacted(change("d", None, 1.0), change("u", 1.0, keeps=True))
