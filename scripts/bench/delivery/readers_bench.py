"""The CPU of the outbox server for one reader of all values, compared with decoding them, in alternating trials.

    decode         from WAL to groups
    outbox write   the groups to the outbox
    server         the CPU of `cdcctl run server` alone for one client, which is on another host in production

The server listens on a unix socket, then on a port with TLS and token. Workloads are those of `scripts/bench/decode`.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil

from scripts.bench.delivery.chain_stages import Outbox, decoded, measured, rows_of
from scripts.bench.measuring.commands import Cost, init_state
from scripts.bench.measuring.machine import machine
from scripts.bench.measuring.rounds import Trial, run_trials
from scripts.bench.measuring.workloads import WORKLOADS, node, record
from tests.support.processes.served_outbox import served_outbox
from tests.support.servers.outbox_server import Certificate, token_file
from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.flight.server_address import ServerAddress
from tidemark.model.position import NO_SEQUENCE
from tidemark.wire.values import ValueKind

PORT = 9747  # of the server with TLS
DECODER = "decode"


def served(outbox: FlightOutbox, server: psutil.Process, rows: int) -> Cost:
    """Read all values; return the time, and the CPU of the server alone."""
    before, started = server.cpu_times(), time.perf_counter()
    found = sum(
        value.header.row_count
        for value in outbox.read(NO_SEQUENCE, outbox.head())
        if value.header.kind is ValueKind.BATCH
    )
    after = server.cpu_times()
    if found != rows:
        raise SystemExit(f"{found} rows came, of {rows}")
    return Cost(time.perf_counter() - started, after.user + after.system - before.user - before.system)


def writing_trial(outbox: Outbox, rows: int) -> Trial:
    """Return the trial that writes a new outbox."""

    def write() -> Cost:
        outbox.create_outbox()
        return measured(outbox.write, rows)

    return write


def result(costs: Mapping[str, Sequence[Cost]]) -> dict[str, dict[str, object]]:
    """Return the costs, and their share of the decoder's CPU in the same round, in percent."""
    base = [cost.cpu_s for cost in costs[DECODER]]
    return {
        name: {
            "wall_s": [round(cost.wall_s, 3) for cost in found],
            "cpu_s": [round(cost.cpu_s, 3) for cost in found],
            "percent": [round(100 * cost.cpu_s / of, 1) for cost, of in zip(found, base, strict=True)],
        }
        for name, found in costs.items()
    }


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="insert")
    parser.add_argument("--rows", type=int, default=1_000_000, help="about so many")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    arguments = parser.parse_args()
    about = {"workload": arguments.workload, **machine()}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tm-bench-")))
        recording = record(stack.enter_context(node()), arguments.workload, arguments.rows, folder, init_state)
        groups = decoded(recording)
        rows = rows_of(groups)
        stored = Outbox(folder, groups)
        stored.create_outbox()
        stored.write()
        writing = Outbox(folder / "writing", groups)
        token, certificate = token_file(folder), Certificate.of_years(folder / "tls", 2020, 2050)
        settings = {
            "TIDEMARK_SERVER__TOKEN_FILE": str(token),
            "TIDEMARK_SERVER__TLS_CERTIFICATE": str(certificate.path),
            "TIDEMARK_SERVER__TLS_KEY": str(certificate.key),
        }
        decode: Trial = lambda: measured(lambda: rows_of(decoded(recording)), rows)  # noqa: E731
        addresses = {
            "unix socket": ServerAddress.parse(f"grpc+unix://{stored.state / 'server.sock'}"),
            "TLS": ServerAddress.parse(f"grpc+tls://127.0.0.1:{PORT}", token, certificate.path),
        }
        for name, address in addresses.items():
            listen = ("--listen", f"127.0.0.1:{PORT}") if name == "TLS" else ()
            with ExitStack() as server_stack:
                process = server_stack.enter_context(served_outbox(stored.state, *listen, **settings))
                outbox = FlightOutbox(address)
                trial = partial(served, outbox, psutil.Process(process.pid), rows)
                trial()
                costs = run_trials(
                    {DECODER: decode, "outbox write": writing_trial(writing, rows), f"server, {name}": trial},
                    arguments.rounds,
                )
            show(name, rows, about, result(costs), as_json=arguments.json)


def show(name: str, rows: int, about: dict[str, object], found: dict[str, dict[str, object]], *, as_json: bool) -> None:
    """Print the result of one server."""
    if as_json:
        json.dump({**about, "server": name, "rows": rows, "trials": found}, sys.stdout)
        print()
        return
    print(f"{rows:,} rows from a server by {name}; {', '.join(f'{key} {value}' for key, value in about.items())}")
    for trial, costs in found.items():
        print(trial, *(f"{what} {costs[what]}" for what in ("wall_s", "cpu_s", "percent")))


if __name__ == "__main__":
    main()
