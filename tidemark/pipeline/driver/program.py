"""The pipeline process: `tidemark.pipeline.__main__` runs it after it has found the extra `spark`."""

import argparse
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

from tidemark.engine.selection import Selection
from tidemark.io.host.disk import StateFull
from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.host.local_path import lake_location, local_path
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.host.python_program import python_program
from tidemark.io.host.systemd import ALIVE, READY, notify
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.disk_space import FullDisks, when_space_allows
from tidemark.io.process.ending import report_ending
from tidemark.io.process.lake_config import LakeConfig
from tidemark.io.process.metrics_ports import MetricsPorts
from tidemark.io.process.metrics_server import MetricsServer
from tidemark.io.process.run_record import recorded
from tidemark.io.process.stop_signals import call_at_stop_signals, keeping_stop_handlers
from tidemark.io.readers.reader_use import check_kind, check_name
from tidemark.io.state.environment import WritePoint
from tidemark.io.state.locking.locks import AlreadyRunning, RoleLock
from tidemark.io.state.process_folder import ProcessFolder
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, ExitCode
from tidemark.pipeline.driver.arguments import READER, parse_arguments
from tidemark.pipeline.driver.capture_place import SERVER_OUTAGE, CapturePlace, ServerPlace, StatePlace
from tidemark.pipeline.driver.executor_writers import ExecutorWriters
from tidemark.pipeline.driver.master_url import check_driver_memory, check_master
from tidemark.pipeline.driver.pipeline_waits import FULL_HINT, SERVER, full_disks
from tidemark.pipeline.driver.runner import BATCH_BYTES, Pipeline
from tidemark.pipeline.driver.session import SparkGone, SparkRefused, end_session, make_session
from tidemark.pipeline.driver.standalone_master import wait_for_master
from tidemark.pipeline.failpoints import Failpoint, MaintenanceFailpoint
from tidemark.pipeline.landing.formats import opened_landing
from tidemark.pipeline.landing.lake_epoch import LakeHold, hold_lake
from tidemark.pipeline.landing.landing import LandingParts
from tidemark.pipeline.landing.metrics import PipelineMetrics
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.landing.restored_lake import check_not_restored
from tidemark.pipeline.landing.settings import LakeFormat, Settings
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.storage.outage_wait import OutageWait, when_available
from tidemark.pipeline.storage.store_wait import StoreWait
from tidemark.pipeline.storage.stores import is_remote, open_lake
from tidemark.wire.state.readers import ReaderKind

REVIVALS_MAX = 20  # restarts of a pipeline whose JVM died, each as a new process image
REVIVALS_VARIABLE = "TIDEMARK_PIPELINE_REVIVALS"
SIGNAL_S = 1.0  # a signal to all processes of a service may reach the JVM before this process
FOLLOWED_S = 1.0  # interval of the checks of a state whose capture follows
OpenedT = TypeVar("OpenedT")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the pipeline; return its exit status."""
    given = parse_arguments(arguments)
    configure_logs(given.log_format, given.log_level)
    log = get_log("pipeline")
    stop = threading.Event()
    call_at_stop_signals(lambda _number: stop.set())
    try:
        arm_from_environment(Failpoint, MaintenanceFailpoint, WritePoint)
        _run(given, stop, log)
    except SparkGone as error:
        log.warning("spark died", **describe_error(error))
        _revive(log)
        return report_ending(log, "pipeline ends", error)
    except Exception as error:  # noqa: BLE001 - any error ends the process
        return report_ending(log, "pipeline ends", error)
    log.info("pipeline stopped", reason=_reason(stop))
    return ExitCode.SUCCESS


def _run(given: argparse.Namespace, stop: threading.Event, log: Log) -> None:
    root = lake_location(given.lake, "--lake")
    check_master(given.master, os.environ)
    check_driver_memory(given.driver_memory)
    path = local_path(given.config, "--config") if given.config else None
    config = load_config(path, os.environ)
    lake_config = with_store_options(config.lake, given)
    open_lake(root, lake_config)
    place = _capture_place(given, config.select.selection())
    server_wait = OutageWait(SERVER, place.check, SERVER_OUTAGE, log)
    running = partial(_run_at, place, given, root, lake_config, stop=stop, log=log)
    when_available(running, server_wait, stop, once=given.once)


def _run_at(
    place: CapturePlace,
    given: argparse.Namespace,
    root: str,
    lake_config: LakeConfig,
    *,
    stop: threading.Event,
    log: Log,
) -> None:
    """Run the pipeline; raise one of `SERVER_OUTAGE` if the server does not answer before the first batch."""
    if not _wait_for_promotion(place, stop, log, once=given.once):
        return
    wait = partial(_wait_to_start, stop)
    with ExitStack() as stack:

        def opened(opening: Callable[[], AbstractContextManager[OpenedT]], folder: Path) -> OpenedT:
            return stack.enter_context(when_space_allows(opening, folder, log, wait=wait))

        found = opened(place.open, place.disk)
        outbox, capture, folder = found.outbox, found.capture, found.folder
        role = opened(partial(_reader_lock, folder, given.reader), folder.root)
        run = stack.enter_context(recorded(found.record, role.owner, log))
        metrics = PipelineMetrics(outbox.identity.capture)
        _serve_metrics(given, place, metrics, stack, log)
        store_wait = StoreWait(root, metrics.store_wait_seconds, log)
        holding = partial(hold_lake, root, outbox.identity, capture.facts(), given.reader)
        opening = partial(opened, holding, folder.root if is_remote(root) else Path(root))
        hold = when_available(opening, store_wait, stop, once=given.once)
        if hold is None:
            return
        _log_others(hold, log)
        _check_reader(outbox, given.reader)
        _check_batch_bytes(given, outbox, log)
        checkpoint = given.checkpoint or str(folder.root / "spark")
        progress = PipelineProgress(metrics, log, capture, given.reader, root)
        settings = Settings(
            folder.root,
            root,
            checkpoint,
            given.reader,
            given.batch_bytes,
            given.once,
            place.source,
            given.master,
            lake_config,
            given.log_keep_s,
            LakeFormat(given.format),
            given.paused_bytes,
        )
        writers = None
        if given.server is not None and not given.master.startswith("local"):
            writers = ExecutorWriters(SourceOptions.parse(place.source), root, lake_config, log, metrics)
        register = partial(outbox.register, given.reader, kind=ReaderKind.PIPELINE)
        use_reader = partial(when_space_allows, register, folder.root, log, wait=wait)
        parts = LandingParts(settings, outbox, capture, progress, log, use_reader, writers)
        opening_lake = partial(opened_landing, parts)
        landing = when_available(opening_lake, store_wait, stop, once=given.once)
        if landing is None:
            return
        check_not_restored(root, landing.positions, outbox, capture, given.reader)  # before Spark's JVM is started
        pipeline = Pipeline(settings, outbox, landing, progress, log, capture=capture, hold=hold, writers=writers)
        if not wait_for_master(given.master, stop, log, once=given.once):
            return
        local = given.master.startswith("local") and "://" not in checkpoint
        try:
            disks = full_disks(settings)
            make = partial(
                make_session,
                given.master,
                folder,
                driver_memory=given.driver_memory,
                local_checkpoint=local,
                more=dict(given.conf),
            )
            seconds = metrics.disk_full_seconds
            spark = when_space_allows(partial(_started, make, disks), disks, log, wait=wait, seconds=seconds)
            try:
                pipeline.run(spark, stop)
            finally:
                end_session(spark)
        except (SparkGone, SparkRefused):  # SparkRefused: a signal ended the JVM twice during its start
            if not stop.wait(SIGNAL_S):
                raise
        run.reason = _reason(stop)


def _reader_lock(folder: ProcessFolder, reader: str) -> RoleLock:
    """Acquire the lock of a reader; raise `AlreadyRunning`, with both remedies."""
    try:
        return RoleLock.acquire(folder, f"pipeline-{reader}")
    except AlreadyRunning as error:
        hint = f"{error.hint}; a pipeline to another lake needs a reader of its own, with --reader NAME"
        raise AlreadyRunning(str(error), hint=hint) from None


def _check_reader(outbox: OutboxPort, name: str) -> None:
    """Raise `ConfigError` if this pipeline cannot register the reader, which it does only once the lake is open."""
    check_name(name)
    known = outbox.registered(name)
    if known is not None:
        check_kind(name, known, ReaderKind.PIPELINE)


def _log_others(hold: LakeHold, log: Log) -> None:
    """Log which other pipelines write to the lake."""
    if hold.beside is not None:
        log.info("another host of the capture has a pipeline on this lake", other=str(hold.beside))
    for other in hold.others:
        log.info("another pipeline is running on this lake", other=str(other))


def _serve_metrics(
    given: argparse.Namespace, place: CapturePlace, metrics: PipelineMetrics, stack: ExitStack, log: Log
) -> None:
    port = metrics_port(given, place.ports)
    if port is not None:
        server = MetricsServer(metrics, given.metrics_host, port)
        stack.callback(server.close)
        log.info("metrics served", host=given.metrics_host, port=server.port)


def _check_batch_bytes(given: argparse.Namespace, outbox: OutboxPort, log: Log) -> None:
    half = outbox.identity.outbox_bytes_max // 2
    if given.batch_bytes > half and given.batch_bytes != BATCH_BYTES:
        log.warning("a batch takes at most half of the outbox", configured=given.batch_bytes, in_effect=half)


def with_store_options(config: LakeConfig, given: argparse.Namespace) -> LakeConfig:
    """Return the settings of the lake with the options of its object store from the command line."""
    options = {
        "store_endpoint": given.store_endpoint,
        "store_region": given.store_region,
        "store_allow_http": given.store_allow_http,
        "store_credentials_file": given.store_credentials_file
        and str(local_path(given.store_credentials_file, "--store-credentials-file").absolute()),
    }
    return replace(config, **{name: value for name, value in options.items() if value})


def _started(make: Callable[[], SparkSession], disks: FullDisks) -> SparkSession:
    """Start Spark; raise `StateFull` if a disk is full, because the JVM would end without giving a reason."""
    _check_space(disks)
    try:
        with keeping_stop_handlers():  # PySpark's handler of SIGINT raises KeyboardInterrupt
            return make()
    except (SparkGone, SparkRefused) as error:
        _check_space(disks, error)
        raise


def _check_space(disks: FullDisks, cause: BaseException | None = None) -> None:
    if not disks.has_space_for_a_file():
        reason = f": {cause}" if cause is not None else ""
        raise StateFull(f"a disk of the pipeline is full, and Spark cannot start{reason}", hint=FULL_HINT) from cause


def _reason(stop: threading.Event) -> str:
    return "signal" if stop.is_set() else "nothing left"


def metrics_port(given: argparse.Namespace, ports: MetricsPorts | None) -> int | None:
    """Return the metrics port: the given one, else the one of the assigned ports; None: metrics are not served.

    The assigned port is for the first pipeline; further pipelines on the same state need `--metrics-port`.
    """
    if given.no_metrics:
        return None
    if given.metrics_port is not None:
        return int(given.metrics_port)
    return ports.pipeline if ports is not None and given.reader == READER else None


def _capture_place(given: argparse.Namespace, selection: Selection) -> CapturePlace:
    """Return where the capture is; raise `ConfigError` unless it is one place."""
    if (given.state is None) == (given.server is None):
        raise ConfigError(
            "the outbox of one capture is required: --state or --server",
            hint="use --state STATE on the host of the capture, --server ADDRESS on others",
        )
    files = {
        name: local_path(text, f"--{name.replace('_', '-')}") if (text := getattr(given, name)) else None
        for name in ("token_file", "tls_roots", "runner_folder")
    }
    if given.state is None:
        return ServerPlace(given.server, role=f"pipeline-{given.reader}", **files)
    if any(files.values()):
        raise ConfigError("--token-file, --tls-roots and --runner-folder are for --server", hint="remove them")
    return StatePlace(StateFolder(local_path(given.state, "--state"), given.shared_with_group), selection)


def _wait_for_promotion(place: CapturePlace, stop: threading.Event, log: Log, *, once: bool) -> bool:
    """Wait while the capture follows and the outbox is empty; return False if there is nothing to do.

    NB: a promotion advances the numbering of the outbox: a reader that started before it would request sequences that
    never existed.
    """
    with when_space_allows(place.open, place.disk, log, wait=partial(_wait_to_start, stop)) as found:
        is_reported = False
        while (facts := found.capture.facts()).awaits_promotion:
            if not is_reported:
                is_reported = True
                log.info("the state follows a standby; waiting for its promotion", state=facts.state)
            notify(READY)
            notify(ALIVE)
            if once or stop.wait(FOLLOWED_S):
                return False
    return True


def _wait_to_start(stop: threading.Event, wait_s: float) -> None:
    """Wait for space on a full disk; exit the process if a signal stops it meanwhile. No work has begun yet."""
    if stop.wait(wait_s):
        sys.exit(ExitCode.SUCCESS)


def _revive(log: Log) -> None:
    """Replace this process with a new pipeline and a new JVM, up to `REVIVALS_MAX` times; exec releases the lock."""
    revivals = int(os.environ.get(REVIVALS_VARIABLE, "0")) + 1
    if revivals > REVIVALS_MAX:
        return
    log.warning("pipeline restarts", revival=revivals)
    os.environ[REVIVALS_VARIABLE] = str(revivals)
    sys.stderr.flush()
    os.execv(sys.executable, python_program("tidemark.pipeline", *sys.argv[1:]))  # noqa: S606 - ourselves
