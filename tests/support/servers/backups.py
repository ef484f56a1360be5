"""Base backups of test clusters: by pg_basebackup, or by the server's own functions around a copy of the files.

The copy is the harder case, and every major supports it: files in any order, each at another moment, during writes.
"""

import random
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

from tests.support.servers.postgres import Cluster, Session, sql

LEFT_OUT = {"postmaster.pid", "postmaster.opts", "log"}
BLOCK_BYTES = 8192


def by_program(cluster: Cluster, folder: Path, *options: str) -> None:
    """Take a backup by pg_basebackup, without WAL: that comes from the archive."""
    cluster.client("pg_basebackup", "-D", str(folder), "-X", "none", "--checkpoint=fast", "--no-sync", *options)


def in_tar_format(cluster: Cluster, folder: Path, *options: str) -> None:
    """Take a backup by pg_basebackup as archives."""
    cluster.client("pg_basebackup", "-D", str(folder), "-F", "t", "--checkpoint=fast", "--no-sync", *options)


def packed(backup: Path, folder: Path, *, compressed: bool = False) -> None:
    """Pack a copy into an archive without pg_basebackup; names begin with `./` then."""
    folder.mkdir()
    path = folder / ("base.tar.gz" if compressed else "base.tar")
    with tarfile.open(path, "w:gz" if compressed else "w:", format=tarfile.GNU_FORMAT) as archive:
        archive.add(backup, "./")


def by_copy(cluster: Cluster, folder: Path, seed: int, before_end: Callable[[], object] = lambda: None) -> None:
    """Take a backup file by file; `before_end` is called when all files are copied."""
    with cluster.connect() as session:
        by_copy_in(session, cluster, folder, seed, before_end)


def by_copy_in(session: Session, cluster: Cluster, folder: Path, seed: int, before_end: Callable[[], object]) -> None:
    """The same in an open session: while a catalog is rewritten, no other can connect."""
    begin, end = "pg_backup_start('copy', true)", "pg_backup_stop(false)"
    if cluster.major < 15:
        begin, end = "pg_start_backup('copy', true, false)", "pg_stop_backup(false, false)"
    sql(session, f"SELECT {begin}")
    copy_files(cluster.data, folder, random.Random(seed))
    before_end()
    ((label,),) = sql(session, f"SELECT labelfile FROM {end}")
    (folder / "backup_label").write_text(str(label))


def copy_files(data: Path, folder: Path, rng: random.Random) -> None:
    """Copy a data directory that is in use, pg_control last."""
    paths = sorted(path for path in data.rglob("*") if "pg_wal" not in path.parts and path.name not in LEFT_OUT)
    for path in paths:
        if path.is_dir():
            (folder / path.relative_to(data)).mkdir(parents=True, exist_ok=True)
    files = [path for path in paths if path.is_file() and path.name != "pg_control"]
    rng.shuffle(files)
    for path in [*files, data / "global" / "pg_control"]:
        target = folder / path.relative_to(data)
        try:
            _copy_torn(path, target, rng)
        except FileNotFoundError:
            target.unlink(missing_ok=True)


def _copy_torn(path: Path, target: Path, rng: random.Random) -> None:
    """Copy a file in pieces that end anywhere, as a reader sees pages that are being written."""
    if path.stat().st_size <= BLOCK_BYTES or path.name.startswith("pg_"):
        shutil.copyfile(path, target)
        return
    with path.open("rb", buffering=0) as source, target.open("wb") as copy:
        while piece := source.read(rng.choice((512, 4096, BLOCK_BYTES, 1 << 18))):
            copy.write(piece)
