"""Wiring of the sidecar: the only place that constructs. State, lock, errands, work, sockets; undone backwards."""

from contextlib import ExitStack

from sidecar.realtime import Realtime
from tidemark.io.config import Config
from tidemark.io.control import ControlServer
from tidemark.io.failpoints import arm_from_environment
from tidemark.io.heartbeat import Slot
from tidemark.io.locks import RoleLock
from tidemark.io.logs import Log
from tidemark.io.marker_key import load_marker_key
from tidemark.io.metrics import Metrics, MetricsServer
from tidemark.io.state import StateStore
from tidemark.io.state_folder import StateFolder
from tidemark.model.mode import Role
from tidemark.runtime.capture import kernels_are_compiled
from tidemark.runtime.daemon import Daemon
from tidemark.runtime.effects import HandoverPoint
from tidemark.runtime.errands import NodeErrands
from tidemark.runtime.inflow import Surroundings

ROLE = Role.SIDECAR.value


def run(config: Config, folder: StateFolder, log: Log) -> None:
    """Run until a signal, a `stop` command or an error; raise the error."""
    arm_from_environment(HandoverPoint)
    with ExitStack() as stack:
        socket_path = folder.socket(ROLE)
        store = stack.enter_context(StateStore.open(folder))
        lock = stack.enter_context(RoleLock.take(folder, ROLE))
        metrics = Metrics(store.identity.capture)
        metrics.kernel_compiled.set(kernels_are_compiled())
        if not kernels_are_compiled():
            log.warning("kernels are not compiled: decoding is ten to a hundred times slower")
        log.info("state opened", state=str(folder.root), capture=store.identity.capture)
        beat = store.environment.heartbeat
        beat.beat(Slot.SIDECAR)
        stack.callback(beat.clear, Slot.SIDECAR)
        around = Surroundings(config, store, metrics, log)
        work = Realtime(around, lock.owner, NodeErrands(around, load_marker_key(config, folder)))
        daemon = Daemon(work, beat, Slot.SIDECAR, log)
        if config.metrics.enabled:
            server = MetricsServer(metrics, config.metrics.host, config.metrics.port)
            stack.callback(server.close)
            log.info("serving metrics", host=config.metrics.host, port=server.port)
        control = ControlServer(socket_path, daemon.handlers(), folder.file_mode)
        stack.callback(control.close)
        daemon.run()
