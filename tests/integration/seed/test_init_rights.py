"""Warnings of `cdcctl init` about rights: missing ones for the first copy, and excessive ones on the state folder."""

from pathlib import Path

from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.postgres import Cluster

TABLES = """
CREATE TABLE allowed (id int PRIMARY KEY);
CREATE TABLE "Odd, name" (id int PRIMARY KEY);
CREATE TABLE hidden (id int PRIMARY KEY);
ALTER TABLE hidden ENABLE ROW LEVEL SECURITY;
CREATE TABLE excluded (id int PRIMARY KEY);
CREATE SCHEMA closed;
CREATE TABLE closed.inside (id int PRIMARY KEY);
CREATE SCHEMA many;
"""


def test_init_prints_the_grants_that_the_first_copy_lacks(cluster: Cluster, database: str, tmp_path: Path) -> None:
    ensure_role(cluster)
    cluster.sql(TABLES, database)
    cluster.sql("".join(f"CREATE TABLE many.t{number} (id int);" for number in range(30)), database)
    cluster.sql(f"GRANT SELECT ON allowed, hidden TO {ROLE}; GRANT USAGE ON SCHEMA many TO {ROLE}", database)
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    chosen = ("--table", "public.[!e]*", "--table", "closed.*", "--table", "many.*")
    common = ("--dsn", cluster.dsn(database, ROLE), "--state", state)
    done = succeeded(cdcctl("init", *common, *chosen))
    assert f"{state} had mode 0777; its mode is now 0700" in done.err
    grants = [line.strip() for line in done.err.splitlines() if line.startswith("  ")]
    assert grants == [
        f"GRANT USAGE ON SCHEMA closed TO {ROLE};",
        f"GRANT SELECT ON closed.inside TO {ROLE};",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA many TO {ROLE};",
        f'GRANT SELECT ON public."Odd, name" TO {ROLE};',
        f"ALTER ROLE {ROLE} BYPASSRLS;",
    ]
    assert "cannot read 33 captured tables in full" in done.err
    assert "and 13 more" in done.err
    try:
        for grant in grants:
            cluster.sql(grant, database)
        again = succeeded(cdcctl("init", *common))
        assert "GRANT" not in again.err
        assert "cannot read" not in again.err
    finally:
        cluster.sql(f"ALTER ROLE {ROLE} NOBYPASSRLS")
