"""Seeds from base backups, compared with the server's own catalogs."""

import shutil

from tests.conftest import NewCluster
from tests.support.oracles.catalogs import WalFiles
from tests.support.oracles.oracle_catalogs import catalog_differences, server_catalogs
from tests.support.servers.postgres import Cluster
from tidemark.decode.catalog.follower import CatalogFollower
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.model.lsn import parse_lsn
from tidemark.runtime.seed.seeding import Seed


def archiving(new_cluster: NewCluster, major: int, **settings: str | int) -> Cluster:
    """Start a server that archives and does not change catalogs by itself."""
    node = new_cluster(
        major,
        archive_mode="on",
        archive_command="test -d archived && cp %p archived/%f",
        autovacuum="off",
        wal_keep_size="1GB",  # `archive_of` reads pg_wal
        **settings,
    )
    (node.data / "archived").mkdir()
    shutil.chown(node.data / "archived", node.data.stat().st_uid, node.data.stat().st_gid)
    return node


def archive_of(node: Cluster) -> ArchiveFolder:
    """Return the WAL up to here as segments."""
    node.sql("SELECT pg_switch_wal()")
    return ArchiveFolder(node.data / "pg_wal")


def mirror_named(seed: Seed, database: str) -> CatalogMirror:
    """Return a database's mirror, also of a template or of one that was created later."""
    (oid,) = (row.oid for row in seed.mirrors.shared.databases() if row.name == database)
    return seed.mirrors[oid]


def differences(node: Cluster, seed: Seed, database: str) -> list[str]:
    """Return the differences between the mirror and SQL."""
    mirror = mirror_named(seed, database)
    return list(catalog_differences(mirror, server_catalogs(node, database, mirror)))


def follow(node: Cluster, seed: Seed) -> None:
    """Apply all later WAL to the mirrors of a seed."""
    node.sql("CHECKPOINT")  # logs RUNNING_XACTS
    follower = CatalogFollower(seed.format, seed.mirrors)
    for record in WalFiles(node, seed.lsn).read(parse_lsn(node.flush_lsn())):
        follower.follow(record)
