"""Both processes, a node that archives, and the mode table between them: nothing lost, nothing twice, whole."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.captures import change_log, replayed
from tests.support.failover import Pair, paired
from tidemark.model.change import GroupItem
from tidemark.model.mode import Stage

TABLE = "CREATE TABLE account (id int PRIMARY KEY, note text)"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with paired(tmp_path, setup=TABLE) as both:
        yield both


def ids(items: list[GroupItem]) -> list[object]:
    """Return the keys of the table that these changes make, in order of the changes; none may come twice."""
    return list(replayed(change_log(items, "account")))


def insert(pair: Pair, *numbers: int) -> None:
    for number in numbers:
        pair.node.sql(f"INSERT INTO account VALUES ({number}, 'n{number}')")


def test_the_operators_off_and_on_lose_nothing_and_repeat_nothing(pair: Pair) -> None:
    insert(pair, 1)
    assert pair.switch_off() == {"ok": True, "before": "realtime", "stage": "held"}
    insert(pair, 2)
    assert ids(pair.catch_up()) == [1, 2]
    assert pair.switch_on()["stage"] == "archive"
    pair.wait_for_stage(Stage.REALTIME)
    insert(pair, 3)
    assert ids(pair.catch_up()) == [1, 2, 3]
    assert [(each.before, each.after) for each in pair.switches()] == [
        (Stage.REALTIME, Stage.HELD),
        (Stage.HELD, Stage.ARCHIVE),
        (Stage.ARCHIVE, Stage.RETURNING),
        (Stage.RETURNING, Stage.RETURNED),
        (Stage.RETURNED, Stage.REALTIME),
    ]


def test_a_killed_sidecar_is_noticed_and_the_archiver_goes_on(pair: Pair) -> None:
    insert(pair, 1)
    pair.catch_up()
    pair.sidecar.kill()
    pair.wait_for_stage(Stage.ARCHIVE)
    insert(pair, 2)
    assert ids(pair.catch_up()) == [1, 2]
    pair.sidecar.start()
    pair.wait_for_stage(Stage.REALTIME)
    insert(pair, 3)
    assert ids(pair.catch_up()) == [1, 2, 3]


def test_a_stopped_sidecar_is_killed_and_the_archiver_goes_on(pair: Pair) -> None:
    insert(pair, 1)
    pair.catch_up()
    assert pair.sidecar.process is not None
    pair.sidecar.process.send_signal(signal.SIGSTOP)
    pair.wait_for_stage(Stage.ARCHIVE)
    assert pair.sidecar.process.wait(timeout=10) == -signal.SIGKILL


def test_what_is_open_across_both_switches_comes_out_whole(pair: Pair) -> None:
    node = pair.node
    node.sql("CREATE TABLE wide (id int PRIMARY KEY, a text)")
    with node.connect("postgres") as plain, node.connect("postgres") as nested, node.connect("postgres") as ddl:
        for session in (plain, nested, ddl):
            session.autocommit = False
        plain.execute("INSERT INTO account VALUES (1, 'before')")
        nested.execute("INSERT INTO account VALUES (10, 'kept')")
        nested.execute("SAVEPOINT one")
        nested.execute("INSERT INTO account VALUES (11, 'rolled back')")
        node.sql("BEGIN; INSERT INTO account VALUES (20, 'prepared'); PREPARE TRANSACTION 'open'")
        ddl.execute("ALTER TABLE wide ADD COLUMN b int DEFAULT 5")
        ddl.execute("INSERT INTO wide VALUES (1, 'x', 6)")
        pair.switch_off()
        pair.wait_for(lambda: pair.stage is Stage.HELD, "off")
        insert(pair, 30)
        plain.execute("INSERT INTO account VALUES (2, 'while the archiver delivers')")
        nested.execute("ROLLBACK TO one")
        nested.execute("INSERT INTO account VALUES (12, 'kept, too')")
        nested.execute("SAVEPOINT two")
        ddl.execute("INSERT INTO wide VALUES (2, 'y', 7)")
        ddl.execute("ALTER TABLE wide RENAME COLUMN a TO c")
        pair.switch_on()
        pair.wait_for_stage(Stage.REALTIME)
        insert(pair, 31)
        plain.execute("INSERT INTO account VALUES (3, 'after')")
        plain.commit()
        nested.execute("INSERT INTO account VALUES (13, 'rolled back at last')")
        nested.execute("ROLLBACK TO two")
        nested.commit()
        node.sql("COMMIT PREPARED 'open'")
        ddl.execute("INSERT INTO wide VALUES (3, 'z', 8)")
        ddl.commit()
    items = pair.catch_up()
    assert ids(items) == [30, 31, 1, 2, 3, 10, 12, 20]
    assert [row["_after"] for row in change_log(items, "wide")] == [
        {"id": 1, "a": "x", "b": 6},
        {"id": 2, "a": "y", "b": 7},
        {"id": 3, "c": "z", "b": 8},
    ]
