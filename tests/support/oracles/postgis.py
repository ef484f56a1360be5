"""The handling of PostGIS, which only Debian's servers may have."""

import os

import pytest

from tests.support.servers.postgres import Cluster

REQUIRED = "TIDEMARK_POSTGIS"  # set by `scripts/oracle --postgis`, which requires the comparison


def need_postgis(cluster: Cluster) -> None:
    """Skip if the server has no PostGIS; fail if it is required."""
    if cluster.sql("SELECT 1 FROM pg_available_extensions WHERE name = 'postgis'"):
        return
    reported = f"{cluster.server.bin} has no PostGIS (Debian's postgresql-{cluster.major}-postgis-3)"
    if os.environ.get(REQUIRED):
        pytest.fail(reported)
    pytest.skip(f"{reported}: what it printed is held by tests/unit/decode_types/test_postgis.py")
