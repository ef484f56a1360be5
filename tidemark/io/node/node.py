"""The node by SQL: its fitness, its WAL positions, the transactions that delay us. Every statement has a time-out.

An open VACUUM FULL or CLUSTER of a system catalog blocks any new session in that database, so connecting
has a time-out too. Nothing here needs more than LOGIN, REPLICATION and CONNECT.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import LiteralString, Self

import psycopg
from psycopg.rows import TupleRow

from tidemark.io.host.file_access import ServerUser
from tidemark.io.node.dsn import complete_dsn, describe_dsn
from tidemark.io.node.node_errors import WrongNode, connection_error, query_error
from tidemark.io.node.server_user import server_user
from tidemark.model.errors import NodeUnfit
from tidemark.model.lsn import INVALID_LSN, XID_MASK, FullXid, Lsn, Oid, SystemIdentifier, TimelineId, parse_lsn
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.model.snapshot import Snapshot, parse_snapshot
from tidemark.wal.versions import PAGE_BYTES, wal_format

STATEMENT_TIMEOUT_S = 30
LOCK_TIMEOUT_S = 10
# A seed or a copy takes as long as there are rows. Majors before 17 do not have this setting.
NO_TRANSACTION_TIMEOUT = """
    SELECT pg_catalog.set_config('transaction_timeout', '0', false)
    WHERE pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
"""
TCP_USER_TIMEOUT_S = 30  # a vanished node is noticed within this time

# The text of values depends only on these settings (docs/design/catalog.md): the comparison with test_decoding uses
# them, and the text of COPY and of the seed is parsed under them.
REFERENCE_SETTINGS: tuple[LiteralString, ...] = (
    "SET TimeZone = 'UTC'",
    "SET DateStyle = 'ISO, MDY'",
    "SET IntervalStyle = 'postgres'",
    "SET extra_float_digits = 1",
    "SET bytea_output = 'hex'",
    "SET xmloption = 'content'",
    "SET lc_monetary = 'C'",
    "SET client_encoding = 'UTF8'",
    'SET search_path = "$user", public',
)


class WalLevelTooLow(NodeUnfit):
    """WAL that does not contain the rows."""

    hint = "set wal_level = logical in the node's postgresql.conf and restart it"


class FullPageWritesOff(NodeUnfit):
    """WAL without full page images, from which the catalogs are rebuilt."""

    hint = "set full_page_writes = on in the node's postgresql.conf, reload it, and run CHECKPOINT"


class UnknownPageSize(NodeUnfit):
    """A server built with another page size."""

    hint = "Tidemark reads servers built with 8 kB pages, as all packages are"


class NoWalSenders(NodeUnfit):
    """A server that streams no WAL."""

    hint = "set max_wal_senders in the node's postgresql.conf to at least 2 and restart it"


class RoleLacksReplication(NodeUnfit):
    """The role of the DSN may not stream WAL."""

    hint = "run as a superuser of the node: ALTER ROLE <role> REPLICATION"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The identity of the node and of the session's database."""

    major: int
    server_version: str
    system_identifier: SystemIdentifier
    timeline: TimelineId
    segment_bytes: int
    database: str
    database_oid: Oid
    role: str


@dataclass(frozen=True, slots=True)
class RedoPoint:
    """The last checkpoint: all catalog pages changed after `redo_lsn` have their images in WAL after it."""

    redo_lsn: Lsn
    next_xid: FullXid
    timeline: TimelineId


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction for which a capture waits: of a session, or a prepared one."""

    xid: FullXid
    pid: int | None
    gid: str | None
    description: str  # state and age; never the query, which may contain values

    @property
    def who(self) -> str:
        """Identifies the transaction; constant while it is open."""
        return f"process {self.pid}" if self.pid is not None else f"prepared transaction {self.gid!r}"

    def __str__(self) -> str:
        return f"{self.who} ({self.description})"


@dataclass(frozen=True, slots=True)
class NodeArchiving:
    """The state of the node's archiving, and whether this role may complete a segment."""

    may_switch: bool  # EXECUTE on pg_switch_wal
    timeout_s: int  # archive_timeout; 0: a segment is archived when it is full
    is_on: bool  # archive_mode; if it is off, pg_receivewal may fill the archive
    failed_file: str  # the last file for which archive_command failed, if nothing was archived since
    archived_file: str = ""  # the last file for which archive_command succeeded, according to the server
    insert_lsn: Lsn = INVALID_LSN  # the node's insert LSN; invalid on a standby
    server: ServerUser | None = None  # None: on another host, or unknown


class Node:
    """One SQL session in one database of the node."""

    def __init__(self, dsn: str, database: str | None = None) -> None:
        """Connect; raise a specific error on failure."""
        options = (
            f"-c statement_timeout={STATEMENT_TIMEOUT_S}s -c lock_timeout={LOCK_TIMEOUT_S}s -c idle_session_timeout=0"
        )
        complete = complete_dsn(dsn, database=database, options=options, tcp_user_timeout=TCP_USER_TIMEOUT_S * 1000)
        self.where = describe_dsn(complete)
        try:
            self._session = psycopg.connect(complete, autocommit=True)
        except psycopg.Error as error:
            raise connection_error(str(error), self.where) from error
        self._session.prepare_threshold = None  # a pooler may not support prepared statements
        with ExitStack() as stack:
            stack.callback(self.close)  # close at once, not when the exception is released
            self.query("; ".join((*REFERENCE_SETTINGS, NO_TRANSACTION_TIMEOUT)))
            stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the session; may be called more than once."""
        self._session.close()

    def query(self, statement: LiteralString | bytes, arguments: Sequence[object] = ()) -> list[TupleRow]:
        """Run one statement; return its rows, if any."""
        with self.translated():
            cursor = self._session.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def translated(self) -> Iterator[psycopg.Connection[TupleRow]]:
        """Yield the session; translate PostgreSQL's errors."""
        try:
            yield self._session
        except psycopg.Error as error:
            raise query_error(error, self.where) from error

    @contextmanager
    def repeatable_read(self) -> Iterator[None]:
        """Run the body under one snapshot."""
        with self.translated():
            self._session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield
            finally:
                if self._session.info.transaction_status != psycopg.pq.TransactionStatus.UNKNOWN:
                    self._session.execute("ROLLBACK")

    def facts(self) -> NodeFacts:
        """Return the facts of the node; raise `UnsupportedMajor` for an unknown version."""
        number = self._session.info.server_version
        wal_format(number // 10_000)
        (row,) = self.query(
            "SELECT current_setting('server_version'), s.system_identifier, c.timeline_id, d.oid,"
            " pg_size_bytes(current_setting('wal_segment_size')), d.datname, current_user"
            " FROM pg_control_system() s, pg_control_checkpoint() c, pg_database d WHERE d.datname = current_database()"
        )
        version, identifier, timeline, database_oid, segment_bytes, database, role = row
        return NodeFacts(
            major=number // 10_000,
            server_version=str(version),
            system_identifier=SystemIdentifier(int(identifier) & 0xFFFFFFFFFFFFFFFF),
            timeline=TimelineId(int(timeline)),
            segment_bytes=int(segment_bytes),
            database=str(database),
            database_oid=Oid(int(database_oid)),
            role=str(role),
        )

    def check_fitness(self) -> NodeFacts:
        """Return the facts of the node; raise one error that names everything that prevents a capture.

        Its class is that of the first fault: an operator who restarts the node should have to do it once.
        """
        facts = self.facts()
        faults = [*self._setting_faults(), *self._streaming_faults(facts.role)]
        if faults:
            hints = dict.fromkeys(fault.hint for fault in faults)
            raise type(faults[0])("; ".join(map(str, faults)), hint="; ".join(hints))
        return facts

    def check_settings(self) -> None:
        """Raise for the first setting of the node that prevents decoding; a standby reports its own settings."""
        for fault in self._setting_faults():
            raise fault

    def _streaming_faults(self, role: str) -> Iterator[NodeUnfit]:
        ((may_stream, senders),) = self.query(
            "SELECT rolreplication OR rolsuper, current_setting('max_wal_senders')::int"
            " FROM pg_roles WHERE rolname = current_user"
        )
        if not senders:
            yield NoWalSenders(f"{self.where} has max_wal_senders = 0")
        if not may_stream:
            yield RoleLacksReplication(f"the role {role} on {self.where} lacks REPLICATION")

    def _setting_faults(self) -> Iterator[NodeUnfit]:
        (row,) = self.query(
            "SELECT current_setting('wal_level'), current_setting('full_page_writes'), c.full_page_writes,"
            " current_setting('block_size')::int, current_setting('wal_block_size')::int FROM pg_control_checkpoint() c"
        )
        wal_level, setting, checkpoint, block_bytes, page_bytes = row
        if wal_level != "logical":
            yield WalLevelTooLow(f"{self.where} has wal_level = {wal_level}")
        if setting != "on" or not checkpoint:
            since = "" if setting != "on" else ", and it was off at the last checkpoint"
            yield FullPageWritesOff(f"{self.where} has full_page_writes = {setting}{since}")
        if (block_bytes, page_bytes) != (PAGE_BYTES, PAGE_BYTES):
            yield UnknownPageSize(f"{self.where} has pages of {block_bytes} and WAL pages of {page_bytes} bytes")

    def check_same_node(self, expected: SystemIdentifier) -> None:
        """Raise `WrongNode` if this is another cluster than `expected`."""
        if (found := self.facts().system_identifier) != expected:
            raise WrongNode(f"{self.where} is the cluster {found}, not {expected}")

    def redo_point(self) -> RedoPoint:
        """Return the start of the last checkpoint."""
        ((redo_lsn, next_xid, timeline),) = self.query(
            "SELECT redo_lsn::text, next_xid, timeline_id FROM pg_control_checkpoint()"
        )
        epoch, _, low = str(next_xid).partition(":")
        return RedoPoint(parse_lsn(str(redo_lsn)), FullXid(int(epoch) << 32 | int(low)), TimelineId(int(timeline)))

    def flush_lsn(self) -> Lsn:
        """Return the flush LSN, up to which WAL can be streamed; on a standby, the replayed LSN."""
        return self.replayed_lsn() or self._lsn("SELECT pg_current_wal_flush_lsn()::text")

    def archiving(self) -> NodeArchiving:
        """Return the state of archiving."""
        ((may_switch, timeout_s, mode, failed_file, archived_file, insert_lsn),) = self.query(
            "SELECT has_function_privilege('pg_catalog.pg_switch_wal()', 'EXECUTE'),"
            " extract(epoch FROM current_setting('archive_timeout')::interval)::int, current_setting('archive_mode'),"
            " CASE WHEN last_failed_time > coalesce(last_archived_time, '-infinity') THEN last_failed_wal END,"
            " last_archived_wal,"
            " CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn()::text END"
            " FROM pg_stat_archiver"
        )
        is_on = mode == "always" or (mode == "on" and insert_lsn is not None)
        return NodeArchiving(
            may_switch=bool(may_switch),
            timeout_s=int(timeout_s),
            is_on=is_on,
            failed_file=str(failed_file or ""),
            archived_file=str(archived_file or ""),
            insert_lsn=INVALID_LSN if insert_lsn is None else parse_lsn(str(insert_lsn)),
            server=self.server_user(),
        )

    def server_user(self) -> ServerUser | None:
        """Return the user that the server runs as, if it runs on this host."""
        return server_user(self._session)

    def flush_all(self) -> Lsn:
        """Flush all WAL of commits that are visible now; return the flush LSN.

        NB: asynchronous commits are visible before they are flushed. A transactional message is one more commit; it
        waits for the local disk only, or it would hang if a synchronous standby is away. On a standby nothing is
        visible before it is flushed.
        """
        if self.is_in_recovery():
            return self.flush_lsn()
        self.query("SET synchronous_commit = 'local'")
        self.query("SELECT pg_logical_emit_message(true, %s, '')", (MARKER_PREFIX,))
        return self.flush_lsn()

    def flushed(self) -> tuple[TimelineId, Lsn]:
        """Flush all WAL of commits that are visible now; return timeline and flush LSN."""
        lsn = self.flush_all()
        return self.timeline(), lsn

    def timeline(self) -> TimelineId:
        """Return the timeline that the node writes; on a standby, the latest timeline of which it has replayed WAL.

        NB: after a promotion the control file's checkpoint has the old timeline until the next checkpoint.
        """
        ((timeline,),) = self.query(
            "SELECT CASE WHEN pg_is_in_recovery()"
            " THEN greatest(timeline_id, min_recovery_end_timeline, (SELECT received_tli FROM pg_stat_wal_receiver))"
            " ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END"
            " FROM pg_control_checkpoint(), pg_control_recovery()"
        )
        return TimelineId(int(timeline))

    def insert_lsn(self) -> Lsn:
        """Return the start of the next record: the records of all earlier commits are before it.

        On a standby, the start of the next record to replay; its replay may be in progress, and its effects visible.
        """
        return self.replayed_lsn() or self._lsn("SELECT pg_current_wal_insert_lsn()::text")

    def replayed_lsn(self) -> Lsn | None:
        """Return the end of the WAL that a standby has replayed; None on a primary."""
        return self._reported_lsn("SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() END::text")

    def received_lsn(self) -> Lsn | None:
        """Return the end of the WAL that a standby has received by streaming; None if it has received none."""
        return self._reported_lsn("SELECT pg_last_wal_receive_lsn()::text")

    def is_in_recovery(self) -> bool:
        """Return whether the node is a standby now: a promotion does not end the session."""
        return bool(self.query("SELECT pg_is_in_recovery()")[0][0])

    def _lsn(self, statement: LiteralString) -> Lsn:
        return parse_lsn(str(self.query(statement)[0][0]))

    def _reported_lsn(self, statement: LiteralString) -> Lsn | None:
        ((found,),) = self.query(statement)
        return None if found is None else parse_lsn(str(found))

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""
        return parse_snapshot(str(self.query("SELECT pg_current_snapshot()::text")[0][0]))

    def blockers(self, below: FullXid) -> list[Blocker]:
        """Return the open transactions older than `below`, oldest first."""
        rows = self.query(
            "SELECT backend_xid::text::bigint, pid, NULL, coalesce(state, 'state not shown') || coalesce(', begun '"
            " || date_trunc('second', now() - xact_start)::text || ' ago', '')"
            " FROM pg_stat_activity WHERE backend_xid IS NOT NULL"
            " UNION ALL SELECT transaction::text::bigint, NULL, gid, 'in database ' || database || ', prepared '"
            " || date_trunc('second', now() - prepared)::text || ' ago' FROM pg_prepared_xacts"
        )
        near = self.snapshot().xmin
        found = [Blocker(_full_xid(int(xid), near), pid, gid, str(text)) for xid, pid, gid, text in rows]
        return sorted((blocker for blocker in found if blocker.xid < below), key=lambda blocker: blocker.xid)


def _full_xid(xid: int, near: FullXid) -> FullXid:
    """Return the 64-bit xid with these low 32 bits that is nearest to `near`."""
    distance = (xid - near) & XID_MASK
    return FullXid(near + (distance if distance <= XID_MASK >> 1 else distance - XID_MASK - 1))
