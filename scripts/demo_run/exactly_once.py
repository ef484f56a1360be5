"""The change log beside what the clients wrote into the journal: each change once, in its own transaction.

The journal tells, of each transaction that was committed, how many rows of which table it inserted, updated and
deleted, as the server counted them. The log has to hold just so many under that transaction's id, and no transaction
that was rolled back. What the first copy's snapshot saw of a table is in the log as copied rows instead.
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
from tidemark.pipeline.lake.lake import LakeTable
from tidemark.pipeline.lake.positions import Positions, TablePosition

META = ["_op", "_xid", "_tli", "_commit_lsn", "_ordinal"]
STREAMED = {Op.INSERT.value, Op.UPDATE.value, Op.DELETE.value}


class Kind(NamedTuple):
    """What changes are counted by."""

    xid: int
    table: str
    op: str


class Entry(NamedTuple):
    """What a committed transaction wrote into the journal; `changes` by "TABLE OP"."""

    client: int
    number: int
    xid: int
    changes: dict[str, int]


@dataclass(slots=True)
class Log:
    """What the change log holds, counted."""

    changes: Counter[Kind] = field(default_factory=Counter)
    places: Counter[tuple[object, ...]] = field(default_factory=Counter)
    numbers: Counter[tuple[object, object]] = field(default_factory=Counter)  # of the journal: client, number
    copied: int = 0
    rewritten: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was compared, and what is wrong."""

    transactions: int
    changes: int
    lost: int
    doubled: int
    places_taken_twice: int
    numbers_wrong: int  # of the journal: missing, twice, or rolled back

    @property
    def is_right(self) -> bool:
        """Tell if each change is there exactly once."""
        return bool(self.changes) and not (self.lost or self.doubled or self.places_taken_twice or self.numbers_wrong)


def judge(journal: Sequence[Entry], snapshots: Mapping[str, Snapshot], log: Log) -> Verdict:
    """Compare what was committed with what the log holds; `snapshots`: what the first copy saw, by table."""
    expected: Counter[Kind] = Counter(dict(_reported(journal, snapshots)))
    written: Counter[tuple[object, object]] = Counter((entry.client, entry.number) for entry in journal)
    return Verdict(
        transactions=len(journal),
        changes=log.changes.total(),
        lost=(expected - log.changes).total(),
        doubled=(log.changes - expected).total(),
        places_taken_twice=sum(count - 1 for count in log.places.values()),
        numbers_wrong=(written - log.numbers).total() + (log.numbers - written).total(),
    )


def read_journal(dsn: str) -> list[Entry]:
    """Read what the clients wrote."""
    query = f"SELECT client, number, xid, changes FROM {JOURNAL}"
    with psycopg.connect(dsn) as connection:
        return [Entry(*row) for row in connection.execute(query.encode())]


def read_log(view: StateView, lake: Path) -> tuple[Log, dict[str, Snapshot]]:
    """Read the change log of every table, and what the first copy of each saw."""
    log, snapshots = Log(), {}
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


def _count(table: TablePosition, lake: Path, log: Log) -> None:
    name = _name(table)
    more = ["client", "number"] if name == JOURNAL else []
    kept = LakeTable(f"{lake.absolute()}/{table.folder}/log", "")
    for row in pa.table(kept.scan([*META, *more]).read_all()).to_pylist():
        op = row["_op"]
        # Copied rows of two tables may share a place: they were no changes of one stream.
        log.places[row["_tli"], row["_commit_lsn"], row["_ordinal"], name if op == Op.COPY.value else ""] += 1
        log.copied += op == Op.COPY.value
        log.rewritten += op == Op.REWRITE.value
        if op in STREAMED:
            log.changes[Kind(row["_xid"], name, op)] += 1
        if more:
            log.numbers[row["client"], row["number"]] += 1


def _reported(journal: Sequence[Entry], snapshots: Mapping[str, Snapshot]) -> Iterator[tuple[Kind, int]]:
    """Yield what the journal tells that the first copy did not see."""
    for entry in journal:
        for reported, count in {**entry.changes, f"{JOURNAL} {Op.INSERT.value}": 1}.items():
            name, op = reported.split()
            if name not in snapshots or not snapshots[name].sees(FullXid(entry.xid)):
                yield Kind(entry.xid, name, op), count
