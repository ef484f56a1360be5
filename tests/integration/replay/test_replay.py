"""The rows of a table at a moment, from its log in the lake: equal to the source, or refused with the reason."""

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.lakes.lakes import CAPTURE, IDENTITY, CrashingFeed, batch
from tests.support.lakes.scripted_table import DATABASE, RELATION, ScriptedTable, Value, act
from tidemark.io.process.lake_config import LakeConfig, LakeTableConfig
from tidemark.model.change import PartitionChange, PartitionEvent, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.lake.folders import table_app
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_properties import EXPIRED
from tidemark.pipeline.lake.tables.table_upkeep import record_property
from tidemark.pipeline.replay.moment import LsnMoment, Moment, TimeMoment
from tidemark.pipeline.replay.refusal import ReplayRefused, TargetExists
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import FolderTarget
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.log import event_record
from tidemark.pipeline.sinks.log.changelog import expire_rows

KEYS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.sampled_from(["insert", "update", "keep", "delete"]), KEYS),
    st.tuples(st.sampled_from(["insert", "move", "move and keep", "cut", "update"]), KEYS),
    st.tuples(st.sampled_from(["truncate", "add", "add constant", "drop", "rename", "retype", "widen", "copy"]), KEYS),
)
Rows = list[dict[str, Value]]


def new_lake(root: Path) -> Lake:
    return Lake(str(root), IDENTITY, shape_of, constants_of)


def replayed(root: Path, at: int | Moment, to: Path, rows_max: int = 3) -> Rows:
    lake = OpenedLake(str(root))
    table = lake.positions.tables[DATABASE, RELATION]
    moment = LsnMoment(Lsn(at)) if isinstance(at, int) else at
    done = replay(lake, table, moment, FolderTarget(to), rows_max)
    rows = DeltaTable(str(to)).to_pyarrow_table().to_pylist()
    assert len(rows) == done.rows
    return sorted(rows, key=repr)


def time(us: int) -> TimeMoment:
    return TimeMoment(CommitTime(us))


@pytest.mark.feature("N17")
@settings(max_examples=5)
@given(
    st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL, None]),
    st.lists(STEPS, min_size=4, max_size=20),
    st.integers(0, 1 << 32),
)
def test_a_replay_equals_the_source_at_each_lsn_and_time_after_the_first_copy(
    identity: ReplicaIdentity | None, script: list[tuple[str, int]], seed: int
) -> None:
    """The commit times are the LSNs: a time is that of a commit, which it includes, or the one before a commit."""
    table = ScriptedTable(identity=identity or ReplicaIdentity.FULL, is_dated=True)
    if identity is None:
        table.relation = replace(table.relation, primary_key=())
    table.copy(1, [{1: 1, 2: "copied", 3: "B"}])
    expected: dict[int, Rows] = {}
    copied: list[int] = []
    changed: list[int] = []
    for step, (action, key) in enumerate(script):
        table.commit()
        expected[table.lsn] = table.expected()
        count = len(table.delivered())
        if action == "copy":
            table.copy(2 + step, list(table.rows.values()))
            copied.append(table.lsn)
        else:
            act(table, action, key, step)
            if len(table.delivered()) > count:
                changed.append(table.lsn)
    table.commit()
    expected[table.lsn] = table.expected()
    changed.append(table.lsn)
    table.insert({c.number: "99" if c.type and c.type.name == "text" else 99 for c in table.relation.live_columns})
    chance = random.Random(seed)
    with TemporaryDirectory() as folder:
        CrashingFeed(Path(folder) / "lake", chance).feed(table.delivered())
        for lsn, rows in expected.items():
            before = lsn - 100
            moments: list[int | Moment] = [lsn, time(lsn - 1), *([time(before)] if before in changed else [])]
            moment = chance.choice(moments)
            if min(at for at in (*copied, *changed) if at >= lsn) in copied:
                with pytest.raises(ReplayRefused, match="copied again"):
                    replayed(Path(folder) / "lake", moment, Path(folder) / "refused")
                continue
            assert replayed(Path(folder) / "lake", moment, Path(folder) / str(lsn)) == rows, moment


def copied_table() -> ScriptedTable:
    table = ScriptedTable()
    table.commit()
    table.copy(1, [{1: 1, 2: "copied", 3: None}])
    table.commit()
    table.update((1,), {2: "changed"})
    table.commit()
    table.update((1,), {2: "last"})
    return table


def refused_at(root: Path, lsn: int) -> str:
    with pytest.raises(ReplayRefused) as refused:
        replayed(root, lsn, root / "refused")
    assert not (root / "refused").exists()
    assert not list(root.glob(".refused*"))
    return str(refused.value)


def test_a_moment_before_the_first_copy_or_after_the_end_of_the_lake_is_refused(tmp_path: Path) -> None:
    table = copied_table()
    new_lake(tmp_path).apply(batch(table.delivered()))
    assert "is before the first copy of it" in refused_at(tmp_path, 1100)
    assert "does not contain all transactions before" in refused_at(tmp_path, table.lsn + 1)
    assert replayed(tmp_path, table.lsn, tmp_path / "to") == [{"id": 1, "note": "changed", "big": None}]


def test_a_result_never_replaces_a_folder(tmp_path: Path) -> None:
    table = copied_table()
    new_lake(tmp_path).apply(batch(table.delivered()))
    (tmp_path / "to").mkdir()
    with pytest.raises(TargetExists):
        replayed(tmp_path, table.lsn, tmp_path / "to")


def test_a_lake_that_an_earlier_version_wrote_has_its_first_moment_after_the_next_copy(tmp_path: Path) -> None:
    table = copied_table()
    lake = new_lake(tmp_path)
    lake.apply(batch(table.delivered()))
    applied, known = len(table.items), lake.positions
    lake.positions.events_after = None  # as that version writes the table
    lake.positions.write(known.outbox, (), known.applied)
    assert "earlier version" in refused_at(tmp_path, table.lsn)
    table.commit()
    table.update((1,), {2: "with events"})
    table.commit()
    table.copy(2, list(table.rows.values()))
    table.commit()
    table.delete((1,))
    new_lake(tmp_path).apply(batch(table.delivered()[applied:]))
    assert "is before the first copy of it" in refused_at(tmp_path, 1200)
    assert replayed(tmp_path, table.lsn, tmp_path / "to") == [{"id": 1, "note": "with events", "big": None}]


def test_a_moment_whose_rows_were_expired_is_refused_and_the_next_copy_makes_later_ones_known(tmp_path: Path) -> None:
    table = copied_table()
    lake = new_lake(tmp_path)
    lake.apply(batch(table.delivered()))
    applied, known = len(table.items), lake.positions.tables[DATABASE, RELATION]
    log = LakeTable(f"{tmp_path}/{known.folder}/log", table_app(CAPTURE, (DATABASE, RELATION), "log"))
    expire_rows(log, 1)
    new_lake(tmp_path).refresh()
    table.commit()
    table.copy(2, list(table.rows.values()))
    table.commit()
    table.delete((1,))
    new_lake(tmp_path).apply(batch(table.delivered()[applied:]))
    assert "log_keep_days deleted rows" in refused_at(tmp_path, 1200)
    assert replayed(tmp_path, table.lsn, tmp_path / "to") == [{"id": 1, "note": "last", "big": None}]


def test_events_of_deleted_rows_are_deleted_unless_a_later_replay_needs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows up to the third TRUNCATE are deleted; it is not described again, so it needs the description before it."""
    monkeypatch.setattr(event_record, "COMPACT_EVERY", 1)
    config = LakeConfig((LakeTableConfig("*.*", log_keep_days=1),))
    lake = Lake(str(tmp_path), IDENTITY, shape_of, constants_of, config=config)
    table = ScriptedTable(is_dated=True)
    table.copy(1, [{1: 1, 2: "copied", 3: None}])
    table.commit()
    table.add_column("added", "constant")
    for _ in range(3):
        table.commit()
        table.truncate()
        table.commit()
        table.insert({1: 5, 2: "e", 3: None, 4: "x"})
    table.commit()
    table.delete((5,))
    moment = table.lsn
    lake.apply(batch(table.delivered()))
    folder, applied = lake.positions.tables[DATABASE, RELATION].folder, len(table.items)
    before = recorded(tmp_path)
    log = LakeTable(f"{tmp_path}/{folder}/log", table_app(CAPTURE, (DATABASE, RELATION), "log"))
    third = [lsn for lsn, kind, _ in before if kind == "truncation"][-1]
    record_property(log, EXPIRED, str(third - 1))
    lake.refresh()
    shown = replayed(tmp_path, moment, tmp_path / "shown")
    table.commit()
    table.truncate()
    lake.apply(batch(table.delivered()[applied:]))
    after = recorded(tmp_path)
    gone = [each for each in before if each not in after]
    described = [lsn for lsn, kind, is_described in before if kind != "copy" and is_described and lsn < third][-1]
    assert gone == [each for each in before if each[1] != "copy" and each[0] < third and each[0] != described]
    assert "truncation" in {kind for _, kind, _ in gone}
    assert replayed(tmp_path, moment, tmp_path / "to") == shown
    assert shown == [{"id": 5, "note": "e", "big": None, "added": "x"}]
    assert "log_keep_days deleted rows" in refused_at(tmp_path, third - 100)


def recorded(root: Path) -> list[tuple[int, str, bool]]:
    """Return LSN and kind of all events, and whether they describe their version."""
    rows = DeltaTable(str(root / "_events")).to_pyarrow_table().to_pylist()
    return sorted((row["_commit_lsn"], row["kind"], row["columns"] is not None) for row in rows)


def test_moments_after_a_partition_was_attached_or_the_table_was_dropped_are_refused(tmp_path: Path) -> None:
    for change in (PartitionChange.ATTACH, SchemaChange.DROP):
        table = copied_table()
        at, relation = table.next_position(), table.relation
        xid, lsn = Xid(7), Lsn(table.lsn)
        if change is PartitionChange.ATTACH:
            partition = replace(relation, oid=Oid(7), name="attached")
            table.add_event(PartitionEvent(at, lsn, DATABASE, xid, PartitionChange.ATTACH, relation, partition))
        else:
            effect = SchemaEffect.METADATA
            table.add_event(SchemaEvent(at, lsn, DATABASE, xid, SchemaChange.DROP, effect, relation, None))
        table.commit()
        table.update((1,), {2: "later"})
        root = tmp_path / change.value
        new_lake(root).apply(batch(table.delivered()))
        reason = "was attached at" if change is PartitionChange.ATTACH else "was dropped at"
        assert reason in refused_at(root, table.lsn)


def test_a_change_that_does_not_identify_its_row_makes_later_moments_refused(tmp_path: Path) -> None:
    table = ScriptedTable(identity=ReplicaIdentity.NOTHING)
    table.copy(1, [{1: 1, 2: "copied", 3: None}])
    table.commit()
    table.insert({1: 2, 2: "inserted", 3: None})
    table.commit()
    table.delete((1,))
    table.commit()
    table.insert({1: 3, 2: "last", 3: None})
    new_lake(tmp_path).apply(batch(table.delivered()))
    rows = [{"id": number, "note": note, "big": None} for number, note in ((1, "copied"), (2, "inserted"))]
    assert replayed(tmp_path, 1200, tmp_path / "to") == rows
    assert "does not identify its row" in refused_at(tmp_path, 1300)
