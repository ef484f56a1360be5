"""A daemon as a program: arguments in, exit code out (I40), and the wiring that both daemons share.

State, lock, heartbeat, metrics, requests, work, control socket: opened in this order, closed in reverse.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.host.logs import Log
from tidemark.io.parked.parked_table import parked_ledger
from tidemark.io.process.config import Config
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.config_reference import CONFIG_REFERENCE
from tidemark.io.process.control import ControlServer
from tidemark.io.process.disk_space import DiskSpace, FullDisks, when_space_allows
from tidemark.io.process.ending import report_ending
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.process.metrics import NO_HEARTBEAT_S, Metrics
from tidemark.io.process.metrics_ports import assigned_ports
from tidemark.io.process.metrics_server import MetricsServer
from tidemark.io.process.process_ends import last_ends
from tidemark.io.process.run_record import StateRecord, recorded
from tidemark.io.state.environment import WritePoint
from tidemark.io.state.incarnations import begin_incarnation
from tidemark.io.state.locking.heartbeat import HeartbeatFile, Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.locking.write_guard import WriteGuard
from tidemark.io.state.reader_holds import held_bytes, hold_bytes_max
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import format_lsn
from tidemark.model.mode import Role
from tidemark.runtime.capture.capture import kernels_are_compiled
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.daemon.archiving_watch import check_archiving
from tidemark.runtime.daemon.daemon import Daemon, Work
from tidemark.runtime.daemon.fencing import Fence
from tidemark.runtime.daemon.marker_reading import MarkerReader
from tidemark.runtime.daemon.node_requests import NodeRequests, NodeSettings
from tidemark.runtime.daemon.stage_transition import HandoverPoint
from tidemark.runtime.plugins.plugin_uses import record_plugins
from tidemark.runtime.plugins.plugins import Plugins, load_plugins
from tidemark.runtime.plugins.poison_handling import PoisonPoint
from tidemark.runtime.pool.handler_consumer import worker_template
from tidemark.runtime.pool.worker_template import WorkerTemplate
from tidemark.wire.control import Json
from tidemark.wire.marker import key_name
from tidemark.wire.recopies import REFUSED_HINT
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.values import Identity

NAMES_MAX = 20  # in one line of the log
MOVED_HELP = "Confirm, for one start, that this state delivers although it was moved here, or a copy of it was ahead."


@dataclass(frozen=True, slots=True)
class DaemonContext:
    """The context of a daemon's work."""

    context: CaptureContext
    owner: Owner
    node_requests: NodeRequests
    markers: MarkerReader
    fence: Fence
    plugins: Plugins
    template: WorkerTemplate | None = None  # of the pool's worker processes


MakeWork = Callable[[DaemonContext, Config], Work]


def daemon_command(role: Role, help_text: str, make_work: MakeWork) -> click.Command:
    """Return the command line of a daemon."""

    def main(config_path: Path | None, state: Path, *, moved: bool) -> None:
        configure_logs("json", "info")
        log = get_log(role.value)
        try:
            ports = assigned_ports(StateFolder(state))
            config = load_config(config_path, os.environ, ports.defaults() if ports is not None else None)
            configure_logs(config.log.format, config.log.level)
            folder = StateFolder(state.resolve(), shared_with_group=bool(config.capture.group))
            folder.relax_umask()
            plugins = load_plugins(config, str(config_path or "the environment"))
            with _started(worker_template(plugins, config.pool)) as template:
                _serve(role, config, folder, log, make_work, plugins=plugins, template=template, moved=moved)
        except Exception as error:  # noqa: BLE001 - the one place: whatever it is, it ends the process
            sys.exit(report_ending(log, f"{role.value} ends", error))

    path = click.Path(path_type=Path)
    options: list[click.Parameter] = [
        click.Option(
            ["--config", "config_path"],
            type=path,
            help=f"Configuration (TOML); {CONFIG_REFERENCE} describes every key.",
        ),
        click.Option(["--state"], required=True, type=path, help="State folder, created by `cdcctl init`."),
        click.Option(["--moved"], is_flag=True, help=MOVED_HELP),
    ]
    return click.Command(role.value, callback=main, params=options, help=help_text)


@contextmanager
def _started(template: WorkerTemplate | None) -> Iterator[WorkerTemplate | None]:
    """Start the template of worker processes before anything else: they have all that was open then."""
    if template is not None:
        template.start()
    try:
        yield template
    finally:
        if template is not None:
            template.end()


def _serve(
    role: Role,
    config: Config,
    folder: StateFolder,
    log: Log,
    make_work: MakeWork,
    *,
    plugins: Plugins,
    template: WorkerTemplate | None,
    moved: bool,
) -> None:
    """Run until a signal, a `stop` command or an error; raise the error."""
    arm_from_environment(HandoverPoint, PoisonPoint, WritePoint)
    slot = Slot[role.name]
    port = config.metrics.port if role is Role.SIDECAR else config.metrics.archiver_port
    with ExitStack() as stack:
        socket_path = folder.socket(role.value)
        guard = partial(WriteGuard, watchdog_s=config.watchdog.watchdog_s, log=log)
        store = stack.enter_context(
            when_space_allows(partial(StateStore.open, folder, guarded=guard), folder.root, log)
        )
        config.ring_bytes(store.identity.segment_bytes)  # raises if it is too small for the node
        _warn_of_fixed(config, store.identity, log)
        lock = stack.enter_context(when_space_allows(partial(RoleLock.acquire, folder, role.value), folder.root, log))
        run = stack.enter_context(recorded(StateRecord(store), lock.owner, log))
        when_space_allows(partial(record_plugins, store, lock.owner, plugins.uses, log), folder.root, log)
        metrics = Metrics(store.identity.capture)
        metrics.ends.read_ends = lambda: last_ends(folder, store.processes())
        metrics.refused.count = lambda: len(store.refused_copies())
        metrics.parked.count = lambda: parked_ledger(store).count
        metrics.readers.read_held = lambda: _held_by_readers(store)
        metrics.reader_hold_max.set(hold_bytes_max(store.identity, config.reader.hold_bytes))
        metrics.kernel_compiled.set(kernels_are_compiled())
        if not kernels_are_compiled():
            log.warning("kernels are not compiled: decoding is ten to a hundred times slower")
        log.info("state opened", state=str(folder.root), capture=store.identity.capture)
        _warn_of_refused(store, log)
        begin = partial(begin_incarnation, store, role, log, moved=moved)
        incarnation = when_space_allows(begin, folder.root, log)
        beat = store.environment.heartbeat
        beat.beat(slot)
        stack.callback(beat.clear, slot)
        for other in Role:
            metrics.heartbeat_age(other).set_function(partial(_heartbeat_age_s, beat, Slot[other.name]))
        context, key = CaptureContext(store, metrics, log), load_marker_key(config, folder)
        when_space_allows(partial(store.record_marker_key, role.value, key_name(key)), folder.root, log)
        markers = MarkerReader(store.identity, key, metrics, log)
        node_requests = NodeRequests(NodeSettings.of(config), store, key, incarnation, counts=metrics, log=log)
        check_archiving(config.archive, store, node_requests)
        fence = Fence(context, incarnation, node_requests)
        work = make_work(DaemonContext(context, lock.owner, node_requests, markers, fence, plugins, template), config)
        disks = FullDisks([folder.root], config.decode.memory_bytes)  # that spilling may write at once
        disk_space = DiskSpace(disks, metrics.disk_full_seconds, log)
        daemon = Daemon(work, beat, slot, log=log, disk_space=disk_space)
        if config.metrics.enabled:
            server = MetricsServer(metrics, config.metrics.host, port)
            stack.callback(server.close)
            log.info("serving metrics", host=config.metrics.host, port=server.port)
        # NB: answered by the socket's own thread: `cdcctl check` has to detect a loop that has stopped.
        handlers = {**daemon.handlers(), "check": lambda _request: _report_check(markers)}
        control = when_space_allows(partial(ControlServer, socket_path, handlers, folder.file_mode), folder.root, log)
        stack.callback(control.close)
        daemon.run()
        run.reason = daemon.reason


def _warn_of_fixed(config: Config, identity: Identity, log: Log) -> None:
    """Log settings that `init` fixed and that are configured differently now: they have no effect."""
    for key, configured, in_effect in (
        ("capture.name", config.capture.name, identity.capture),
        ("outbox.bytes_max", config.outbox.bytes_max, identity.outbox_bytes_max),
    ):
        if configured != in_effect:
            log.warning(
                "a setting was fixed by cdcctl init, and its new value has no effect",
                key=key,
                configured=configured,
                in_effect=in_effect,
            )


def _warn_of_refused(store: StateStore, log: Log) -> None:
    """Log the tables whose existing rows are not captured."""
    refused = sorted(copy.refused_name for copy in store.refused_copies().values())
    if refused:
        log.warning(
            "existing rows of tables are not captured: they did not fit into copy.spool_bytes",
            tables=refused[:NAMES_MAX],
            count=len(refused),
            hint=REFUSED_HINT,
        )


def _heartbeat_age_s(beat: HeartbeatFile, slot: Slot) -> float:
    """Return the age for the metric, at a scrape."""
    age_s = beat.age_s(slot)
    return NO_HEARTBEAT_S if age_s is None else age_s


def _held_by_readers(store: StateStore) -> Mapping[str, int | None]:
    """Return the bytes that each reader holds; None for a lapsed one."""
    marks = store.marks()
    held = held_bytes(marks.readers, marks.ledger)
    return {name: None if reader.is_lapsed else held.get(name, 0) for name, reader in marks.readers.items()}


def _report_check(markers: MarkerReader) -> Mapping[str, Json]:
    read_marker = markers.last_check
    if read_marker is None:
        return {"sequence": None}
    return {
        "sequence": read_marker.sequence,
        "lsn": format_lsn(read_marker.lsn),
        "met_boot_ns": read_marker.read_boot_ns,
    }
