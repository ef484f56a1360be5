"""Changed transforms are announced in the stream: once for a table, before its first rows of another form."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.forged.deliveries import SELECTED_TABLES
from tests.support.forged.groups import DATABASE, batch, group, position, relation
from tests.support.servers.histories import empty_history
from tidemark import Mask, OnRow, Secret, Transform
from tidemark.engine.pool.stop_condition import StopSearch, StopWhen
from tidemark.engine.progress import Progress
from tidemark.engine.selection import Selection
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.model.change import (
    ChangeBatch,
    ChangeGroup,
    CopyBoundary,
    GroupItem,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
)
from tidemark.model.lsn import FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Epoch, Pointer
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.sinks.steps import Delivered, steps
from tidemark.runtime.delivery.delivery import OutboxTarget
from tidemark.runtime.delivery.mapped_target import MappedTarget
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.runtime.plugins.transform_changes import TransformChanges
from tidemark.wire.keys import named
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.state_keys import BEGINNING, TRANSFORMED
from tidemark.wire.state.transformed_tables import TransformedTables
from tidemark.wire.state.values import Beginning
from tidemark.wire.values import ValueKind

pytestmark = pytest.mark.feature("P15")
ACCOUNT, PERSON = relation(), relation("person", 16390)
THIRD = relation("third", 16391)
HASHED = Mask("public.*.note", key=Secret(b"0123456789abcdef"))
HASHED_OTHERWISE = Mask("public.*.note", key=Secret(b"0123456789abcdeg"))
COPYING = CopyProgress(CopyPhase.COPYING, 1)
SELECTION = Selection(tables=("public.*",))


def part(first: int, last: int) -> ChangeGroup:
    """Return a part of a transaction at 800, with the ordinals from the first to the last."""
    whole = batch(800, range(last))
    rows = ChangeBatch(whole.database, whole.relation, whole.rows.slice(first - 1))
    end = Pointer(position(800, last), Lsn(792))
    return ChangeGroup(position(800, first), end, [rows], (), last - first + 1, 100)


class Starts:
    """Starts of one capture into one outbox, each with its transforms."""

    def __init__(self, store: StateStore, epoch: Epoch) -> None:
        self._store = store
        self._epoch = epoch

    def target(self, *transforms: Transform, tables: Sequence[Relation] = (ACCOUNT, PERSON)) -> MappedTarget:
        """Return the target of a start, with tables in its catalogs."""
        bound, changes = self.changes(*transforms, tables=tables)
        outbox = OutboxTarget(
            self._store,
            self._epoch,
            history=empty_history(self._store),
            records=[SELECTED_TABLES, changes],
            progress=Progress(delivered=self._store.marks().start),
            metrics=Metrics("main"),
            log=get_log("test"),
            stopping=threading.Event(),
        )
        transformed = MappedTarget(outbox, streamed=bound.apply, copied=bound.apply)
        return MappedTarget(transformed, streamed=changes.announced, copied=changes.noted)

    def changes(
        self, *transforms: Transform, tables: Sequence[Relation] = (ACCOUNT, PERSON), follows: bool = False
    ) -> tuple[GroupTransforms, TransformChanges]:
        """Return the transforms of a start, and what changed since the one before."""
        bound = GroupTransforms(transforms, TypeMapping(), self._epoch, {DATABASE: "shop"})
        present = [(DATABASE, table) for table in tables]
        changes = TransformChanges.since(self._store, self._epoch, bound, present, SELECTION.selects, follows=follows)
        assert changes is not None, "there is something to compare"
        return bound, changes

    def items(self) -> list[GroupItem]:
        """Return what is in the outbox, without the ends of transactions."""
        with OutboxReader.open(self._store.folder) as reader:
            values = list(reader.read(reader.ledger().trimmed, reader.head()))
            return [value.item() for value in values if value.header.kind is not ValueKind.TRANSACTIONS]

    def announced(self) -> list[tuple[str, int]]:
        """Return the tables that events name, with the LSNs of the events, in the order of the stream."""
        found = [item for item in self.items() if isinstance(item, SchemaEvent)]
        events = [item for item in found if item.effect is SchemaEffect.TRANSFORMS]
        assert all(event.before == event.after and event.change is SchemaChange.ALTER for event in events)
        return [(event.after.name if event.after else "", event.position.commit_lsn) for event in events]


@pytest.fixture
def starts(store: StateStore, epoch: Epoch) -> Starts:
    start = store.marks().start
    assert start is not None
    with store.transaction(epoch) as transaction:
        transaction.put(BEGINNING, Beginning(TimelineId(1), Lsn(start.position.commit_lsn + 1), FullXid(3), {}))
    return Starts(store, epoch)


def rows(lsn: int, *tables: Relation) -> ChangeGroup:
    return group(lsn, [batch(lsn, [lsn], of=table) for table in tables])


def schema_event(lsn: int, before: Relation | None, after: Relation | None) -> SchemaEvent:
    change = SchemaChange.CREATE if before is None else SchemaChange.ALTER
    return SchemaEvent(position(lsn), Lsn(lsn), DATABASE, Xid(7), change, SchemaEffect.METADATA, before, after)


def test_a_table_is_announced_once_before_its_first_rows_of_another_form(starts: Starts) -> None:
    starts.target(HASHED).deliver(rows(104, ACCOUNT, PERSON))
    second = starts.target(HASHED_OTHERWISE)
    second.deliver(rows(208, ACCOUNT))
    second.deliver(rows(304, ACCOUNT))
    assert starts.announced() == [("account", 207)]
    third = starts.target(HASHED_OTHERWISE)
    third.deliver(rows(400, ACCOUNT, PERSON))
    assert starts.announced() == [("account", 207), ("person", 399)]
    starts.target(HASHED_OTHERWISE).deliver(rows(504, ACCOUNT, PERSON))
    assert len(starts.announced()) == 2
    kinds = [type(item) for item in starts.items()]
    assert kinds.index(SchemaEvent) == 2, "behind the rows of the first start, before those of the second"


def test_only_tables_whose_own_transforms_changed_are_announced(starts: Starts) -> None:
    masks = Mask("public.account.note", constant="-"), Mask("public.person.note", constant="-")
    starts.target(*masks).deliver(rows(104, ACCOUNT, PERSON))
    starts.target(masks[0], Mask("public.person.note")).deliver(rows(208, ACCOUNT, PERSON))
    assert starts.announced() == [("person", 207)]


def test_the_first_and_the_last_transform_of_a_table_are_announced(starts: Starts) -> None:
    starts.target(Mask("public.person.note")).deliver(rows(104, ACCOUNT))
    starts.target(HASHED).deliver(rows(208, ACCOUNT))
    starts.target(tables=[ACCOUNT]).deliver(rows(304, ACCOUNT, PERSON))
    assert starts.announced() == [("account", 207), ("account", 303), ("person", 303)]


def test_another_lambda_is_announced_and_one_whose_closure_has_no_description_at_each_start(starts: Starts) -> None:
    starts.target(OnRow(lambda change: change, operations="r")).deliver(rows(104, ACCOUNT))
    starts.target(OnRow(lambda change: change, operations="r")).deliver(rows(208, ACCOUNT))
    assert starts.announced() == []
    starts.target(OnRow(lambda _: None, operations="r")).deliver(rows(304, ACCOUNT))
    assert starts.announced() == [("account", 303)]
    lock = threading.Lock()
    for lsn in (400, 504):
        target = starts.target(OnRow(lambda change: change if lock else None, operations="r"))
        target.deliver(rows(lsn, ACCOUNT))
        target.deliver(rows(lsn + 8, ACCOUNT))
    assert starts.announced() == [("account", 303), ("account", 399), ("account", 503)]


def test_without_transforms_before_and_now_nothing_is_compared(store: StateStore, epoch: Epoch) -> None:
    bound = GroupTransforms((), TypeMapping(), epoch, {DATABASE: "shop"})
    assert TransformChanges.since(store, epoch, bound, [(DATABASE, ACCOUNT)], SELECTION.selects) is None
    with store.reading() as transaction:
        recorded = transaction.get(TRANSFORMED)
    assert recorded is not None, "so that a first list is noticed"


def test_a_new_table_and_one_that_is_copied_have_no_rows_of_another_form(starts: Starts) -> None:
    starts.target(HASHED, tables=[]).deliver(group(104, [schema_event(104, None, ACCOUNT), batch(105, [1])]))
    second = starts.target(HASHED_OTHERWISE, tables=[ACCOUNT])
    boundary = CopyBoundary(position(200, 1 << 32), DATABASE, ACCOUNT, 1, True, "")
    second.deliver_copied(group(200, [boundary]), (DATABASE, Oid(ACCOUNT.oid), COPYING))
    second.deliver(group(208, [schema_event(208, None, PERSON), batch(209, [1]), batch(209, [2], of=PERSON)]))
    starts.target(HASHED_OTHERWISE).deliver(rows(304, ACCOUNT, PERSON))
    assert starts.announced() == []
    starts.target(HASHED).deliver(rows(400, ACCOUNT, PERSON))
    assert starts.announced() == [("account", 399), ("person", 399)]


def test_a_rename_by_which_other_transforms_match_is_no_changed_list(starts: Starts) -> None:
    masks = Mask("public.account.note", constant="-"), Mask("public.client.note", constant="+")
    renamed = replace(ACCOUNT, name="client")
    starts.target(*masks).deliver(rows(104, ACCOUNT))
    second = starts.target(*masks)
    second.deliver(group(208, [schema_event(208, ACCOUNT, renamed), batch(209, [1], of=renamed)]))
    starts.target(*masks, tables=[renamed]).deliver(rows(304, renamed))
    assert starts.announced() == []
    starts.target(masks[0], tables=[renamed]).deliver(group(400, [schema_event(400, renamed, ACCOUNT)]))
    assert starts.announced() == [("client", 399)]


def test_what_was_not_stored_is_announced_again(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    starts.target(HASHED).deliver(rows(104, ACCOUNT))
    killed = starts.target(HASHED_OTHERWISE)
    with monkeypatch.context() as patch:
        patch.setattr("tidemark.io.state.state_transaction.StateTransaction.deliver", raising)
        with pytest.raises(OSError, match="killed"):
            killed.deliver(rows(208, ACCOUNT))
    assert starts.announced() == []
    starts.target(HASHED_OTHERWISE).deliver(rows(208, ACCOUNT))
    assert starts.announced() == [("account", 207)]


def raising(*_: object) -> None:
    raise OSError("killed")


def test_after_a_damaged_or_missing_record_each_table_is_announced_once(starts: Starts, store: StateStore) -> None:
    starts.target(HASHED).deliver(rows(104, ACCOUNT))
    with store.environment.write() as transaction:
        transaction.put(named(store.scope, TRANSFORMED.name), b"rubbish", db=store.environment.database("state"))
    starts.target(HASHED).deliver(rows(208, ACCOUNT))
    assert starts.announced() == [("account", 207)]
    starts.target(HASHED).deliver(rows(304, ACCOUNT))
    starts.target(HASHED).deliver(rows(400, ACCOUNT, PERSON))
    assert starts.announced() == [("account", 207), ("person", 399)]
    with store.transaction(None) as transaction:
        transaction.drop(TRANSFORMED)
    starts.target(HASHED).deliver(group(504, [schema_event(504, None, THIRD), batch(505, [1], of=THIRD)]))
    starts.target(HASHED, tables=[ACCOUNT, PERSON, THIRD]).deliver(rows(600, ACCOUNT, THIRD))
    assert starts.announced() == [("account", 207), ("person", 399), ("account", 599)]


def test_the_end_of_all_transforms_is_announced_in_a_rebuilt_state_and_after_a_promotion(
    starts: Starts, store: StateStore, epoch: Epoch
) -> None:
    starts.target(HASHED).deliver(rows(104, ACCOUNT))
    with store.transaction(None) as transaction:
        transaction.put(TRANSFORMED, TransformedTables(is_lost=True))
    starts.target().deliver(rows(208, ACCOUNT))
    assert starts.announced() == [("account", 207)]
    with store.transaction(None) as transaction:
        transaction.drop(TRANSFORMED)
    _, changes = starts.changes(HASHED, follows=True)
    with store.transaction(epoch) as transaction:
        changes.record(transaction, [changes.noted(group(208, []))])
    starts.target().deliver(rows(304, ACCOUNT))
    assert starts.announced() == [("account", 207), ("account", 303)]
    starts.target().deliver(rows(400, ACCOUNT, PERSON))
    assert starts.announced()[2:] == [("person", 399)], "its turn, and nothing twice"


def test_a_follower_records_the_list_of_its_start_and_a_changed_one_is_announced_after_the_promotion(
    starts: Starts, store: StateStore, epoch: Epoch
) -> None:
    starts.target(HASHED).deliver(rows(104, ACCOUNT))  # of another host: this state has its position, and no record
    with store.transaction(None) as transaction:
        transaction.drop(TRANSFORMED)
    for transforms, created in (((HASHED,), PERSON), ((HASHED_OTHERWISE,), None)):
        _, changes = starts.changes(*transforms, tables=[ACCOUNT], follows=True)
        followed = group(208, [] if created is None else [schema_event(208, None, created)])
        with store.transaction(epoch) as transaction:
            changes.record(transaction, [changes.noted(followed)])
    starts.target(HASHED).deliver(rows(304, ACCOUNT, PERSON))
    assert starts.announced() == []
    starts.target(HASHED_OTHERWISE).deliver(rows(400, ACCOUNT, PERSON))
    assert starts.announced() == [("account", 399), ("person", 399)]


def test_in_a_divided_transaction_the_event_waits_for_the_next_one(starts: Starts) -> None:
    starts.target(HASHED).deliver(part(1, 2))
    second = starts.target(HASHED_OTHERWISE)
    second.deliver(part(3, 4))
    second.deliver(part(5, 6))
    assert starts.announced() == []
    second.deliver(rows(904, ACCOUNT))
    assert starts.announced() == [("account", 903)]
    items = [item for item in starts.items() if isinstance(item, ChangeBatch | SchemaEvent)]
    delivered = [Delivered(OutboxSequence(number), item) for number, item in enumerate(items, 1)]
    assert len(steps(delivered, Applied(OutboxSequence(0), position(8)))) == 3


def test_a_stop_before_the_first_row_behind_an_event_confirms_no_earlier_position(starts: Starts) -> None:
    starts.target(HASHED).deliver(part(1, 2))
    _, changes = starts.changes(HASHED_OTHERWISE)
    before = Pointer(position(800, 2), Lsn(792))
    for following in (part(3, 4), rows(904, ACCOUNT)):
        cut = StopSearch(StopWhen.before(lambda _table, _change: True)).first_part(
            changes.announced(following), before, {}
        )
        assert cut is None or cut.last.position >= before.position


def test_a_consumer_that_confirms_late_is_told_once_although_the_table_was_renamed_meanwhile(
    starts: Starts, store: StateStore, epoch: Epoch
) -> None:
    masks = Mask("public.account.note", constant="-"), Mask("public.account.note", constant="+")
    starts.target(masks[0]).deliver(rows(104, ACCOUNT))
    _, changes = starts.changes(masks[1])
    told = changes.announced(rows(208, ACCOUNT))
    changes.announced(group(400, [schema_event(400, ACCOUNT, replace(ACCOUNT, name="client"))]))
    with store.transaction(epoch) as transaction:
        changes.record(transaction, [told])
    starts.target(masks[1]).deliver(rows(304, ACCOUNT))
    assert starts.announced() == []


def test_a_table_that_is_renamed_into_the_selection_has_no_rows_of_another_form(starts: Starts) -> None:
    starts.target(HASHED, tables=[ACCOUNT]).deliver(rows(104, ACCOUNT))
    hidden = replace(PERSON, namespace="hidden")
    starts.target(HASHED, tables=[ACCOUNT]).deliver(group(208, [schema_event(208, hidden, PERSON)]))
    starts.target(HASHED).deliver(rows(304, PERSON))
    assert starts.announced() == []
