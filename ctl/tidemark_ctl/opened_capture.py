"""The context of a command that does a daemon's work: state, configuration, requests to the node."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.process.config import Config
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.environment import WritePoint
from tidemark.io.state.state import StateStore
from tidemark.io.state.write_guard import WriteGuard
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.daemon.stage_transition import HandoverPoint
from tidemark_ctl import settings
from tidemark_ctl.terminal_log import TerminalLog


@contextmanager
def opened_capture(
    state: Path, config: Path | None, *, kills: bool = False
) -> Iterator[tuple[CaptureContext, NodeRequests, Config]]:
    """Open the state; its metrics are not served, its log goes to the terminal.

    A process that is stuck in a write transaction is reported, because other writers wait for it; with `kills` it is
    killed, as the daemons do.
    """
    arm_from_environment(HandoverPoint, WritePoint)
    chosen, folder = settings.load_with_folder(state, config)
    log = TerminalLog()
    guard = partial(WriteGuard, watchdog_s=chosen.watchdog.watchdog_s, log=log, kills=kills)
    with StateStore.open(folder, guarded=guard) as store:
        context = CaptureContext(store, Metrics(store.identity.capture), log)
        node_requests = NodeRequests(
            NodeSettings.of(chosen), store, load_marker_key(chosen, folder), metrics=context.metrics, log=log
        )
        try:
            yield context, node_requests, chosen
        finally:
            node_requests.close()
