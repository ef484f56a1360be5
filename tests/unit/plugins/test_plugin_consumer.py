"""A plug-in as a consumer of groups: batches, records, confirmation, and faults."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from tests.support.forged.groups import DATABASE, batch, position, relation
from tests.support.plugins.bad_plugins import AcceptingConsumer, SilentSerializer
from tests.unit.plugins.test_group_transforms import EPOCH, altered, group_of, transforms_of
from tidemark import Batch, Delivery, FlatJson, Mask, Route, SerializedBatch, Transform
from tidemark.io.host.clock import SystemClock
from tidemark.model.change import ChangeGroup, GroupItem, LogicalMessage, PartitionChange, PartitionEvent, Truncation
from tidemark.model.errors import ConsumerFailed, ExitCode
from tidemark.model.lsn import Lsn, SystemIdentifier, Xid
from tidemark.model.position import Partition, Position
from tidemark.runtime.plugins.plugin_consumer import PluginConsumer
from tidemark.serializers.serializer import Serializer, SerializerFailed
from tidemark.transforms.transform import BadTransform

if TYPE_CHECKING:
    from tidemark.runtime.plugins.poison_handling import PoisonHandling

PARTITION = Partition(SystemIdentifier(7))


class AnsweringConsumer(AcceptingConsumer):
    """Answers each delivery as it was told."""

    def __init__(self, *answers: object) -> None:
        super().__init__()
        self._answers = list(answers)

    def on_delivery(self, delivery: Delivery) -> bool:
        super().on_delivery(delivery)
        return self._answers.pop(0)  # type: ignore[return-value]


def consumer_of(
    plugin: AcceptingConsumer, *transforms: Transform, serializer: Serializer | None = None
) -> PluginConsumer:
    made = PluginConsumer(plugin, transforms_of(*transforms), serializer, SystemClock())
    made.on_assigned(PARTITION, EPOCH, group_of().last)
    return made


def test_a_group_is_delivered_as_batches_and_events_in_order_with_its_position() -> None:
    plugin = AcceptingConsumer()
    event = altered(None, relation())
    made = consumer_of(plugin, Mask("public.account.note"), Route("accounts", tables="public.account"))
    assert made.on_events(iter([group_of(event, batch(100, [1, 2]))])) is True
    (delivery,) = plugin.delivered
    first, second = delivery.items
    assert first == event
    assert isinstance(second, Batch)
    assert (second.table, second.database, second.epoch) == ("accounts", "shop", EPOCH)
    assert [change.after for change in second] == [{"id": 1, "note": None}, {"id": 2, "note": None}]
    assert delivery.position == position(100, 9)


def test_with_transforms_neither_events_nor_batches_have_constants_of_columns() -> None:
    table, partition = relation(missing=b"a constant"), relation("account_2026", 5, missing=b"a constant")
    at, lsn, xid = position(100), Lsn(99), Xid(700)
    items: list[GroupItem] = [
        altered(table, table),
        PartitionEvent(at, lsn, DATABASE, xid, PartitionChange.DETACH, table, partition),
        Truncation(at, lsn, DATABASE, xid, table, cascade=False, restart_identity=False),
        LogicalMessage(at, lsn, DATABASE, xid, transactional=True, prefix="p", content=b"c"),
        batch(100, [1], of=table),
        batch(100, [1], of=partition),  # no transform matches it
    ]
    plugin = AcceptingConsumer()
    consumer_of(plugin, Mask("public.account.note")).on_events(iter([group_of(*items)]))
    consumer_of(plugin).on_events(iter([group_of(*items)]))
    masked, plain = plugin.delivered
    assert "a constant" not in repr(masked.items)
    assert [part is item for part, item in zip(plain.items, items[:4], strict=False)] == [True] * 4
    assert masked.items[3] is items[3]


def test_a_call_takes_one_group_so_that_an_error_repeats_no_other() -> None:
    plugin = AcceptingConsumer()
    groups = iter([group_of(batch(100, [1])), group_of(batch(200, [2]))])
    assert consumer_of(plugin).on_events(groups) is True
    assert len(plugin.delivered) == 1
    assert next(groups, None) is not None


def test_without_a_group_the_plugin_may_confirm() -> None:
    plugin = AnsweringConsumer(False, True)
    made = consumer_of(plugin)
    assert made.on_events(iter([group_of(batch(100, [1]))])) is False
    assert made.on_events(iter([])) is True
    assert [len(delivery.items) for delivery in plugin.delivered] == [1, 0]


def test_another_answer_than_true_and_false_is_an_error() -> None:
    with pytest.raises(ConsumerFailed, match=r"AnsweringConsumer.on_delivery returned NoneType"):
        consumer_of(AnsweringConsumer(None)).on_events(iter([group_of(batch(100, [1]))]))


def test_a_serializer_makes_the_records() -> None:
    plugin = AcceptingConsumer()
    consumer_of(plugin, serializer=FlatJson()).on_events(iter([group_of(batch(100, [1]))]))
    (item,) = plugin.delivered[0].items
    assert isinstance(item, SerializedBatch)
    assert [record.key for record in item] == [b'{"id":1}']


def test_a_serializer_that_returns_nothing_is_an_error_of_its_own() -> None:
    with pytest.raises(SerializerFailed, match=r"SilentSerializer returned NoneType for public.account") as raised:
        consumer_of(AcceptingConsumer(), serializer=SilentSerializer()).on_events(iter([group_of(batch(100, [1]))]))
    assert raised.value.exit_code is ExitCode.CONSUMER_FAILED


def test_a_version_that_the_transforms_do_not_fit_is_refused_when_it_is_announced() -> None:
    with pytest.raises(BadTransform, match=r"public.account has no column mail"):
        consumer_of(AcceptingConsumer(), Mask("public.account.mail")).on_schema(altered(None, relation()))


def test_the_calls_reach_the_plugin() -> None:
    class Counted(AcceptingConsumer):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []

        def on_revoked(self) -> bool:
            self.calls.append("revoked")
            return True

        def stop(self) -> None:
            self.calls.append("stop")

    plugin = Counted()
    made = consumer_of(plugin)
    assert made.alive()
    assert made.on_revoked(PARTITION) is True
    made.stop()
    assert plugin.calls == ["revoked", "stop"]
    AcceptingConsumer().stop()
    assert AcceptingConsumer().on_revoked() is False, "by default"


class ChoosyConsumer(AnsweringConsumer):
    """Cannot handle some rows."""

    def __init__(self, refuses: Sequence[int], *answers: object) -> None:
        super().__init__(*answers)
        self.refuses = {*refuses}

    def on_delivery(self, delivery: Delivery) -> bool:
        rows = [change.after for item in delivery.items if isinstance(item, Batch) for change in item]
        if any(row is not None and row["id"] in self.refuses for row in rows):
            raise KeyError("a value")
        return super().on_delivery(delivery)


class LeavingOut:
    """Keeps what is left out."""

    isolates = True
    may_confirm = True
    found = 0

    def __init__(self) -> None:
        self.left_out: list[Batch] = []

    def handled(self, found: int) -> None:
        pass

    def leave_out(self, poison: Batch, error: Exception) -> None:
        assert isinstance(error, KeyError)
        self.left_out.append(poison)


def delivered_around(
    plugin: ChoosyConsumer, group: ChangeGroup, start: Position | None = None
) -> tuple[bool, list[object]]:
    """Deliver a group with all its narrowing; return the answer, and the ids that were left out."""
    poison = LeavingOut()
    made = PluginConsumer(plugin, transforms_of(), None, SystemClock(), poison=cast("PoisonHandling", poison))
    made.on_assigned(PARTITION, EPOCH, replace(group_of().last, position=start or position(1)))
    while (answer := answer_of(made, group)) is None:
        pass
    return answer, [change.after["id"] for each in poison.left_out for change in each if change.after]


def answer_of(made: PluginConsumer, group: ChangeGroup) -> bool | None:
    """Return the answer to a group, None if the call failed and something was isolated."""
    try:
        return bool(made.on_events(iter([group])))
    except KeyError as error:
        if not made.isolate(error):
            raise
        return None


@pytest.mark.feature("P16")
def test_parts_of_a_group_have_the_position_of_their_end_and_the_last_one_that_of_the_group() -> None:
    plugin = ChoosyConsumer([2], *[True] * 9)
    group = group_of(batch(100, [1, 2, 3, 4]))
    assert delivered_around(plugin, group) == (True, [2])
    assert [delivery.position for delivery in plugin.delivered] == [position(100, 1), position(100, 9)]
    assert [len(item) for delivery in plugin.delivered for item in delivery.items if isinstance(item, Batch)] == [1, 2]


@pytest.mark.feature("P16")
def test_parts_of_a_first_copy_move_no_position() -> None:
    plugin = ChoosyConsumer([1], *[True] * 9)
    delivered_around(plugin, group_of(batch(100, [1, 2, 3])), position(100, 9))
    assert {delivery.position for delivery in plugin.delivered} == {position(100, 9)}


@pytest.mark.feature("P16")
def test_a_group_that_ends_with_what_is_left_out_is_confirmed_by_the_plugin() -> None:
    plugin = ChoosyConsumer([2, 3], True, False)
    assert delivered_around(plugin, group_of(batch(100, [1, 2, 3]))) == (False, [2, 3])
    assert [len(delivery.items) for delivery in plugin.delivered] == [1, 0], "it is asked once more"


def test_without_a_policy_nothing_is_isolated() -> None:
    made = consumer_of(ChoosyConsumer([1]))
    with pytest.raises(KeyError):
        made.on_events(iter([group_of(batch(100, [1]))]))
    assert not made.isolate(KeyError("a value"))
    assert made.retry_parked() is False
