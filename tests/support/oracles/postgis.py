"""PostGIS is no part of any server that tests start, unless Debian has installed it: what then."""

import os

import pytest

from tests.support.servers.postgres import Cluster

REQUIRED = "TIDEMARK_POSTGIS"  # set by `scripts/oracle --postgis`, which asks for a comparison and for nothing else


def need_postgis(cluster: Cluster) -> None:
    """Skip where the server has no PostGIS; fail where it was asked for."""
    if cluster.sql("SELECT 1 FROM pg_available_extensions WHERE name = 'postgis'"):
        return
    reported = f"{cluster.server.bin} has no PostGIS (Debian's postgresql-{cluster.major}-postgis-3)"
    if os.environ.get(REQUIRED):
        pytest.fail(reported)
    pytest.skip(f"{reported}: what it printed is held by tests/unit/decode_types/test_postgis.py")
