"""Worker processes that finish in any order and are killed: what is confirmed is a contiguous prefix of the stream."""

import os
import signal
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.integration.embedding.test_engine import QUICK, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Batch, Engine, Order, PoolKind, Position

CHANGES = 20
WORKERS = 3
KILLS_MAX = 2  # of the worker of one change: fewer than the retries
SINGLE = {**QUICK, "deliver": {"group_rows_max": 1}}


class GatedHandler:
    """Handles a change once it is released. Its state is in files: it runs in worker processes."""

    def __init__(self, folder: Path) -> None:
        self._inside, self._released, self._handled = (folder / name for name in ("inside", "released", "handled"))
        for each in (self._inside, self._released, self._handled):
            each.mkdir(parents=True)

    def __call__(self, batch: Batch) -> None:
        for change in batch:
            number = str((change.after or {})["id"])
            (self._inside / f"{number}.{os.getpid()}").touch()
            wait_until((self._released / number).exists)
            at = change.position
            written = self._handled / f".{number}.{os.getpid()}"
            written.write_text(f"{at.timeline} {at.commit_lsn} {at.ordinal}")
            written.rename(self._handled / number)

    def waiting(self) -> list[tuple[int, int]]:
        """Return the changes that wait in workers that are alive, with the process ids of these."""
        entered = [(int(each.stem), int(each.suffix[1:])) for each in self._inside.iterdir()]
        released = {int(each.name) for each in self._released.iterdir()}
        return sorted((number, pid) for number, pid in entered if number not in released and psutil.pid_exists(pid))

    def release(self, *numbers: int) -> None:
        for number in numbers:
            (self._released / str(number)).touch()

    def positions(self) -> dict[int, Position]:
        """Return the position of each change that was handled."""
        found = [each for each in self._handled.iterdir() if not each.name.startswith(".")]
        return {int(each.name): Position(*map(int, each.read_text().split())) for each in found}  # type: ignore[arg-type]


@pytest.mark.feature("A22")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", Order)
def test_under_random_completions_and_kills_only_a_contiguous_prefix_is_confirmed_and_the_rest_comes_again(
    cluster: Cluster, database: str, tmp_path: Path, order: Order, seed: int
) -> None:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY)", database)
    random = Random(seed)
    handler, again = GatedHandler(tmp_path / "first"), GatedHandler(tmp_path / "again")
    dsn = cluster.dsn(database)

    def engine(handler: GatedHandler) -> Engine:
        return Engine(
            dsn, state=tmp_path / "state", handler=handler, workers=WORKERS, pool=PoolKind.PROCESSES, order=order,
            settings=SINGLE, stop_within_s=0.0,
        )  # fmt: skip

    kills: dict[int, int] = {}
    with leaves_nothing(cluster), engine(handler) as first:
        cluster.sql(
            f"DO $$BEGIN FOR n IN 1..{CHANGES} LOOP INSERT INTO item VALUES (n); COMMIT; END LOOP; END$$", database
        )
        for _ in range(random.randrange(5, CHANGES)):
            is_due = False
            while not is_due:
                wait_until(lambda: bool(handler.waiting()) or first.wait(0))
                number, pid = random.choice(handler.waiting())
                is_due = kills.get(number, 0) >= KILLS_MAX or random.random() < 0.6
                if is_due:
                    handler.release(number)
                    wait_until(lambda number=number: number in handler.positions())  # type: ignore[misc]
                else:
                    kills[number] = kills.get(number, 0) + 1
                    os.kill(pid, signal.SIGKILL)
                    wait_until(lambda pid=pid: not psutil.pid_exists(pid))  # type: ignore[misc]
            confirmed = first.confirmed
            assert confirmed is not None
            finished = handler.positions()
            below = [number for number, position in finished.items() if position <= confirmed]
            assert {*range(1, max(below, default=0) + 1)} <= {*finished}
    assert sum(kills.values()) > 0
    finished = handler.positions()
    again.release(*range(1, CHANGES + 1))
    with leaves_nothing(cluster), engine(again) as second:
        wait_until(
            lambda: CHANGES in again.positions() and ({*finished, *again.positions()} == {*range(1, CHANGES + 1)})
        )
        wait_until(lambda: second.confirmed == again.positions()[CHANGES])
    repeated = sorted(again.positions())
    assert repeated == [*range(repeated[0], CHANGES + 1)], "what was not confirmed is a suffix"
    assert {*range(1, repeated[0])} <= {*finished}, "what was confirmed had been handled"
