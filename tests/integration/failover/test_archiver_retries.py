"""The archiver, step by step, where it must retry after an error of another component."""

from contextlib import closing
from pathlib import Path

import pytest
from tidemark_archiver.archive import Archive, ArchiveSettings

from tidemark.io.host.log_output import get_log
from tidemark.io.host.logs import Log
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.incarnations import begin_incarnation
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import SystemIdentifier
from tidemark.model.mode import Role, Stage
from tidemark.model.position import Epoch
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.fencing import Fence
from tidemark.runtime.daemon.marker_reading import MarkerReader
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.daemon.service import DaemonContext
from tidemark.runtime.plugins.plugins import built_in
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import STAGE
from tidemark.wire.state.values import Identity

KEY = b"k" * 16
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)


def test_each_retry_of_the_archiver_counts_as_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(_owner: Owner, _log: Log) -> Epoch:
        raise NodeUnreachable("it is away")

    (archive := tmp_path / "archive").mkdir()
    chosen = {"TIDEMARK_ARCHIVE__FOLDER": str(archive), "TIDEMARK_CAPTURE__DSN": "host=127.0.0.1 port=1"}
    metrics, folder = Metrics("main"), StateFolder(tmp_path / "state")
    with StateStore.create(folder, IDENTITY) as store, RoleLock.acquire(folder, "archiver") as lock:
        with store.transaction(None) as transaction:
            transaction.put(STAGE, Stage.HELD)
        config = load_config(None, chosen | {"TIDEMARK_RETRY__FIRST_S": "1e-6"})
        context = CaptureContext(store, metrics, get_log("test"))
        incarnation = begin_incarnation(store, Role.ARCHIVER, context.log)
        with closing(
            NodeRequests(NodeSettings.of(config), store, KEY, incarnation, counts=context.metrics, log=context.log)
        ) as node_requests:
            fence = Fence(context, incarnation, node_requests)
            markers = MarkerReader(store.identity, KEY, metrics, context.log)
            daemon = DaemonContext(context, lock.owner, node_requests, markers, fence, built_in("outbox"))
            made = Archive(daemon, ArchiveSettings.of(config, IDENTITY.segment_bytes))
            monkeypatch.setattr(store, "begin_epoch", unreachable)
            for count in (1, 2):
                made.step()
                assert metrics.registry.get_sample_value("tidemark_errors_total", {"capture": "main"}) == count
