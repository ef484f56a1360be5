"""Wiring of the sidecar: the only place that constructs. State, lock, epoch, capture, sockets; undone backwards."""

from contextlib import ExitStack

from sidecar.loop import Loop
from tidemark.io.config import Config
from tidemark.io.control import ControlServer
from tidemark.io.heartbeat import Slot
from tidemark.io.locks import RoleLock
from tidemark.io.logs import Log
from tidemark.io.metrics import Metrics, MetricsServer
from tidemark.io.state import StateStore
from tidemark.io.state_folder import StateFolder
from tidemark.model.errors import Fenced
from tidemark.model.lsn import TimelineId
from tidemark.model.mode import Stage
from tidemark.runtime.capture import Capture, kernels_are_compiled

ROLE = "sidecar"


class NotInRealtime(Fenced):
    """The mode says that somebody else delivers."""

    hint = "switch by `cdcctl realtime on`"


def run(config: Config, folder: StateFolder, log: Log) -> None:
    """Run until a signal, a `stop` command or an error; raise the error."""
    with ExitStack() as stack:
        socket_path = folder.socket(ROLE)
        store = stack.enter_context(StateStore.open(folder))
        lock = stack.enter_context(RoleLock.take(folder, ROLE))
        view = store.view()
        if view.stage is not Stage.REALTIME:
            raise NotInRealtime(f"the mode of {folder.root} is {view.stage.mode.value}")
        metrics = Metrics(store.identity.capture)
        metrics.mode.set(view.stage.number)
        metrics.kernel_compiled.set(kernels_are_compiled())
        if not kernels_are_compiled():
            log.warning("kernels are not compiled: decoding is ten to a hundred times slower")
        timeline = view.start.position.timeline if view.start else TimelineId(1)
        epoch = store.take_epoch(timeline, lock.owner)
        log.info("epoch taken", epoch=str(epoch), state=str(folder.root), capture=store.identity.capture)
        beat = store.environment.heartbeat
        beat.beat(Slot.SIDECAR)
        stack.callback(beat.clear, Slot.SIDECAR)
        capture = Capture(config, store, epoch, metrics=metrics, log=log)
        loop = Loop(capture, beat, log)
        if config.metrics.enabled:
            server = MetricsServer(metrics, config.metrics.host, config.metrics.port)
            stack.callback(server.close)
            log.info("serving metrics", host=config.metrics.host, port=server.port)
        control = ControlServer(socket_path, loop.handlers(), folder.file_mode)
        stack.callback(control.close)
        loop.run()
