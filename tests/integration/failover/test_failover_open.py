"""Transactions that are open across both switches arrive whole and once: a test for each kind."""

from collections.abc import Iterator

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.failover import Pair
from tests.support.servers.postgres import Session
from tidemark.model.mode import Stage


@pytest.fixture
def open_one(pair: Pair) -> Iterator[Session]:
    """Return an open transaction."""
    with pair.node.connect("postgres", autocommit=False) as session:
        yield session


def off(pair: Pair) -> None:
    """Switch to the archiver; check that it delivers later commits."""
    pair.switch_off()
    pair.wait_for(lambda: pair.stage is Stage.HELD, "off")
    pair.insert(100)
    assert ids(pair) == [100]


def on(pair: Pair) -> None:
    """Return to realtime; check that it delivers."""
    pair.switch_on()
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(101)
    assert ids(pair) == [100, 101]


def ids(pair: Pair) -> list[object]:
    """Return the keys in order of their commits; none may come twice."""
    return list(replayed(change_log(pair.catch_up(), "account")))


@pytest.mark.feature("I15")
def test_a_transaction_open_across_both_switches_is_delivered_complete_and_once(pair: Pair, open_one: Session) -> None:
    open_one.execute("INSERT INTO account VALUES (1, 'before')")
    off(pair)
    open_one.execute("INSERT INTO account VALUES (2, 'while the archiver delivers')")
    on(pair)
    open_one.execute("INSERT INTO account VALUES (3, 'after')")
    open_one.commit()
    assert ids(pair) == [100, 101, 1, 2, 3]


@pytest.mark.feature("I15")
def test_savepoints_open_across_both_switches_are_kept_and_rolled_back_as_in_the_session(
    pair: Pair, open_one: Session
) -> None:
    open_one.execute("INSERT INTO account VALUES (10, 'kept')")
    open_one.execute("SAVEPOINT one")
    open_one.execute("INSERT INTO account VALUES (11, 'rolled back')")
    off(pair)
    open_one.execute("ROLLBACK TO one")
    open_one.execute("INSERT INTO account VALUES (12, 'kept, too')")
    open_one.execute("SAVEPOINT two")
    on(pair)
    open_one.execute("INSERT INTO account VALUES (13, 'rolled back at last')")
    open_one.execute("ROLLBACK TO two")
    open_one.commit()
    assert ids(pair) == [100, 101, 10, 12]


@pytest.mark.feature("I15")
def test_a_transaction_prepared_before_both_switches_is_delivered_at_its_commit(pair: Pair) -> None:
    pair.node.sql("BEGIN; INSERT INTO account VALUES (20, 'prepared'); PREPARE TRANSACTION 'open'")
    pair.node.sql("BEGIN; INSERT INTO account VALUES (21, 'given up'); PREPARE TRANSACTION 'lost'")
    off(pair)
    on(pair)
    pair.node.sql("ROLLBACK PREPARED 'lost'")
    pair.node.sql("COMMIT PREPARED 'open'")
    assert ids(pair) == [100, 101, 20]


@pytest.mark.feature("I15")
def test_with_ddl_open_across_both_switches_each_row_has_the_columns_of_its_time(pair: Pair, open_one: Session) -> None:
    pair.node.sql("CREATE TABLE wide (id int PRIMARY KEY, a text)")
    open_one.execute("ALTER TABLE wide ADD COLUMN b int DEFAULT 5")
    open_one.execute("INSERT INTO wide VALUES (1, 'x', 6)")
    off(pair)
    open_one.execute("INSERT INTO wide VALUES (2, 'y', 7)")
    open_one.execute("ALTER TABLE wide RENAME COLUMN a TO c")
    on(pair)
    open_one.execute("INSERT INTO wide VALUES (3, 'z', 8)")
    open_one.commit()
    assert [row["_after"] for row in change_log(pair.catch_up(), "wide")] == [
        {"id": 1, "a": "x", "b": 6},
        {"id": 2, "a": "y", "b": 7},
        {"id": 3, "c": "z", "b": 8},
    ]
    pair.node.sql("DROP TABLE wide")
