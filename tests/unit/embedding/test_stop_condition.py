"""Where a condition divides a group: in the order of the stream, over all its tables, events included."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.groups import DATABASE, batch, group, message, position, relation
from tidemark import ConfigError, ConsumerFailed, Engine, Position, StopWhen
from tidemark.engine.pool.stop_condition import StopSearch
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.model.lsn import Lsn
from tidemark.model.position import Pointer

BEFORE = Pointer(position(50), Lsn(40))
NAMES = {DATABASE: "shop"}


def two_tables(lsns: Sequence[int]) -> ChangeGroup:
    """Return a group whose tables alternate: the first has the even places of the stream, the second the odd ones."""
    tables = relation("first", 16385), relation("second", 16386)
    items = [batch(lsn, [lsn], of=tables[place % 2]) for place, lsn in enumerate(lsns)]
    by_table = [*(item for item in items if item.relation is tables[1]), *items[::2]]
    return group(lsns[-1], by_table)


def positions_of(part: ChangeGroup | None) -> list[int]:
    batches = [item for item in (part.items if part is not None else ()) if isinstance(item, ChangeBatch)]
    return sorted(number for item in batches for number in item.rows.column("_commit_lsn").to_pylist())


@pytest.mark.feature("A37")
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6), count=st.integers(1, 40))
def test_after_n_changes_the_first_n_of_the_stream_are_delivered_however_they_are_grouped(
    sizes: Sequence[int], count: int
) -> None:
    search = StopSearch(StopWhen.after_changes(count))
    lsns = iter(range(100, 200))
    given: list[int] = []
    delivered: list[int] = []
    before = BEFORE
    for size in sizes:
        taken = [next(lsns) for _ in range(size)]
        given += taken
        if len(delivered) < count:
            whole = two_tables(taken)
            part = search.first_part(whole, before, NAMES)
            delivered += positions_of(part)
            if part is not None and part is not whole:
                assert part.last == Pointer(position(delivered[-1], 1), before.restart_lsn)
            before = whole.last
    assert delivered == given[:count]
    assert search.is_over == (len(given) >= count)


@pytest.mark.feature("A37")
@pytest.mark.parametrize(("make", "delivered"), [(StopWhen.before, [100]), (StopWhen.after, [100, 101])])
def test_a_change_that_meets_the_test_is_left_out_or_is_the_last_one(make: object, delivered: list[int]) -> None:
    asked: list[tuple[str, Position]] = []

    def is_second(table: str, change: object) -> bool:
        asked.append((table, change.position))  # type: ignore[attr-defined]
        return table == "public.second"

    search = StopSearch(make(is_second))  # type: ignore[operator]
    part = search.first_part(two_tables([100, 101, 102, 103]), BEFORE, NAMES)
    assert (positions_of(part), search.is_over) == (delivered, True)
    assert asked == [("public.first", position(100, 1)), ("public.second", position(101, 1))]


def test_events_before_the_cut_are_delivered_and_those_behind_it_are_not() -> None:
    early, late = message(60, b"early"), message(160, b"late")
    both = group(100, [early, batch(100, [1, 2]), late])
    part = StopSearch(StopWhen.before(lambda _table, _change: True)).first_part(both, BEFORE, NAMES)
    assert part is not None
    assert (part.items, part.last) == ([early], Pointer(position(60), BEFORE.restart_lsn))
    only = group(100, [batch(100, [1]), late])
    assert StopSearch(StopWhen.before(lambda _table, _change: True)).first_part(only, BEFORE, NAMES) is None


def test_without_a_condition_and_before_it_is_met_groups_stay_whole() -> None:
    given = two_tables([100, 101])
    never = StopWhen.after(lambda _table, _change: False)
    for condition in (None, never, StopWhen.after_changes(3)):
        search = StopSearch(condition)
        assert search.first_part(given, BEFORE, NAMES) is given
        assert not search.is_over


def test_a_test_that_raises_is_final_and_its_text_is_not_repeated() -> None:
    def raising(_table: str, _change: object) -> bool:
        raise ValueError("a value of a row")

    with pytest.raises(ConsumerFailed, match=r"the test of stop_when raised ValueError$"):
        StopSearch(StopWhen.after(raising)).first_part(two_tables([100]), BEFORE, NAMES)


def test_bad_conditions_are_refused() -> None:
    with pytest.raises(ConfigError, match="after_changes: count=0: must be a number greater than 0"):
        StopWhen.after_changes(0)
    with pytest.raises(ConfigError, match="stop_when=100: must be StopWhen"):
        Engine("postgresql://cdc@db/shop", state="s", handler=print, stop_when=100)  # type: ignore[arg-type]
