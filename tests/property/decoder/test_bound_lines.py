"""Begins and ends of transactions as columns are the same lines as one by one."""

from array import array
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.groups import relation
from tidemark.decode.groups.transaction_counts import TableCounts
from tidemark.decode.render.bounds import BEGIN, END, BoundForm, JsonBounds, SmallEnds
from tidemark.decode.render.debezium import DebeziumBounds
from tidemark.decode.render.placed_lines import Lines, LineWriter
from tidemark.decode.transactions.reorder_buffer.committed_run import SmallTransactions
from tidemark.model.lsn import Oid, TimelineId

FORMS: dict[str, BoundForm] = {"jsonl": JsonBounds({Oid(5): 'a "base"'}), "debezium": DebeziumBounds()}
TABLES = [relation("account"), relation('"quoted" ä\udcff', 16400), relation("account", 16401)]
TIMES = st.integers(-(10**15), 4 * 10**15) | st.integers(-(10**9), 10**9).map(lambda second: second * 1_000_000)
COUNTED = st.dictionaries(st.integers(0, len(TABLES) - 1), st.integers(1, 300))
TRANSACTION = st.tuples(st.integers(1, 1 << 40), TIMES, st.sampled_from([5, 6]), st.integers(1, 300), COUNTED)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", [BEGIN, END])
@given(st.lists(TRANSACTION, min_size=1, max_size=8), st.data())
def test_bounds_of_many_are_those_of_each(
    form: str, op: str, reported: list[tuple[int, int, int, int, dict[int, int]]], data: st.DataObject
) -> None:
    xids, times, databases, items, counted = (list(column) for column in zip(*reported, strict=True))
    lsns = [1000 + 40 * number for number in range(len(reported))]
    columns = [array("q", column) for column in (xids, lsns, lsns, lsns, times, databases, items)]
    ends = SmallTransactions(TimelineId(3), *columns)
    begins = np.cumsum([0, *map(len, counted)])
    counts = TableCounts(
        begins,
        np.array([table for one in counted for table in one], np.int64),
        np.array([count for one in counted for count in one.values()], np.int64),
        TABLES,
    )
    chosen = sorted(data.draw(st.sets(st.integers(0, len(reported) - 1), min_size=1)))
    some = SmallEnds(ends, counts, np.array(chosen, np.int64))
    lines = Lines(some.column("commit_lsns"), some.column("row_counts"), *FORMS[form].pieces(op, some))
    expected = [FORMS[form].line(op, replace(ends.end(number), tables=counts.of(number))) for number in chosen]
    assert b"".join(map(bytes, LineWriter().blocks([lines]))) == b"".join(expected)
