"""Transforms compared with the same rules for one row, written in Python; and what a masked batch contains."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples.changed_rows import SampleRow, batch_of, bound, customers, rows_of, with_full_identity
from tidemark import ChangedFieldsOnly, Filter, Mask, Secret, Transform

TABLE = with_full_identity(customers("id", "name", "email"))
CANARY = "canary"
TEXTS = st.none() | st.text(max_size=6)
ROW = st.fixed_dictionaries({"id": st.integers(0, 3), "name": TEXTS, "email": TEXTS})
CHANGES: st.SearchStrategy[list[SampleRow]] = st.lists(
    st.one_of(
        ROW.map(lambda row: ("i", None, row)),
        ROW.map(lambda row: ("d", row, None)),
        st.tuples(st.just("u"), ROW, ROW),
    ),
    min_size=1,
    max_size=12,
)


@dataclass(frozen=True)
class KnownCondition:
    """A condition as SQL, and its value for an id: true, false or unknown."""

    sql: str
    for_id: tuple[bool | None, ...]


def leaves() -> st.SearchStrategy[KnownCondition]:
    comparisons = st.integers(-1, 4).flatmap(
        lambda n: st.sampled_from(
            [
                KnownCondition(f"id < {n}", tuple(number < n for number in range(4))),
                KnownCondition(f"id = {n}", tuple(number == n for number in range(4))),
                KnownCondition(f"id <> {n} + 0", tuple(number != n for number in range(4))),
            ]
        )
    )
    return comparisons | st.just(KnownCondition("id = NULL", (None,) * 4))


def branches(inner: st.SearchStrategy[KnownCondition]) -> st.SearchStrategy[KnownCondition]:
    def negated(one: KnownCondition) -> KnownCondition:
        return KnownCondition(f"NOT ({one.sql})", tuple(None if value is None else not value for value in one.for_id))

    def both(one: KnownCondition, other: KnownCondition) -> KnownCondition:
        values = tuple(
            False if False in pair else None if None in pair else True
            for pair in zip(one.for_id, other.for_id, strict=True)
        )
        return KnownCondition(f"({one.sql}) AND ({other.sql})", values)

    def either(one: KnownCondition, other: KnownCondition) -> KnownCondition:
        values = tuple(
            True if True in pair else None if None in pair else False
            for pair in zip(one.for_id, other.for_id, strict=True)
        )
        return KnownCondition(f"({one.sql}) OR ({other.sql})", values)

    return st.one_of(inner.map(negated), st.builds(both, inner, inner), st.builds(either, inner, inner))


def applied(transform: Transform, changes: list[SampleRow]) -> list[SampleRow]:
    batches = bound(transform, to=TABLE).apply(batch_of(*changes, of=TABLE))
    return [row for batch in batches for row in rows_of(batch)]


def known(changes: list[SampleRow]) -> list[SampleRow]:
    return rows_of(batch_of(*changes, of=TABLE))


@pytest.mark.feature("P15")
@given(CHANGES, st.recursive(leaves(), branches, max_leaves=8))
def test_a_filter_keeps_exactly_the_rows_for_which_the_condition_is_true(
    changes: list[SampleRow], condition: KnownCondition
) -> None:
    def is_true(row: SampleRow) -> bool:
        number = (row[2] or row[1] or {})["id"]
        assert isinstance(number, int)
        return condition.for_id[number] is True

    assert applied(Filter(condition.sql), changes) == [row for row in known(changes) if is_true(row)]


@pytest.mark.feature("P15")
@given(
    CHANGES,
    st.sampled_from(
        [
            Mask("customers.email"),
            Mask("customers.email", constant="x"),
            Mask("customers.email", key=Secret(b"0123456789abcdef")),
            Mask("customers.email", keep_first=1, keep_last=1),
        ]
    ),
)
def test_a_mask_leaves_no_masked_value_in_the_batch_and_everything_else_as_it_is(
    changes: list[SampleRow], mask: Mask
) -> None:
    def with_canary(side: SampleRow) -> SampleRow:
        op, before, after = side
        values = [
            None if row is None else {**row, "email": None if row["email"] is None else f"{CANARY}{row['email']}"}
            for row in (before, after)
        ]
        return op, values[0], values[1]

    canaries = [with_canary(change) for change in changes]
    (found,) = bound(mask, to=TABLE).apply(batch_of(*canaries, of=TABLE))
    for column in found.arrow.columns:
        for buffer in column.buffers():
            assert buffer is None or CANARY.encode() not in buffer.to_pybytes()
    without = [
        (op, *({key: value for key, value in (side or {}).items() if key != "email"} for side in (before, after)))
        for op, before, after in rows_of(found)
    ]
    assert without == [
        (op, *({key: value for key, value in (side or {}).items() if key != "email"} for side in (before, after)))
        for op, before, after in known(canaries)
    ]


@pytest.mark.feature("P15")
@given(CHANGES)
def test_changed_fields_and_the_old_row_give_the_new_row(changes: list[SampleRow]) -> None:
    (found,) = bound(ChangedFieldsOnly(), to=TABLE).apply(batch_of(*changes, of=TABLE))
    for change, (op, before, after) in zip(found, changes, strict=True):
        assert change.op.value == op
        if after is None:
            assert change.after is None
            continue
        assert change.after is not None
        old = before or {}
        assert {**change.after, **{name: old[name] for name in change.unchanged}} == after
        if op == "u":
            assert {*change.unchanged} == {name for name in ("name", "email") if old[name] == after[name]}
