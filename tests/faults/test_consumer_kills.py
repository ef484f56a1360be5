"""SIGKILL of a sidecar with a custom consumer: how much is delivered again (docs/operate.md).

The bound is in bytes: what the consumer confirmed and the state does not contain yet, and one batch. Without a time for
confirmations it is the last batch.
"""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster, sql

KILLS, KILLS_MAX = 3, 12  # more than KILLS only until one delivered enough again
SEED = 20261127
PAUSE_S_MAX = 0.3
TRANSACTIONS_MAX = 3000  # of a run: the load must last longer than the wait for the kill
UNCONFIRMED_BYTES = BATCH_BYTES = 1 << 16  # the least values, less than the load writes between two confirmations
VALUE_BYTES = 1024
ROWS = 20  # of a commit
INSERT = f"""
    INSERT INTO account (note)
    SELECT repeat(md5(random()::text), {VALUE_BYTES // 32}) FROM generate_series(1, {ROWS})"""


def test_a_killed_sidecar_delivers_no_more_again_than_the_guide_states(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    again = delivered_again(
        cluster,
        database,
        tmp_path,
        ROWS + 1,
        TIDEMARK_DELIVER__RATE_MAX="10",
        TIDEMARK_DELIVER__LINGER_MS="100",
        TIDEMARK_DELIVER__GROUP_BYTES_MAX=str(BATCH_BYTES),
        TIDEMARK_DELIVER__UNCONFIRMED_BYTES_MAX=str(UNCONFIRMED_BYTES),
    )
    assert max(again) * VALUE_BYTES <= UNCONFIRMED_BYTES + BATCH_BYTES, again
    assert max(again) > ROWS, again


def test_without_a_time_for_confirmations_a_killed_sidecar_delivers_only_the_last_batch_again(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    again = delivered_again(
        cluster,
        database,
        tmp_path,
        1,
        TIDEMARK_DELIVER__CONFIRM_MS="0",
        TIDEMARK_DELIVER__GROUP_ROWS_MAX=str(ROWS),  # a batch is one commit
    )
    assert 0 < max(again) <= ROWS, again


def delivered_again(cluster: Cluster, database: str, tmp_path: Path, rows_min: int, **options: str) -> list[int]:
    """Kill a sidecar at random moments under load; return how many rows each start delivered again.

    `rows_min`: it is killed until one start delivers so many again, at most `KILLS_MAX` times.
    """
    cluster.sql("CREATE TABLE account (id bigint GENERATED ALWAYS AS IDENTITY, note text)", database)
    into_file = {
        "TIDEMARK_DELIVER__CONSUMER": "jsonl",
        "TIDEMARK_DELIVER__JSONL_FILE": str(tmp_path / "unused"),
    }
    dice = random.Random(SEED)
    sidecar = Sidecar(cluster, database, tmp_path, copy=False, **into_file, **options)
    sidecar.init()
    delivered, again = 0, list[int]()

    def start_with_a_file() -> Path:
        file = tmp_path / f"{len(again)}.jsonl"  # of each run its own: a kill may leave part of a line at the end
        sidecar.options["TIDEMARK_DELIVER__JSONL_FILE"] = str(file)
        sidecar.start()
        return file

    def found_in(file: Path) -> int:
        ids = ids_in(file)
        assert ids == list(range(ids[0], ids[-1] + 1))
        assert ids[0] <= delivered + 1
        again.append(delivered + 1 - ids[0])
        return ids[-1]

    try:
        while len(again) < KILLS or (max(again) < rows_min and len(again) < KILLS_MAX):
            file = start_with_a_file()
            with inserting(cluster, database):
                wait_for_id(file, delivered + 1)
                let_pass(dice.uniform(0, PAUSE_S_MAX), "a random moment for the kill")
                sidecar.kill()
            delivered = found_in(file)
        file = start_with_a_file()
        ((last,),) = cluster.sql("SELECT max(id) FROM account", database)
        wait_for_id(file, int(last))
        sidecar.kill()
        assert found_in(file) == last
    finally:
        sidecar.close()
    return again


@contextmanager
def inserting(cluster: Cluster, database: str) -> Iterator[None]:
    """Insert rows in another thread as long as the context lasts."""
    stop = Event()

    def insert() -> None:
        with cluster.connect(database) as session:
            for _ in range(TRANSACTIONS_MAX):
                if stop.is_set():
                    break
                sql(session, INSERT)

    with ThreadPoolExecutor(1) as pool:
        inserts = pool.submit(insert)
        try:
            yield
        finally:
            stop.set()
            inserts.result()


def ids_in(file: Path) -> list[int]:
    """Return the ids of the complete lines of rows."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [int(json.loads(line)["after"]["id"]) for line in lines if b'"after"' in line]


def wait_for_id(file: Path, number: int) -> None:
    """Wait until a line has this id."""
    wait_until(lambda: number in ids_in(file), f"the row {number}")
