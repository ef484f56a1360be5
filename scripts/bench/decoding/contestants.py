"""The contestants of the decoder benchmark: each decodes the same range of WAL as a separate process.

The cost is wall and CPU seconds of all its processes. A trial of pg_recvlogical uses a copy of a slot that precedes the
workload, so that every trial decodes the same WAL. Its CPU seconds are those of client and walsender together, because
the server decodes.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import psutil

from scripts.bench.measuring.commands import CDCCTL, Cost, run_command, timed
from scripts.bench.measuring.slots import PLUGIN_OPTIONS, copied_slot
from scripts.bench.measuring.workloads import PLUGINS, Recording, source_slot
from tests.support.servers.postgres import SUPERUSER, Cluster, Session
from tidemark.model.lsn import format_lsn

GONE_S = 10.0
POLL_S = 0.005
OURS = "tidemark"
STARTING = "tidemark, start only"
SCANNING = "tidemark, nothing selected"
NO_TABLE = ("--table", "nobody.has_it")
FORMATS = ("jsonl", "debezium", "arrow", "test_decoding")
WALDUMP = "pg_waldump --quiet"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to decode a recording."""

    name: str
    trial: Callable[[], Cost]


def contestants(cluster: Cluster, session: Session, recording: Recording) -> list[Contestant]:
    """Return all contestants. test_decoding's number of rows is checked once, Tidemark's in each trial."""
    begin, end = format_lsn(recording.begin), format_lsn(recording.end)
    decode = [*CDCCTL, "decode", "--state", str(recording.state), "--archive", str(recording.archive), "--from", begin]
    ours = [*decode, "--format", "null", "--json"]
    waldump = [
        str(cluster.server.client("pg_waldump")),
        "--quiet",
        "-p",
        str(recording.archive),
        "-s",
        begin,
        "-e",
        end,
    ]
    timed([*ours, "--to", begin])  # warm-up: writes the byte code, as an installation does
    peers = [_RecvlogicalTrial(cluster, session, recording, plugin) for plugin in PLUGINS]
    for peer in peers:
        if peer.plugin == "test_decoding":
            _check_rows(peer.name, recording, recording.rows, peer.count_rows())
    return [
        Contestant(OURS, lambda: _our_trial([*ours, "--to", end], recording, recording.rows)),
        Contestant(SCANNING, lambda: _our_trial([*ours, "--to", end, *NO_TABLE], recording, 0)),
        Contestant(STARTING, lambda: timed([*ours, "--to", begin])),
        Contestant(WALDUMP, lambda: timed(waldump)),
        *_other_ways(cluster, recording, [*ours, "--to", end], [*decode, "--to", end]),
        *(Contestant(peer.name, peer.trial) for peer in peers),
    ]


def _other_ways(
    cluster: Cluster, recording: Recording, counted: Sequence[str], printed: Sequence[str]
) -> Iterator[Contestant]:
    """Yield Tidemark with each option or command that takes another path through the code, start included."""
    options = {
        "--database": ("--database", recording.database),
        "--table": ("--table", "public.*"),
        "--partition-root": ("--partition-root", "no.such"),
        "--exclude-origin": ("--exclude-origin", "any"),
        "--message": ("--message", "none"),
        "--transactions": ("--transactions",),
        "--from TIME": ("--from", recording.time),
    }
    for name, option in options.items():
        yield Contestant(f"tidemark {name}", partial(_our_trial, [*counted, *option], recording, recording.rows))
    for form in FORMATS:
        yield Contestant(f"tidemark, {form}", partial(timed, [*printed, "--format", form]))
        with_bounds = [*printed, "--format", form, "--transactions"]
        yield Contestant(f"tidemark, {form} --transactions", partial(timed, with_bounds))
    tail = [*CDCCTL, "tail", cluster.dsn(recording.database), "--state", str(recording.state)]
    tail += ["--from", format_lsn(recording.begin), "--until", format_lsn(recording.end)]
    for form in ("null", *FORMATS):
        yield Contestant(f"tidemark tail, {form}", partial(timed, [*tail, "--format", form]))


class _RecvlogicalTrial:
    """pg_recvlogical with one of the server's plugins; its output is discarded."""

    def __init__(self, cluster: Cluster, session: Session, recording: Recording, plugin: str) -> None:
        self.name = f"pg_recvlogical {plugin}"
        self.plugin = plugin
        self._session = session
        self._postmaster = psutil.Process(cluster.pid)
        self._source = source_slot(recording.name, plugin)
        self._slot = f"{self._source}_trial"
        where = ["-h", str(cluster.folder), "-p", str(cluster.port), "-U", SUPERUSER, "-d", recording.database]
        options = [part for option in PLUGIN_OPTIONS[plugin] for part in ("-o", option)]
        self._command = [str(cluster.server.client("pg_recvlogical")), *where, "--slot", self._slot, "--start"]
        self._command += ["--no-loop", "--endpos", format_lsn(recording.end), "-f", "-", *options]

    def trial(self) -> Cost:
        with copied_slot(self._session, self._source, self._slot):
            others, before_s = self._server_pids(), self._server_cpu_s()
            cost = timed(self._command)
            self._wait_for_walsender(others)
            return Cost(cost.wall_s, cost.cpu_s + self._server_cpu_s() - before_s)

    def count_rows(self) -> int:
        """Return the number of rows that test_decoding prints."""
        with copied_slot(self._session, self._source, self._slot):
            others = self._server_pids()
            lines = run_command(self._command).split(b"\n")
            self._wait_for_walsender(others)
        return sum(line.startswith(b"table ") for line in lines)

    def _server_cpu_s(self) -> float:
        """Return the CPU seconds of ended server processes."""
        times = self._postmaster.cpu_times()
        return float(times.children_user + times.children_system)

    def _server_pids(self) -> set[int]:
        return {child.pid for child in self._postmaster.children()}

    def _wait_for_walsender(self, others: set[int]) -> None:
        """Wait until the server has reaped the walsender: only then its CPU seconds are in the sum."""
        deadline = time.monotonic() + GONE_S
        while not self._server_pids() <= others:
            if time.monotonic() > deadline:
                raise SystemExit(f"the walsender of {self._slot} does not end")
            time.sleep(POLL_S)


def _check_rows(name: str, recording: Recording, expected: int, found: int) -> None:
    if found != expected:
        raise SystemExit(f"{recording.name}: {name} found {found} rows in place of {expected}")


def _our_trial(command: Sequence[str], recording: Recording, rows: int) -> Cost:
    """Run Tidemark with one line of counts as output."""
    with tempfile.TemporaryFile() as counts:
        cost = timed(command, counts)
        counts.seek(0)
        said = json.load(counts)
    _check_rows(OURS, recording, rows, int(said["rows"]))
    return replace(cost, inner_cpu_s=float(said["cpu_s"]))
