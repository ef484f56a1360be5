"""A primary that is lost with its last commits, the standby that replaces it, and the changes delivered from both."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deltalake import DeltaTable

from tests.support.lakes.lakes import feed_by_hand
from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import Done, cdcctl, succeeded
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster, StopMode
from tests.support.servers.standby import copy_of, promote
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.pipeline.lake.positions.positions import FOLDER as POSITIONS

DATABASE = "postgres"
Change = tuple[str, object, object]  # op, key, note


class DivergedPrimary:
    """A capture of a primary whose last commits are lost; its lake is fed by hand."""

    def __init__(self, primary: Cluster, standby: Cluster, root: Path, **options: str) -> None:
        self.primary = primary
        self.standby = standby
        self.lake = root / "lake"
        self.sidecar = Sidecar(primary, DATABASE, root, copy=True, **options)
        self.fork_lsn = Lsn(0)

    @property
    def view(self) -> StateView:
        """The state."""
        with StateStore.open(self.sidecar.folder) as store:
            return store.view()

    @property
    def is_copied(self) -> bool:
        """Return whether tables were copied, and none is left."""
        copies = self.view.copies.values()
        return bool(copies) and not any(copy.is_open for copy in copies)

    def feed(self) -> None:
        """Write the values of the outbox into the lake."""
        feed_by_hand(self.sidecar.folder, self.lake, "lake")

    def trim_outbox(self) -> None:
        """Remove all values that the lake has confirmed."""
        with OutboxReader.open(self.sidecar.folder) as reader:
            reader.confirm("lake", reader.head(), reader.head())
        with StateStore.open(self.sidecar.folder) as store, store.transaction(None) as transaction:
            transaction.apply_confirmations()

    def keep_standby_back(self) -> None:
        """Stop the standby, which then misses later changes."""
        self.standby.stop()

    def lose_primary(self) -> None:
        """Stop the primary for good, and promote the standby to the node of the capture."""
        self.primary.stop(StopMode.IMMEDIATE)
        self.standby.start()
        promote(self.standby)
        self.sidecar.options["TIDEMARK_CAPTURE__DSN"] = self.standby.dsn(DATABASE)
        self.sidecar.written_to = self.standby
        history = (self.standby.data / "pg_wal" / "00000002.history").read_text()
        self.fork_lsn = parse_lsn(history.split()[1])

    def rewind(self, *arguments: str, **environment: str) -> Done:
        """Run the command."""
        state = self.sidecar.folder.root
        return cdcctl("rewind", "--yes", "--state", state, *arguments, **{**self.sidecar.options, **environment})

    def status(self) -> dict[str, list[str]]:
        """Return the output of `cdcctl status`."""
        done = succeeded(cdcctl("status", "--json", "--state", self.sidecar.folder.root, **self.sidecar.options))
        reported: dict[str, list[str]] = json.loads(done.out)
        return reported

    def log(self, table: str) -> list[dict[str, object]]:
        """Return all rows of the change logs of tables of that name, in order."""
        rows: list[dict[str, object]] = []
        for folder in (*self.lake.glob(f"*/public/{table}"), *self.lake.glob(f"*/public/{table}-*")):
            rows += DeltaTable(str(folder / "log")).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: (row["_tli"], row["_commit_lsn"], row["_ordinal"]))

    def changes(self, table: str, timeline: int) -> list[Change]:
        """Return the changes of a table in the log on one timeline, without copied rows."""
        found: list[Change] = []
        for row in self.log(table):
            if row["_tli"] == timeline and row["_op"] != "c":
                old = row["_old"]
                key = row["id"] if row["_op"] != "d" or not isinstance(old, dict) else old["id"]
                found.append((str(row["_op"]), key, row.get("note")))
        return found

    def check_replica(self, table: str) -> None:
        """Check that the replica of a table equals the node's table."""
        ((oid,),) = self.standby.sql(f"SELECT '{table}'::regclass::oid::int8", DATABASE)
        positions = DeltaTable(str(self.lake / POSITIONS)).to_pyarrow_table().to_pylist()
        (folder,) = (row["folder"] for row in positions if row["relation"] == oid)
        rows = DeltaTable(str(self.lake / folder / "replica")).to_pyarrow_table().to_pylist()
        cursor = self.standby.sql(f"SELECT to_jsonb(t) FROM {table} t ORDER BY id", DATABASE)
        assert sorted(rows, key=lambda row: row["id"]) == [row for (row,) in cursor], table

    def messages(self, prefix: str) -> list[dict[str, object]]:
        """Return the lake's messages with a prefix."""
        (folder,) = self.lake.glob("*/messages")
        rows: list[dict[str, object]] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
        return [row for row in rows if row["prefix"] == prefix]


@contextmanager
def branching(
    primary: Cluster, root: Path, *, prepare: Callable[[Cluster], None], **options: str
) -> Iterator[DivergedPrimary]:
    """Create a standby of a primary, and a capture of the primary; only the servers run."""
    prepare(primary)
    with copy_of(primary, primary_conninfo=f"'{primary.dsn()}'") as standby:
        (standby.data / "standby.signal").touch()
        standby.start()
        diverged = DivergedPrimary(primary, standby, root, **options)
        try:
            yield diverged
        finally:
            diverged.sidecar.close()


def of_archive(node: ArchivingServer) -> dict[str, str]:
    """Return the options of a capture that reads the node's archive."""
    return {"TIDEMARK_ARCHIVE__FOLDER": str(node.spool.folder)}
