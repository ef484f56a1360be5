"""A copy that ends after a part of its rows was delivered: its readers end equal to the source, or with an error."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.integration.first_copy.test_copy_cut import given
from tests.integration.landing.test_copied_again import check, check_missing, source_rows
from tests.integration.replay.test_unselected import CREATE
from tests.support.lakes.kept_target import KeptTarget, register, targets
from tests.support.lakes.lake_contents import log_of, replica_of, rows_at_source, values
from tests.support.lakes.lakes import feed_by_hand, replica_rows
from tests.support.processes.captures import Sidecar, initialised
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster
from tests.support.servers.proxies import proxy
from tidemark.model.change import ChangeBatch
from tidemark.model.errors import ExitCode
from tidemark.pipeline.lake.positions.table_position import TableState
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.replay.moment import EndOfLake
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import FolderTarget

pytestmark = [pytest.mark.feature("P22"), pytest.mark.feature("L03")]
DEADLINE_S = 120.0
READER = "lake"
ROWS = 2_000  # small at the node, and 8 MB as text
FILL = f"INSERT INTO account SELECT n, 'old ' || n || repeat('x', 4000) FROM generate_series(1, {ROWS}) n"
SPOOL = "TIDEMARK_COPY__SPOOL_BYTES"
OF_COPY = "SELECT {}(pid) FROM pg_stat_activity WHERE query LIKE 'COPY%account%' AND pid <> pg_backend_pid()"
ROLE = "copier"


class HeldConnection:
    """Forwards a connection up to any of these bytes, and waits there."""

    def __init__(self, *upto: bytes) -> None:
        self.is_there = threading.Event()
        self.may_pass = threading.Event()
        self._upto = upto

    def change(self, said: bytes) -> bytes:
        if not self.is_there.is_set() and any(upto in said for upto in self._upto):
            self.is_there.set()
            assert self.may_pass.wait(DEADLINE_S)
        return said


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A sidecar in the middle of a table's copy, and targets that have the rows until there."""

    sidecar: Sidecar
    found: list[KeptTarget]
    lake: Path

    def sql(self, statement: str) -> None:
        self.sidecar.cluster.sql(statement, self.sidecar.database)

    def check(self, evolution: str = "fail") -> None:
        """Check that the targets, and the lake's replica and log, equal the source."""
        self.sql("INSERT INTO account VALUES (9002, 'last')")
        check(self.sidecar, self.found, evolution=evolution)
        feed_by_hand(self.sidecar.folder, self.lake, READER)
        expected = rows_at_source(self.sidecar.cluster, self.sidecar.database, "account")
        assert replica_of(self.lake, "account") == expected
        opened, to = OpenedLake(str(self.lake)), self.lake.parent / "result"
        replay(opened, opened.find("public.account"), EndOfLake(), FolderTarget(to / "replica"))
        assert sorted(map(values, replica_rows(to, "")), key=repr) == expected


@contextmanager
def held_copy(
    cluster: Cluster, database: str, root: Path, *, user: str = "postgres", **options: str
) -> Iterator[tuple[HeldCopy, threading.Event]]:
    """Hold a copy in its middle until the event is set."""
    cluster.sql(f"{CREATE}; {FILL}; GRANT SELECT ON account TO PUBLIC", database)
    held = HeldConnection(b"\told 200x", b"\told 201x")  # the bytes of one of them at least arrive together
    with proxy(cluster.port, held.change) as port:
        dsn = f"host=127.0.0.1 port={port} dbname={database} user={user}"
        few = {"TIDEMARK_CAPTURE__DSN": dsn, "TIDEMARK_DELIVER__GROUP_ROWS_MAX": "20"}
        with initialised(cluster, database, root, copy=True, **few, **options) as sidecar:
            register(sidecar.folder)
            sidecar.start()
            sidecar.wait_until(held.is_there.is_set, "the middle of the copy")
            sidecar.wait_until(lambda: any(isinstance(item, ChangeBatch) for item in given(sidecar)), "a row")
            found = [delivered_in_part(sidecar, target) for target in targets(sidecar.folder.root, "account")]
            try:
                yield HeldCopy(sidecar, found, root / "lake"), held.may_pass
            finally:
                held.may_pass.set()


def delivered_in_part(sidecar: Sidecar, target: KeptTarget) -> KeptTarget:
    def has_rows() -> bool:
        target.advance()
        return bool(target.notes())

    sidecar.wait_until(has_rows, "a row before the middle")
    assert len(target.notes()) < ROWS
    return target


@pytest.mark.parametrize("ends", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_statement_or_session_of_a_copy_that_the_node_ends(
    cluster: Cluster, database: str, tmp_path: Path, ends: str
) -> None:
    """As a time limit of statements, an administrator or a crash of the server does."""
    with held_copy(cluster, database, tmp_path) as (copy, may_pass):
        copy.sql(OF_COPY.format(ends))
        copy.sql("DELETE FROM account WHERE id = 3")
        may_pass.set()
        copy.check()
        for target in copy.found:
            assert target.ops().count("t") == 2, "one before each copy"
        assert len(log_of(copy.lake, "account")) == ROWS, "without the rows of the first attempt"


def test_a_right_that_is_revoked_during_a_copy_which_a_kill_ends(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql(f"CREATE ROLE {ROLE} LOGIN REPLICATION", database)
    try:
        with held_copy(cluster, database, tmp_path, user=ROLE) as (copy, may_pass):
            copy.sidecar.kill()
            copy.sql("REVOKE SELECT ON account FROM PUBLIC; DELETE FROM account WHERE id = 3")
            may_pass.set()
            copy.sidecar.refuses(ExitCode.NODE_UNFIT, "no SELECT on public.account")
            copy.sql("GRANT SELECT ON account TO PUBLIC")
            copy.sidecar.start()
            copy.check()
    finally:
        cluster.sql(f"DROP OWNED BY {ROLE}; DROP ROLE {ROLE}", database)


def test_a_copy_that_is_refused_in_its_middle(cluster: Cluster, database: str, tmp_path: Path) -> None:
    """Rows of it were delivered, and no others follow: a query ends there, and the replica waits for a copy."""
    with held_copy(cluster, database, tmp_path, **{SPOOL: str(1 << 20)}) as (copy, may_pass):
        sidecar, table = copy.sidecar, f"{database}.public.account"
        may_pass.set()
        sidecar.wait_for_event("the copy of a table failed", table=table)
        copy.sql("INSERT INTO account VALUES (9001, 'later')")
        check_missing(sidecar, copy.found)
        for target in copy.found:
            assert 0 < len(target.notes()) < ROWS, "what came before"
        feed_by_hand(sidecar.folder, copy.lake, READER)
        assert OpenedLake(str(copy.lake)).find("public.account").state is TableState.COPYING
        sidecar.stop()
        del sidecar.options[SPOOL]
        sidecar.start()
        succeeded(cdcctl("table", "recopy", "--state", sidecar.folder.root, "account", **sidecar.options))
        copy.check(evolution="ignore")


def test_a_copy_that_is_refused_before_its_first_row(cluster: Cluster, database: str, tmp_path: Path) -> None:
    """A query of the table lacks its rows from the beginning."""
    cluster.sql(f"{CREATE}; {FILL}; UPDATE account SET note = md5(note) || repeat(md5(id::text), 60)", database)
    with initialised(cluster, database, tmp_path, copy=True, **{SPOOL: str(1 << 20)}) as sidecar:
        register(sidecar.folder)
        sidecar.start()
        sidecar.wait_for_event("the copy of a table failed", table=f"{database}.public.account")
        cluster.sql("INSERT INTO account VALUES (9001, 'later')", database)
        found = list(targets(sidecar.folder.root, "account"))
        check_missing(sidecar, found)
        sidecar.stop()
        del sidecar.options[SPOOL]
        sidecar.start()
        succeeded(cdcctl("table", "recopy", "--state", sidecar.folder.root, "account", **sidecar.options))
        check(sidecar, found, evolution="ignore")
        assert len(source_rows(sidecar)) == ROWS + 1
