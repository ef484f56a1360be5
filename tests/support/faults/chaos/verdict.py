"""The final check without Spark: the target received the output of the server once, complete and in order."""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.oracles.log_oracle import (
    ChangeIdentity,
    LoggedChange,
    LogTally,
    ServerLog,
    Transactions,
    assert_equal,
)
from tests.support.processes.captures import change_log, replayed
from tests.support.servers.postgres import Cluster
from tidemark.model.change import AFTER, BEFORE, ChangeBatch, GroupItem, Op, Truncation
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId
from tidemark.model.position import Position

KEY = "id"
COLUMNS = ["_op", "_tli", "_commit_lsn", "_ordinal", "_xid", BEFORE, AFTER]
REPLAYED = (("account", "note"), ("letter", "counter"), ("reading", "body"))  # a column that always has a value


NOWHERE = Position(TimelineId(0), INVALID_LSN, 0)


@dataclass(frozen=True, slots=True)
class AcceptedItem:
    """An item of the outbox, and the end of its group."""

    item: GroupItem
    group_end: Position
    after: Position  # earlier values came from an outbox that was lost


def check_accepted(server: ServerLog, accepted: list[AcceptedItem]) -> LogTally:
    """Check that each change is there once, at its position, in a whole transaction, and in commit order."""
    found: Transactions = {}
    for one in in_order(accepted):
        found.setdefault(one.xid, []).append(one.change)
    expected = server.transactions()
    assert_equal(expected, found)
    return LogTally(len(expected), sum(map(len, expected.values())), 0)


def in_order(accepted: list[AcceptedItem]) -> list[LoggedChange]:
    """Return the changes by position; a group may contain nothing from before its start or after its end."""
    changes: list[LoggedChange] = []
    before = behind = after = NOWHERE
    for one in accepted:
        if one.after != after:
            before = behind = after = one.after
        if one.group_end != behind:
            before, behind = behind, one.group_end
        for change in _changes(one):
            timeline, commit_lsn, ordinal = change.place
            place = Position(TimelineId(timeline), Lsn(commit_lsn), ordinal)
            assert before < place <= one.group_end, f"{place} is in the group ({before}, {one.group_end}]"
            changes.append(change)
    changes.sort(key=lambda change: change.place)
    return changes


def check_replicas(node: Cluster, accepted: list[AcceptedItem]) -> None:
    """Check that the changes produce the source's tables."""
    items = [one.item for one in accepted]
    for table, column in REPLAYED:
        source: dict[object, object] = dict(node.sql(f"SELECT {KEY}, {column} FROM {table}"))
        replica = replayed([row for row in change_log(items, table) if row["_op"] != Op.REWRITE.value])
        assert {key: row[column] for key, row in replica.items()} == source, table


def _changes(one: AcceptedItem) -> Iterator[LoggedChange]:
    if isinstance(one.item, Truncation):
        at, item = one.item.position, one.item
        change = ChangeIdentity(item.relation.name, Op.TRUNCATE.value, None, None)
        yield LoggedChange((at.timeline, at.commit_lsn, at.ordinal), item.xid, change)
    if not isinstance(one.item, ChangeBatch):
        return
    for row in one.item.rows.select(COLUMNS).to_pylist():
        if row["_op"] in (Op.COPY.value, Op.REWRITE.value):
            continue
        old, new = ((row[side] or {}).get(KEY) for side in (BEFORE, AFTER))
        change = ChangeIdentity(one.item.relation.name, row["_op"], old, new)
        yield LoggedChange((row["_tli"], row["_commit_lsn"], row["_ordinal"]), row["_xid"], change)
