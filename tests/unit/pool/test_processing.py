"""What a handler gets, by handler and serializer: one table; what remains after an error; records of JSON."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from tests.support.forged.groups import DATABASE, group
from tests.support.processes.json_lines import lines_in
from tests.support.samples.changed_rows import SampleRow, batch_of, bound, columns_of, customers, with_full_identity
from tidemark import (
    Batch,
    Change,
    ConfigError,
    DebeziumJson,
    Drop,
    FlatJson,
    Flatten,
    Mask,
    Rename,
    Route,
    SerializedBatch,
    SerializedChange,
    SerializedRecord,
    Serializer,
    SerializerFailed,
    TransactionBoundary,
)
from tidemark.decode.render.debezium import DebeziumLines
from tidemark.io.host.clock import SystemClock
from tidemark.model.change import ChangeBatch
from tidemark.model.lsn import Oid
from tidemark.model.relation import Align, TypeDescription, TypeKind
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, Unit
from tidemark.runtime.pool.pool_parts import PartHandler

NOW_NS = 1_700_000_000_123_456_789
ANN = {"id": 1, "name": "Ann", "email": "ann@x.org"}
ROWS: list[SampleRow] = [
    ("i", None, ANN),
    ("u", ANN, {**ANN, "name": "Bea"}),
    ("u", ANN, {**ANN, "id": 2}),
    ("d", {"id": 2, "name": "Bea", "email": None}, None),
    ("c", None, {"id": 3}),
]
TABLE = with_full_identity(customers("id", "name", "email"))


def loaded(records: Sequence[SerializedRecord]) -> list[tuple[object, object]]:
    return [tuple(None if text is None else json.loads(text) for text in record[:2]) for record in records]  # type: ignore[misc]


def handled(*, takes_changes: bool, serializer: Serializer | None) -> list[Unit]:
    units: list[Unit] = []
    PendingBatch(batch_of(*ROWS, of=TABLE), None, Processing(takes_changes, serializer, SystemClock())).handle(
        units.append
    )
    return units


@pytest.mark.feature("A13")
@pytest.mark.parametrize(
    ("takes_changes", "serializer", "kind", "count"),
    [
        (False, None, Batch, 1),
        (False, DebeziumJson(), SerializedBatch, 1),
        (True, None, Change, 5),
        (True, DebeziumJson(), SerializedChange, 8),  # two tombstones, and the create of the new key
    ],
)
def test_a_handler_gets_what_handler_and_serializer_choose(
    takes_changes: bool,  # noqa: FBT001 - of the table
    serializer: Serializer | None,
    kind: type,
    count: int,
) -> None:
    units = handled(takes_changes=takes_changes, serializer=serializer)
    assert [type(unit) for unit in units] == [kind] * count


def test_after_an_error_the_handler_gets_the_unit_that_failed_and_no_earlier_one() -> None:
    seen: list[Unit] = []
    errors = [OSError("one"), OSError("two")]

    def handle(unit: Unit) -> None:
        seen.append(unit)
        if len(seen) >= 3 and errors:
            raise errors.pop()

    pending = PendingBatch(batch_of(*ROWS, of=TABLE), None, Processing(True, None, SystemClock()))
    for _ in range(2):
        with pytest.raises(OSError, match=r"one|two"):
            pending.handle(handle)
    pending.handle(handle)
    assert seen[2] is seen[3] is seen[4]
    assert [unit.position.ordinal for unit in seen] == [1, 2, 3, 3, 3, 4, 5]


async def _later(unit: object) -> None:
    """Handle nothing: the code of a coroutine has not run when a call returns it."""


def _rows(unit: object) -> Iterator[object]:
    yield unit


@pytest.mark.parametrize(("handle", "kind"), [(_later, "coroutine"), (_rows, "generator")])
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_handler_that_returns_code_which_has_not_run_has_not_handled_its_batch(
    handle: Callable[[object], object], kind: str
) -> None:
    def forwarding(unit: object) -> object:
        return handle(unit)

    expected = f"returned a {kind}, whose code has not run"
    for takes_changes in (False, True):
        pending = PendingBatch(batch_of(*ROWS, of=TABLE), None, Processing(takes_changes, None, SystemClock()))
        with pytest.raises(ConfigError, match=f"the handler {expected}"):
            pending.handle(forwarding)
    parts = PartHandler(forwarding, forwarding)
    with pytest.raises(ConfigError, match=f"the handler {expected}"):
        parts(batch_of(*ROWS, of=TABLE))
    with pytest.raises(ConfigError, match=f"on_event {expected}"):
        parts(TransactionBoundary.__new__(TransactionBoundary))


def test_a_serializer_that_fails_once_loses_nothing() -> None:
    class FailingOnce(Serializer):
        failures = 1

        def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
            if self.failures:
                self.failures = 0
                raise OSError("away")
            return FlatJson().records(batch, now_ns)

    units: list[Unit] = []
    pending = PendingBatch(batch_of(*ROWS, of=TABLE), None, Processing(False, FailingOnce(), SystemClock()))
    with pytest.raises(OSError, match="away"):
        pending.handle(units.append)
    pending.handle(units.append)
    assert len(units) == 1


@pytest.mark.feature("A14")
@pytest.mark.feature("P14")
def test_values_have_the_bytes_of_the_lines_that_cdcctl_prints() -> None:
    batch = batch_of(*ROWS, of=TABLE)
    lines = DebeziumLines({DATABASE: "shop"}, version=DebeziumJson()._version, now_ns=lambda: NOW_NS)  # noqa: SLF001
    printed = lines_in(lines.lines(group(4096, [ChangeBatch(DATABASE, TABLE, batch.arrow)])))
    records = DebeziumJson(tombstones=False).records(batch, NOW_NS)
    assert [record.value for record in records] == [bytes(line).rstrip(b"\n") for line in printed]


@pytest.mark.parametrize("serializer", [DebeziumJson(), DebeziumJson(schemas=True), FlatJson(tombstones=False)])
def test_records_are_made_in_any_selection_as_in_a_whole_iteration(serializer: Serializer) -> None:
    many = [row for number in range(1000) for row in (*ROWS, ("i", None, {**ANN, "name": "x" * (number % 700)}))]
    records = serializer.records(batch_of(*many, of=TABLE), NOW_NS)  # several blocks of lines
    made = list(records)
    assert len(made) == len(records)
    assert [record.row for record in made] == sorted(record.row for record in made)
    assert {record.row for record in made} == set(range(len(many)))
    assert records[:] == made
    for chosen in (slice(3, 20_000, 7), slice(None, 2), slice(4, 4), slice(-5, None)):
        assert records[chosen] == made[chosen]
    assert (records[0], records[-1], records[4999]) == (made[0], made[-1], made[4999])
    with pytest.raises(IndexError):
        records[len(made)]


def test_rows_that_have_no_line_have_no_record() -> None:
    rewritten = batch_of(("r", None, ANN), of=TABLE)
    assert list(DebeziumJson().records(rewritten, NOW_NS)) == []
    mixed = batch_of(("r", None, ANN), ("i", None, ANN), ("r", None, ANN), of=TABLE)
    (record,) = DebeziumJson().records(mixed, NOW_NS)
    assert record.row == 1


@pytest.mark.feature("P14")
def test_debezium_records_have_keys_and_tombstones() -> None:
    found = loaded(DebeziumJson(name="shop").records(batch_of(*ROWS, of=TABLE), NOW_NS))
    shown = [(key, value if value is None else (value["op"], value["before"], value["after"])) for key, value in found]  # type: ignore[index]
    assert shown == [
        ({"id": 1}, ("c", None, ANN)),
        ({"id": 1}, ("u", ANN, {**ANN, "name": "Bea"})),
        ({"id": 1}, ("d", ANN, None)),
        ({"id": 1}, None),
        ({"id": 2}, ("c", None, {**ANN, "id": 2})),
        ({"id": 2}, ("d", ROWS[3][1], None)),
        ({"id": 2}, None),
        ({"id": 3}, ("r", None, {"id": 3, "name": None, "email": None})),
    ]
    assert found[0][1]["source"]["name"] == "shop"  # type: ignore[index]


@pytest.mark.feature("P14")
def test_flat_records_have_the_row_alone() -> None:
    records = FlatJson().records(batch_of(*ROWS, of=TABLE), NOW_NS)
    assert loaded(records)[:2] == [
        ({"id": 1}, {**ANN, "__op": "i", "__deleted": False}),
        ({"id": 1}, {**ANN, "name": "Bea", "__op": "u", "__deleted": False}),
    ]
    assert loaded(records)[2:7] == [
        ({"id": 1}, {**ANN, "__op": "d", "__deleted": True}),  # its key changed
        ({"id": 1}, None),
        ({"id": 2}, {**ANN, "id": 2, "__op": "i", "__deleted": False}),
        ({"id": 2}, {"id": 2, "name": "Bea", "email": None, "__op": "d", "__deleted": True}),
        ({"id": 2}, None),
    ]
    assert [record.row for record in records] == [0, 1, 2, 2, 2, 3, 3, 4]


def test_flat_records_have_rows_of_every_op() -> None:
    rows = batch_of(("r", None, ANN), ("s", None, ANN), of=TABLE)
    assert [value["__op"] for _, value in loaded(FlatJson().records(rows, NOW_NS))] == ["r", "s"]  # type: ignore[index]


@pytest.mark.parametrize("name", ["__op", "__deleted"])
def test_a_column_with_the_name_of_a_field_of_flat_records_is_refused_until_it_is_renamed(name: str) -> None:
    table = customers("id", name)
    batch = batch_of(("i", None, {"id": 1, name: "x"}), of=table)
    message = rf"FlatJson: public.customers has a column {name}, which is the name of a metadata field"
    with pytest.raises(SerializerFailed, match=message) as refused:
        FlatJson().records(batch, NOW_NS)
    assert f'Rename("public.customers.{name}"' in refused.value.hint
    (renamed,) = bound(Rename(f"public.customers.{name}", "op"), to=table).apply(batch)
    [(_, value)] = loaded(FlatJson().records(renamed, NOW_NS))
    assert value == {"id": 1, "op": "x", "__op": "i", "__deleted": False}


def test_a_table_without_a_key_has_records_without_keys_and_tombstones() -> None:
    keyless = replace(TABLE, primary_key=(), identity_columns=())
    for serializer in (DebeziumJson(), FlatJson()):
        assert {record.key for record in serializer.records(batch_of(*ROWS, of=keyless), NOW_NS)} == {None}
        assert all(record.value for record in serializer.records(batch_of(*ROWS, of=keyless), NOW_NS))


@pytest.mark.feature("P14")
@pytest.mark.parametrize("serializer", [DebeziumJson(tombstones=False), FlatJson(tombstones=False)])
def test_records_show_the_columns_and_the_name_after_transforms(serializer: Serializer) -> None:
    plan = bound(
        Rename("customers.id", "number"),
        Mask("customers.email", constant="-"),
        Drop("customers.name"),
        Route("sales.clients"),
        to=TABLE,
    )
    (batch,) = plan.apply(batch_of(ROWS[0], of=TABLE))
    ((key, value),) = loaded(serializer.records(batch, NOW_NS))
    assert key == {"number": 1}
    assert isinstance(value, dict)
    if "source" in value:
        assert (value["source"]["schema"], value["source"]["table"]) == ("sales", "clients")
        value = value["after"]
    assert {name: value[name] for name in value if not name.startswith("__")} == {"number": 1, "email": "-"}


def test_a_masked_value_has_the_form_of_its_new_type() -> None:
    interval = TypeDescription(Oid(1186), "pg_catalog", "interval", "interval", TypeKind.BASE, 16, False, Align.DOUBLE)
    number, _, waited = TABLE.columns
    table = replace(TABLE, columns=(number, replace(waited, name="waited", number=2, type=interval)))
    (batch,) = bound(Mask("customers.waited", constant="hidden"), to=table).apply(
        batch_of(("i", None, {"id": 1, "waited": "01:00:00"}), of=table)
    )
    ((_, value),) = loaded(DebeziumJson().records(batch, NOW_NS))
    assert value["after"] == {"id": 1, "waited": "hidden"}  # type: ignore[index]


def test_flat_rows_and_other_results_are_refused() -> None:
    (flat,) = bound(Flatten(), to=TABLE).apply(batch_of(*ROWS, of=TABLE))
    with pytest.raises(SerializerFailed, match=r"the rows of public\.customers are flat: omit Flatten"):
        DebeziumJson().records(flat, NOW_NS)


class Returning(Serializer):
    """Returns what a test says."""

    def __init__(self, returned: object) -> None:
        self._returned = returned

    def records(self, batch: Batch, now_ns: int) -> Sequence[SerializedRecord]:
        del batch, now_ns
        return self._returned  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "NoneType for public.customers, not a sequence of SerializedRecord"),
        ("text", "str for public.customers, not a sequence"),
        (iter(()), "tuple_iterator for public.customers, not a sequence"),
        ([(b"k", b"v", 0)], "for public.customers a tuple, not a SerializedRecord"),
        ([SerializedRecord("k", b"v", 0)], "for public.customers a key of the type str, not bytes or None"),  # type: ignore[arg-type]
        ((SerializedRecord(None, "v", 0),), "for public.customers a value of the type str, not bytes or None"),  # type: ignore[arg-type]
        ([SerializedRecord(b"k", None, b"secret")], "for public.customers a row of the type bytes, not int$"),  # type: ignore[arg-type]
        ([SerializedRecord(b"k", b"v", len(ROWS))], "for public.customers a record of the row 5, and the batch has 5"),
        ([SerializedRecord(b"k", b"v", -1)], "for public.customers a record of the row -1, and the batch has 5"),
    ],
)
def test_what_is_no_sequence_of_records_of_the_batch_is_refused(returned: object, message: str) -> None:
    with pytest.raises(SerializerFailed, match=f"Returning returned {message}"):
        Returning(returned).serialized(batch_of(*ROWS, of=TABLE), NOW_NS)


def test_no_record_and_several_ones_of_a_row_are_accepted() -> None:
    records = [SerializedRecord(b"k", None, 4), SerializedRecord(None, b"v", 4)]
    for accepted in ((), records, tuple(records)):
        assert Returning(accepted).serialized(batch_of(*ROWS, of=TABLE), NOW_NS).records == accepted


def test_no_rows_and_all_types_are_serialized() -> None:
    everything = customers()
    whole = {field.name: None for field in columns_of(everything)}
    assert loaded(FlatJson().records(batch_of(("i", None, {"id": 1}), of=everything), 0))[0][1] == {
        **whole,
        "id": 1,
        "__op": "i",
        "__deleted": False,
    }
