"""The second example of README.md, exactly as printed there: what it writes, and what a kill repeats."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position

MAJOR = 15
ROOT = Path(__file__).parents[3]
STATE = '"/var/lib/shop"'
LINES_MAX = 15
WAREHOUSE = """
import json, os
FILE = os.open("written.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def write(table, rows, *, upto, fence):
    for row in rows.to_pylist():
        line = {
            "table": table, "id": row["_after"]["id"], "row": row["_after"], "fence": fence.number,
            "at": [row["_tli"], row["_commit_lsn"], row["_ordinal"]], "upto": str(upto),
        }
        os.write(FILE, (json.dumps(line) + "\\n").encode())
"""
Line = dict[str, object]


def readme_program() -> str:
    """Return the text of the example."""
    (text,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


class ReadmeProgram:
    """The program in its folder, and the process while it runs."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.state = StateFolder(folder / "state")
        self._folder = folder
        self.cluster = cluster
        text = readme_program()
        assert text.count(STATE) == 1
        (folder / "shop.py").write_text(text.replace(STATE, repr(str(self.state.root))))
        (folder / "warehouse.py").write_text(WAREHOUSE)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the program; kill it at the end, unless it has ended."""
        environment = {
            **os.environ,
            "PGHOSTADDR": "127.0.0.1",  # of the host `db`
            "PGPORT": str(self.cluster.port),
            "PYTHONPATH": str(ROOT),
        }
        process = subprocess.Popen([sys.executable, "shop.py"], cwd=self._folder, env=environment)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def lines(self) -> list[Line]:
        """Return what the program wrote."""
        path = self._folder / "written.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def ids(self) -> list[object]:
        return [line["id"] for line in self.lines() if line["table"] == "public.item"]

    def customers(self) -> list[object]:
        return [line["row"] for line in self.lines() if line["table"] == "public.customers"]

    def confirmed(self) -> Position:
        """Return the stored position."""
        with StateStore.open(self.state, read_only=True) as store:
            start = store.view().start
        assert start is not None
        return start.position


def position_of(line: Line) -> Position:
    at = line["at"]
    assert isinstance(at, list)
    return Position(TimelineId(at[0]), Lsn(at[1]), at[2])


def fence(line: Line) -> int:
    number = line["fence"]
    assert isinstance(number, int)
    return number


@pytest.fixture
def shop(new_cluster: NewCluster, tmp_path: Path) -> ReadmeProgram:
    """A database `shop` with existing rows, and the role of the program, on a separate server."""
    cluster = new_cluster(MAJOR)
    cluster.sql("CREATE DATABASE shop")
    cluster.sql("CREATE ROLE cdc LOGIN REPLICATION")
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text); GRANT SELECT ON item TO cdc", "shop")
    cluster.sql("INSERT INTO item SELECT n, 'old' FROM generate_series(1, 100) n", "shop")
    cluster.sql("CREATE TABLE customers (id int PRIMARY KEY, email text); GRANT SELECT ON customers TO cdc", "shop")
    cluster.sql("INSERT INTO customers VALUES (1, 'one@shop')", "shop")
    return ReadmeProgram(cluster, tmp_path)


def test_the_example_has_at_most_fifteen_lines() -> None:
    assert len(readme_program().splitlines()) <= LINES_MAX


@pytest.mark.slow
@pytest.mark.feature("A22")
@pytest.mark.feature("A08")
def test_after_kills_the_program_has_written_every_change_and_repeats_only_what_was_not_confirmed(
    shop: ReadmeProgram,
) -> None:
    with shop.running() as process:
        wait_until(lambda: len(set(shop.ids())) == 100)
        shop.cluster.sql("UPDATE item SET note = 'new' WHERE id = 1", "shop")
        shop.cluster.sql("INSERT INTO item SELECT n, 'more' FROM generate_series(101, 200) n", "shop")
        wait_until(lambda: len(set(shop.ids())) == 200)
        written = max(map(position_of, shop.lines()))
        wait_until(lambda: shop.confirmed() >= written)
        shop.cluster.sql("INSERT INTO customers VALUES (2, 'two@shop')", "shop")
        wait_until(lambda: len(shop.customers()) >= 2)
        shop.cluster.sql("INSERT INTO item SELECT n, 'last' FROM generate_series(201, 300) n", "shop")
        wait_until(lambda: len(set(shop.ids())) > 200)
        process.send_signal(signal.SIGKILL)
        process.wait()
    before, confirmed = shop.lines(), shop.confirmed()
    assert written <= confirmed
    shop.cluster.sql("INSERT INTO item VALUES (301, 'while it was dead')", "shop")
    with shop.running() as process:
        wait_until(lambda: 301 in shop.ids())
        wait_until(lambda: set(shop.ids()) == set(range(1, 302)))
        assert RoleLock.status(shop.state, "sidecar").is_locked
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    again = shop.lines()[len(before) :]
    masked = [{"id": 1, "email": None}, {"id": 2, "email": None}]
    assert [row for number, row in enumerate(shop.customers()) if row not in shop.customers()[:number]] == masked
    assert all(position_of(line) > confirmed for line in again)
    assert ({fence(line) for line in before}, {fence(line) for line in again}) == ({1}, {2})
    assert shop.confirmed() >= max(map(position_of, shop.lines()))  # the interrupt stopped it in order
    assert not RoleLock.status(shop.state, "sidecar").is_locked
