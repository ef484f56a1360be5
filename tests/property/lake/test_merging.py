"""Merges into a replica compared with a dict, for keys of each type and files of a few rows."""

import math
from dataclasses import replace
from decimal import Decimal
from tempfile import TemporaryDirectory
from threading import Lock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.model.position import Sequence
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge import clustering, data_files
from tidemark.pipeline.merge.clustering import recluster
from tidemark.pipeline.merge.compaction import Compacted, RowKey
from tidemark.pipeline.merge.key_ranges import KeyRanges, SoughtKeys
from tidemark.pipeline.merge.merging import append_rows, merge_rows, rows_of
from tidemark.pipeline.merge.touched_files import keyed_files

APP = "tidemark:test:replica"
FILE_ROWS = 4
TIMES = st.integers(-(10**12), 10**12) | st.sampled_from([-(1 << 63) + 1, (1 << 63) - 1, 999, 1000, 1001])
DAYS = st.integers(-20, 20) | st.sampled_from([2_932_896, 2_932_897, -719_162, -719_163])
TEXTS = st.text("abé\U0001f600", max_size=2) | st.sampled_from(["x" * 300 + "a", "x" * 300 + "b", "\U0010ffff" * 300])
FLOATS = st.sampled_from([0.0, -0.0, 1.5, -2.5, math.nan, math.inf, -math.inf, 1e300, 5e-324])
CUTS = st.none() | st.sampled_from([Decimal(n).scaleb(-3) for n in (-1500, -1, 0, 1, 2, 7)])
Values = st.SearchStrategy[None] | st.SearchStrategy[object]
KEYS: dict[str, dict[pa.DataType, st.SearchStrategy[object]]] = {
    "int": {pa.int64(): st.integers(-3, 40) | st.sampled_from([-(1 << 63), (1 << 63) - 1])},
    "text": {pa.string(): TEXTS},
    "binary": {pa.binary(): st.binary(max_size=2)},
    "float": {pa.float64(): FLOATS},
    "decimal": {pa.decimal128(20, 3): CUTS},
    "digits": {pa.decimal128(20, 0): st.integers(0, 9).map(lambda n: Decimal(12_345_678_901_234_567_890 + n))},
    "bool": {pa.bool_(): st.booleans()},
    "date": {pa.date32(): DAYS},
    "time": {pa.timestamp("us", "UTC"): TIMES},
    "int and text": {pa.int32(): st.integers(0, 2), pa.string(): TEXTS},
    "decimal and float": {pa.decimal128(20, 3): CUTS, pa.float64(): FLOATS},
    "text and two": {pa.string(): st.just("t"), pa.int64(): st.integers(0, 3), pa.bool_(): st.booleans()},
}
DECIMALS = [(15, 5), (18, 0), (18, 5), (19, 0), (19, 5), (20, 0), (28, 10), (38, 0), (38, 2), (38, 20), (38, 37)]
Row = tuple[object, ...]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_ROWS_MIN", FILE_ROWS)
    monkeypatch.setattr(data_files, "FILE_ROWS_MAX", FILE_ROWS)
    monkeypatch.setattr(clustering, "DEPTH_MAX", 2)


def equal_form(value: object) -> object:
    """Return one value for all values that are equal in PostgreSQL."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def column(values: list[object], kind: pa.DataType) -> pa.Array:
    """Return an Arrow column; dates and times are given as numbers, because Python's types do not cover all of them."""
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pa.array(values, kind)


def listed(values: pa.ChunkedArray) -> list[object]:
    if pa.types.is_temporal(values.type):
        values = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    found: list[object] = values.to_pylist()
    return found


class Merged:
    """A replica, and the rows that it should have, by the equal form of their keys."""

    def __init__(self, uri: str, kinds: list[pa.DataType]) -> None:
        self.uri, self.kinds = uri, kinds
        self.key = [f"k.{number}" for number in range(len(kinds))]
        names = [*self.key, "value", "big"]
        self.schema = pa.schema(list(zip(names, [*kinds, pa.int64(), pa.string()], strict=True)))
        self.rows: dict[Row, Row] = {}
        LakeTable(uri, APP).create(self.schema, NOTHING)

    def table(self, rows: list[Row], columns: int) -> pa.Table:
        schema = pa.schema(list(self.schema)[:columns])
        found = list(zip(*rows, strict=True)) if rows else [()] * columns
        return pa.table(
            [column(list(values), field.type) for values, field in zip(found, schema, strict=True)], schema=schema
        )

    def change(self, wanted: dict[Row, tuple[str, Row]], number: int) -> None:
        """Apply what is wanted for each key: put, keep (put without the last column) or remove."""
        puts, kept, removed = [], [], []
        for form, (what, key) in wanted.items():
            if what == "remove":
                removed.append(key)
                self.rows.pop(form, None)
                continue
            puts.append((*key, number, None if what == "keep" else f"big {number}"))
            kept.append(what == "keep")
            if what == "put":
                self.rows[form] = puts[-1]
            elif form in self.rows:
                self.rows[form] = (*key, number, self.rows[form][-1])
        flags = {"big": pa.array(kept)} if any(kept) else {}
        compacted = Compacted(
            self.table(puts, len(self.schema)), self.table(removed, len(self.key)), flags, only_new=False
        )
        table = self.opened()
        merge_rows(table, compacted, self.key, replace(table.applied, sequence=Sequence(number)))
        assert LakeTable(self.uri, APP).recorded == table.recorded

    def insert(self, wanted: dict[Row, Row], number: int) -> None:
        new = {form: (*key, number, "new") for form, key in wanted.items() if form not in self.rows}
        self.rows |= new
        table = self.opened()
        append_rows(table, self.table(list(new.values()), len(self.schema)), self.key, table.applied)

    def opened(self) -> LakeTable:
        return LakeTable(self.uri, APP)

    def check(self) -> None:
        delta = DeltaTable(self.uri)
        found = delta.to_pyarrow_table()
        rows = list(zip(*(listed(found.column(name)) for name in self.schema.names), strict=True))
        assert sorted(map(repr, rows)) == sorted(map(repr, self.rows.values()))
        added = pa.table(delta.get_add_actions())
        assert max(added.column("num_records").to_pylist(), default=0) <= FILE_ROWS
        assert sum(added.column("num_records").to_pylist()) == len(rows)

    def fetch(self) -> None:
        wanted: list[RowKey] = [row[: len(self.key)] for row in self.rows.values()]
        found = rows_of(keyed_files(self.opened(), self.key), wanted, ["value"])
        got = sorted(repr((row["value"], *key)) for key, row in found.items())
        assert got == sorted(repr((row[-2], *map(_found_form, row[: len(self.key)]))) for row in self.rows.values())


def _found_form(value: object) -> object:
    return value + 0.0 if isinstance(value, float) else value


@pytest.mark.feature("L09")
@pytest.mark.parametrize("kind", KEYS)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_merges_appends_and_maintenance_have_the_effect_of_a_dict(kind: str, data: st.DataObject) -> None:
    kinds = list(KEYS[kind])
    keys = st.tuples(*KEYS[kind].values())
    wanted = st.lists(st.tuples(st.sampled_from(["put", "put", "keep", "remove"]), keys), max_size=12)
    steps = data.draw(st.lists(st.sampled_from(["change", "change", "insert", "maintain", "optimize"]), max_size=7))
    with TemporaryDirectory() as folder:
        merged = Merged(folder, kinds)
        for number, step in enumerate(steps):
            if step == "maintain":
                recluster(merged.opened(), merged.key, Lock())
            elif step == "optimize":
                DeltaTable(folder).optimize.compact(target_size=200)  # another program's maintenance
            elif step == "insert":
                merged.insert({tuple(map(equal_form, key)): key for key in data.draw(st.lists(keys))}, number)
            else:
                chosen = data.draw(wanted)
                merged.change({tuple(map(equal_form, key)): (what, key) for what, key in chosen}, number)
            if step != "optimize":
                merged.check()
        merged.fetch()


@pytest.mark.feature("L09")
@pytest.mark.parametrize(("precision", "scale"), DECIMALS)
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_file_that_delta_rs_wrote_is_a_candidate_for_each_of_its_decimals(
    precision: int, scale: int, data: st.DataObject
) -> None:
    digits = st.integers(0, precision).flatmap(lambda count: st.integers(-(10**count) + 1, 10**count - 1))
    unscaled = data.draw(st.lists(digits, min_size=1, max_size=3, unique=True))
    kind = pa.decimal128(precision, scale)
    rows = pa.table({"k": pa.array([Decimal(f"{number}e-{scale}") for number in unscaled], kind)})
    with TemporaryDirectory() as folder:
        write_deltalake(folder, rows)
        ranges = KeyRanges(pa.table(DeltaTable(folder).get_add_actions()), [rows.schema.field("k")])
    assert sorted(ranges.inside(SoughtKeys(rows))[0].tolist()) == list(range(len(unscaled)))
