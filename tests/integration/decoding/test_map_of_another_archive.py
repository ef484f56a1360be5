"""A transaction map that was made from the archive of a copy of the cluster changes no output.

Both archives are of one system: the same data folder was started twice, from the same place in WAL. Segments are
switched at the same places, so the maps have cuts at the same LSNs.
"""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.cdcctl import Done, cdcctl, succeeded
from tests.support.servers.postgres import Cluster, StopMode, new_cluster, sql
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.runtime.replay.end_marks import last_shared_end
from tidemark.runtime.replay.offline import cell_bytes_of
from tidemark.runtime.replay.transaction_mapping import MAP_FILE, map_wal
from tidemark.wire.transaction_map import load_map

CELL_SEGMENTS = 4
CELLS = 4
ROWS = 40


@dataclass(frozen=True)
class CopiedArchives:
    """The state, and the archives of the two copies."""

    root: Path

    @property
    def map_file(self) -> Path:
        return self.root / "state" / "history" / MAP_FILE

    def archive(self, name: str) -> ArchiveFolder:
        return ArchiveFolder(self.root / name)

    def decode(self, name: str, *options: str) -> Done:
        return succeeded(cdcctl("decode", "--state", self.root / "state", "--archive", self.root / name, *options))

    def begin_by_map(self, name: str) -> None:
        """Make the kept map that of an archive."""
        self.map_file.unlink(missing_ok=True)
        with StateStore.open(StateFolder(self.root / "state"), read_only=True) as store:
            view = store.view()
        archive = self.archive(name)
        map_wal(
            view,
            self.map_file.parent,
            archive,
            cell_bytes=cell_bytes_of(archive),
            from_lsn=view.history.bases[0].lsn,
            to_lsn=None,
            map_file=self.map_file,
            file_mode=0o600,
        )


def pass_cell(cluster: Cluster) -> None:
    for _ in range(CELL_SEGMENTS):
        cluster.sql("SELECT pg_logical_emit_message(false, 'filler', ''), pg_switch_wal()", "app")


def work(cluster: Cluster, begun_in: int) -> None:
    """Commit rows in all cells, with one transaction that is open at the cuts from `begun_in` on."""
    with cluster.connect("app", autocommit=False) as long:
        for cell in range(CELLS):
            note = f"cell {cell}, {begun_in}"
            cluster.sql(f"INSERT INTO account SELECT n, '{note}' FROM generate_series(1, {ROWS}) n", "app")
            if cell == begun_in:
                sql(long, f"INSERT INTO account SELECT n, 'long' FROM generate_series(1, {ROWS}) n")
            pass_cell(cluster)
        long.commit()
    pass_cell(cluster)
    cluster.sql("INSERT INTO account VALUES (-1, 'last')", "app")
    cluster.sql("SELECT pg_switch_wal()")


def copy_folder(source: Path, target: Path) -> None:
    subprocess.run(["cp", "-a", source, target], check=True)  # with its owner


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> CopiedArchives:
    root = tmp_path_factory.mktemp("copies")
    with new_cluster(15, {"wal_keep_size": "1GB"}, initdb=["--wal-segsize=1"]) as cluster:
        ensure_role(cluster)
        cluster.sql("CREATE DATABASE app")
        cluster.sql("CREATE TABLE account (id int, note text)", "app")
        cluster.sql("CHECKPOINT")
        succeeded(cdcctl("init", "--state", root / "state", "--dsn", cluster.dsn("app", ROLE)))
        cluster.stop(StopMode.FAST)
        before = root / "before"
        copy_folder(cluster.data, before)
        for name, begun_in in (("one", 0), ("two", 2)):
            if name == "two":
                shutil.rmtree(cluster.data)
                copy_folder(before, cluster.data)
            cluster.start()
            work(cluster, begun_in)
            cluster.stop(StopMode.FAST)
            shutil.copytree(cluster.data / "pg_wal", root / name, ignore=shutil.ignore_patterns("archive_status"))
        shutil.rmtree(before)
    return CopiedArchives(root)


def test_the_map_of_another_archive_is_replaced_and_loses_nothing(copies: CopiedArchives) -> None:
    copies.begin_by_map("two")
    foreign = load_map(copies.map_file.read_bytes(), "").transactions
    assert len(foreign.cuts) >= CELLS
    opened = next(number for number, cut in enumerate(foreign.cuts) if cut.open)
    begin = ("--from", format_lsn(Lsn(foreign.cuts[opened - 1].lsn + 8)))  # in the other one, it is open here too
    by_map = copies.decode("one", *begin)
    copies.map_file.unlink()
    assert by_map.out == copies.decode("one", *begin).out
    assert by_map.out.count(b'"long"') == ROWS
    copies.begin_by_map("one")
    several = copies.decode("two", "-j", "2")
    assert several.out == copies.decode("two").out
    assert several.out.count(b'"long"') == ROWS
    own = load_map(copies.map_file.read_bytes(), "").transactions
    assert {cut.lsn for cut in own.cuts} & {cut.lsn for cut in foreign.cuts}
    marks = [*(cut.last_end for cut in own.cuts), own.last_end]
    assert last_shared_end(copies.archive("two"), marks) == own.last_end
    assert last_shared_end(copies.archive("one"), marks).lsn < own.cuts[0].lsn
