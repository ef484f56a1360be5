"""The errors of a node, one class for each, and the translation of PostgreSQL's errors into these classes.

libpq has no SQLSTATE for a connection that fails, and the server may use any language: connection errors are recognised
by words that no translation changes (`pg_hba.conf`) or by their English text; an unrecognised error is
`NodeUnreachable` with the server's text, and is retried.

A walsender's errors are recognised by the server function that raised them (PG_DIAG_SOURCE_FUNCTION): a role without
privileges cannot choose the language of messages, and most of these errors have no distinct SQLSTATE. The functions
have the same names in PostgreSQL 14 to 18.
"""

import re
from collections.abc import Iterable
from typing import Protocol

import psycopg
from psycopg import pq

from tidemark.model.errors import CorruptWal, NodeUnfit, NodeUnreachable, TidemarkError, WalGap


class ConnectionRejected(NodeUnfit):
    """The node, or TLS on the way to it, rejects our connections of any kind."""


class NoHbaLine(ConnectionRejected):
    """No line of pg_hba.conf admits the connection."""

    hint = (
        "add a line to the node's pg_hba.conf and reload it: `hostssl replication USER ADDRESS scram-sha-256` for the "
        "stream (the keyword `all` does not cover replication), `hostssl DATABASE USER ADDRESS scram-sha-256` for SQL; "
        "for a connection with no encryption, add sslmode=require to the DSN, or write `host` in place of `hostssl`"
    )


class ReplicationNotPermitted(NodeUnfit):
    """The role lacks the REPLICATION attribute."""

    hint = "run as a superuser of the node: ALTER ROLE <role> REPLICATION"


class AuthenticationFailed(ConnectionRejected):
    """The node rejects our user name, password or certificate."""

    hint = (
        "check the role's name, its LOGIN attribute, and the password in ~/.pgpass or in the file that PGPASSFILE "
        "names (mode 0600)"
    )


class TlsFailed(ConnectionRejected):
    """Either side rejects the other's certificate, or the server has no TLS although the DSN requires it."""

    hint = (
        "see sslmode, sslrootcert, sslcert and sslkey in the DSN: sslrootcert must contain the root that "
        "signed the node's certificate, the certificate must name the host of the DSN, and a key file has mode "
        "0600"
    )


class PoolerRejected(ConnectionRejected):
    """A connection pooler, which does not know our parameters or replication, answers in place of the node."""

    hint = (
        "a connection pooler such as PgBouncer answers at this address, and does not pass on the settings of the "
        "session or physical replication: the DSN must name the host and port of the server itself"
    )


class DatabaseMissing(NodeUnfit):
    """The database does not exist, or the role may not connect to it."""

    hint = "check the database's name, and GRANT CONNECT ON DATABASE to the role"


class NoFreeConnection(NodeUnreachable):
    """All walsenders or connections of the node are in use."""

    hint = "raise max_wal_senders or max_connections, or stop a client; a daemon retries automatically"


class NodeStarting(NodeUnreachable):
    """The node is starting, shutting down or recovering."""

    hint = "wait until it is up; a daemon retries automatically"


class PermissionMissing(NodeUnfit):
    """SQL for which the role lacks a privilege."""

    hint = "grant the privilege that the message names to the role"


class CopyDenied(NodeUnfit):
    """Tables that the role may not read."""

    hint = (
        "GRANT SELECT on them and USAGE on their schemas (row-level security: ALTER ROLE of the capture BYPASSRLS), "
        "exclude them, or set copy.enabled = false"
    )


class QueryTimedOut(NodeUnreachable):
    """A statement of ours exceeded its timeout, usually behind a lock on a system catalog."""

    hint = "look for VACUUM FULL or CLUSTER of a system catalog in pg_stat_activity"


class LockTimedOut(QueryTimedOut):
    """A statement of ours did not get its lock on a system catalog in time."""


class RecoveryConflict(NodeUnreachable):
    """A standby cancelled a statement of ours that conflicted with the replay."""

    hint = "set hot_standby_feedback = on at the standby, or raise its max_standby_streaming_delay"


class ResourcesExhausted(NodeUnreachable):
    """The node lacks disk space, memory or another resource for a statement of ours."""

    hint = "free the resource that the message names on the host of the node; a daemon retries automatically"


class DataUnreadable(NodeUnreachable):
    """A value or page that the server cannot read or send; retried, since the cause may be temporary."""

    hint = "see the log of the node; correct the row, or exclude its table"


class WalRemoved(WalGap):
    """The node has removed WAL that we need."""

    hint = "the archive must contain it; otherwise raise wal_keep_size, and run the first copy again"


class AheadOfNode(NodeUnfit):
    """We have WAL that the node never had: it is on another branch of history."""

    hint = (
        "the node was restored, or a failover lost commits; if tables contain changes that the node does not have, "
        "recreate them"
    )


class StandbyBehind(NodeUnreachable):
    """A standby that has restarted has not replayed WAL that it sent before its restart; it will, or is promoted."""

    hint = (
        "it is tried again until the standby has replayed or received this WAL; if its primary is lost, promote the "
        "standby: the stream continues where the new timeline begins"
    )


class StandbyPromoted(NodeUnreachable):
    """A standby that was promoted after its timeline was read; the next connection reads its history."""

    hint = "no action is needed: the connection is made again"


class TimelineUnknown(NodeUnfit):
    """Our timeline is not in the node's history, or it was left before our position."""

    hint = "the node followed another promotion; if tables contain changes that the node does not have, recreate them"


class WrongNode(NodeUnfit):
    """Another cluster than that of the state."""

    hint = (
        "the DSN leads to another cluster: correct it, or use another state folder; pg_upgrade creates another "
        "cluster, whose capture begins anew (docs/operate.md)"
    )


_CONNECTION: tuple[tuple[str, type[TidemarkError]], ...] = (
    (r"pg_hba\.conf", NoHbaLine),
    (r"certificate verify failed|server certificate for|(certificate|private key) file|not support SSL|v\d alert",
     TlsFailed),
    (r"max_wal_senders|too many clients|remaining connection slots|too many connections", NoFreeConnection),
    (r"authentication failed|no password supplied|role \".*\" (does not exist|is not permitted to log in)|certificate",
     AuthenticationFailed),
    (r"unsupported startup parameter", PoolerRejected),
    (r"walsender|WAL sender|\bREPLICATION\b", ReplicationNotPermitted),
    (r"database \".*\" does not exist|permission denied for database|not currently accepting", DatabaseMissing),
    (r"starting up|shutting down|recovery mode|not yet accepting", NodeStarting),
)  # fmt: skip
_HOST = r'connection to server (?:at "([^"]*)"(?: \([^)]*\))?, port (\d+)|on socket "([^"]*)") failed: '
_SQLSTATES: tuple[tuple[str, type[TidemarkError]], ...] = (
    ("40001", RecoveryConflict),  # we use no serializable transaction, so this is no serialization failure
    ("57014", QueryTimedOut),
    ("55P03", LockTimedOut),
    ("42501", PermissionMissing),
    ("57P", NodeStarting),
    ("533", NoFreeConnection),
    ("53", ResourcesExhausted),
    ("08", NodeUnreachable),
)
# Data exceptions, limits exceeded (a value over 1 GB as text), unreadable files, corruption.
_OF_DATA = ("22", "54", "58", "XX")
_UNDEFINED_FILE = "58P01"
_INTERNAL_ERROR = "XX000"  # also of every error that PostgreSQL raises without an SQLSTATE
_CORRUPTED = ("XX001", "XX002")
# CheckXLogRemoved (xlog.c) derives the SQLSTATE from a stale `errno`, so it can be any; mostly it is XX000.
_FINDS_WAL_REMOVED = "CheckXLogRemoved"
_OPENS_SEGMENT = "WalSndSegmentOpen"  # walsender.c; undefined_file only if the segment was removed
_SENDS_HISTORY = "SendTimeLineHistory"  # walsender.c
_STARTS_REPLICATION = "StartReplication"  # walsender.c: a start beyond the flush LSN, or (with a detail) beyond a fork
_LOOKS_FOR_TIMELINE = "tliSwitchPoint"  # timeline.c


class FailedResult(Protocol):
    """The parts of a walsender's failed result that are read; libpq's PGresult has them."""

    @property
    def error_message(self) -> bytes:
        """The complete message."""

    def error_field(self, fieldcode: int) -> bytes | None:
        """Return a field of the error; None if the server sent none."""


def connection_error(message: str, where: str) -> TidemarkError:
    """Return the error for a failed connection to `where`.

    With several hosts, one that may answer soon counts before those that reject the connection, such as standbys.
    """
    text = _line(message)
    of_hosts = [_of_connection(failures) for failures in _by_host(text)]
    soon = [kind for kind in of_hosts if issubclass(kind, NodeUnreachable)]
    kind = soon[0] if soon and len(of_hosts) > 1 else _of_connection(text)
    hint = "check host, port and network, and that the server runs" if kind is NodeUnreachable else None
    return kind(f"cannot connect to {where}: {text}", hint=hint)


def _by_host(text: str) -> Iterable[str]:
    """Return the failures of each host in libpq's message; a host may have several addresses."""
    found = re.split(_HOST, text)[1:]
    failures: dict[tuple[str, ...], str] = {}
    for *host, failure in zip(*(found[part::4] for part in range(4)), strict=True):
        failures[*host,] = f"{failures.get((*host,), '')} {failure}"
    return failures.values()


def _of_connection(text: str) -> type[TidemarkError]:
    return next((kind for pattern, kind in _CONNECTION if re.search(pattern, text)), NodeUnreachable)


def query_error(error: psycopg.Error, where: str) -> TidemarkError:
    """Return the error for `error`, raised by a statement on `where`."""
    kind = DataUnreadable if (error.sqlstate or "").startswith(_OF_DATA) else NodeUnreachable
    return _by_sqlstate(error.sqlstate, str(error), where) or kind(f"{where}: {_line(str(error))}")


def replication_error(result: FailedResult, where: str, doing: str) -> TidemarkError:
    """Return the error for a walsender's failed `result`."""
    sqlstate, function = _field(result, pq.DiagnosticField.SQLSTATE), _field(result, pq.DiagnosticField.SOURCE_FUNCTION)
    message = result.error_message.decode(errors="replace")
    text = f"{where}, {doing}"
    if kind := _of_walsender(function, sqlstate, has_detail=bool(_field(result, pq.DiagnosticField.MESSAGE_DETAIL))):
        return kind(f"{text}: {_line(message)}")
    if found := _by_sqlstate(sqlstate, message, text):
        return found
    if sqlstate in _CORRUPTED:
        return CorruptWal(f"{text}: {_line(message)}", hint="the node itself cannot read its WAL: see its log")
    return NodeUnreachable(
        f"{text}: {_line(message)}", hint="see the log of the node for the cause; a daemon retries automatically"
    )


def _of_walsender(function: str, sqlstate: str, *, has_detail: bool) -> type[TidemarkError] | None:
    """Return the error for the server function that raised it; None if the function does not determine it."""
    if function == _FINDS_WAL_REMOVED or (function, sqlstate) == (_OPENS_SEGMENT, _UNDEFINED_FILE):
        return WalRemoved
    if function == _LOOKS_FOR_TIMELINE or (function, sqlstate) == (_SENDS_HISTORY, _UNDEFINED_FILE):
        return TimelineUnknown
    if (function, sqlstate) == (_STARTS_REPLICATION, _INTERNAL_ERROR):
        return TimelineUnknown if has_detail else AheadOfNode
    return None


def _field(result: FailedResult, field: pq.DiagnosticField) -> str:
    return (result.error_field(field) or b"").decode(errors="replace")


def _by_sqlstate(sqlstate: str | None, message: str, where: str) -> TidemarkError | None:
    for prefix, kind in _SQLSTATES:
        if sqlstate and sqlstate.startswith(prefix):
            return kind(f"{where}: {_line(message)}")
    return None


def _line(message: str) -> str:
    return " ".join(message.split())
