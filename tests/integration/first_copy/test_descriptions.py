"""Types and comments of a table at the source, as its log and replica in the lake describe them."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.integration.first_copy.test_recopy import recopy
from tests.support.lakes.lakes import feed_by_hand
from tests.support.processes.captures import Sidecar, running
from tests.support.processes.cdcctl import succeeded
from tests.support.servers.postgres import Cluster

TABLE = """
CREATE DOMAIN price AS numeric(12,4);
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TABLE account (
    id bigint PRIMARY KEY, amount numeric(10,2), rough numeric(8,0), free numeric, code char(3), name varchar(40),
    text text, flags bit(4), more bit varying(9), at timestamp(3), seen timestamptz(0), day date,
    hour time(1) with time zone, span interval, short interval(2), tags varchar(8)[],
    sums numeric(6,1)[], cost price, mood mood, gone int,
    "Größe" real
);
ALTER TABLE account DROP COLUMN gone;
COMMENT ON TABLE account IS 'Konten: ''all'' of them
in two lines';
COMMENT ON COLUMN account.amount IS 'in € — before tax';
COMMENT ON COLUMN account."Größe" IS 'm';
INSERT INTO account (id) VALUES (1);
"""
DECLARED = """
    SELECT attname::text, format_type(atttypid, atttypmod), col_description(attrelid, attnum)
    FROM pg_attribute WHERE attrelid = 'account'::regclass AND attnum > 0 AND NOT attisdropped
"""
TABLE_COMMENT = "SELECT obj_description('account'::regclass, 'pg_class')"
LONGEST = 4000  # characters


def declared(cluster: Cluster, database: str) -> dict[str, tuple[str, str | None]]:
    """Return type and comment of each column, as the server prints them."""
    return {name: (kind, comment) for name, kind, comment in cluster.sql(DECLARED, database)}


def described(table: DeltaTable) -> dict[str, tuple[str, str | None]]:
    """Return type and comment of each column of the source, as a Delta table has them."""
    fields = [field for field in table.schema().fields if not field.name.startswith("_")]
    return {field.name: (field.metadata["tidemark.type"], field.metadata.get("comment") or None) for field in fields}


def tables(sidecar: Sidecar, lake: Path) -> list[DeltaTable]:
    sidecar.catch_up()
    feed_by_hand(sidecar.folder, lake, "lake")
    (folder,) = lake.glob("*/public/account")
    return [DeltaTable(str(folder / name)) for name in ("log", "replica")]


@pytest.mark.feature("L13")
@pytest.mark.feature("P22")
def test_log_and_replica_describe_the_columns_as_the_server_does(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql(TABLE, database)
    ((comment,),) = cluster.sql(TABLE_COMMENT, database)
    lake = tmp_path / "lake"
    with running(cluster, database, tmp_path, copy=True) as sidecar:
        for table in tables(sidecar, lake):
            assert described(table) == declared(cluster, database), table
            assert table.metadata().description == comment
        cluster.sql("ALTER TABLE account ALTER name TYPE varchar(50), ADD extra varchar(5)", database)
        cluster.sql("ALTER TABLE account ALTER amount TYPE numeric(14,3), DROP COLUMN code", database)
        cluster.sql("UPDATE account SET extra = 'a'", database)
        log, replica = tables(sidecar, lake)
        assert described(replica) == declared(cluster, database)
        present = declared(cluster, database)
        assert {name: described(log)[name] for name in ("amount", "extra")}.items() <= present.items()
        assert replica.metadata().description == comment
        cluster.sql(f"COMMENT ON TABLE account IS '{'é' * (LONGEST + 1)}'", database)
        cluster.sql("COMMENT ON COLUMN account.amount IS NULL", database)
        cluster.sql("COMMENT ON COLUMN account.extra IS 'added'", database)
        succeeded(recopy(sidecar, "account"))
        log, replica = tables(sidecar, lake)
        assert described(replica) == declared(cluster, database)
        assert described(log).items() >= declared(cluster, database).items()
        assert [table.metadata().description for table in (log, replica)] == ["é" * LONGEST] * 2
        assert replica.to_pyarrow_table().column("id").to_pylist() == [1]
