"""An engine and changes that its handler cannot handle: each kind of handler, a full table, and a retry."""

import json
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

import tidemark
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Batch, Change, Engine, FlatJson, Order, Poison, PoisonChange, SerializedChange, every
from tidemark.io.parked.parked_table import ParkedFull

DEADLINE_S = 60.0
QUICK: Mapping[str, Mapping[str, object]] = {"copy": {"enabled": False}, "retry": {"first_s": 0.01, "max_s": 0.02}}
BAD = (3, 7)


class PickyHandler:
    """Handles a batch as a transaction, unless it has one of some ids."""

    def __init__(self, *refuses: int, names: bool = False) -> None:
        self.refuses = {*refuses}
        self.ids: list[object] = []
        self.parked: list[int] = []
        self._names = names
        self._lock = threading.Lock()

    def __call__(self, batch: Batch) -> None:
        ids = [(change.after or {})["id"] for change in batch]
        for index, number in enumerate(ids):
            if number in self.refuses:
                raise PoisonChange(index, "a bad id") if self._names else ValueError(f"{number} with its values")
        with self._lock:
            self.ids += ids
            self.parked += [batch.parked_number] if batch.parked_number else []


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return tmp_path / "state"


def insert(cluster: Cluster, database: str, first: int, last: int) -> None:
    cluster.sql(f"INSERT INTO item SELECT n, repeat('x', 40) FROM generate_series({first}, {last}) n", database)


def listed(state: Path) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads(
        succeeded(cdcctl("parked", "list", "--state", state, "--json")).out
    )["parked"]
    return found


def parked_after_successes(
    cluster: Cluster, database: str, state: Path, handler: PickyHandler
) -> dict[str, dict[str, object]]:
    """Insert rows one after the other until their success has proved that the bad ones are poison."""
    for number in range(100, 200):
        insert(cluster, database, number, number)
        wait_until(lambda number=number: number in handler.ids)  # type: ignore[misc]
        if len(parked := listed(state)) == len(BAD):
            return parked
    raise AssertionError(listed(state))


@pytest.mark.feature("P16")
@pytest.mark.parametrize(("order", "names"), [(Order.TOTAL, False), (Order.BY_KEY, True)])
def test_exactly_the_changes_that_a_handler_of_batches_refuses_are_parked_and_retried_later(
    cluster: Cluster,
    database: str,
    state: Path,
    order: Order,
    names: bool,  # noqa: FBT001 - of the table
) -> None:
    handler = PickyHandler(*BAD, names=names)
    engine = Engine(
        cluster.dsn(database), state=state, handler=handler, poison=Poison.PARK, retries=1, settings=QUICK,
        workers=2, order=order,
    )  # fmt: skip
    with engine:
        insert(cluster, database, 1, 10)
        wait_until(lambda: len(handler.ids) == 8 or engine.wait(0))
        assert sorted(handler.ids, key=str) == sorted({*range(1, 11)} - {*BAD}, key=str)
        parked = parked_after_successes(cluster, database, state, handler)
        assert {each["reason"] for each in parked.values()} == {"a bad id" if names else "ValueError"}
        first, second = parked
        handler.refuses = {BAD[1]}
        succeeded(cdcctl("parked", "retry", "--state", state, "--all"))
        wait_until(lambda: [*listed(state)] == [second] and not listed(state)[second]["retry_requested"])
        assert (handler.ids[-1], handler.parked) == (BAD[0], [int(first)])
        assert listed(state)[second]["failures"] == 2
        succeeded(cdcctl("parked", "drop", "--yes", "--state", state, second))
        insert(cluster, database, 11, 11)
        wait_until(lambda: handler.ids[-1] == 11 or engine.wait(0))
        wait_until(lambda: engine.confirmed is not None)
    assert listed(state) == {}
    again = PickyHandler()
    with Engine(cluster.dsn(database), state=state, handler=again, settings=QUICK):
        insert(cluster, database, 12, 12)
        wait_until(lambda: again.ids == [12])


@pytest.mark.feature("P16")
@pytest.mark.parametrize("serializer", [None, FlatJson()])
def test_a_handler_of_single_changes_leaves_out_the_change_that_it_refuses(
    cluster: Cluster, database: str, state: Path, serializer: FlatJson | None
) -> None:
    seen: list[object] = []

    def handle(change: Change | SerializedChange) -> None:
        row = (change.after or {}) if isinstance(change, Change) else json.loads(change.value or b"{}")
        if row["id"] in BAD:
            raise ValueError(row)
        seen.append(row["id"])

    with Engine(
        cluster.dsn(database), state=state, change_handler=handle, serializer=serializer, poison=Poison.PARK,
        retries=1, settings=QUICK,
    ) as engine:  # fmt: skip
        insert(cluster, database, 1, 10)
        wait_until(lambda: len(seen) == 8 or engine.wait(0))
    assert seen == [1, 2, 4, 5, 6, 8, 9, 10]
    assert [each["table"] for each in listed(state).values()] == ["public.item"] * 2


@pytest.mark.feature("P16")
def test_a_full_table_of_parked_changes_ends_the_engine_with_its_name_and_nothing_is_lost(
    cluster: Cluster, database: str, state: Path
) -> None:
    handler = PickyHandler(*range(2, 10))
    small = {**QUICK, "poison": {"parked_bytes_max": 1 << 16}}
    cluster.sql("ALTER TABLE item ALTER COLUMN note SET STORAGE PLAIN", database)
    engine = Engine(cluster.dsn(database), state=state, handler=handler, poison=Poison.PARK, retries=0, settings=small)
    engine.start()
    cluster.sql("INSERT INTO item SELECT n, repeat('x', 8000) FROM generate_series(1, 12) n", database)
    with pytest.raises(ParkedFull, match=r"public.item at \S+ cannot be parked: . parked changes have") as raised:
        engine.wait(DEADLINE_S)
    assert isinstance(raised.value.__cause__, ValueError)
    parked = len(listed(state))
    assert 0 < parked < 8
    succeeded(cdcctl("parked", "drop", "--yes", "--state", state, "--all"))
    handler.refuses.clear()
    handler.ids.clear()
    with Engine(cluster.dsn(database), state=state, handler=handler, settings=QUICK):
        wait_until(lambda: handler.ids[-1:] == [12])
    assert handler.ids == [*range(1, 13)], "none was confirmed: the whole group comes again"


@pytest.mark.feature("P16")
def test_by_default_the_engine_ends_with_the_error_of_the_handler(cluster: Cluster, database: str, state: Path) -> None:
    cause = ValueError("of the handler")

    def handle(batch: Batch) -> None:
        del batch
        raise cause

    for policy, error in ((Poison.FAIL, cause), (Poison.PARK, tidemark.ConsumerFailed("the target is gone"))):
        cause = error  # type: ignore[assignment]
        engine = Engine(
            cluster.dsn(database), state=state, handler=handle, poison=policy, retries=0, settings=QUICK,
            commit=every(seconds=1),
        )  # fmt: skip
        engine.start()
        insert(cluster, database, 1 if policy is Poison.FAIL else 2, 1 if policy is Poison.FAIL else 2)
        with pytest.raises(type(error)) as raised:
            engine.wait(DEADLINE_S)
        assert raised.value is error
    assert listed(state) == {}
