"""The current rows of a table as a program keeps them from the rows of a streaming query, without Spark (SCD 1)."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.streaming.datasource import ReadMaxBytes

from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.source.format import OutboxSource

if TYPE_CHECKING:
    from tidemark.pipeline.source.offsets import Offset

Row = dict[str, object]
FORMS = ("after", "before_after", "debezium")


class KeptTarget:
    """The rows of a table with the key `id`, by a query with one of `FORMS`."""

    def __init__(self, outbox: Path | dict[str, str], table: str, columns: str = "after", **options: str) -> None:
        """`outbox`: a state folder, or the options of a server."""
        where = {"state": str(outbox)} if isinstance(outbox, Path) else outbox
        self.columns = columns
        self._options = {**where, "table": table, "columns": columns, "reader": reader_name(columns), **options}
        self._at: Offset | None = None
        self.kept: dict[object, Row] = {}
        self.seen: list[Row] = []  # all rows, as the query returned them
        self.lsns: dict[object, int] = {}  # of the last event of each kept row
        is_events = columns == "debezium"
        self._apply: Callable[[list[Row]], None] = EventOrder(self.kept, self.lsns) if is_events else self._in_order

    def advance(self, bytes_max: int = 2_000, **options: str) -> None:
        """Start the query, and read up to the present end of the outbox, in batches of about `bytes_max` bytes."""
        source = OutboxSource({**self._options, **options})
        reader = source.streamReader(source.schema())
        at = self._at or reader.initialOffset()
        while (end := reader.latestOffset(at, ReadMaxBytes(bytes_max))) != at:
            batches = [batch for part in reader.partitions(at, end) for batch in reader.read(part)]
            rows = [row for batch in batches for row in batch.to_pylist()]
            self.seen += rows
            self._apply([*rows])
            self._at = at = end
            reader.commit(at)

    def read_once(self) -> None:
        """Read the present contents of the outbox, by a batch query."""
        source = OutboxSource({name: value for name, value in self._options.items() if name != "reader"})
        reader = source.reader(source.schema())
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        self.seen += [row for batch in batches for row in batch.to_pylist()]
        self._apply([*self.seen])

    def keep(self, key: int, note: str, **columns: str) -> None:
        """Keep a row that the query did not return."""
        self.kept[key] = {"id": key, "note": note, **columns}
        self.lsns[key] = 0

    def notes(self) -> list[tuple[object, object]]:
        """Return key and note of the kept rows."""
        return sorted((row["id"], row["note"]) for row in self.kept.values())

    def ops(self) -> list[object]:
        """Return the operations of all rows."""
        return [row.get("_op", row.get("op")) for row in self.seen]

    def _in_order(self, rows: list[Row]) -> None:
        rows.reverse()  # the partitions of a batch are in no order
        for row in sorted(rows, key=position):
            if row["_op"] == "t":
                scope = {name: row[name] for name in ("tableoid", "_table") if row.get(name) is not None}
                sides = row.get("_before")
                scope |= {name: value for name, value in (sides if isinstance(sides, dict) else {}).items() if value}
                self._remove(scope)
                continue
            before, after = self._sides(row)
            if before is not None:
                self.kept.pop(before["id"], None)
            if after is not None:
                self.kept[after["id"]] = after

    def _remove(self, scope: Row) -> None:
        gone = [key for key, row in self.kept.items() if scope.items() <= row.items()]
        for key in gone:
            del self.kept[key]

    @staticmethod
    def _sides(row: Row) -> tuple[Row | None, Row | None]:
        """Return the old and the new row."""
        if "_after" not in row:
            return (row, None) if row["_op"] == "d" else (None, row)
        before, after = row["_before"], row["_after"]
        named = {"_table": row["_table"]} if "_table" in row else {}
        return (
            before if isinstance(before, dict) and before["id"] is not None else None,
            {**after, **named} if isinstance(after, dict) else None,
        )


class EventOrder:
    """Applies Debezium's events as a consumer of a topic with many partitions: those of one key are in order."""

    def __init__(self, kept: dict[object, Row], lsns: dict[object, int]) -> None:
        self._kept = kept
        self._lsns = lsns
        self._emptied: dict[object, int] = {}  # by partition: the LSN of its last `t`; None: of the table

    def __call__(self, events: list[Row]) -> None:
        """Apply the events of a batch, those of other partitions before and after those of its keys."""
        emptied = [event for event in events if event["op"] == "t"]
        for at, event in enumerate(emptied):
            if at % 2:
                self._empty(event)
        for event in (event for event in events if event["op"] != "t"):
            lsn, row = _lsn(event), event["after"] or event["before"]
            assert isinstance(row, dict)
            key = row["id"]
            if lsn < max(self._emptied.get(scope, 0) for scope in (None, row.get("tableoid"))):
                continue
            self._kept.pop(key, None)
            if isinstance(event["after"], dict):
                self._kept[key], self._lsns[key] = event["after"], lsn
        for at, event in enumerate(emptied):
            if not at % 2:
                self._empty(event)

    def _empty(self, event: Row) -> None:
        before, lsn = event["before"], _lsn(event)
        partition = before["tableoid"] if isinstance(before, dict) else None
        self._emptied[partition] = max(lsn, self._emptied.get(partition, 0))
        for key in list(self._kept):
            if self._lsns[key] < lsn and partition in (None, self._kept[key].get("tableoid")):
                del self._kept[key]


def position(row: Row) -> tuple[object, ...]:
    """Return the position of a change."""
    return row["_tli"], row["_commit_lsn"], row["_ordinal"]


def _lsn(event: Row) -> int:
    source = event["source"]
    assert isinstance(source, dict)
    lsn = source["lsn"]
    assert isinstance(lsn, int)
    return lsn


def register(folder: StateFolder) -> None:
    """Register the readers of all forms, and one that reads nothing: the outbox keeps all that is delivered."""
    with OutboxReader.open(folder) as outbox:
        for name in ("holds", *map(reader_name, FORMS)):
            outbox.register(name)


def reader_name(columns: str) -> str:
    """Return the name of the reader of a form."""
    return f"kept-{columns}"


def targets(outbox: Path | dict[str, str], table: str, forms: Iterable[str] = FORMS) -> Iterator[KeptTarget]:
    """Yield a target for each form."""
    for columns in forms:
        yield KeptTarget(outbox, table, columns)
