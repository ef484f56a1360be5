"""SIGKILLs of a sidecar whose consumer is a plug-in, a failover to the archiver and the return, then a promotion.

python -m tests.support.faults.plugin_campaign [--kills 50] [--seed 1]     (scripts/plugin_kills)

Every change is in the file of the example's consumer once and in order, under epochs that grow, and a run delivers only
what was not confirmed before it: at most the last delivery of the killed one comes again.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.plugins.daemons import file_rows, use_config
from tests.support.plugins.recording import DeliveredRun, Place, place_of, recorded_runs
from tests.support.processes.failover import Pair, archiving_node
from tests.support.processes.waiting import let_pass
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster, StopMode
from tests.support.servers.standby import promote, standby_of, wait_until_replayed
from tidemark.io.state.state import StateStore
from tidemark.model.mode import Stage

ROWS_MAX = 10_000_000
RETURNED, PROMOTED = ROWS_MAX, ROWS_MAX + 1  # the rows after the return, and after the promotion
RECORDING = "tests.support.plugins.recording:RecordingConsumer"
HANDLING = "tests.support.plugins.handlers:SqliteHandler"


def kill_with_plugin(node: ArchivingServer, root: Path, *, kills: int, seed: int, handles: bool = False) -> int:
    """Kill, fail over and return; check what was delivered, and return the number of changes.

    handles: the plug-in is a handler in a worker process, which does not learn where a run begins.
    """
    file, record = root / "changes.db", root / "record.jsonl"
    pair = Pair(node, root)
    _configure(pair, file, record, handles=handles)
    pair.sidecar.init()
    dice = random.Random(seed)
    committed: list[int] = []
    stored: list[Place] = []

    def deliver_and_kill() -> None:
        before = len(file_rows(file))
        pair.wait_for(lambda: len(file_rows(file)) > before, "delivery")
        let_pass(dice.uniform(0, 0.3), "a random moment for the kill")
        pair.sidecar.kill()
        stored.append(_stored_place(pair))

    try:
        with _inserting(node.node, committed):
            for _ in range(kills):
                pair.sidecar.start()
                deliver_and_kill()
            pair.start()  # only now, or the archiver would take over while a start takes long
            deliver_and_kill()
            pair.wait_for_stage(Stage.ARCHIVE)
        node.switch()
        pair.wait_for(lambda: len(file_rows(file)) >= len(committed), "the archiver's changes")
        pair.sidecar.start()
        pair.wait_for_stage(Stage.REALTIME)
        node.node.sql(f"INSERT INTO account VALUES ({RETURNED}, 'returned')")
        pair.wait_for(lambda: len(file_rows(file)) > len(committed), "the change after the return")
        with standby_of(node.node) as standby:
            wait_until_replayed(standby, node.node)
            _move_to(standby, pair)
            standby.sql(f"INSERT INTO account VALUES ({PROMOTED}, 'promoted')")
            pair.wait_for(lambda: len(file_rows(file)) > len(committed) + 1, "the change after the promotion")
    finally:
        pair.close()
    rows = file_rows(file)
    expected = [*committed, RETURNED, PROMOTED]
    assert [json.loads(row.after or "")["id"] for row in rows] == expected, "lost or repeated"
    assert [row.place[0] for row in rows[-2:]] == [1, 2], "the timelines before and after the promotion"
    assert [row.place for row in rows] == sorted({row.place for row in rows})
    assert [row.epoch for row in rows] == sorted(row.epoch for row in rows)
    _check_runs(recorded_runs(record), stored, begins=not handles)
    return len(rows)


def _check_runs(runs: Sequence[DeliveredRun], stored: Sequence[Place], *, begins: bool) -> None:
    """Compare each run with the killed one before it.

    stored: the position in the state after each kill. begins: the runs are recorded with the position of their start.
    """
    assert [run.epoch for run in runs] == sorted({run.epoch for run in runs})
    assert len(runs) >= len(stored) + 3, "each run, the archiver's, those after the return and after the promotion"
    killed = list(zip(runs, runs[1:], stored, strict=False))
    assert len(killed) == len(stored)
    for _, run, place in killed:
        assert all(position > place for position in run.positions), "a confirmed change came again"
    if not begins:
        return
    for run in runs:
        assert all(position > run.start for position in run.positions), "a confirmed change came again"
    for before, run, place in killed:
        assert run.start >= max(before.confirmed, place), "a run begins before a confirmed change"
    assert any(place < before.confirmed for before, _, place in killed), "the state lacked nothing at any kill"


def _configure(pair: Pair, file: Path, record: Path, *, handles: bool) -> None:
    consumer, pool = (HANDLING, "[pool]\nkind = 'processes'\n") if handles else (RECORDING, "")
    options = f"[consumer]\nfile = '{file}'\nrecord = '{record}'\n"
    use_config(f"[deliver]\nconsumer = '{consumer}'\n{options}{pool}", pair.sidecar, pair.archiver)


def _move_to(standby: Cluster, pair: Pair) -> None:
    """Kill the node and both daemons, promote its standby, and start the daemons over that."""
    pair.node.stop(StopMode.KILL)
    pair.sidecar.kill()
    pair.archiver.kill()
    promote(standby)
    for daemon in (pair.sidecar, pair.archiver):
        daemon.options["TIDEMARK_CAPTURE__DSN"] = standby.dsn("postgres")
    pair.start()


@contextmanager
def _inserting(node: Cluster, committed: list[int]) -> Iterator[None]:
    """Insert rows, a transaction each, until the end of the block."""
    ending = threading.Event()

    def insert() -> None:
        with node.connect("postgres") as session:
            for number in range(1, ROWS_MAX):
                session.execute("INSERT INTO account VALUES (%s, 'n')", (number,))
                committed.append(number)
                if ending.wait(0.002):
                    return

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _stored_place(pair: Pair) -> Place:
    with StateStore.open(pair.sidecar.folder, read_only=True) as store:
        delivered = store.marks().delivered
    assert delivered is not None
    return place_of(delivered.pointer.position)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/plugin_kills")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with archiving_node() as node, tempfile.TemporaryDirectory() as root:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        changes = kill_with_plugin(node, Path(root), kills=chosen.kills, seed=chosen.seed)
    sys.stdout.write(
        f"{chosen.kills} kills, a failover and a promotion: {changes} changes, lost 0, repeated after confirmation 0\n"
    )


if __name__ == "__main__":
    main()
