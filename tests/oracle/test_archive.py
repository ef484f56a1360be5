"""Archived WAL: with the server gone, `cdcctl decode` prints the same lines as the server's own decoder.

The state folder comes from `cdcctl init` alone: its one base, followed by the segments.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.oracles.oracle import FENCE, ROLE, ServerSide, assert_same_lines, ensure_role, rendered
from tests.support.oracles.plugin_lines import PluginLines
from tests.support.servers.postgres import HBA_REPLICATION, Cluster, StopMode, sql
from tests.support.workloads.workloads import run_script
from tidemark.decode.transactions.reorder_buffer.committed_run import singly
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import format_lsn, parse_lsn
from tidemark.runtime.replay.history_start import LsnRange, begin_from_history
from tidemark.runtime.replay.offline import decode_archive

TIMEOUT_S = 120
MEMORY_BYTES = 64 << 20
SCRIPTS = ("after_seed", "ddl", "toast", "names")


@dataclass(frozen=True, slots=True)
class ArchiveSample:
    """A state folder, later segments, and the output of test_decoding, part by part."""

    root: Path
    parts: Sequence[tuple[str, str, list[str]]]  # begin and end LSN, lines; parts are contiguous
    segment_bytes: int

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    def decode(self, *options: str, archive: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = ["decode", "--state", str(self.root / "state"), "--archive", str(archive or self.archive), *options]
        return cdcctl(*command)

    def lines(self, from_lsn: str, to_lsn: str) -> list[str]:
        """Decode a range in this process, like the command without its start."""
        folder = StateFolder(self.root / "state")
        with StateStore.open(folder) as store:
            view = store.view()
        wanted = LsnRange(parse_lsn(from_lsn), parse_lsn(to_lsn))
        start = begin_from_history(view, folder.history, wanted.from_lsn, memory_bytes=MEMORY_BYTES)
        start.decoding.decoder.keep_names()
        dialects = {oid: mirror.dialect for oid, mirror in start.mirrors.items()}
        renderer = PluginLines(view.identity.server_major, dialects, (FENCE,))
        decoded = singly(decode_archive(ArchiveFolder(self.archive), start, wanted, lambda _: None))
        return [line for each in decoded for _, line in rendered(renderer, each, str)]


def cdcctl(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from tidemark_ctl.main import main; main()"]
    return subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def printed(output: str) -> list[str]:
    """Return output as lines of text, without fences and their transactions."""
    kept: list[str] = []
    for line in output.splitlines():
        if f"prefix: {FENCE}," in line:
            continue
        if line.startswith("COMMIT ") and kept and kept[-1] == line.replace("COMMIT", "BEGIN", 1):
            kept.pop()
            continue
        kept.append(line)
    return kept


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory, major: int, new_module_cluster: NewCluster) -> ArchiveSample:
    """Run scripts part by part on a node that archives, then stop it."""
    root = tmp_path_factory.mktemp("archived")
    node = new_module_cluster(major, archive_mode="on", archive_command="test -d archived && cp %p archived/%f")
    (node.data / "archived").mkdir()
    shutil.chown(node.data / "archived", *owner(node))
    ensure_role(node)
    node.sql("CREATE DATABASE app")
    run_script(node, "app", "before_seed")
    server = ServerSide(node, "app")
    done = cdcctl("init", "--dsn", node.dsn("app", ROLE), "--state", str(root / "state"))
    assert done.returncode == 0, done.stderr
    server.lines()
    node.hba(HBA_REPLICATION + "local all postgres trust\n")
    parts = []
    with node.connect("app", autocommit=False) as open_all_the_time:
        sql(open_all_the_time, "CREATE TABLE open_all_the_time (a int)")
        sql(open_all_the_time, "INSERT INTO open_all_the_time VALUES (1)")
        for script in SCRIPTS:
            begin = node.flush_lsn()
            run_script(node, "app", script)
            sql(open_all_the_time, "INSERT INTO open_all_the_time VALUES (2)")
            node.sql("SELECT pg_logical_emit_message(true, 'end', 'of part')", "app")
            node.sql("SELECT pg_switch_wal()")
            parts.append((begin, node.flush_lsn(), server.lines()))
    begin = parts[-1][1]  # the open transaction has committed since
    run_script(node, "app", "catalogs")
    parts.append((begin, node.flush_lsn(), server.lines()))
    node.stop(StopMode.FAST)
    shutil.copytree(node.data / "archived", root / "archive")
    return ArchiveSample(root, parts, 16 << 20)


def owner(node: Cluster) -> tuple[int, int]:
    found = node.data.stat()
    return found.st_uid, found.st_gid


def test_all_of_an_archive_prints_the_same_lines_with_the_server_gone(archived: ArchiveSample) -> None:
    expected = printed("\n".join(line for _, _, lines in archived.parts for line in lines))
    assert len(expected) > 500
    done = archived.decode("--format", "test_decoding")
    assert done.returncode == 0, done.stderr
    assert_same_lines("archive", expected, printed(done.stdout))


def test_a_range_of_lsns_gives_exactly_the_transactions_that_commit_in_it(archived: ArchiveSample) -> None:
    for begin, end, lines in archived.parts:
        expected = printed("\n".join(lines))
        found = printed("\n".join(archived.lines(begin, end)))
        assert_same_lines(f"{begin} to {end}", expected, found)
    assert archived.lines(archived.parts[0][0], archived.parts[0][0]) == []


def test_an_archive_that_ends_early_a_hole_and_damage_have_separate_messages_and_codes(
    archived: ArchiveSample, tmp_path: Path
) -> None:
    far = format_lsn(parse_lsn(archived.parts[-1][1]) + (1 << 30))
    early = archived.decode("--to", far, "--format", "null")
    assert early.returncode == ExitCode.GAP
    assert far in early.stderr
    segments = sorted(path for path in archived.archive.iterdir() if len(path.name) == 24)
    holed = copied(archived.archive, tmp_path / "holed")
    (holed / segments[-3].name).unlink()
    hole = archived.decode("--format", "null", archive=holed)
    assert hole.returncode == ExitCode.GAP
    start = int(segments[-3].name[16:], 16) * archived.segment_bytes
    assert f"{format_lsn(start)} to {format_lsn(start + archived.segment_bytes)}" in hole.stderr
    short = copied(archived.archive, tmp_path / "short")
    with (short / segments[-3].name).open("r+b") as file:
        file.truncate(100_000)
    truncated = archived.decode("--format", "null", archive=short)
    assert truncated.returncode == ExitCode.CORRUPT_WAL
    assert segments[-3].name in truncated.stderr
    damaged = copied(archived.archive, tmp_path / "damaged")
    with (damaged / segments[-3].name).open("r+b") as file:
        file.seek(2 * 8192 + 300)
        file.write(b"\xff" * 64)
    corrupt = archived.decode("--format", "null", archive=damaged)
    assert corrupt.returncode == ExitCode.CORRUPT_WAL
    assert segments[-3].name in corrupt.stderr
    assert format_lsn(start)[:3] in corrupt.stderr


def copied(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target
