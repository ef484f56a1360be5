"""A change that a handler fails on is found alone, whatever else a batch has; everything else is handled, in order."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.groups import DATABASE, batch, relation
from tests.unit.plugins.test_group_transforms import EPOCH, altered
from tidemark.engine.pool.batch import Batch
from tidemark.engine.pool.poison import CallParts, PartItem
from tidemark.model.errors import ConsumerFailed
from tidemark.model.poison import PoisonChange

Place = tuple[int, int]  # commit LSN, ordinal


def batch_at(lsn: int, count: int) -> Batch:
    rows = batch(lsn, range(count)).rows
    return Batch.of("shop", relation(), EPOCH, rows, DATABASE)


def places(items: Sequence[PartItem]) -> list[Place]:
    found = [at for item in items if isinstance(item, Batch) for at in item.positions()]
    return [(at.commit_lsn, at.ordinal) for at in found]


def handled(parts: CallParts, poison: frozenset[Place], *, names: bool = False) -> tuple[list[Place], list[Place], int]:
    """Hand everything over to a handler that fails as a transaction: all of a call, or nothing. Return what it has,
    what was left out, and the number of calls."""
    done: list[Place] = []
    left_out: list[Place] = []
    calls = 0
    while (part := parts.first) is not None:
        calls += 1
        found = [at for at in places(part.items) if at in poison]
        if not found:
            done += places(part.items)
            parts.finish()
            continue
        error: Exception = ValueError("a value")
        if names:
            rows = [(at, number) for number, item in enumerate(part.items) for at in places([item])]
            item = next(number for at, number in rows if at == found[0])
            error = PoisonChange(places([part.items[item]]).index(found[0]), item=item)
        if parts.narrow(error):
            continue
        assert parts.can_isolate(error)
        isolated = parts.isolate(error)
        left_out += places([isolated] if isolated is not None else [])
    return done, left_out, calls


@pytest.mark.feature("P16")
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.sets(st.tuples(st.integers(0, 3), st.integers(1, 12)), max_size=6),
    st.booleans(),
)
def test_exactly_the_changes_that_fail_are_left_out_and_the_others_keep_their_order(
    sizes: list[int],
    chosen: set[Place],
    names: bool,  # noqa: FBT001 - given
) -> None:
    items = [batch_at(100 * (at + 1), count) for at, count in enumerate(sizes)]
    everything = places(items)
    poison = frozenset((100 * (at + 1), ordinal) for at, ordinal in chosen) & {*everything}
    done, left_out, _ = handled(CallParts(tuple(items)), poison, names=names)
    assert done == [at for at in everything if at not in poison]
    assert left_out == [at for at in everything if at in poison]


@pytest.mark.feature("P16")
def test_one_change_of_many_is_found_in_as_many_calls_as_the_halves_need() -> None:
    *_, calls = handled(CallParts((batch_at(100, 1024),)), frozenset({(100, 700)}))
    assert calls <= 2 * 10 + 1
    *_, calls = handled(CallParts((batch_at(100, 1024),)), frozenset({(100, 700)}), names=True)
    assert calls == 3


def test_a_part_of_several_changes_is_divided_at_once_and_a_single_one_has_its_retries() -> None:
    parts = CallParts((batch_at(100, 3),))
    error = ValueError("a value")
    assert not parts.narrow(error), "the whole batch has its retries"
    assert parts.isolate(error) is None
    assert parts.first is not None
    assert (parts.first.size, parts.narrow(error)) == (1, False)
    parts.finish()
    assert parts.first.size == 2
    assert parts.narrow(error)
    assert not parts.narrow(error)


def test_errors_that_are_not_of_a_change_are_final() -> None:
    assert not CallParts((batch_at(100, 3),)).can_isolate(ConsumerFailed("the target is gone"))
    event = altered(None, relation())
    assert not CallParts((event,)).can_isolate(ValueError("a value"))
    assert not CallParts(()).can_isolate(ValueError("a value"))
    assert CallParts((event, batch_at(100, 1))).can_isolate(ValueError("a value"))


@pytest.mark.parametrize("error", [PoisonChange(3), PoisonChange(-1), PoisonChange(0, item=1), PoisonChange(0, item=2)])
def test_a_handler_that_names_a_change_which_it_was_not_called_with_is_refused(error: PoisonChange) -> None:
    parts = CallParts((batch_at(100, 3), altered(None, relation())))
    with pytest.raises(
        ConsumerFailed, match=r"the handler raised PoisonChange for change -?\d of item \d, which it did"
    ):
        parts.isolate(error)
