"""The change log of the lake compared with test_decoding: every change once, in its transaction, in commit order.

A logical slot, created before the capture begins, keeps the server's own output. Of each change the operation, the
table and the old and new keys are compared; the comparison of replicas covers the values. A change whose transaction
was visible to a table's first copy is in the log as copied rows only.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from deltalake import DeltaTable

from tests.support.servers.postgres import Cluster
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateView
from tidemark.model.change import Op
from tidemark.model.lsn import INVALID_OID, FullXid
from tidemark.model.snapshot import parse_snapshot
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.sinks.rows.logshape import OLD

SLOT = "change_log_oracle"
SLICE_CHANGES = 20_000  # read from the slot at once
REPORTED_MAX = 10  # differences that a failure reports
KEY = "id"
META = ["_op", "_tli", "_commit_lsn", "_ordinal", "_xid"]
_LINE = re.compile(r"table public\.(\w+): (INSERT|UPDATE|DELETE|TRUNCATE):(.*)", re.DOTALL)
_VALUE = r"(?:'[^']*(?:''[^']*)*'|[^ ']+)"
_COLUMNS = rf"(?: \w+\[[^:]+\]:{_VALUE})*"
_KEY = rf" {KEY}\[integer\]:(-?\d+){_COLUMNS}"
_OLD_AND_NEW = re.compile(rf"(?: old-key:{_KEY} new-tuple:)?{_KEY}")


class ChangeIdentity(NamedTuple):
    """The identity of a change inside its transaction."""

    table: str
    op: str
    old_key: int | None  # as far as WAL has it: of an update, only if the key changed or the whole old row is known
    new_key: int | None


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A row of the log, and its position: timeline, commit LSN, ordinal."""

    place: tuple[int, int, int]
    xid: int
    change: ChangeIdentity


@dataclass(frozen=True, slots=True)
class LogTally:
    """The counts of equal items."""

    transactions: int
    changes: int
    copied_rows: int


Transactions = dict[int, list[ChangeIdentity]]
"""By xid, in commit order."""


class ServerLog:
    """The output of test_decoding for one database since this was created."""

    def __init__(self, cluster: Cluster, database: str) -> None:
        self._cluster = cluster
        self._database = database
        self._reported: Transactions = {}
        self.messages: list[str] = []  # in commit order
        cluster.sql(f"SELECT pg_create_logical_replication_slot('{SLOT}', 'test_decoding')", database)

    def transactions(self) -> Transactions:
        """Return all changes so far."""
        self.advance()
        return {xid: changes for xid, changes in self._reported.items() if changes}

    def advance(self) -> None:
        """Read new changes, so that the server can remove WAL; after a server crash the latest may be repeated."""
        known, changes = set(self._reported), list[ChangeIdentity]()
        for line in self._lines():
            if line.startswith("BEGIN "):
                xid = int(line.removeprefix("BEGIN "))
                changes = [] if xid in known else self._reported.setdefault(xid, [])
            elif line.startswith("message: "):
                self.messages.append(line)
            elif not line.startswith("COMMIT "):
                changes.append(parse_change(line))

    def drop(self) -> None:
        """Drop the slot, which keeps WAL and its database."""
        self._cluster.sql(f"SELECT pg_drop_replication_slot('{SLOT}')", self._database)

    def _lines(self) -> Iterator[str]:
        query = (
            f"SELECT data FROM pg_logical_slot_get_changes('{SLOT}', NULL, {SLICE_CHANGES},"
            " 'include-xids', '1', 'skip-empty-xacts', '1')"
        )
        while rows := self._cluster.sql(query, self._database):
            yield from (str(data) for (data,) in rows)


def parse_change(line: str) -> ChangeIdentity:
    """Return the change in a line of test_decoding."""
    found = _LINE.fullmatch(line)
    assert found, line[:500]
    table, verb, rest = found.groups()
    if verb == "TRUNCATE":
        return ChangeIdentity(table, Op.TRUNCATE.value, None, None)
    keys = _OLD_AND_NEW.fullmatch(rest)
    assert keys or rest == " (no-tuple-data)", line[:500]
    old, new = (int(key) if key else None for key in keys.groups()) if keys else (None, None)
    if verb == "DELETE":
        return ChangeIdentity(table, Op.DELETE.value, new, None)
    return ChangeIdentity(table, Op.INSERT.value if verb == "INSERT" else Op.UPDATE.value, old, new)


def check_log(server: ServerLog, folder: StateFolder, lake: Path) -> LogTally:
    """Check that the log equals the server's output; return the counts."""
    with StateStore.open(folder) as store:
        view = store.view()
    positions = Positions(str(lake.absolute()), view.identity)
    tables = [table for table in positions.tables.values() if table.relation != INVALID_OID and table.log_version >= 0]
    expected = without_copied(server.transactions(), view, tables)
    logged: list[LoggedChange] = []
    copied_rows = 0
    for table in tables:
        changes, copied = read_log(table, lake)
        copy = view.copies.get((table.database, table.relation))
        assert copied == (copy.row_count if copy else 0), f"{table.name}: {copied} copied rows, but {copy}"
        copied_rows += copied
        logged += changes
    logged.sort(key=lambda one: one.place)
    found: Transactions = {}
    for one in logged:
        found.setdefault(one.xid, []).append(one.change)
    assert_equal(expected, found)
    return LogTally(len(expected), sum(map(len, expected.values())), copied_rows)


def without_copied(reported: Transactions, view: StateView, tables: list[TablePosition]) -> Transactions:
    """Remove changes that are in the log as copied rows: those visible to the snapshot of a table's copy."""
    snapshots = {
        table.name: parse_snapshot(copy.snapshot)
        for table in tables
        if (copy := view.copies.get((table.database, table.relation))) is not None and copy.generation
    }
    left: Mapping[int, list[ChangeIdentity]] = {
        xid: [
            change
            for change in changes
            if change.table not in snapshots or not snapshots[change.table].sees(FullXid(xid))
        ]
        for xid, changes in reported.items()
    }
    return {xid: changes for xid, changes in left.items() if changes}


def read_log(table: TablePosition, lake: Path) -> tuple[list[LoggedChange], int]:
    """Return a table's streamed changes, and the number of copied rows; test_decoding omits rewritten rows."""
    log = DeltaTable(str(lake / table.folder / "log")).to_pyarrow_dataset()
    rows = log.to_table(columns=[*META, KEY, OLD]).to_pylist()
    places = [(row["_tli"], row["_commit_lsn"], row["_ordinal"]) for row in rows]
    repeated = [place for place, count in Counter(places).items() if count > 1]
    assert not repeated, f"{table.name}: {len(repeated)} positions occur twice in the log: {repeated[:REPORTED_MAX]}"
    streamed = [
        LoggedChange(place, row["_xid"], ChangeIdentity(table.name, row["_op"], (row[OLD] or {}).get(KEY), row[KEY]))
        for place, row in zip(places, rows, strict=True)
        if row["_op"] not in (Op.COPY.value, Op.REWRITE.value)
    ]
    return streamed, sum(row["_op"] == Op.COPY.value for row in rows)


def assert_equal(expected: Transactions, found: Transactions) -> None:
    """Fail with lost, duplicate and misordered changes."""
    wanted, seen = (
        Counter((xid, change) for xid, changes in reported.items() for change in changes)
        for reported in (expected, found)
    )
    lost, doubled = wanted - seen, seen - wanted
    assert not lost, f"lost {lost.total()}, doubled {doubled.total()}: {lost.most_common(REPORTED_MAX)}"
    assert not doubled, f"lost 0, doubled {doubled.total()}: {doubled.most_common(REPORTED_MAX)}"
    assert list(found) == list(expected), "the log's commit order is not the server's"
    for xid, changes in expected.items():
        assert found[xid] == changes, f"the changes of transaction {xid} stand in another order"
