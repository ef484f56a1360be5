"""An engine and changes that its handler cannot handle: each kind of handler, a full table, and a retry."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import tidemark
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import Batch, Change, Engine, FlatJson, Order, Poison, PoisonChange, PoolKind, SerializedChange, every
from tidemark.io.parked.parked_table import ParkedFull

DEADLINE_S = 60.0
QUICK: Mapping[str, Mapping[str, object]] = {"copy": {"enabled": False}, "retry": {"first_s": 0.01, "max_s": 0.02}}
BAD = (3, 7)


class PickyHandler:
    """Handles a batch as a transaction, unless it has one of some ids. Its state is in files: it may be in a worker."""

    def __init__(self, folder: Path, *refuses: int, names: bool = False) -> None:
        folder.mkdir()
        self._handled, self._refused = folder / "handled", folder / "refused"
        self._handled.touch()
        self._names = names
        self.refuse(*refuses)

    def refuse(self, *ids: int) -> None:
        self._refused.write_text(json.dumps(ids))

    def forget(self) -> None:
        self._handled.write_text("")

    def __call__(self, batch: Batch) -> None:
        self.handle([(change.after or {})["id"] for change in batch], batch.parked_number)

    def change(self, change: Change | SerializedChange) -> None:
        row = (change.after or {}) if isinstance(change, Change) else json.loads(change.value or b"{}")
        self.handle([row["id"]], change.parked_number)

    def handle(self, ids: Sequence[object], parked_number: int) -> None:
        refuses = json.loads(self._refused.read_text())
        for index, number in enumerate(ids):
            if number in refuses:
                raise PoisonChange(index, "a bad id") if self._names else ValueError(f"{number} with its values")
        with self._handled.open("a") as file:
            file.write("".join(f"{number} {parked_number}\n" for number in ids))

    @property
    def ids(self) -> list[int]:
        return [int(line.split()[0]) for line in self._handled.read_text().splitlines()]

    @property
    def parked(self) -> list[int]:
        numbers = [int(line.split()[1]) for line in self._handled.read_text().splitlines()]
        return [number for number in numbers if number]


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
@pytest.mark.parametrize("pool", PoolKind)
@pytest.mark.parametrize(("order", "names"), [(Order.TOTAL, False), (Order.BY_KEY, True)])
def test_exactly_the_changes_that_a_handler_of_batches_refuses_are_parked_and_retried_later(
    cluster: Cluster,
    database: str,
    state: Path,
    *,
    order: Order,
    names: bool,
    pool: PoolKind,
) -> None:
    handler = PickyHandler(state.parent / "first", *BAD, names=names)
    engine = Engine(
        cluster.dsn(database), state=state, handler=handler, poison=Poison.PARK, retries=1, settings=QUICK,
        workers=2, order=order, pool=pool,
    )  # fmt: skip
    with engine:
        insert(cluster, database, 1, 10)
        wait_until(lambda: len(handler.ids) == 8 or engine.wait(0))
        assert sorted(handler.ids) == sorted({*range(1, 11)} - {*BAD})
        parked = parked_after_successes(cluster, database, state, handler)
        assert {each["reason"] for each in parked.values()} == {"a bad id" if names else "ValueError"}
        first, second = parked
        handler.refuse(BAD[1])
        succeeded(cdcctl("parked", "retry", "--state", state, "--all"))
        wait_until(lambda: [*listed(state)] == [second] and not listed(state)[second]["retry_requested"])
        assert (handler.ids[-1], handler.parked) == (BAD[0], [int(first)])
        assert listed(state)[second]["failures"] == 2
        succeeded(cdcctl("parked", "drop", "--yes", "--state", state, second))
        insert(cluster, database, 11, 11)
        wait_until(lambda: handler.ids[-1] == 11 or engine.wait(0))
        wait_until(lambda: engine.confirmed is not None)
    assert listed(state) == {}
    again = PickyHandler(state.parent / "again")
    with Engine(cluster.dsn(database), state=state, handler=again, settings=QUICK):
        insert(cluster, database, 12, 12)
        wait_until(lambda: again.ids == [12])


@pytest.mark.feature("P16")
@pytest.mark.parametrize("pool", PoolKind)
@pytest.mark.parametrize("serializer", [None, FlatJson()])
@pytest.mark.parametrize("names", [False, True])
def test_a_handler_of_single_changes_leaves_out_the_change_that_it_refuses(
    cluster: Cluster,
    database: str,
    state: Path,
    *,
    serializer: FlatJson | None,
    names: bool,
    pool: PoolKind,
) -> None:
    handler = PickyHandler(state.parent / "handler", *BAD, names=names)
    one_waits = {**QUICK, "poison": {"in_a_row_max": 1}}
    with Engine(
        cluster.dsn(database), state=state, change_handler=handler.change, serializer=serializer, poison=Poison.PARK,
        retries=1, settings=one_waits, pool=pool,
    ) as engine:  # fmt: skip
        insert(cluster, database, 1, 10)
        wait_until(lambda: len(handler.ids) == 8 or engine.wait(0))
    assert handler.ids == [1, 2, 4, 5, 6, 8, 9, 10], "no change is repeated, and each one proves those before it"
    assert [each["table"] for each in listed(state).values()] == ["public.item"] * 2


@pytest.mark.feature("P16")
@pytest.mark.parametrize("policy", [Poison.SKIP, Poison.PARK])
def test_a_change_that_kills_each_worker_is_left_out_with_a_record_and_the_others_are_handled(
    cluster: Cluster, database: str, state: Path, policy: Poison
) -> None:
    handler = PickyHandler(state.parent / "handler")

    def handle(batch: Batch) -> None:
        if any((change.after or {})["id"] == BAD[0] for change in batch):
            os.kill(os.getpid(), signal.SIGKILL)
        handler(batch)

    with Engine(
        cluster.dsn(database), state=state, handler=handle, poison=policy, retries=1, settings=QUICK,
        pool=PoolKind.PROCESSES,
    ) as engine:  # fmt: skip
        insert(cluster, database, 1, 5)
        wait_until(lambda: len(handler.ids) == 4 or engine.wait(0))
        wait_until(lambda: engine.confirmed is not None)
    assert handler.ids == [1, 2, 4, 5]
    found = json.loads(succeeded(cdcctl("parked", "list", "--state", state, "--json")).out)
    (record,) = found["parked"].values() if policy is Poison.PARK else found["skipped"]["latest"]
    assert "WorkerEnded" in str(record)
    again = PickyHandler(state.parent / "again")
    with Engine(cluster.dsn(database), state=state, handler=again, settings=QUICK):
        insert(cluster, database, 6, 6)
        wait_until(lambda: again.ids == [6])


@pytest.mark.feature("P16")
def test_a_full_table_of_parked_changes_ends_the_engine_with_its_name_and_nothing_is_lost(
    cluster: Cluster, database: str, state: Path
) -> None:
    handler = PickyHandler(state.parent / "handler", *range(2, 10))
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
    handler.refuse()
    handler.forget()
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
