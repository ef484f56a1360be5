"""States and faults of the lake's tables are kept up to date by the changed ones, and equal those of a whole count."""

import random
from collections import Counter
from dataclasses import replace

from tests.support.processes.python_calls import counted_calls
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.lake.faults import Fault, FaultKind
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.landing.table_overview import TableOverview, changed_tables

DATABASE, AT = Oid(5), Position(TimelineId(1), Lsn(1), 0)
SHOWN = (FaultKind.PAUSED, FaultKind.STOPPED, FaultKind.DIVERGED)
Tables = dict[TableId, TablePosition]


def table(number: int, state: TableState = TableState.LIVE) -> TablePosition:
    return TablePosition(DATABASE, Oid(number), "public", f"t{number}", f"t{number}", state, Sequence(1), AT)


def tables(count: int) -> Tables:
    return {(DATABASE, Oid(number)): table(number) for number in range(1, count + 1)}


def changed(chosen: random.Random, known: TablePosition) -> TablePosition:
    kinds = [None, *FaultKind]
    faults = [None if kind is None else Fault(kind, "a reason", AT, Sequence(1)) for kind in chosen.choices(kinds, k=2)]
    log, replica = (
        replace(entry, fault=fault) for entry, fault in zip((known.log, known.replica), faults, strict=True)
    )
    return replace(known, state=chosen.choice([*TableState]), log=log, replica=replica)


def shown_faults(known: TablePosition) -> list[FaultKind]:
    both = (known.log.fault, known.replica.fault)
    return [fault.kind for fault in both if fault is not None and fault.kind in SHOWN]


def check(overview: TableOverview, present: Tables) -> None:
    states, each = Counter(one.state for one in present.values()), list(present.values())
    assert len(overview) == len(each)
    assert {state: overview.count(state) for state in TableState} == {state: states[state] for state in TableState}
    assert overview.paused == sum(FaultKind.PAUSED in shown_faults(one) for one in each)
    assert {one.name for one in overview.stale()} == {one.name for one in each if one.state is TableState.STALE}
    found = Counter((one.name, fault.kind) for one, _, fault in overview.faults())
    assert found == Counter((one.name, kind) for one in each for kind in shown_faults(one))


def test_an_overview_equals_a_count_of_all_tables_after_each_change() -> None:
    chosen, overview, present = random.Random(7), TableOverview(), tables(6)
    for step in range(200):
        of = chosen.choice([*present])
        present = {**present, of: changed(chosen, present[of])}
        if step % 20 == 0:
            present = {**present, (DATABASE, Oid(1000 + step)): table(1000 + step)}
        overview.update(present)
        check(overview, present)
    another = tables(3)  # another lake, which lacks most of them
    overview.update(another)
    check(overview, another)


def test_a_quiet_table_costs_an_overview_no_call() -> None:
    calls = []
    for count in (10, 1000):
        overview, present = TableOverview(), tables(count)
        overview.update(present)
        of = DATABASE, Oid(3)
        present = {**present, of: replace(present[of], state=TableState.STALE)}
        with counted_calls() as counted:
            overview.update(present)
            overview.faults()
        assert overview.count(TableState.STALE) == 1
        calls.append(counted.total)
    assert calls[0] == calls[1]


def test_only_other_objects_are_changed_tables() -> None:
    before = tables(3)
    of = DATABASE, Oid(2)
    after = {**before, of: replace(before[of]), (DATABASE, Oid(9)): table(9)}
    assert changed_tables(before, after) == [after[of], after[DATABASE, Oid(9)]]
    assert changed_tables(after, dict(after)) == []
