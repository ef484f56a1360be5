"""PostGIS's types compared with test_decoding, on a server with PostGIS: `scripts/oracle --postgis` requires one."""

from collections.abc import Iterator

import pytest

from tests.support.oracles.oracle import Oracle
from tests.support.oracles.postgis import need_postgis
from tests.support.servers.postgres import Cluster, database_in
from tests.support.workloads.workloads import run_script


@pytest.fixture
def database(oracle_cluster: Cluster) -> Iterator[str]:
    need_postgis(oracle_cluster)
    with database_in(
        oracle_cluster, "oracle_postgis", "CREATE SCHEMA gis; CREATE EXTENSION postgis SCHEMA gis"
    ) as name:
        yield name


@pytest.mark.feature("P12")
def test_geometries_print_the_same_lines_through_every_kind_of_change(oracle_cluster: Cluster, database: str) -> None:
    with Oracle(oracle_cluster, database) as oracle:
        run_script(oracle_cluster, database, "postgis")
        assert len(oracle.check("postgis")) > 200
