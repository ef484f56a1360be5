"""The events of tables that left the selection with a restart inside a divided transaction."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged.groups import DATABASE, batch, group, position, relation
from tidemark.embedding.library_log import LibraryLog
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import ChangeGroup, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, Xid
from tidemark.model.relation import Relation
from tidemark.runtime.first_copy import capture_notices
from tidemark.runtime.first_copy.capture_notices import CaptureNotices, TableVersion
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, DueNotice
from tidemark.wire.state.values import Identity

DELIVERED = position(200, 5)
TABLES = [relation(f"gone_{number}", 16400 + number) for number in range(3)]


def notices(folder: Path) -> CaptureNotices:
    """Return those of a start after three tables had left the selection."""
    identity = Identity("test", SystemIdentifier(7), "00" * 16, 15, 16 << 20, 1 << 24)
    with StateStore.create(StateFolder(folder), identity) as store:
        with store.transaction(None) as transaction:
            for table in TABLES:
                ended = CopyProgress(CopyPhase.LEFT, 1, capture=DueNotice.ENDS)
                transaction.put_copy(DATABASE, table.oid, ended)
        versions = {(DATABASE, Oid(table.oid)): TableVersion(table, is_selected=False) for table in TABLES}
        made = CaptureNotices(store, versions, DELIVERED, LibraryLog())
        made.announced(group(200, [], ordinal=6))
        return made


def positions(of: ChangeGroup) -> list[tuple[Lsn, int]]:
    return [(item.position.commit_lsn, item.position.ordinal) for item in of.items if isinstance(item, SchemaEvent)]


def test_the_events_wait_for_the_transaction_after_the_one_that_was_divided(tmp_path: Path) -> None:
    made = notices(tmp_path / "state")
    rest = replace(group(200, [batch(200, [7])], ordinal=8), first=position(200, 7))
    assert made.announced(rest) is rest
    after = made.announced(group(208, [batch(208, [1])]))
    assert positions(after) == [(206, 0), (206, 1), (206, 2)]
    assert made.announced(again := group(216, [])) is again


def drop(commit_lsn: int, ordinal: int, table: Relation) -> SchemaEvent:
    at, metadata = position(commit_lsn, ordinal), SchemaEffect.METADATA
    return SchemaEvent(at, at.commit_lsn, DATABASE, Xid(7), SchemaChange.DROP, metadata, table, None)


def changes(of: ChangeGroup) -> list[tuple[Oid, CaptureChange]]:
    found = [(item, item.after or item.before) for item in of.items if isinstance(item, SchemaEvent)]
    return [(table.oid, item.capture) for item, table in found if table is not None]


def test_a_table_that_the_divided_transaction_drops_has_no_event_after_it(tmp_path: Path) -> None:
    made = notices(tmp_path / "state")
    made.announced(replace(group(200, [drop(200, 7, TABLES[1])], ordinal=8), first=position(200, 7)))
    after = made.announced(group(208, [batch(208, [1])]))
    assert changes(after) == [(table.oid, CaptureChange.ENDS) for table in (TABLES[0], TABLES[2])]


def test_the_events_of_tables_that_a_group_drops_precede_it_even_if_those_of_others_follow_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the event after the DROP would record a table that does not exist, for ever."""
    monkeypatch.setattr(capture_notices, "GROUP_TABLES", 1)
    made = notices(tmp_path / "state")
    drops = [drop(208, number, table) for number, table in enumerate(TABLES[1:])]
    left = [(table.oid, CaptureChange.ENDS) for table in TABLES]
    gone = [(table.oid, CaptureChange.NONE) for table in TABLES[1:]]
    assert changes(made.announced(group(208, drops))) == [*left[1:], *gone]
    assert changes(made.announced(group(216, [batch(216, [1])]))) == left[:1]
