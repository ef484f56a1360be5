"""The events of tables that left the selection with a restart inside a divided transaction."""

from dataclasses import replace
from pathlib import Path

from tests.support.forged.groups import DATABASE, batch, group, position, relation
from tidemark.embedding.library_log import LibraryLog
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup, SchemaEvent
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier
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
