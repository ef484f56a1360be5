"""The SQL of a first copy: the tables, their descriptions, and their rows under one snapshot.

A table is locked (ACCESS SHARE) before its snapshot is taken: otherwise a session could rewrite it in between, and COPY
would return no rows. The lock also keeps its columns as described. SQL has no COPY by OID, and ALTER SCHEMA RENAME
locks no table: the relations that the transaction locked show whether the rows came from the right table.
The lock does not cover the types of its values, which are printed by their current definition, whatever the snapshot
shows. If a label is renamed or the columns of a row type change after the snapshot, the stream reports it, and a
consumer that applies this event would change the values a second time. In this case the table is copied again.
On a standby a snapshot is taken again until its contents are known (`tidemark.io.node.standby_snapshot`).
SELECT on the tables is needed here, and only here.
"""

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql

from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.seeding import seed
from tidemark.decode.types.codec import Dialect, without_escapes
from tidemark.decode.types.registry import holds_oids
from tidemark.io.node.copy_stream import BLOCK, BlockBounds, CopyBlock, copied_blocks
from tidemark.io.node.node import Node
from tidemark.io.node.node_errors import CopyDenied, DatabaseMissing, DataUnreadable
from tidemark.io.node.seed import SeedSession
from tidemark.io.node.source_tables import SourceTable, source_tables, value_forms
from tidemark.io.node.standby_snapshot import ReplayWindow
from tidemark.model.change import NO_COMMIT_TIME
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import FIRST_USER_OID, INVALID_LSN, NO_TIMELINE, Lsn, Oid, TimelineId, Xid
from tidemark.model.relation import Column, Relation
from tidemark.model.snapshot import ReplayedSnapshot, Visibility, parse_snapshot
from tidemark.wal.versions import WalFormat

# Relations that a process has locked besides a table and its partitions. NB: includes a partition whose DETACH
# CONCURRENTLY is not finished: LOCK locks it, and SELECT still reads it under an older snapshot, but
# pg_partition_ancestors no longer lists it.
_LOCKED_BESIDE = """
    SELECT c.oid::regclass::text FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = l.relation
    JOIN pg_catalog.pg_database d ON d.oid = l.database
    WHERE l.pid = %s AND l.locktype = 'relation' AND d.datname = pg_catalog.current_database()
      AND c.oid >= %s AND c.oid <> %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
      AND NOT (c.relispartition AND EXISTS (
        WITH RECURSIVE above (oid) AS (
            SELECT i.inhparent FROM pg_catalog.pg_inherits i WHERE i.inhrelid = c.oid
            UNION ALL SELECT i.inhparent FROM above JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid)
        SELECT FROM above WHERE above.oid = %s))
"""
_TABLE_BYTES = """
    SELECT coalesce(pg_catalog.sum(pg_catalog.pg_table_size(t.relid)), 0)::int8 FROM (
        SELECT %s::oid::regclass AS relid UNION SELECT relid FROM pg_catalog.pg_partition_tree(%s::oid::regclass)) t
"""
COMMENT_CHARACTERS_MAX = 4000  # of a Delta table's description
_COMMENTS = f"""
    SELECT objsubid, pg_catalog.convert_to(
        pg_catalog.left(description, {COMMENT_CHARACTERS_MAX}), pg_catalog.getdatabaseencoding())
    FROM pg_catalog.pg_description
    WHERE objoid = %s AND classoid = 'pg_catalog.pg_class'::pg_catalog.regclass ORDER BY objsubid
"""  # noqa: S608 - a number
SNAPSHOTS_MAX = 200  # of a table on a standby; each takes some milliseconds


class TableChanging(NodeUnreachable):
    """A table that changed between two queries; retried."""


class SnapshotUnclear(NodeUnreachable):
    """A standby that replays commits so fast that the contents of no snapshot are known; retried."""

    hint = "copy from the primary (capture.dsn), or at a quieter time"


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """A table under its snapshot, as COPY will return it."""

    relation: Relation
    snapshot: str
    time_us: int
    comments: tuple[tuple[int, str], ...] | None = ()  # by pg_description.objsubid: 0 for the table; None: not known
    seen_lsn: Lsn = INVALID_LSN  # everything that the snapshot shows is flushed and begins before this
    timeline: TimelineId = NO_TIMELINE  # the node's timeline at that time
    seen_time_us: int = NO_COMMIT_TIME  # of the node's clock at that time


class _SnapshotTime(NamedTuple):
    snapshot: Visibility
    time_us: int


class CopySource:
    """One database of the node, for copying: one session holds lock and snapshot, another reads catalogs."""

    def __init__(self, dsn: str, database: str, fmt: WalFormat, oid: Oid | None = None) -> None:
        """Connect on first use. `oid`: the expected database, since a name may pass to another database."""
        self._dsn = dsn
        self._database = database
        self._oid = oid
        self._format = fmt
        self._locking: Node | None = None
        self._querying: Node | None = None
        self._mirror: CatalogMirror | None = None
        self._seen: dict[Oid, SourceTable] = {}  # the tables at the last query
        self._described: dict[Oid, SourceTable] = {}  # the tables when the mirror was read
        self._forms: frozenset[str] = frozenset()  # `value_forms` of the locked table, under its snapshot
        self._holding_pid = 0  # by pg_backend_pid(), of the session with the lock: a pooler reports another

    def close(self) -> None:
        """Close the sessions; the next query connects again."""
        sessions = (self._locking, self._querying)
        self._locking = self._querying = None
        for session in sessions:
            if session is not None:
                session.close()

    def _querying_node(self) -> Node:
        """Return the session that reads catalogs; connect if necessary, and check the database's OID."""
        if self._querying is None:
            with ExitStack() as stack:
                querying = stack.enter_context(self._connection())
                found = querying.facts().database_oid
                if self._oid not in (None, found):
                    raise TableChanging(f"the database {self._database} now has the OID {found}, not {self._oid}")
                self._querying = querying
                stack.pop_all()
        return self._querying

    def _locking_node(self) -> Node:
        """Return the session that holds lock and snapshot; connect if necessary."""
        if self._locking is None:
            self._querying_node()  # NB: first, since a database with a session in it cannot be renamed
            self._locking = self._connection()
        return self._locking

    def _connection(self) -> Node:
        try:
            return Node(self._dsn, self._database)
        except DatabaseMissing as error:
            if self._oid is None or self._has_name(self._oid):
                raise
            raise TableChanging(f"the database {self._database} was dropped or renamed") from error

    def _has_name(self, oid: Oid) -> bool:
        with Node(self._dsn) as node:
            found = node.query("SELECT datname::text FROM pg_catalog.pg_database WHERE oid = %s", (oid,))
        return found == [(self._database,)]

    @property
    def database(self) -> str:
        """The database's name."""
        return self._database

    def size_bytes(self, table: SourceTable) -> int:
        """Return the disk space of a table's rows at the node, including its partitions and their TOAST tables.

        NB: call this before the table is locked: the query locks the table too, and could wait for a session that waits
        for our lock.
        """
        ((size_bytes,),) = self._querying_node().query(_TABLE_BYTES, (table.oid, table.oid))
        return int(str(size_bytes))

    def tables(self) -> list[SourceTable]:
        """Return the tables of the database."""
        tables = source_tables(self._querying_node(), self._format.major)
        self._seen = {table.oid: table for table in tables}
        return tables

    def listed_tables(self) -> tuple[list[SourceTable], str]:
        """Return the tables of the database, and the snapshot that shows them."""
        node = self._querying_node()
        for _ in range(SNAPSHOTS_MAX):
            replayed_lsn = node.replayed_lsn()
            with node.repeatable_read():
                ((snapshot,),) = node.query("SELECT pg_catalog.pg_current_snapshot()::text")
                tables = self.tables()
            visible = self._contents(str(snapshot), replayed_lsn)
            if visible is not None:
                return tables, str(visible)
        raise self._unclear()

    def dialect_of(self, snapshot: TableSnapshot) -> CatalogMirror:
        """Return the mirror that described the table."""
        assert self._mirror is not None, snapshot
        return self._mirror

    def table(self, oid: Oid) -> SourceTable | None:
        """Return the current description of one table."""
        return next(iter(source_tables(self._querying_node(), self._format.major, oid)), None)

    @contextmanager
    def locked_snapshot(self, table: SourceTable) -> Iterator[TableSnapshot]:
        """Lock a table, take the snapshot, describe the table; catalogs are read first, since it takes long."""
        self._refresh_if_changed(table)
        with ExitStack() as stack:
            shown = self._clear_snapshot(table, stack)
            relation = self._describe(table)
            self._forms = value_forms(self._locking_node(), table.oid) if _has_types_of_users(relation) else frozenset()
            yield TableSnapshot(relation, str(shown.snapshot), shown.time_us, self._comments(table.oid))

    def _comments(self, oid: Oid) -> tuple[tuple[int, str], ...]:
        """Return the comments on a table and its columns; a longer one is cut at `COMMENT_CHARACTERS_MAX`."""
        assert self._mirror is not None, oid
        decode = self._mirror.dialect.decode  # NB: as bytes, since a SQL_ASCII database validates no text
        rows = self._locking_node().query(_COMMENTS, (oid,))
        return tuple((int(str(number)), decode(bytes(text))) for number, text in rows)

    def _clear_snapshot(self, table: SourceTable, stack: ExitStack) -> _SnapshotTime:
        """Enter a transaction into `stack` whose snapshot has known contents."""
        for _ in range(SNAPSHOTS_MAX):
            with ExitStack() as attempt:
                shown = attempt.enter_context(self._locked(table))
                if shown is not None:
                    stack.push(attempt.pop_all())
                    return shown
        raise self._unclear()

    def _unclear(self) -> SnapshotUnclear:
        where = self._querying_node().where
        return SnapshotUnclear(f"{where}: a commit was replayed around each of {SNAPSHOTS_MAX} snapshots")

    @contextmanager
    def _locked(self, table: SourceTable) -> Iterator[_SnapshotTime | None]:
        """Lock a table and take a snapshot; yield None if the snapshot's contents are unknown."""
        with self._locking_node().translated() as session, session.transaction():
            session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            session.execute("SET LOCAL row_security = off")
            session.execute("SET LOCAL statement_timeout = 0")
            session.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # the description may take long
            name = _identifier(table.namespace, table.name)
            only = sql.SQL("" if table.is_partitioned else "ONLY ")  # a partitioned table: with all partitions
            session.execute(sql.SQL("LOCK TABLE {}{} IN ACCESS SHARE MODE").format(only, name))
            replayed_lsn = self._querying_node().replayed_lsn()
            # NB: the first statement that takes a snapshot; LOCK takes none.
            ((snapshot, time_us, oid, self._holding_pid),) = session.execute(
                "SELECT pg_catalog.pg_current_snapshot()::text,"
                " (extract(epoch FROM pg_catalog.now()) * 1000000)::bigint, %s::regclass::oid::int8,"
                " pg_catalog.pg_backend_pid()",
                (name.as_string(session),),
            ).fetchall()
            if oid != table.oid:
                raise TableChanging(f"{table.namespace}.{table.name} is now another table")
            visible = self._contents(str(snapshot), replayed_lsn)
            yield None if visible is None else _SnapshotTime(visible, int(time_us))

    def _contents(self, snapshot: str, start_lsn: Lsn | None) -> Visibility | None:
        """Return what a snapshot shows; None if that is unknown.

        A standby's was taken after the replay had passed `start_lsn`; None: it is a primary's.
        """
        shown = parse_snapshot(snapshot)
        if start_lsn is None or shown.xmin == shown.xmax:
            return shown  # of a primary, or no transaction was running
        end_lsn = self._querying_node().replayed_lsn()
        if end_lsn is None:
            raise TableChanging(f"{self._querying_node().where} was promoted")
        window = ReplayWindow(start_lsn, end_lsn, self._querying_node().received_lsn())
        return (
            None
            if window.holds_commit(self._dsn, self._querying_node().facts())
            else ReplayedSnapshot(shown.xmin, start_lsn)
        )

    def rows(self, relation: Relation, bounds: BlockBounds = BLOCK) -> Generator[CopyBlock]:
        """Yield the rows of the locked table and of its partitions, in blocks of lines of COPY's text format.

        Raises `TableChanging` before the first block and again after the last one, if the rows come from another table
        or other partitions, or are printed otherwise than by the snapshot. An empty block: no row has arrived yet.
        """
        assert self._mirror is not None, relation
        columns = sql.SQL(", ").join(_selected(column) for column in relation.live_columns)
        name = _identifier(relation.namespace, relation.name)
        # In the database's encoding: the server would refuse to send bytes that are not valid in UTF-8.
        encoding, dialect = sql.Literal(self._mirror.encoding), self._mirror.dialect
        # A SELECT, not the table name: COPY of a table omits generated columns.
        only = sql.SQL("" if relation.has_partition_rows else "ONLY ")
        query = sql.SQL("SELECT {} FROM {}{}").format(columns, only, name)
        statement = sql.SQL("COPY ({}) TO STDOUT (ENCODING {})").format(query, encoding)
        with self._named_in_errors(relation), self._locking_node().translated() as session:
            is_checked = False
            with closing(copied_blocks(session, statement, bounds)) as blocks:
                for block in blocks:
                    if block.rows and not is_checked:  # COPY has its locks by the first row
                        self._check_locked(relation)
                        is_checked = True
                    yield block if dialect.encoding == "utf-8" else _in_utf8(block, dialect)
        self._check_locked(relation)

    @contextmanager
    def _named_in_errors(self, relation: Relation) -> Iterator[None]:
        """Add the table's name to the error of a server that cannot read the rows."""
        try:
            yield
        except DataUnreadable as error:
            raise DataUnreadable(f"the rows of {relation.qualified_name}: {error}") from error

    def _check_locked(self, relation: Relation) -> None:
        """Raise `TableChanging` if the transaction has locked, and so read, a relation other than `relation`.

        Also raised if values may have been printed otherwise than by the types of the snapshot.
        """
        # NB: in the other session, since pg_class under the snapshot does not show newer rows.
        locked = (self._holding_pid, FIRST_USER_OID, relation.oid, relation.oid)
        others = self._querying_node().query(_LOCKED_BESIDE, locked)
        if others:
            raise TableChanging(f"{relation.qualified_name} was {others[0][0]} during its copy")
        if self._forms and not self._forms <= value_forms(self._querying_node(), relation.oid):
            raise TableChanging(f"a type in {relation.qualified_name} changed during its copy")
        now = self.table(relation.oid) if relation.has_partition_rows else None
        if now is not None and now.partitions != self._described[now.oid].partitions:
            raise TableChanging(f"{relation.qualified_name} has other partitions than at the start of its copy")

    def clock_us(self) -> int:
        """Return the time of the node's clock, since 1970-01-01 UTC."""
        ((time_us,),) = self._querying_node().query("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
        assert isinstance(time_us, int), time_us
        return time_us

    def flush(self) -> tuple[TimelineId, Lsn]:
        """Flush all that the snapshot showed: a crash could undo it otherwise; return timeline and flush LSN."""
        return self._querying_node().flushed()

    def _describe(self, table: SourceTable) -> Relation:
        now = self.table(table.oid)
        if now is None:
            raise TableChanging(f"{table.namespace}.{table.name} was dropped")
        self._refresh_if_changed(now)
        assert self._mirror is not None
        relation = self._mirror.relation(table.oid)
        if relation is None or not self._is_described(now):
            raise TableChanging(f"{table.namespace}.{table.name} changes although it is locked")
        return relation

    def _refresh_if_changed(self, table: SourceTable) -> None:
        """Read the descriptions again if the table has changed since they were read."""
        if not self._is_described(table):
            self._refresh(table)

    def _is_described(self, table: SourceTable) -> bool:
        """Return whether the descriptions show the table as it is."""
        if self._mirror is None or self._described.get(table.oid) != table:
            return False
        # NB: an index that was created and dropped meanwhile leaves the stamp unchanged.
        return self._mirror.index_oids(table.oid) == table.index_oids

    def _refresh(self, table: SourceTable) -> None:
        """Read all descriptions again, the stamps first: a change in between then has a different stamp."""
        if self._seen.get(table.oid) != table:
            self.tables()
        described = self._seen
        session = SeedSession(self._querying_node())
        with ThreadPoolExecutor(1, "tidemark-copy-connect") as pool:
            pool.submit(self._locking_node)  # in parallel; a failure is raised by the next call
            mirror = session.begin(self._format, Xid(3), None)  # the mirror follows no WAL: any xid will do
            seed.merge(mirror, session.read_tables(mirror))
        self._described, self._mirror = described, mirror


def _has_types_of_users(relation: Relation) -> bool:
    return any(column.type is not None and column.type.oid >= FIRST_USER_OID for column in relation.live_columns)


def _selected(column: Column) -> sql.Composable:
    """Return the expression to select for a column: OIDs where the server would print names."""
    if column.is_virtual:
        return sql.NULL  # as in the stream; computing it may fail
    name = _identifier(column.name)
    if not holds_oids(column):
        return name
    is_array = column.type is not None and column.type.ultimate().element is not None
    return sql.SQL("{}::pg_catalog.oid{}").format(name, sql.SQL("[]" if is_array else ""))


def _in_utf8(block: CopyBlock, dialect: Dialect) -> CopyBlock:
    """Convert a block from another encoding to UTF-8: an invalid byte is kept, and is replaced like in the stream."""
    return block._replace(lines=dialect.decode(bytes(block.lines)).encode("utf-8", "surrogateescape"))


def _identifier(*names: str) -> sql.Identifier:
    """Return a quoted name; raise `CopyDenied` if no statement in UTF-8 can contain its bytes."""
    try:
        ".".join(names).encode()
    except UnicodeEncodeError as error:
        name_text = without_escapes(".".join(names))
        raise CopyDenied(
            f"the name {name_text} is not valid in the encoding of its database, so no statement can name it",
            hint="rename it, exclude the table, or set copy.enabled = false",
        ) from error
    return sql.Identifier(*names)
