"""A state folder that is copied while its capture runs: one of the two stops, and always the right one (I21)."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tidemark_ctl.views.realtime_tree import observe, stage_tree

from tests.support.processes.captures import Sidecar, change_log, config_for, running
from tests.support.processes.failover import Archiver, Pair
from tests.support.servers.postgres import Cluster
from tidemark.io.host.log_output import get_log
from tidemark.io.process.config import Config
from tidemark.io.process.metrics import Metrics
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.incarnations import begin_incarnation
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode
from tidemark.model.incarnation import Incarnation
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.mode import Role
from tidemark.model.position import NO_SEQUENCE, Epoch, Pointer, Position
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.fencing import Fence
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.seed.initialise import initialise_from_backup
from tidemark.runtime.seed.seeding import read_seed
from tidemark.wal.segments import history_name
from tidemark.wire.marker import Instance, Marker, MarkerKind
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import FOLDER_IDENTITY
from tidemark.wire.state.values import Identity

PROGRAM = ("-m", "tidemark_sidecar")
MOVED = (*PROGRAM, "--moved")
CONFIRM_S = "0.1"
ORIGINAL = "o"  # short, since the path of a socket has a bound
RequestsT = TypeVar("RequestsT", bound=NodeRequests)
RIVAL = Incarnation("z")
DEADLINE_S = 60.0


@pytest.fixture
def original(cluster: Cluster, database: str, tmp_path: Path) -> Iterator[Sidecar]:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY)", database)
    with running(cluster, database, tmp_path / ORIGINAL, TIDEMARK_MARKERS__CONFIRM_S=CONFIRM_S) as started:
        yield started


@pytest.fixture
def copy(original: Sidecar, tmp_path: Path) -> Iterator[Sidecar]:
    """A copy of the original's state after its first row and its start marker; not started."""
    insert(original, 1)
    original.catch_up()
    original.wait_until(lambda: written(original, "StartCdc") > 0, "a start marker")
    root = tmp_path / "copy"
    root.mkdir()
    subprocess.run(["cp", "-a", original.folder.root, root / "state"], check=True)
    made = Sidecar(original.cluster, original.database, root, TIDEMARK_MARKERS__CONFIRM_S=CONFIRM_S)
    yield made
    made.close()


def insert(sidecar: Sidecar, number: int) -> None:
    sidecar.cluster.sql(f"INSERT INTO account VALUES ({number})", sidecar.database)


def written(sidecar: Sidecar, kind: str) -> float:
    """Return how many markers of a kind a process has written."""
    return sidecar.metric(f'tidemark_markers_written_total{{capture="main",kind="{kind}"}}')


def delivered(sidecar: Sidecar) -> list[object]:
    """Return the keys that a state has delivered, in order."""
    with OutboxReader.open(sidecar.folder) as reader:
        items = list(Sidecar.items(reader, NO_SEQUENCE, reader.head()))
    return [row["_after"]["id"] for row in change_log(items, "account")]  # type: ignore[index]


def resume(original: Sidecar, number: int) -> None:
    """Deliver another row from the original, and wait until WAL has its confirmation."""
    insert(original, number)
    original.catch_up()
    before = written(original, "RealtimeCdc")
    while written(original, "RealtimeCdc") < before + 2:  # the first one may have been in progress
        original.catch_up()


@pytest.mark.feature("I21")
def test_a_copy_started_elsewhere_is_refused_and_once_confirmed_the_other_one_is_fenced(
    original: Sidecar, copy: Sidecar
) -> None:
    refused = copy.refuses(ExitCode.CONFIG, str(copy.folder.root), str(original.folder.root))
    assert "--moved" in str(refused["hint"])
    insert(original, 2)
    original.catch_up()  # undisturbed

    copy.program = MOVED
    copy.start()
    fenced = original.ended(ExitCode.FENCED, "fenced by the marker at", "timeline 1")
    assert "--moved" in str(fenced["hint"])
    assert original.refuses(ExitCode.FENCED)["error"] == fenced["error"]
    with StateStore.open(original.folder) as store:
        assert (
            stage_tree(observe(store, original.config.archive, original.config.watchdog.watchdog_s))["fenced"]
            == fenced["error"]
        )
    insert(copy, 3)
    copy.catch_up()
    assert delivered(copy) == [1, 2, 3]
    assert delivered(original) == [1, 2]

    copy.stop()
    copy.program = PROGRAM
    copy.start()  # at the place of its last start
    original.program = MOVED
    original.start()
    copy.ended(ExitCode.FENCED)
    insert(original, 4)
    original.catch_up()
    assert delivered(original) == [1, 2, 3, 4]
    assert delivered(copy)[-1] == 3


@pytest.mark.feature("I21")
def test_a_copy_whose_folder_does_not_identify_it_is_fenced_if_the_original_continued(
    original: Sidecar, copy: Sidecar
) -> None:
    resume(original, 2)
    with StateStore.open(copy.folder) as store, store.transaction(None) as transaction:
        transaction.drop(FOLDER_IDENTITY)  # as on a clone of the volume
    copy.refuses(ExitCode.FENCED, "fenced by the marker at")
    insert(original, 3)
    original.catch_up()  # undisturbed
    assert delivered(original) == [1, 2, 3]
    assert delivered(copy) in ([1], [1, 2])  # nothing that the original has not delivered


@pytest.mark.feature("I21")
def test_a_backup_of_the_state_that_is_restored_in_its_place_is_fenced_until_it_is_confirmed(
    original: Sidecar, copy: Sidecar
) -> None:
    resume(original, 2)
    original.kill()
    shutil.rmtree(original.folder.root)
    subprocess.run(["cp", "-a", copy.folder.root, original.folder.root], check=True)
    original.refuses(ExitCode.FENCED, "fenced by the marker at")
    original.program = MOVED
    original.start()
    insert(original, 3)
    original.catch_up()
    assert delivered(original) == [1, 2, 3]


@pytest.mark.feature("I21")
def test_restarts_of_one_state_fence_no_process(original: Sidecar) -> None:
    for number in (1, 2):
        resume(original, number)
        original.kill()
        original.start()
    folder = original.folder.root
    original.stop()
    folder.rename(folder.with_name("renamed"))
    original.folder = type(original.folder)(folder.with_name("renamed"))
    original.start()
    insert(original, 3)
    original.catch_up()
    assert delivered(original) == [1, 2, 3]


@pytest.mark.feature("I21")
def test_an_archiver_that_delivers_is_fenced_by_the_archived_marker_and_its_sidecar_with_it(
    pair: Pair, tmp_path: Path
) -> None:
    pair.insert(1)
    pair.switch_off()
    pair.wait_for(lambda: pair.archiver.status()["role"] == "active", "an archiver that delivers")
    pair.catch_up()
    root = tmp_path / "copy"
    root.mkdir()
    subprocess.run(["cp", "-a", pair.archiver.folder.root, root / "state"], check=True)
    copy = Archiver(pair.node, "postgres", root, copy=False, **pair.archiver.options)
    copy.program = ("-m", "tidemark_archiver", "--moved")
    try:
        copy.start()
        pair.archiver.ended(ExitCode.FENCED, "fenced by the marker at", "timeline 1")
        pair.sidecar.ended(ExitCode.FENCED, "fenced by the marker at")
        pair.insert(2)
        copy.catch_up()
        assert delivered(copy) == [1, 2]
        assert delivered(pair.archiver) == [1]
    finally:
        copy.close()


def requests_of(kind: type[RequestsT], config: Config, context: CaptureContext, incarnation: Incarnation) -> RequestsT:
    return kind(NodeSettings.of(config), context.store, b"k" * 16, incarnation, counts=context.metrics, log=context.log)


class KeptRequests(NodeRequests):
    """Keeps the markers for the node."""

    kept: list[Marker]

    def _write(self, marker: Marker) -> Lsn:
        self.kept.append(marker)
        return Lsn(1000)


@pytest.mark.feature("I21")
def test_markers_name_their_writer_only_once_it_has_read_its_own_start_marker(tmp_path: Path) -> None:
    """A named one before that could stop a clone whose start marker comes first; then both clones stop."""
    identity = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)
    epoch, others = Epoch(TimelineId(1), 8), (MarkerKind.CONFIRM, MarkerKind.STOP, MarkerKind.TRY_START)
    with StateStore.create(StateFolder(tmp_path / "state"), identity) as store:
        incarnation = begin_incarnation(store, Role.SIDECAR, get_log("test"))
        context = CaptureContext(store, Metrics("main"), get_log("test"))
        with closing(requests_of(KeptRequests, Config(), context, incarnation)) as node_requests:
            node_requests.kept = []
            fence = Fence(context, incarnation, node_requests)
            for kind in (*others, MarkerKind.START):
                node_requests.write(kind, epoch, None).result(DEADLINE_S)
            assert [marker.incarnation for marker in node_requests.kept] == [None, None, None, incarnation]
            fence.check(Lsn(1000), TimelineId(1), node_requests.kept.pop())
            node_requests.kept.clear()
            for kind in others:
                node_requests.write(kind, epoch, None).result(DEADLINE_S)
            assert [marker.incarnation for marker in node_requests.kept] == [incarnation] * 3


@pytest.mark.feature("I21")
def test_a_state_from_a_backup_is_not_fenced_by_markers_of_the_states_that_it_replaces(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    """The seed equals one from a backup, except for the place where it was read. The archive has a promotion since."""
    config, log = config_for(cluster, database), get_log("test")
    config = replace(config, archive=replace(config.archive, folder=str(tmp_path / "archive")))
    seed = read_seed(cluster.dsn(database), [database])
    promoted, ahead = TimelineId(seed.timeline + 1), Lsn(seed.lsn + 1000)
    pointer, rivals = Pointer(Position(promoted, ahead, 0), ahead), [Epoch(promoted, 70)]
    for attempt in range(2):
        folder = StateFolder(tmp_path / f"state-{attempt}")
        assert initialise_from_backup(config, folder, seed)
        (tmp_path / "archive" / history_name(promoted)).write_text(f"{seed.timeline}\t0/1\tno reason\n")
        if not attempt:  # the first state's archive is also used by the second state, which is created with its history
            shutil.rmtree(folder.root)
            assert initialise_from_backup(config, folder, seed)
        with StateStore.open(folder) as store:
            incarnation = begin_incarnation(store, Role.ARCHIVER, log)
            context = CaptureContext(store, Metrics("main"), log)
            instance = Instance(store.identity.system_identifier, "main")
            with closing(requests_of(NodeRequests, config, context, incarnation)) as node_requests:
                fence = Fence(context, incarnation, node_requests)
                own = store.begin_epoch(Owner("archiver", "host", "boot", 1, 1))
                for epoch in rivals:
                    lost = Marker(MarkerKind.START, instance, epoch, NO_SEQUENCE, pointer, incarnation=RIVAL)
                    assert not fence.check(Lsn(ahead + 8), promoted, lost)
                assert store.marks().overtaken is None
            rivals.append(replace(own, number=own.number + 100))  # the number that the first restored state reached
    assert rivals[1] < rivals[2]
