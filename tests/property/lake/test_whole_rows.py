"""Replicas of tables without a key, compared with the same statements in SQL (SQLite), in files of a few rows."""

import math
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from tempfile import TemporaryDirectory
from threading import Lock

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.model.change import BeforeKind, batch_schema
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.layout import LakeColumn
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge import clustering, data_files
from tidemark.pipeline.merge.clustering import recluster
from tidemark.pipeline.merge.merging import append_rows, merge_whole_rows
from tidemark.pipeline.merge.whole_rows import net_rows

APP = "tidemark:test:replica"
FILE_ROWS = 4
FLOATS = st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]) | st.none()
INFINITY_US = (1 << 63) - 1
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "a.b": (pa.int64(), st.integers(0, 2) | st.none()),
    "double": (pa.float64(), FLOATS),
    "real": (pa.float32(), FLOATS),
    "json": (pa.string(), st.sampled_from(['{"a": 1}', "null", "", None])),
    "bytes": (pa.binary(), st.sampled_from([b"", b"\x00", None])),
    "at": (pa.timestamp("us", "UTC"), st.sampled_from([0, INFINITY_US, None])),
    "floats": (pa.list_(pa.float64()), st.lists(FLOATS, max_size=2) | st.none()),
    "times": (pa.list_(pa.timestamp("us")), st.lists(st.sampled_from([1, INFINITY_US]), max_size=2)),
    "texts": (pa.list_(pa.string()), st.lists(st.sampled_from(["", "None", None]), max_size=2) | st.none()),
}
LISTS = ("floats", "times", "texts")
Values = tuple[object, ...]
CHANGES = st.sampled_from(["insert", "insert", "delete", "update", "update nothing", "commit", "maintain"])


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_ROWS_MIN", FILE_ROWS)
    monkeypatch.setattr(data_files, "FILE_ROWS_MAX", FILE_ROWS)
    monkeypatch.setattr(clustering, "DEPTH_MAX", 2)


def arrow(values: list[object], kind: pa.DataType) -> pa.Array:
    """Return a column; times are given as numbers, because Python's have no infinity."""
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        return pa.array(values, pa.list_(pa.int64())).cast(kind)
    return pa.array(values, kind)


def listed(values: pa.ChunkedArray) -> list[object]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_list(kind) and pa.types.is_timestamp(kind.value_type):
        values = values.cast(pa.list_(pa.int64()))
    found: list[object] = values.to_pylist()
    return found


class TwoMultisets:
    """A table in SQL, whose rows are texts, and its replica; changes between two commits are one run."""

    def __init__(self, uri: str, source: sqlite3.Connection, names: tuple[str, ...]) -> None:
        self.uri, self.source, self.names = uri, source, names
        self.kinds = [KINDS[name][0] for name in names]
        self.struct = pa.struct(list(zip(names, self.kinds, strict=True)))
        self.columns = [LakeColumn(index + 1, index, name) for index, name in enumerate(names)]
        lists = [name for name in names if name in LISTS]
        self.sorted_by = [name for name in names if name not in LISTS] or lists[:1]
        self.values: dict[str, Values] = {}
        self._run: list[tuple[str, Values | None, Values | None]] = []
        source.execute("CREATE TABLE t (row TEXT)")
        LakeTable(uri, APP).create(pa.schema(list(self.struct)), NOTHING)

    def insert(self, values: Values) -> None:
        self.source.execute("INSERT INTO t VALUES (?)", (self._text(values),))
        self._run.append(("i", None, values))

    def delete(self, values: Values) -> None:
        one = "(SELECT rowid FROM t WHERE row = ? LIMIT 1)"
        self.source.execute(f"DELETE FROM t WHERE rowid = {one}", (self._text(values),))
        self._run.append(("d", values, None))

    def update(self, old: Values, new: Values) -> None:
        one = "(SELECT rowid FROM t WHERE row = ? LIMIT 1)"
        self.source.execute(f"UPDATE t SET row = ? WHERE rowid = {one}", (self._text(new), self._text(old)))
        self._run.append(("u", old, new))

    def present(self) -> list[Values]:
        return [self.values[row] for (row,) in self.source.execute("SELECT row FROM t")]

    def commit(self) -> None:
        if not self._run:
            return
        net = net_rows(self._changes(), self.columns)
        assert net is not None
        merge_whole_rows(LakeTable(self.uri, APP), net, self.sorted_by, NOTHING)
        self._run.clear()
        self.check()

    def copy(self, rows: list[Values]) -> None:
        for values in rows:
            self.source.execute("INSERT INTO t VALUES (?)", (self._text(values),))
        append_rows(LakeTable(self.uri, APP), pa.Table.from_struct_array(self._array(rows)), self.sorted_by, NOTHING)

    def check(self) -> None:
        delta = DeltaTable(self.uri)
        rows = delta.to_pyarrow_table()
        found = [repr(row) for row in zip(*(listed(rows.column(name)) for name in self.names), strict=True)]
        assert sorted(found) == [row for (row,) in self.source.execute("SELECT row FROM t ORDER BY row COLLATE BINARY")]
        assert max(pa.table(delta.get_add_actions()).column("num_records").to_pylist(), default=0) <= FILE_ROWS

    def _text(self, values: Values) -> str:
        text = repr(
            tuple(listed(pa.chunked_array([arrow([v], k)]))[0] for v, k in zip(values, self.kinds, strict=True))
        )
        self.values[text] = values
        return text

    def _array(self, rows: Sequence[Values | None]) -> pa.StructArray:
        missing = tuple(None for _ in self.names)
        columns = list(zip(*(row or missing for row in rows), strict=True)) if rows else [()] * len(self.names)
        arrays = [arrow(list(values), kind) for values, kind in zip(columns, self.kinds, strict=True)]
        mask = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self.struct), mask=mask)

    def _changes(self) -> pa.Table:
        count = len(self._run)
        ops, old, new = zip(*self._run, strict=True)
        fields = batch_schema(self.struct)
        kinds = [BeforeKind.NONE.value if row is None else BeforeKind.FULL.value for row in old]
        known = {
            "_op": pa.array(ops),
            "_before_kind": pa.array(kinds, fields.field("_before_kind").type),
            "_before": self._array(old),
            "_after": self._array(new),
        }
        return pa.table([known.get(field.name, pa.nulls(count, field.type)) for field in fields], names=fields.names)


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, ...]:
    """Return some columns in some order."""
    names = draw(st.permutations(list(KINDS)))
    return tuple(names[: draw(st.integers(1, len(names)))])


@pytest.mark.feature("P27")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=tables(), data=st.data(), changes=st.lists(CHANGES, max_size=25), copied=st.integers(0, 12))
def test_a_delete_removes_exactly_one_equal_row(
    names: tuple[str, ...], data: st.DataObject, changes: list[str], copied: int
) -> None:
    values = st.tuples(*(KINDS[name][1] for name in names))
    with TemporaryDirectory() as root, closing(sqlite3.connect(":memory:")) as source:
        both = TwoMultisets(root, source, names)
        both.copy(data.draw(st.lists(values, min_size=copied, max_size=copied)))
        for change in [*changes, "commit"]:
            present = both.present()
            if change == "insert":
                both.insert(data.draw(values | st.sampled_from(present)) if present else data.draw(values))
            elif change == "commit":
                both.commit()
            elif change == "maintain":
                both.commit()
                recluster(LakeTable(root, APP), both.sorted_by, Lock())
                both.check()
            elif present:
                old = data.draw(st.sampled_from(present))
                if change == "delete":
                    both.delete(old)
                else:
                    both.update(old, old if change == "update nothing" else data.draw(values))
