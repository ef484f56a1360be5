"""The server's user, the capture's user and the spool: a setup that would lose or retain WAL is detected in time.

The users are real: the server runs as one, `cdcctl` as root, and a capture as a third.
"""

import grp
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.support.processes.captures import config_for
from tests.support.processes.cdcctl import cdcctl, refused, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.servers.archiving import ArchivingServer, archive_script
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.archive.archive_setup import prepare_archive, try_program
from tidemark.io.archive.archive_state import archive_state
from tidemark.io.archive.spool import Spool
from tidemark.io.archive.spool_access import ServerCannotArchive, known_user, spool_access_error
from tidemark.io.host.file_access import READ, ServerUser, access_error
from tidemark.io.host.log_output import get_log
from tidemark.io.node.node import Node
from tidemark.io.process.config import Config
from tidemark.io.process.marker_key import load_marker_key, make_marker_key
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import SystemIdentifier
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.archiving_watch import ArchivingWatch
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.seed.initialise import initialise

DEADLINE_S = 120.0
CAPTURE_UID = 54_321  # of no existing user: neither root nor the server's
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users take root")


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with new_cluster(15, {"archive_mode": "on", "archive_command": "/bin/false"}, initdb=["--wal-segsize=1"]) as made:
        yield made


@pytest.fixture
def root() -> Iterator[Path]:
    """Create a folder that every user can read."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def group_of(node: Cluster) -> str:
    return grp.getgrgid(node.folder.stat().st_gid).gr_name


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def configured(node: Cluster, root: Path, *, group: str = "") -> Config:
    config = config_for(node, "postgres")
    archive = replace(config.archive, folder=str(root / "spool"), program=str(archive_script()))
    return replace(config, archive=archive, capture=replace(config.capture, group=group))


def as_user(uid: int, gids: list[int], work: Callable[[], str]) -> str:
    """Return the result of `work` in a process of another user."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(gids)
            os.setgid(gids[0])
            os.setuid(uid)
            reported = work()
        except Exception as error:  # noqa: BLE001 - it is reported
            reported = f"{type(error).__name__}: {error}"
        os.write(writer, reported.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        reported = pipe.read()
    os.waitpid(pid, 0)
    return reported


# --- (a) the spool


def test_the_servers_user_is_found_by_socket_and_by_loopback(node: Cluster) -> None:
    owner = node.data.stat()
    for dsn in (node.dsn(), f"host=127.0.0.1 port={node.port} user=postgres dbname=postgres"):
        with Node(dsn) as session:
            found = session.server_user()
        assert found is not None
        assert (found.uid, found.gid) == (owner.st_uid, owner.st_gid)


@as_root
@pytest.mark.feature("I25")
def test_a_spool_that_the_servers_user_cannot_fill_is_refused_before_anything_is_created(
    node: Cluster, root: Path
) -> None:
    options = ("--state", root / "state", "--dsn", node.dsn(), "--archive", root / "spool")
    refused(cdcctl("init", *options), ExitCode.CONFIG, f"cannot fill the spool {root}/spool", "as another user")
    assert list(root.iterdir()) == []


@as_root
@pytest.mark.feature("I25")
def test_a_spool_that_only_root_can_read_is_reported_until_init_gives_it_a_group(node: Cluster, root: Path) -> None:
    config, state, spool = configured(node, root), root / "state", Spool(root / "spool")
    (row,) = node.sql("SELECT system_identifier FROM pg_control_system()")
    spool.create(int(str(row[0])))
    with pytest.raises(ServerCannotArchive, match=f"cannot read and write and enter {spool.folder}"):
        initialise(config, StateFolder(state))
    initialise(replace(config, archive=replace(config.archive, filled_by="pg_receivewal")), StateFolder(state))
    chosen = {
        "TIDEMARK_ARCHIVE__FOLDER": str(spool.folder),
        "TIDEMARK_ARCHIVE__PROGRAM": config.archive.program,
        "TIDEMARK_CAPTURE__DSN": node.dsn(),
        "TIDEMARK_SELECT__DATABASES": "postgres",
    }
    ended = cdcctl("run", "archiver", "--state", state, **chosen)
    assert ended.code == ExitCode.CONFIG, ended.err
    assert "the server cannot fill the spool" in ended.err.splitlines()[-1]
    shown = succeeded(cdcctl("status", "--state", state, **chosen))
    assert f"it cannot: the user {node.data.owner()} cannot" in shown.out.decode()
    checked = cdcctl("check", "--state", state, "--deadline-s", "1", **chosen)
    assert "the server cannot fill the spool" in checked.out.decode() + checked.err
    (spool.folder / f"{1:024X}").touch(mode=0o600)

    dsn = ("--state", state, "--dsn", node.dsn())
    done = succeeded(cdcctl("init", *dsn, **chosen, TIDEMARK_CAPTURE__GROUP=group_of(node)))
    assert "can write there and run the program" in done.err
    assert mode(spool.folder) == 0o2770
    assert {mode(path) for path in spool.folder.iterdir() if path.is_file()} == {0o640, 0o660}
    assert {path.group() for path in spool.folder.iterdir()} == {group_of(node)}
    with StateStore.open(StateFolder(state)) as store:
        assert spool_access_error(config.archive, known_user(store.archiving())) is None


@as_root
@pytest.mark.feature("I25")
def test_a_capture_of_a_third_user_shares_the_spool_by_a_group_or_is_refused(node: Cluster, root: Path) -> None:
    server = node.data.stat()
    shared, alone = configured(node, root, group=group_of(node)), configured(node, root)
    (row,) = node.sql("SELECT system_identifier FROM pg_control_system()")
    system = SystemIdentifier(int(str(row[0])))
    os.chown(root, CAPTURE_UID, server.st_gid)
    with Node(node.dsn()) as session:
        user = session.server_user()
    assert user is not None

    def adopt(config: Config) -> str:
        return str(prepare_archive(config, system, user))

    reported = as_user(CAPTURE_UID, [CAPTURE_UID], lambda: adopt(alone))
    assert reported.startswith("ServerCannotArchive: ")
    assert not (root / "spool").exists()
    assert as_user(CAPTURE_UID, [CAPTURE_UID, server.st_gid], lambda: adopt(shared)) == "ArchiveKind.SPOOL"
    with_servers = ArchivingServer(node, Spool(root / "spool"))
    node.configure(archive_command=f"{archive_script()} --spool {root}/spool --free-bytes-min 0 %p %f")
    try:
        (name,) = with_servers.switch()
        with_servers.wait_until_archived()
    finally:
        node.configure(archive_command="/bin/false")
    archived = root / "spool" / name
    assert archived.stat().st_uid == server.st_uid

    def read() -> str:
        return f"{len(archived.read_bytes())} {spool_access_error(shared.archive, user)}"

    assert as_user(CAPTURE_UID, [CAPTURE_UID, server.st_gid], read) == f"{1 << 20} None"
    assert "is not in the group" in as_user(
        CAPTURE_UID, [CAPTURE_UID], lambda: str(spool_access_error(shared.archive, user))
    )


def test_bits_are_read_as_the_kernel_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    tmp_path.chmod(0o755)
    owner = file.stat()
    stranger = ServerUser(owner.st_uid + 1, owner.st_gid + 1, ())
    member = ServerUser(owner.st_uid + 1, owner.st_gid + 1, (owner.st_gid,))
    for bits, expected in ((0o640, (False, True)), (0o604, (True, False)), (0o600, (False, False))):
        file.chmod(bits)
        found = tuple(access_error(user, file, READ) is None for user in (stranger, member))
        above = tuple(access_error(user, tmp_path, 0) is None for user in (stranger, member))
        assert found == tuple(fine and way for fine, way in zip(expected, above, strict=True))


# --- (b) the program


@as_root
@pytest.mark.feature("I25")
@pytest.mark.parametrize(
    ("content", "bits", "reported"),
    [
        ("#!/bin/sh\nexit 0\n", 0o644, "cannot execute"),
        ("#!/nonexistent/python\n", 0o755, "/nonexistent/python does not exist"),
        ("#!/bin/sh\nexec /nonexistent/python\n", 0o755, "exit code 127"),
        ("#!/bin/sh\nexec /etc/passwd\n", 0o755, "exit code 126"),
    ],
)
def test_a_program_that_the_servers_user_cannot_run_is_refused(
    node: Cluster, root: Path, content: str, bits: int, reported: str
) -> None:
    program = root / "cdcctl-archive"
    program.write_text(content)
    program.chmod(bits)
    config = configured(node, root, group=group_of(node))
    with Node(node.dsn()) as session:
        user = session.server_user()
    with pytest.raises(ServerCannotArchive, match=f"the server cannot run {program}.*{reported}"):
        try_program(replace(config, archive=replace(config.archive, program=str(program))), user)


@as_root
@pytest.mark.feature("I25")
def test_init_does_not_recommend_a_start_with_a_program_that_the_server_cannot_run(node: Cluster, root: Path) -> None:
    options = ("--state", root / "state", "--dsn", node.dsn(), "--archive", root / "spool")
    chosen = {"TIDEMARK_CAPTURE__GROUP": group_of(node), "TIDEMARK_ARCHIVE__PROGRAM": "/etc/passwd"}
    done = cdcctl("init", *options, **chosen)
    refused(replace(done, err="\n".join(done.err.splitlines()[-2:])), ExitCode.CONFIG, "cannot execute /etc/passwd")
    assert "archive_command =" not in done.err


@dataclass
class WatchedNode:
    """A node with a spool, and a daemon's requests and results."""

    node: ArchivingServer
    store: StateStore
    node_requests: NodeRequests
    watch: ArchivingWatch

    def seen(self) -> None:
        """Ask the node, and then check the folder."""
        self.watch = ArchivingWatch(self.watch.context, self.watch.archive, self.node_requests)

        def is_answered() -> bool:
            self.watch.poll()
            return self.watch.answer is not None

        wait_until(is_answered)
        self.look()

    def look(self) -> None:
        """Check the folder with the latest answer."""
        assert self.watch.answer is not None
        self.watch.compare(self.watch.answer, archive_state(self.node.spool.folder, self.store.identity.segment_bytes))

    def segment(self) -> str:
        """Return the name of the node's current segment."""
        return str(self.node.node.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")[0][0])


@contextmanager
def watched(node: Cluster, root: Path) -> Iterator[WatchedNode]:
    node.sql("SELECT pg_stat_reset_shared('archiver')")
    config, folder = configured(node, root, group=group_of(node)), StateFolder(root / "state")
    initialise(config, folder)
    make_marker_key(config, folder)
    with StateStore.open(folder) as store:
        context = CaptureContext(store, Metrics("main"), get_log("test"))
        node_requests = NodeRequests(
            NodeSettings.of(config),
            store,
            load_marker_key(config, folder),
            counts=context.metrics,
            log=context.log,
        )
        try:
            archiving = ArchivingServer(node, Spool(Path(config.archive.folder)))
            yield WatchedNode(archiving, store, node_requests, ArchivingWatch(context, config.archive, node_requests))
        finally:
            node_requests.close()


def write(node: Cluster) -> None:
    node.sql("SELECT pg_logical_emit_message(true, 'archiving', '')")


@pytest.mark.feature("I31")
def test_no_segment_is_switched_while_the_last_one_has_not_arrived(node: Cluster, root: Path) -> None:
    with watched(node, root) as made:
        write(node)
        made.node_requests.switch_segment().result(DEADLINE_S)
        first = made.segment()
        for _ in range(4):
            write(node)
            assert not made.node_requests.switch_segment().result(DEADLINE_S)
        assert made.segment() == first, "archive_command fails: the node would keep each of them"
        made.seen()
        archiving = made.store.archiving()
        assert archiving.waiting == 1
        assert archiving.waiting_since_us
        state = ("--state", made.store.folder.root)
        shown = succeeded(cdcctl("status", *state, TIDEMARK_ARCHIVE__FOLDER=str(made.node.spool.folder)))
        assert "no segment was archived since 2" in shown.out.decode()
        node.configure(archive_command=f"{archive_script()} --spool {made.node.spool.folder} --free-bytes-min 0 %p %f")
        try:
            made.node.wait_for(lambda: made.segment() != first)  # the deferred switch
            made.node.wait_until_archived()
        finally:
            node.configure(archive_command="/bin/false")
        made.seen()
        assert made.store.archiving().waiting_since_us == 0


@pytest.mark.feature("I25")
@pytest.mark.feature("I28")
def test_a_segment_that_was_given_up_without_a_record_is_found_by_the_servers_counters(
    node: Cluster, root: Path
) -> None:
    with watched(node, root) as made:
        node.configure(archive_command="/bin/true")
        try:
            names = made.node.switch(3)
            made.node.wait_until_archived()
            made.node.wait_for(lambda: node.sql("SELECT last_archived_wal FROM pg_stat_archiver") == [(names[-1],)])
        finally:
            node.configure(archive_command="/bin/false")
        made.seen()
        archiving = made.store.archiving()
        assert archiving.unrecorded_first <= names[0]
        assert archiving.unrecorded >= len(names)
        state = ("--state", made.store.folder.root)
        shown = succeeded(cdcctl("status", *state, TIDEMARK_ARCHIVE__FOLDER=str(made.node.spool.folder)))
        assert "never arrived, although the server reports them as archived" in shown.out.decode()
        by_command, made.watch.archive = made.watch.archive, replace(made.watch.archive, filled_by="pg_receivewal")
        made.look()
        assert made.store.archiving().unrecorded == 0, "the server archives elsewhere"
        made.watch.archive = by_command
        for name in names:
            (made.node.spool.folder / name).touch()
        made.seen()
        assert made.store.archiving().unrecorded == 0
