"""SIGKILL of a sidecar with a custom consumer, in batches as wide as they can be: how much is delivered again.

The bound is in bytes (docs/operate.md): what the consumer confirmed and the state does not contain yet, and one batch.
"""

import json
import random
import time
from pathlib import Path

from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, Session, sql

KILLS = 3
SEED = 20261127
LOAD_S_MAX = 0.6
UNCONFIRMED_BYTES = BATCH_BYTES = 1 << 16  # the least values, less than the load writes between two confirmations
VALUE_BYTES = 1024
ROWS = 20  # of a commit
INSERT = f"""
    INSERT INTO account (note)
    SELECT repeat(md5(random()::text), {VALUE_BYTES // 32}) FROM generate_series(1, {ROWS})"""


def test_a_killed_sidecar_delivers_no_more_again_than_the_guide_states(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE account (id bigint GENERATED ALWAYS AS IDENTITY, note text)", database)
    files = [tmp_path / f"{run}.jsonl" for run in range(KILLS + 1)]  # a kill may leave part of a line at the end
    widest = {
        "TIDEMARK_DELIVER__CONSUMER": "jsonl",
        "TIDEMARK_DELIVER__JSONL_FILE": str(files[0]),
        "TIDEMARK_DELIVER__RATE_MAX": "10",
        "TIDEMARK_DELIVER__LINGER_MS": "100",
        "TIDEMARK_DELIVER__GROUP_BYTES_MAX": str(BATCH_BYTES),
        "TIDEMARK_DELIVER__UNCONFIRMED_BYTES_MAX": str(UNCONFIRMED_BYTES),
    }
    dice = random.Random(SEED)
    sidecar = Sidecar(cluster, database, tmp_path, copy=False, **widest)
    sidecar.init()
    delivered, again = 0, []
    try:
        with cluster.connect(database) as session:
            for file in files:
                sidecar.options["TIDEMARK_DELIVER__JSONL_FILE"] = str(file)
                sidecar.start()
                written = inserted(session, dice.uniform(0.1, LOAD_S_MAX))
                wait_for_id(file, written if file is files[-1] else delivered + 1)
                sidecar.kill()
                ids = ids_in(file)
                assert ids == list(range(ids[0], ids[-1] + 1))
                assert ids[0] <= delivered + 1
                again.append(delivered + 1 - ids[0])
                delivered = ids[-1]
    finally:
        sidecar.close()
    assert max(again) * VALUE_BYTES <= UNCONFIRMED_BYTES + BATCH_BYTES, again
    assert max(again) > ROWS, again


def inserted(session: Session, seconds: float) -> int:
    """Insert rows for so long; return the last id."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sql(session, INSERT)
    ((last,),) = sql(session, "SELECT max(id) FROM account")
    return int(last)


def ids_in(file: Path) -> list[int]:
    """Return the ids of the complete lines of rows."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [int(json.loads(line)["after"]["id"]) for line in lines if b'"after"' in line]


def wait_for_id(file: Path, number: int) -> None:
    """Wait until a line has this id."""
    wait_until(lambda: number in ids_in(file), f"the row {number}")
