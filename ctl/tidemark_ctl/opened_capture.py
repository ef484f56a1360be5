"""The context of a command that does a daemon's work: a state that it may write, and requests to the node."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemark.io.host.logs import Log
from tidemark.io.process.config import Config
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.state.state import StateStore
from tidemark.runtime.daemon.counting import Uncounted
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.daemon.stage_transition import HandoverPoint
from tidemark_ctl.opened_state import opened_state


@contextmanager
def opened_capture(
    state: Path, config: Path | None, *, kills: bool = False
) -> Iterator[tuple[StateStore, NodeRequests, Config, Log]]:
    """Open the state as `opened_state` does, and begin requests to the node."""
    with opened_state(state, config, HandoverPoint, kills=kills) as (store, chosen, log):
        key = load_marker_key(chosen, store.folder)
        node_requests = NodeRequests(NodeSettings.of(chosen), store, key, counts=Uncounted(), log=log)
        try:
            yield store, node_requests, chosen, log
        finally:
            node_requests.close()
