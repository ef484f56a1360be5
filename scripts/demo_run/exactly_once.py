"""Compares the change log with the journal that the clients wrote: each change once, in its transaction.

For each committed transaction, the journal contains the number of rows that it inserted, updated and deleted in each
table, as the server counted them. The log must contain the same numbers under that transaction's id, and no transaction
that was rolled back. Rows that the first copy's snapshot contained are in the log as copied rows instead.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psycopg
import pyarrow as pa

from scripts.demo_run.workload import JOURNAL
from tidemark.io.state.state_views import StateView
from tidemark.model.change import Op
from tidemark.model.lsn import INVALID_OID, FullXid
from tidemark.model.snapshot import Snapshot, parse_snapshot
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.lake.tables.lake_table import LakeTable

META = ["_op", "_xid", "_tli", "_commit_lsn", "_ordinal"]
STREAMED = {Op.INSERT.value, Op.UPDATE.value, Op.DELETE.value}


class EntryKind(NamedTuple):
    """The key by which changes are counted."""

    xid: int
    table: str
    op: str


class LogEntry(NamedTuple):
    """The journal entry of a committed transaction; `changes` by "TABLE OP"."""

    client: int
    number: int
    xid: int
    changes: dict[str, int]


@dataclass(slots=True)
class CountedLog:
    """The counted content of the change log."""

    changes: Counter[EntryKind] = field(default_factory=Counter)
    positions: Counter[tuple[object, ...]] = field(default_factory=Counter)
    numbers: Counter[tuple[object, object]] = field(default_factory=Counter)  # journal rows: client, number
    copied: int = 0
    rewritten: int = 0


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """The result of the comparison."""

    transactions: int
    changes: int
    lost: int
    doubled: int
    duplicate_positions: int
    numbers_wrong: int  # journal entries that are missing, repeated, or rolled back

    @property
    def is_right(self) -> bool:
        """Return whether each change is in the log exactly once."""
        return bool(self.changes) and not (self.lost or self.doubled or self.duplicate_positions or self.numbers_wrong)


def judge(journal: Sequence[LogEntry], snapshots: Mapping[str, Snapshot], log: CountedLog) -> LogVerdict:
    """Compare the committed changes with the log; `snapshots`: those of the first copy, by table."""
    expected: Counter[EntryKind] = Counter(dict(_reported(journal, snapshots)))
    written: Counter[tuple[object, object]] = Counter((entry.client, entry.number) for entry in journal)
    return LogVerdict(
        transactions=len(journal),
        changes=log.changes.total(),
        lost=(expected - log.changes).total(),
        doubled=(log.changes - expected).total(),
        duplicate_positions=sum(count - 1 for count in log.positions.values()),
        numbers_wrong=(written - log.numbers).total() + (log.numbers - written).total(),
    )


def read_journal(dsn: str) -> list[LogEntry]:
    """Read the clients' journal."""
    query = f"SELECT client, number, xid, changes FROM {JOURNAL}"
    with psycopg.connect(dsn) as connection:
        return [LogEntry(*row) for row in connection.execute(query.encode())]


def read_log(view: StateView, lake: Path) -> tuple[CountedLog, dict[str, Snapshot]]:
    """Read the change log of every table, and the snapshot of each first copy."""
    log, snapshots = CountedLog(), {}
    for table in Positions(str(lake.absolute()), view.identity).tables.values():
        if table.relation == INVALID_OID or table.log_version < 0:
            continue
        copy = view.copies.get((table.database, table.relation))
        if copy is not None and copy.snapshot:
            snapshots[_name(table)] = parse_snapshot(copy.snapshot)
        _count(table, lake, log)
    return log, snapshots


def _name(table: TablePosition) -> str:
    return f"{table.namespace}.{table.name}"


def _count(table: TablePosition, lake: Path, log: CountedLog) -> None:
    name = _name(table)
    more = ["client", "number"] if name == JOURNAL else []
    kept = LakeTable(f"{lake.absolute()}/{table.folder}/log", "")
    for row in pa.table(kept.scan([*META, *more]).read_all()).to_pylist():
        op = row["_op"]
        # Copied rows of two tables may have the same position: they are not changes of one stream.
        log.positions[row["_tli"], row["_commit_lsn"], row["_ordinal"], name if op == Op.COPY.value else ""] += 1
        log.copied += op == Op.COPY.value
        log.rewritten += op == Op.REWRITE.value
        if op in STREAMED:
            log.changes[EntryKind(row["_xid"], name, op)] += 1
        if more:
            log.numbers[row["client"], row["number"]] += 1


def _reported(journal: Sequence[LogEntry], snapshots: Mapping[str, Snapshot]) -> Iterator[tuple[EntryKind, int]]:
    """Yield the journal's changes that the first copy's snapshot did not contain."""
    for entry in journal:
        for reported, count in {**entry.changes, f"{JOURNAL} {Op.INSERT.value}": 1}.items():
            name, op = reported.split()
            if name not in snapshots or not snapshots[name].sees(FullXid(entry.xid)):
                yield EntryKind(entry.xid, name, op), count
