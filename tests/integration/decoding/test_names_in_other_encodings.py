"""Names and values that are invalid in their database's encoding: SQL_ASCII checks nothing."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster, database_in
from tidemark.model.change import SchemaEvent
from tidemark.model.errors import ExitCode

# Python reads the file as UTF-8: the names are written here as text, and sent as LATIN1.
PLAIN = "CREATE TABLE plain (id int PRIMARY KEY, v text); INSERT INTO plain VALUES (1, E'b\\xff')"
ODD = 'CREATE SCHEMA "schéma"; CREATE TABLE "schéma"."café" (id int PRIMARY KEY, "priè" text, "prié" text)'
LIFE = """
INSERT INTO "schéma"."café" VALUES (2, 'c', 'd');
CREATE TYPE "gü" AS ENUM ('grüß', 'plain');
ALTER TABLE "schéma"."café" ADD COLUMN "nö" "gü" DEFAULT 'grüß';
UPDATE "schéma"."café" SET id = 3 WHERE id = 2;
ALTER TABLE "schéma"."café" RENAME TO "thé";
TRUNCATE "schéma"."thé"
"""


def run(cluster: Cluster, database: str, script: str) -> None:
    with cluster.connect(database) as session:
        session.execute("SET client_encoding = 'SQL_ASCII'")  # bytes as they are
        for statement in script.split(";"):
            session.execute(statement.encode("latin-1"))


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    options = "ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
    with database_in(cluster, f"names_{uuid.uuid4().hex[:8]}", options=options) as name:
        yield name


def test_a_table_that_no_statement_can_name_is_refused_by_name_for_the_copy(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    run(cluster, database, ODD)
    sidecar = Sidecar(cluster, database, tmp_path, copy=True)
    sidecar.init()
    sidecar.refuses(ExitCode.NODE_UNFIT, "the name sch\ufffdma.caf\ufffd is not valid in the encoding")


def test_invalid_bytes_in_names_and_values_are_replaced_by_a_mark(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    run(cluster, database, PLAIN)
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        sidecar.wait_for_event("first copy done")
        run(cluster, database, f"{ODD};{LIFE}")
        items = sidecar.catch_up()
    archive = ("--state", sidecar.folder.root, "--archive", cluster.data / "pg_wal", "--database", database)
    reported = succeeded(cdcctl("decode", *archive)).out.decode()
    assert '"schema":"sch\ufffdma","table":"caf\ufffd"' in reported
    assert "caf\ufffd".encode() in succeeded(cdcctl("decode", *archive, "--format", "arrow")).out
    as_test_decoding = succeeded(cdcctl("decode", *archive, "--format", "test_decoding")).out
    assert 'table "schéma"."café": INSERT'.encode("latin-1") in as_test_decoding, "to the byte"
    assert [row["_after"] for row in change_log(items, "plain")] == [{"id": 1, "v": "b\ufffd"}]
    inserted, updated = change_log(items, "caf\ufffd")
    assert inserted["_after"] == {"id": 2, "pri\ufffd": "c", "pri\ufffd_3": "d"}
    assert updated["_after"] == {"id": 3, "pri\ufffd": "c", "pri\ufffd_3": "d", "n\ufffd": "gr\ufffd\ufffd"}
    events = [item.after.qualified_name for item in items if isinstance(item, SchemaEvent) and item.after]
    assert events[-1] == "sch\ufffdma.th\ufffd"
