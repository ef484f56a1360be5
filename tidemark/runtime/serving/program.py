"""The outbox server: arguments in, exit code out; it serves until a signal, or until the state ends.

It is a separate process, so that a hand-over between sidecar and archiver disconnects no client.
"""

import os
import signal
import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn

import click
import pyarrow as pa

from tidemark.io.flight.outbox_server import Listening, OutboxServer
from tidemark.io.flight.server_address import PLAIN, TLS, UNIX, is_loopback, unix_url
from tidemark.io.flight.server_metrics import ServerMetrics
from tidemark.io.flight.server_token import load_server_token
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.host.logs import Log
from tidemark.io.host.systemd import ALIVE, READY, STOPPING, notify
from tidemark.io.host.unix_sockets import PATH_BYTES_MAX, is_too_long
from tidemark.io.process.config import Config, ServerConfig
from tidemark.io.process.config_loading import load_config
from tidemark.io.process.config_reference import CONFIG_REFERENCE
from tidemark.io.process.ending import report_ending
from tidemark.io.process.metrics_server import MetricsServer
from tidemark.io.process.run_record import StateRecord, recorded
from tidemark.io.process.stop_signals import call_at_stop_signals
from tidemark.io.readers.opened_outbox import open_once
from tidemark.io.readers.outbox_use import check_is_used
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.locking.write_guard import reporting_stuck_writers
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import SERVER, StateFolder
from tidemark.model.errors import ConfigError, ExitCode

ALIVE_S = 5.0  # between two notifications to the service manager
STOP_S = 3.0  # for the streams that run: a range of 16 MiB is sent in a second. The unit waits 30 s


class BadListening(ConfigError):
    """The server cannot listen as configured."""

    hint = f"{CONFIG_REFERENCE} describes the keys of [server]"


@click.command(name="server")
@click.option("--config", "config_path", type=click.Path(path_type=Path), help="Configuration (TOML).")
@click.option("--state", required=True, type=click.Path(path_type=Path), help="State folder, created by `cdcctl init`.")
@click.option("--listen", help="HOST:PORT in place of server.listen.")
@click.option("--insecure-loopback", is_flag=True, help="Serve a port of a loopback address without TLS.")
def main(config_path: Path | None, state: Path, listen: str | None, *, insecure_loopback: bool) -> None:
    """Serve the outbox of a capture to readers on this host or on others."""
    configure_logs("json", "info")
    log = get_log(SERVER)
    ending = ServerEnding()
    try:
        config = load_config(config_path, os.environ)
        configure_logs(config.log.format, config.log.level)
        folder = StateFolder(state.resolve(), shared_with_group=bool(config.capture.group))
        folder.relax_umask()
        chosen = listen if listen is not None else config.server.listen
        at = listening(config.server, folder, chosen, insecure_loopback=insecure_loopback)
        _serve(config, folder, at, log, ending)
    except Exception as error:  # noqa: BLE001 - the one place: whatever it is, it ends the process
        ending.end_process(report_ending(log, f"{SERVER} ends", error))
    ending.end_process(ExitCode.SUCCESS)


class ServerEnding:
    """The end of a server: calls that still run, for example of a stalled client, delay it by a bounded time."""

    def __init__(self) -> None:
        self._calls_run = False

    def shut_down(self, server: OutboxServer) -> None:
        """Accept no more calls, and wait for those that run. NB: Flight waits for them without a bound."""
        waiting = threading.Thread(target=server.shutdown, name="shutdown", daemon=True)
        waiting.start()
        waiting.join(STOP_S)
        self._calls_run = waiting.is_alive()

    def end_process(self, code: ExitCode) -> NoReturn:
        """End the process; with calls that run, at once, because the interpreter's own end would wait for them."""
        if self._calls_run:
            sys.stderr.flush()
            os._exit(code)
        sys.exit(code)


def listening(config: ServerConfig, folder: StateFolder, listen: str, *, insecure_loopback: bool) -> Listening:
    """Return where the server listens; raise `BadListening` for a port without TLS, unless it is a loopback one."""
    if not listen:
        return Listening(unix_url(_socket(folder)), socket_mode=folder.file_mode)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise BadListening(f"server.listen: {listen!r} is not HOST:PORT")
    token = load_server_token(config, folder)
    if config.tls_certificate and config.tls_key:
        certificate, key = (_read(name) for name in (config.tls_certificate, config.tls_key))
        return Listening(f"{TLS}://{listen}", token, certificate, key)
    if not insecure_loopback:
        raise BadListening(
            f"server.listen: {listen} is served only with TLS",
            hint="set server.tls_certificate and server.tls_key; on a loopback address, --insecure-loopback omits TLS",
        )
    if not is_loopback(host.strip("[]")):
        raise BadListening(f"--insecure-loopback: {host} is not a loopback address: other hosts could read the rows")
    return Listening(f"{PLAIN}://{listen}", token)


def _socket(folder: StateFolder) -> Path:
    """Return the socket of the server; raise `BadListening` if neither gRPC nor a reader could use its path."""
    path = folder.socket(SERVER)
    port = "serve a port instead (server.listen)"
    if is_too_long(path):
        raise BadListening(
            f"the outbox server cannot listen at {path}: this path has {len(os.fsencode(path))} bytes, and that of a "
            f"unix socket has at most {PATH_BYTES_MAX}",
            hint=f"{port}, or move the state to a folder whose path has at most "
            f"{PATH_BYTES_MAX - len(path.name) - 1} bytes",
        )
    if "," in str(path):  # gRPC's separator of addresses
        raise BadListening(
            f"the outbox server cannot listen at {path}: gRPC has no unix socket whose path contains a comma",
            hint=f"{port}, or move the state to another folder",
        )
    return path


def _serve(config: Config, folder: StateFolder, at: Listening, log: Log, ending: ServerEnding) -> None:
    """Serve until a signal; raise the error that ends the server, for example `StateReplaced`."""
    stop = threading.Event()
    reason = "stopped"

    def end(number: signal.Signals) -> None:
        nonlocal reason
        reason = number.name
        stop.set()

    call_at_stop_signals(end)
    with ExitStack() as stack:
        store = stack.enter_context(StateStore.open(folder, guarded=reporting_stuck_writers(log)))
        check_is_used(store)
        lock = stack.enter_context(RoleLock.acquire(folder, SERVER))
        run = stack.enter_context(recorded(StateRecord(store), lock.owner, log))
        metrics = ServerMetrics(store.identity.capture)
        if at.location.startswith(UNIX):
            folder.socket(SERVER).unlink(missing_ok=True)  # of a server that was killed: the lock shows that none runs
        try:
            server = OutboxServer(
                at, partial(open_once, folder), config.server.streams_max, metrics, config.select.selection()
            )
        except (pa.ArrowException, OSError) as error:
            raise BadListening(f"cannot listen at {at.location}: {str(error).splitlines()[0]}") from error
        stack.callback(ending.shut_down, server)
        if config.server.metrics_port:
            page = MetricsServer(metrics, config.metrics.host, config.server.metrics_port)
            stack.callback(page.close)
            log.info("serving metrics", host=config.metrics.host, port=page.port)
        log.info("serving the outbox", at=at.location, port=server.port, capture=store.identity.capture)
        notify(READY)
        while not stop.wait(ALIVE_S):
            store.environment.check_in_place()
            notify(ALIVE)
        notify(STOPPING)
        run.reason = reason
        log.info("stopping", reason=reason)


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise BadListening(f"{name} cannot be read: {error.strerror}") from error
