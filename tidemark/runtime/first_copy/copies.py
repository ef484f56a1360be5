"""The result of the first copies: which changes of the stream they contain, and whether each one is complete."""

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.groups.partitions import RootOf, own_version
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.change import TransactionEnd
from tidemark.model.lsn import Lsn, Oid, TimelineId, format_lsn
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.model.snapshot import Visibility, parse_visibility
from tidemark.runtime.replay.diverged import DeadBranchDelivered
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, DueNotice
from tidemark.wire.values import NO_SCHEMA_VERSION


class Copies:
    """Whether the copies have a transaction's changes; used when all copies are delivered.

    The tables that the first plan did not list were dropped before it, left the selection, or were created later.
    Their changes that its snapshot shows are not delivered: nothing was delivered of them, they would come after the
    copies of tables that have their names by then.
    NB: also copies that a custom consumer has not confirmed yet: they are not done, the stream follows them.
    """

    def __init__(self, view: StateView) -> None:
        self._tables = {key: parse_visibility(copy.snapshot) for key, copy in view.copies.items() if copy.snapshot}
        self._known = view.copies.keys()
        listed = view.fingerprint.shown if view.fingerprint is not None else {}
        self._listed = {Oid(int(database)): parse_visibility(snapshot) for database, snapshot in listed.items()}
        self._shown = [shown for copy in view.copies.values() if (shown := copy.shown_to) is not None]
        self._planned_to = view.planned_to

    @property
    def snapshots(self) -> list[Visibility]:
        """The snapshots by which `have` decides."""
        return [*self._tables.values(), *self._listed.values()]

    def have(self, relation: Oid, end: TransactionEnd) -> bool:
        """Return whether the copy of `relation` has what a transaction changed, or the first plan was after it."""
        key = (end.database, relation)
        snapshot = self._listed.get(end.database) if key not in self._known else self._tables.get(key)
        return snapshot is not None and snapshot.shows(end.full_xid, end.commit_lsn)

    def check_fork(self, timeline: TimelineId, fork_lsn: Lsn, next_timeline: TimelineId) -> None:
        """Raise if a copy may contain what is behind the place where the node left a timeline for the next one.

        That never happened, and such a copy also hides changes that come under the same xids.
        """
        dead_from = Position(timeline, fork_lsn, 0)

        def is_dead(shown: Position) -> bool:
            return dead_from <= shown and shown.timeline < next_timeline

        left = f"timeline {timeline} was left at {format_lsn(fork_lsn)}"
        dead = [shown for shown in self._shown if is_dead(shown)]
        if dead:
            raise DeadBranchDelivered(
                f"{left}, but the first copy of {len(dead)} tables contains changes up to {max(dead)}"
            )
        if self._planned_to is not None and is_dead(self._planned_to):
            raise DeadBranchDelivered(f"{left}, but the first copy was planned with the catalogs of {self._planned_to}")


def left_versions(store: StateStore, view: StateView) -> dict[TableKey, Relation]:
    """Return the tables of which something was delivered before they left the selection, as of then."""
    left = {key: copy.left_as for key, copy in view.copies.items() if copy.phase is CopyPhase.LEFT}
    found: dict[TableKey, Relation] = {}
    for number, (database, relation) in store.relations().items() if left else ():
        key = (database, relation.oid)
        if key in left and (key not in found or number <= left[key] or left[key] == NO_SCHEMA_VERSION):
            found[key] = relation
    return found


def left_tables(
    store: StateStore, view: StateView, mirrors: DatabaseMirrors, root_of: RootOf
) -> dict[TableKey, Relation]:
    """Return the tables that have left the selection, as they were delivered last.

    `mirrors`: the catalogs of the start. Its stream begins with a report of what has left with the configuration.
    """
    found = left_versions(store, view)
    for key, copy in view.copies.items():
        if copy.phase is CopyPhase.LEFT and copy.capture is DueNotice.ENDS:
            mirror = mirrors.get(key[0])
            version = mirror.relation(key[1]) if mirror is not None else None
            if version is not None:
                found[key] = own_version(version, root_of)
    return found
