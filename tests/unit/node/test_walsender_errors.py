"""A walsender's errors are recognised by the server function that raised them, in any language of its messages."""

from dataclasses import dataclass, field

import pytest
from psycopg.pq import DiagnosticField as Field

from tidemark.io.node.node_errors import (
    AheadOfNode,
    NodeStarting,
    NoFreeConnection,
    NoHbaLine,
    PoolerRejected,
    ResourcesExhausted,
    TimelineUnknown,
    WalRemoved,
    connection_error,
    replication_error,
)
from tidemark.model.errors import CorruptWal, NodeUnreachable, TidemarkError

REMOVED = "FEHLER:  das angeforderte WAL-Segment 000000010000000000000002 wurde schon entfernt\n"


@dataclass
class Failure:
    """The part of a failed result by which errors are recognised."""

    fields: dict[Field, str] = field(default_factory=dict)
    error_message: bytes = REMOVED.encode()

    def error_field(self, fieldcode: int) -> bytes | None:
        value = self.fields.get(Field(fieldcode))
        return None if value is None else value.encode()


def meaning(sqlstate: str, function: str, detail: str = "") -> TidemarkError:
    fields = {Field.SQLSTATE: sqlstate, Field.SOURCE_FUNCTION: function}
    if detail:
        fields[Field.MESSAGE_DETAIL] = detail
    return replication_error(Failure(fields), "host=h", "streaming timeline 1 at 0/2000000")


@pytest.mark.parametrize("sqlstate", ["XX000", "58P01", "58030", "42501", "53100", "53200"])
def test_removed_wal_is_recognised_by_any_sqlstate_that_the_server_derives_from_errno(sqlstate: str) -> None:
    error = meaning(sqlstate, "CheckXLogRemoved")
    assert isinstance(error, WalRemoved)
    assert "wurde schon entfernt" in str(error)
    assert isinstance(meaning("58P01", "WalSndSegmentOpen"), WalRemoved)


@pytest.mark.parametrize(
    ("sqlstate", "function", "detail", "kind"),
    [
        ("42501", "WalSndSegmentOpen", "", "PermissionMissing"),  # could not open file, for want of a privilege
        ("58P01", "SendTimeLineHistory", "", TimelineUnknown.__name__),  # a timeline's history file is missing
        ("XX000", "tliSwitchPoint", "", TimelineUnknown.__name__),
        ("XX000", "StartReplication", "This server's history forked", TimelineUnknown.__name__),
        ("XX000", "StartReplication", "", AheadOfNode.__name__),
        ("XX001", "WALReadRaiseError", "", CorruptWal.__name__),
        ("58030", "WALReadRaiseError", "", NodeUnreachable.__name__),
        ("58P01", "OpenAnything", "", NodeUnreachable.__name__),
        ("XX000", "AnyFunction", "", NodeUnreachable.__name__),
        ("57P01", "ProcessInterrupts", "", NodeStarting.__name__),
        ("53300", "InitWalSenderSlot", "", NoFreeConnection.__name__),
        ("53100", "AnyFunction", "", ResourcesExhausted.__name__),
    ],
)
def test_an_error_that_shares_class_or_sqlstate_with_removed_wal_keeps_its_own_meaning(
    sqlstate: str, function: str, detail: str, kind: str
) -> None:
    assert type(meaning(sqlstate, function, detail)).__name__ == kind


REFUSED = 'connection to server at "localhost" (::1), port 5432 failed: Connection refused'
REJECTED = 'connection to server at "localhost" (127.0.0.1), port 5432 failed: FATAL: no pg_hba.conf entry'
STARTING = 'connection to server at "db2" (10.0.0.2), port 5432 failed: FATAL: the database system is starting up'


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (f"{REFUSED} {REJECTED}", NoHbaLine),  # two addresses of one host
        (f"{REJECTED} {STARTING}", NodeStarting),
        (f"{STARTING} {REJECTED}", NodeStarting),
        (f"{REFUSED} {REJECTED} {STARTING}", NodeStarting),
        ("no pg_hba.conf entry", NoHbaLine),
        ("could not translate host name", NodeUnreachable),
        ("FATAL: unsupported startup parameter: options", PoolerRejected),  # PgBouncer
        ("FATAL: unsupported startup parameter: replication", PoolerRejected),
        ("FATAL: unsupported startup parameter in options: lock_timeout", PoolerRejected),
    ],
)
def test_the_error_of_several_hosts_is_that_of_one_that_may_answer_soon(message: str, kind: type) -> None:
    error = connection_error(message, "db")
    assert type(error) is kind
    assert str(error) == f"cannot connect to db: {message}"
    assert error.hint
